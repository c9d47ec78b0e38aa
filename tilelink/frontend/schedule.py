"""Schedules: the resource of each role, its tiles, their order and the executing rank.

A schedule never changes a program's results. Only schedules have tile sizes, including the k step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from tilelink.errors import ScheduleError, Site, TileSizeError, listed, public, public_class, similar
from tilelink.frontend.orders import Order, check_order, natural, own_rank_first
from tilelink.language import launched

VIAS = ("load-store", "tma", "multicast")
STREAMS = ("peers", "one")
MOST_WARPS = 32
"""The most warps of a kernel: a block has at most 1,024 threads."""
SIGNALS = ("now", "late")
WAITS = ("whole", "pieces")
OWN = ("copied", "stored", "read")
CHOICES = {"via": VIAS, "signals": SIGNALS, "waits": WAITS, "own": OWN, "streams": STREAMS}
"""The allowed words of each field that takes one of some words; the first is the default."""


OF_ORDERS = {"group": "tk.grouped(8)", "columns": "tk.columns_first(1)", "by_rank": "tk.ranks_first()"}
"""Fields of an order, and how a schedule says them."""


def _meant(name: str, known: Collection[str]) -> str:
    """The end of an error about an unknown field of a role: which resources have the field, or what to write in its
    place, if that can be guessed."""
    kinds = _Fields.__subclasses__()
    if having := [f"tk.{kind.__name__}" for kind in kinds if name in _names(kind)]:
        return f"; {name}= is a field of {' and '.join(having)}"
    if (meant := similar(name, known)) or "order" not in known:
        return meant
    of_order = next((f for f in OF_ORDERS if name == f or similar(name, [f])), "")
    return of_order and f"; {of_order} is of an order: write order={OF_ORDERS[of_order]}"


def _names(kind: type) -> list[str]:
    return [f.name for f in fields(kind)]


class _Fields:
    """Base of dataclasses whose errors name the user's line."""

    @public
    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Raises ScheduleError for unknown fields, and for fields that are given twice."""
        known = _names(cls)
        unknown = [n for n in named if n not in known]
        if unknown or len(given) > len(known) or named.keys() & known[: len(given)]:
            said = ", ".join([*map(repr, given), *(f"{n}={v!r}" for n, v in named.items())])
            takes = ", ".join(f"{n}=" for n in known) + (", in this order" if len(known) > 1 else "")
            meant = _meant(unknown[0], known) if unknown else ""
            message = f"tk.{cls.__name__}({said}): it takes {takes}{cls.hint}{meant}"
            raise ScheduleError(message, Site.of_user())
        return super().__new__(cls)

    hint: ClassVar[str] = ""

    def _choices(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in CHOICES}  # type: ignore[arg-type]

    def _check_choices(self, site: Site) -> None:
        """Raises ScheduleError for a field of `CHOICES` with another word."""
        for name, word in self._choices().items():
            if word not in CHOICES[name]:
                raise ScheduleError(f"{name}={word!r}: it is one of {', '.join(map(repr, CHOICES[name]))}", site)

    def _chosen(self) -> list[str]:
        """The fields of `CHOICES` that differ from their defaults, as they are written."""
        return [f"{name}={word!r}" for name, word in self._choices().items() if word != CHOICES[name][0]]


@public_class
@dataclass(frozen=True)
class SMs(_Fields):
    """A role on streaming multiprocessors (SMs), inside the program's persistent kernel. One worker runs on one SM.

    `count`: the number of SMs (None: all that others leave; roles without a count share them, in program order).
    `tile`: elements along each dimension of the role's space, then the step of its `tk.steps` loops, if it has any.
    None stands for a whole dimension, in roles that only copy.
    `order`: the order in which a worker walks ranks and tiles: `tk.own_rank_first`, `tk.next_rank_first`, `tk.ring`, or
    any other `tk.Order`.
    `at`: the rank that executes a tile: "home" (the rank of the tile's part) or the name of a rank axis of the space.
    The default is the home for a sharded space, and every rank for a local one.
    `stages`: the stages of Triton's software pipeline in the role's loops. For a role that copies with `via="tma"`: the
    blocks of its ring in shared memory.
    `warps`: the warps of the kernel, a power of two. All roles are one kernel, so all have the same.
    `via`: "load-store", "tma" or "multicast". With "tma", the copy engine for tiles (TMA) of a GPU copies and stores
    blocks, through shared memory; where it can't, the role loads and stores. With "multicast", a rank axis that only
    selects the memory of copies, stores and notifications becomes one access to all ranks. The fabric of the target
    must multicast stores.
    `signals`: "now" or "late". With "late", the worker gives a tile's notifications after the main loop of its next
    tile, when the tile's stores have arrived. For its last tile, it gives them after that tile. The role must not wait.
    `waits`: "whole" or "pieces". With "pieces", a tile that waits for rows and then goes through them step by step
    waits inside that loop, each time for the next piece. A piece is as long as the tiles that bring it.
    `wave`: experts in a turn, for roles without a count that go over the experts of a route. Roles with a wave take
    turns: the tiles of some experts in the first role, of the same experts in the next role, then the next experts.
    `whole`: elements of a block over a whole dimension, such as {"D": 128} if a tile function loads `q[t.rows]` of a
    tensor with the dimensions S and D. It is at least the size of the dimension; the rest is masked.
    `own`: "copied", "stored" or "read", for a role that copies. With "stored" or "read" it makes no copies inside a
    rank. "stored": it copies what an earlier role makes, and tiles of that earlier role store their own rank's part
    where the copy would go. "read": it copies an input, and tiles that wait for the copies read their own rank's part
    in the input.
    """

    count: int | None = None
    tile: tuple[int | None, ...] = ()
    order: Order = own_rank_first
    at: str | None = None
    stages: int = 3
    warps: int = 8
    via: str = "load-store"
    signals: str = SIGNALS[0]
    waits: str = WAITS[0]
    wave: int | None = None
    whole: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    own: str = OWN[0]

    def __post_init__(self) -> None:
        site = Site.of_user()
        _check_walk(self.tile, self.order, site)
        if not isinstance(self.whole, Mapping | tuple):
            raise TileSizeError(f"whole={self.whole!r}: sizes of blocks by dimension, such as {{'D': 128}}", site)
        for dim, size in dict(self.whole).items():
            if not power_of_two(size):
                raise TileSizeError(f"whole={dict(self.whole)}: {size!r} for {dim} is not a power of two", site)
        object.__setattr__(self, "whole", tuple(dict(self.whole).items()))
        if self.count is not None and not natural(self.count):
            raise ScheduleError(f"{self.count!r} SMs: a role needs at least 1, and fewer than 2**31", site)
        if not natural(self.stages):
            raise ScheduleError(f"{self.stages!r} stages: at least 1, and fewer than 2**31", site)
        if self.wave is not None and (not natural(self.wave) or self.count is not None):
            raise ScheduleError(f"wave={self.wave!r}: experts in a turn, at least 1, of a role without a count", site)
        self._check_choices(site)
        if not power_of_two(self.warps) or self.warps > MOST_WARPS:
            raise ScheduleError(f"{self.warps!r} warps: the number must be a power of two, {MOST_WARPS} at most", site)

    def __str__(self) -> str:
        parts = [str(self.count)] if self.count else []
        parts += [f"tile={self.tile}", f"order={self.order}"] + ([f"at={self.at!r}"] if self.at else [])
        parts += self._chosen()
        parts += [f"wave={self.wave}"] if self.wave else []
        parts += [f"whole={dict(self.whole)}"] if self.whole else []
        return f"SMs({', '.join(parts)}, stages={self.stages}, warps={self.warps})"


@public_class
@dataclass(frozen=True)
class Epilogue(_Fields):
    """A role inside the epilogue of `of`, an earlier role that makes the tiles it waits for.

    The role stores the block from registers to the target of its copy, tile by tile, in the order and on the rank of
    `of`. It must wait for the views that a tile of `of` notifies, copy them and notify. FLUX (arXiv 2406.06858) sends
    the tiles of a GEMM to their owners like this.
    """

    of: str

    def __post_init__(self) -> None:
        if not isinstance(self.of, str):
            raise ScheduleError(f"tk.Epilogue({self.of!r}): it takes the name of a role", Site.of_user())

    def __str__(self) -> str:
        return f"Epilogue({self.of!r})"


@public_class
@dataclass(frozen=True)
class CopyEngine(_Fields):
    """A role on the copy engines. The host enqueues its copies, each followed by a write of 1 to its signal. The
    program's kernel keeps all SMs. `tile`, `order`, `at`, `own` as for `SMs`.

    `streams`: "peers" has a stream for each peer; copies of different streams run at the same time. "one" has one
    stream for all copies of a rank, in its order. Then the tiles that are needed first arrive first, but only one link
    of a mesh is busy.

    The role must not compute. An engine writes signals and can't add, so a tile covers a whole cell of the signal grid.
    An engine waits until its rank may write and peers have entered. It may also wait for tiles of its own rank's
    kernel, but for no others. FLUX (arXiv 2406.06858) gathers like this.
    """

    tile: tuple[int | None, ...] = ()
    order: Order = own_rank_first
    at: str | None = None
    streams: str = STREAMS[0]
    own: str = OWN[0]
    whole: ClassVar[tuple[()]] = ()
    count: ClassVar[None] = None  # this and the fields below: only roles on SMs have them
    via: ClassVar[str] = ""
    signals: ClassVar[str] = SIGNALS[0]
    waits: ClassVar[str] = WAITS[0]
    wave: ClassVar[None] = None
    hint: ClassVar[str] = "; engines are not counted"

    def __post_init__(self) -> None:
        site = Site.of_user()
        _check_walk(self.tile, self.order, site)
        self._check_choices(site)

    def __str__(self) -> str:
        parts = [f"tile={self.tile}", f"order={self.order}"] + ([f"at={self.at!r}"] if self.at else [])
        return f"CopyEngine({', '.join(parts + self._chosen())})"


Resource = SMs | CopyEngine | Epilogue
COMPUTES = "it computes, and an engine only waits, copies and notifies. Give it SMs"
"""Why a role can't be on the copy engine, and what to do."""


class Schedule(Mapping[str, Resource]):
    """The resource of each role, by the role's name: `tk.Schedule(gather=tk.SMs(...), matmul=tk.SMs(...))`.

    `slots`: the number of copies of the program's buffers and signals that calls use in turn. More than one hides the
    latency of the credits between calls. Results do not depend on it.
    `cells`: the signal grid of a tensor, instead of the derived one: {"full": (128, None)}.
    If a role is launched for each member of a list, "matmul[1]" schedules the second member, and "matmul" the others:
    `tk.Schedule(matmul=large, **{"matmul[1]": small})`.
    """

    @public
    def __init__(
        self,
        /,
        *unnamed: Any,
        slots: int = 2,
        cells: Mapping[str, tuple[int | None, ...]] | None = None,
        **roles: Resource,
    ):
        self.site = Site.of_user()
        if unnamed:
            kind = type(unnamed[0]).__name__
            message = f"tk.Schedule({kind}(...)): name the role of the resource, tk.Schedule(matmul={kind}(...))"
            raise ScheduleError(message, self.site)
        if not natural(slots):
            raise ScheduleError(f"slots={slots!r}: a number of slots, at least 1, and fewer than 2**31", self.site)
        if not isinstance(cells, Mapping | None) or isinstance(cells, Schedule):
            raise ScheduleError(f"cells={cells!r}: signal grids by tensor, such as {{'full': (128, None)}}", self.site)
        for tensor, sizes in (cells or {}).items():
            if not isinstance(sizes, tuple) or any(s is not None and not natural(s) for s in sizes):
                raise ScheduleError(f"cells of {tensor}, {sizes!r}: a tuple of sizes of at least 1, or None", self.site)
        for name, resource in roles.items():
            if not isinstance(resource, Resource):
                raise ScheduleError(
                    f"{name}={resource!r} is not a resource such as tk.SMs(...){similar(name, ('slots', 'cells'))}",
                    self.site,
                )
        self.roles, self.slots, self.cells = dict(roles), slots, dict(cells or {})

    def __getitem__(self, role: str) -> Resource:
        return self.roles[role]

    def __iter__(self) -> Any:
        return iter(self.roles)

    def __len__(self) -> int:
        return len(self.roles)

    def of(self, role: str) -> Resource:
        """The resource of a role, by the name of its launch: "matmul", or "matmul[1]" for one of several members."""
        return self.roles[role if role in self.roles else launched(role)]

    @property
    def launched(self) -> frozenset[str]:
        """The roles that it names; all members of a list are one role."""
        return frozenset(map(launched, self.roles))

    @property
    def tiled(self) -> dict[str, SMs | CopyEngine]:
        """The resources that have tiles, by role."""
        return {role: resource for role, resource in self.roles.items() if not isinstance(resource, Epilogue)}

    def small(self, tile: int, count: int) -> Schedule:
        """This schedule with tiles of at most `tile` elements along each dimension. Roles with a number of SMs have at
        most `count`."""
        changes: dict[str, dict[str, Any]] = {}
        for role, resource in self.tiled.items():
            changes[role] = {"tile": tuple(n and min(n, tile) for n in resource.tile)}
            changes[role] |= {"count": min(resource.count, count)} if resource.count else {}
        return self.with_fields(**changes)

    def _key(self) -> tuple[Any, ...]:
        return tuple(self.roles.items()), self.slots, tuple(self.cells.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        named: dict[str, Any] = {"slots": self.slots} | ({"cells": self.cells} if self.cells else {}) | self.roles
        return f"Schedule({', '.join(f'{k}={v}' for k, v in named.items())})"

    def without(self, gone: Collection[str]) -> Schedule:
        """This schedule without these roles and their members, with the same site."""
        left = {name: r for name, r in self.roles.items() if launched(name) not in gone}
        return self if len(left) == len(self.roles) else self._with(left)

    @public
    def changed(self, /, **roles: Mapping[str, Any]) -> Schedule:
        """This schedule with other fields for roles: `push.changed(matmul={"tile": (64, 64, 32)})`. A change of a role
        applies to all its members. Raises ScheduleError, TileSizeError."""
        schedule = self.with_fields(**roles)
        schedule.site = Site.of_user()
        return schedule

    def with_fields(self, /, **roles: Mapping[str, Any]) -> Schedule:
        """`changed`, with the site of this schedule."""
        new = dict(self.roles)
        for name, changes in roles.items():
            if name not in new and launched(name) not in new:
                raise ScheduleError(f"no role {name} in this schedule; it has {listed(new, name)}", Site.of_user())
            if not isinstance(changes, Mapping):
                raise ScheduleError(
                    f"{name}={changes!r}: changes are fields by name, such as {name}={{'tile': (64, 64)}}; for another "
                    "resource, write a new tk.Schedule(...)",
                    Site.of_user(),
                )
            new.setdefault(name, new[launched(name)])
            for member in [n for n in new if name in (n, launched(n))]:
                has = [f.name for f in fields(new[member])]
                if unknown := [c for c in changes if c not in has]:
                    what = f"{name}={new[name]} has no {' and '.join(unknown)}"
                    raise ScheduleError(f"{what}; it has {', '.join(has)}{_meant(unknown[0], has)}", Site.of_user())
                new[member] = replace(new[member], **changes)
        return self._with(new)

    def _with(self, roles: Mapping[str, Resource]) -> Schedule:
        schedule = Schedule(slots=self.slots, cells=self.cells, **roles)
        schedule.site = self.site
        return schedule


def _check_walk(tile: Any, order: Any, site: Site) -> None:
    """Raises TileSizeError or ScheduleError for a wrong tile or order."""
    if not isinstance(tile, tuple) or not tile:
        given = "tile= is missing" if tile == () else f"tile={tile!r}"
        raise TileSizeError(
            f"{given}: a tile is a tuple of sizes, one along each dimension of the role's space, such as "
            "tile=(128, 256), or tile=(128, None) in a role that only copies",
            site,
        )
    for size in tile:
        if size is not None and not power_of_two(size):
            near = [1 << size.bit_length() - 1, 1 << size.bit_length()] if isinstance(size, int) and size > 0 else []
            instead = f"; take {near[0]} or {near[1]}" if near else ""
            raise TileSizeError(f"tile {tile}: {size!r} is not a power of two{instead}", site)
    check_order(order, site)


def power_of_two(size: Any) -> bool:
    """Whether a block in registers may have this size."""
    return isinstance(size, int) and not isinstance(size, bool) and size > 0 and not size & (size - 1)


LEAST_STEP_OF_8_BITS = 32
"""The fewest elements that `tl.dot` of blocks of 8 bits adds up on NVIDIA GPUs."""


def smallest_tile(size: int) -> int:
    """The smallest power of two that holds `size` elements and is at least 16 (what `tl.dot` needs)."""
    return max(16, 1 << max(0, size - 1).bit_length())

