"""Which worker does which tile of a role, and in which order: what lowered kernels do, in numbers.

`backend/lower.py` writes the same as loops; the trace of an execution holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilelink.frontend.expressions import evaluate
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Allotment, Sizes, tile_count
from tilelink.frontend.turns import members, tiles_in_turn


@dataclass(frozen=True)
class Place:
    """The place of a role among all. `launch`: its number, the same for roles that take turns; `tiles` that it has in a
    turn (all of its own, where it takes none), after `before` of the others, of `all` in the turn."""

    launch: int
    tiles: int
    before: int
    all: int

    def turn(self, tile: Any) -> Any:
        """The turn of a tile, or of an array of them."""
        return tile // self.tiles

    def worker(self, tile: Any, given: Allotment) -> Any:
        """The worker of a tile, or of an array of them."""
        number = self.turn(tile) * self.all + self.before + tile % self.tiles
        return given.first + number % given.workers


def places(program: TileProgram, sizes: Sizes) -> dict[str, Place]:
    """Of all roles, by name."""
    made = {}
    for launch, together in enumerate(members(program.roles)):
        alone = len(together) == 1
        tiles = [tile_count(r, sizes) if alone else int(evaluate(tiles_in_turn(r), sizes.values)) for r in together]
        for k, role in enumerate(together):
            made[role.name] = Place(launch, max(1, tiles[k]), sum(tiles[:k]), sum(tiles))
    return made
