"""The running tables of a program, and their contents for known counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import cells_of_pieces, tiles_of_part
from tilelink.frontend.expressions import running
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import PART, Routing, counts_of, segments
from tilelink.frontend.tables import ENTRY, ROW, Table
from tilelink.language import RouteWord


@kept()
def segment_tables(program: TileProgram) -> tuple[tuple[RouteWord, Table], ...]:
    """The tables that say where segments begin, on both sides of all routes."""
    return tuple((route, segments(route, dim)) for route in program.routes for dim in route.sides)


@kept()
def tile_tables(program: TileProgram) -> tuple[Table, ...]:
    """The tables that say where the tiles and the cells of pieces begin. They are made from the tables of segments."""
    tiles = [role.walk.table for role in program.roles if role.walk.table is not None]
    cells = [cells_of_pieces(c) for s in program.signals for c in s.grid if c.route and c.size is not None]
    cells += [
        tiles_of_part(c, tile)
        for s in program.signals
        for n in s.notifiers
        for c, tile in zip(s.grid, n.tiles, strict=True)
        if c.route and c.pieces == PART
    ]
    return tuple(dict.fromkeys([*tiles, *cells]))


def tables(program: TileProgram) -> tuple[Table, ...]:
    """All running tables, each after the tables that it is made from."""
    return (*(table for _, table in segment_tables(program)), *tile_tables(program))


def entries(program: TileProgram, values: Mapping[str, Any]) -> dict[str, int]:
    """How many integers each table has, and the counts of each route have, by key."""
    world = values["world:"]
    made = {running(counts_of(r)): world * world * int(values[r.per_rank]) for r in program.routes}
    return made | {t.key: world * (int(evaluate(t.steps, values)) + 1) for t in tables(program)}


def with_tables(
    made: tuple[Table, ...], routings: tuple[tuple[RouteWord, Routing], ...], values: Mapping[str, Any]
) -> dict[str, Any]:
    """`values` with the counts of routes and the contents of tables, by key."""
    found = dict(values)
    for route, routing in routings:
        found[running(counts_of(route))] = routing.array.reshape(-1)
    rows = np.arange(values["world:"])[:, None]
    for table in made:
        steps = int(evaluate(table.steps, found))
        inside = found | {ROW.name: rows, ENTRY.name: np.arange(steps)[None, :]}
        lengths = np.broadcast_to(evaluate(table.step, inside), (len(rows), steps))
        first = np.broadcast_to(evaluate(table.first, inside), (len(rows), 1))
        found[table.key] = np.concatenate([first, first + np.cumsum(lengths, 1)], 1).reshape(-1)
    return found
