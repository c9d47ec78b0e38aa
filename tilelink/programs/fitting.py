"""Fits tiles to tensors: a tile that is larger than its tensor becomes as small as the tensor allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilelink.errors import ScheduleError, Site, TileSizeError
from tilelink.frontend.ir import For, Role, TileProgram, every, walk
from tilelink.frontend.kept import kept
from tilelink.frontend.schedule import Schedule, smallest_tile
from tilelink.frontend.sizes import check_names, even_parts, least_step, stepped
from tilelink.language import launched

if TYPE_CHECKING:
    from tilelink.programs.program import Program

IN_REGISTERS = 64, 32
"""The largest extent of a tile, and the longest step of its loop, for exact float32 products. No GPU has matrix
instructions for these, and threads keep the operands of a whole step in registers (8 warps, sm_90, *compiled*: a tile
128x256 with steps of 64 spills 26 KB of each thread, this one at most 248 bytes in any program of the library)."""
Tile = tuple[str, int]
"""A dimension, and the smallest tile that holds it."""


def fitted(schedule: Schedule, bound: TileProgram, world: int, sizes: Mapping[str, int | Sequence[int]]) -> Schedule:
    """The schedule with every tile that is larger than its tensor made as small as the tensor allows. Along a dimension
    that is spread over the ranks, the longest part counts, unless tiles go across parts. `bound`: the tile program of
    the schedule. `sizes`: as in `Sizes.of`. Rows that are routed allow any tile, because their number is data. Raises
    DimensionError."""
    check_names(bound, sizes, Site.of_user())
    sizes = {d: n for d, n in sizes.items() if d in bound.dims and d not in bound.routed}
    parts = {d: even_parts(n, world) if d in bound.cut and isinstance(n, int) else n for d, n in sizes.items()}
    longest = {d: smallest_tile(max(n) if isinstance(n, Sequence) else n) for d, n in parts.items()}
    totals = {d: smallest_tile(sum(n) if isinstance(n, Sequence) else n) for d, n in sizes.items()}
    return _fitted(schedule, schedule.site, bound, tuple(longest.items()), tuple(totals.items()))


def in_registers(schedule: Schedule, bound: TileProgram) -> Schedule:
    """The schedule for a GPU: roles of exact float32 products have tiles no larger than `IN_REGISTERS`, and half the
    step if a step has several products."""
    for role in bound.roles:
        products, of_space = _exact_products(bound, role), len(role.walk.ranges)
        if not products:
            continue
        space, step = IN_REGISTERS if products == 1 else (IN_REGISTERS[0], IN_REGISTERS[1] // 2)
        tile = tuple(t and min(t, space if k < of_space else step) for k, t in enumerate(role.resource.tile))
        schedule = schedule.with_fields(**{role.scheduled: {"tile": tile}})
    return schedule


def _exact_products(program: TileProgram, role: Role) -> int:
    """The number of products in a step of a role that multiplies float32 without rounding it to a shorter format."""
    dots = [code for s in walk(role.body) for code in s.codes if code.dots and "ieee" in code.text]
    if not any({program.tensor(load.view.tensor).dtype for load in code.loads} == {"float32"} for code in dots):
        return 0
    loops = [sum(code in dots for s in walk(loop.body) for code in s.codes) for loop in every(For, role.body)]
    return max([1, *loops])  # a product may stand outside of loops


@kept()
def _fitted(
    schedule: Schedule, site: Site, bound: TileProgram, parts: tuple[Tile, ...], whole_sizes: tuple[Tile, ...]
) -> Schedule:
    """The schedule with tiles of at most these sizes, by dimension: `parts` along parts, `whole_sizes` along whole
    dimensions. `site`: the place of the schedule, in which equal schedules may differ."""
    longest, totals = dict(parts), dict(whole_sizes)
    changes: dict[str, dict[str, dict[str, Any]]] = {}
    for role in bound.roles:
        tile = role.resource.tile
        along = zip(tile, role.walk.ranges, strict=False)
        cut = [t and min(t, (longest if r.part is not None else totals).get(r.dim, t)) for t, r in along]
        steps = [max(longest[d], least_step(bound, role)) for d in stepped(role) if d in longest]
        cut += [t and min([t, *steps]) for t in tile[len(cut) :]]
        whole = {d: min(n, totals.get(d, n)) for d, n in dict(role.resource.whole).items()}
        made = {"tile": tuple(cut)} | ({"whole": whole} if whole else {})
        changes.setdefault(role.launched, {})[role.scheduled] = made
    for fits in changes.values():  # one entry if it fits all members
        alike = all(fit == next(iter(fits.values())) for fit in fits.values())
        schedule = schedule.with_fields(**({launched(n): fit for n, fit in fits.items()} if alike else fits))
    return schedule


@kept()
def takes(program: Program, schedule: str | None, asked: frozenset[str]) -> bool:
    """Whether a schedule of a program, by its name, can do what is asked of the optional tensors `asked`. (A copy
    engine, for example, can't know rows.)"""
    try:
        program.bind(schedule, "float32", program.optional.difference(asked))
    except (ScheduleError, TileSizeError):
        return False
    return True
