"""Routes: rows that go from the ranks that have them to experts, and come back. Which rows those are, data says."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.errors import DimensionError, Site


@dataclass(frozen=True)
class RouteWord:
    """What `tk.route` makes: a name for each side of the same rows. `sent`: the dimension in which they lie at the rank
    that they come from, its source, ordered by expert; `rows`: that in which they lie at the rank of their expert, its
    home, ordered by expert and then by source; `experts`: the dimension of the experts of a rank.

    A tile space over a route, `tk.tiles(route, x.cols)`, has tiles of rows that have one expert and one source; one
    over `route.experts` has tiles of the rows of one expert, whatever their source."""

    sent: str
    rows: str
    per_rank: str

    @property
    def sides(self) -> tuple[str, str]:
        """The dimensions of its rows."""
        return self.sent, self.rows

    @property
    def experts(self) -> ExpertsWord:
        """The experts of the route, as a tile space goes through them."""
        return ExpertsWord(self)

    def __repr__(self) -> str:
        return f"tk.route({self.sent!r}, {self.rows!r}, {self.per_rank!r})"


@dataclass(frozen=True)
class ExpertsWord:
    """The experts of a route."""

    route: RouteWord

    def __repr__(self) -> str:
        return f"{self.route}.experts"


def check_route(route: RouteWord, cut: frozenset[str], local: frozenset[str], site: Site) -> None:
    """Raises DimensionError. `cut`, `local`: the dimensions of a program's tensors that are cut over the ranks, and
    those that are not."""
    for dim in route.sides:
        if dim not in cut:
            raise DimensionError(
                f"{route}: {dim} is no dimension along which a tensor is cut over the ranks, tk.Sharded({dim!r}, ...)",
                site,
            )
    if route.per_rank not in local or len({route.sent, route.rows, route.per_rank}) < 3:
        raise DimensionError(
            f"{route}: {route.per_rank} has to be a dimension of its own, of a local tensor with an entry for each "
            f"expert of a rank, tk.Local({route.per_rank!r}, ...)",
            site,
        )
