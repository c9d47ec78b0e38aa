"""Runs of programs at small sizes: schedules for them, and random runs as hypothesis draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import tilelink as tk
from tests.programs.attention import gathered_attention
from tests.programs.gathered import waits_for_two
from tests.programs.notifying import NOTIFYING, in_steps
from tests.programs.reducing import ring_reduce_scatter
from tilelink.analysis.events import Events
from tilelink.analysis.unroll import unroll
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program


def small(name: str, gather: tuple[int | None, ...] = (16, 32), order: tk.Order = tk.own_rank_first) -> tk.Schedule:
    """A schedule of the library with tiles for small sizes."""
    tiles = all_gather_matmul.schedule(name)
    return tiles.changed(gather={"tile": gather, "count": 3}, matmul={"tile": (32, 16, 16), "order": order})


def copying(at: str, tile: tuple[int | None, ...] = (16, 16)) -> tk.SMs:
    return tk.SMs(3, tile=tile, at=at)


def notifying(program: Program) -> list[tk.Schedule]:
    (launch,) = program.recorded().launches
    tile = (16, 16) if launch.function is in_steps else (16, 32)
    return [tk.Schedule(**{launch.function.name: copying(at, tile)}) for at in ("home", "reader")]


MATMUL = tk.SMs(tile=(16, 32, 16), order=tk.next_rank_first)
started_first = tk.order(lambda step, rank, world: (rank - step - 1) % world)  # what this rank starts comes first
RING = tk.Schedule(matmul=MATMUL, ring=tk.SMs(2, tile=(32, 16), order=started_first))
ATTENTION = tk.Schedule(gather_kv=copying("home", (16,)), attend=tk.SMs(tile=(16, 16, 16)))
SCATTER = tk.Schedule(matmul=MATMUL, send=copying("home", (32, 16)), reduce=tk.SMs(2, tile=(16, 32)))
BACKWARD = tk.Schedule(
    gather=copying("home"),
    input_gradient=MATMUL,
    send=copying("source", (16, 32)),
    reduce=tk.SMs(tile=(16, 16)),
    weight_gradient=tk.SMs(tile=(16, 16, 32)),
)
RESULTS = [
    (
        all_gather_matmul,
        [small("push"), small("pull"), small("push", order=tk.grouped(2)), small("pull", order=tk.ring)],
    ),
    (all_gather_matmul, [small("push", (16, None)), small("push", (None, 32)), small("pull", (None, None))]),
    (matmul_reduce_scatter, [SCATTER, SCATTER.changed(send={"at": "source"})]),
    (ring_reduce_scatter, [RING]),
    (all_gather_matmul_backward, [BACKWARD]),
    (waits_for_two, [tk.Schedule(gather=copying("home"), two_at_once=tk.SMs(tile=(16, 16, 16)))]),
    (gathered_attention, [ATTENTION]),
]
"""Programs that make results, with schedules for small sizes."""
SIGNALS = [(p, notifying(p)) for p in NOTIFYING]
"""Programs that notify under conditions and in loops."""


@dataclass(frozen=True)
class Run:
    """A program with a schedule, a world and sizes."""

    program: Program
    schedule: tk.Schedule
    world: int
    sizes: dict[str, Any]

    def unroll(self, *, sms: int = 12, **options: Any) -> Events:
        return unroll(*self.program.bound_at(self.schedule, world=self.world, sizes=self.sizes), sms=sms, **options)


@st.composite
def runs(draw: st.DrawFn, among: list[tuple[Program, list[tk.Schedule]]]) -> Run:
    """Random ones; parts are uneven, and some are empty. Tiles are not larger than tensors."""
    program, schedules = draw(st.sampled_from(among))
    schedule = draw(st.sampled_from(schedules))
    world = draw(st.sampled_from([1, 2, 3, 4, 8]))
    bound = program.bind(schedule, absent=program.optional)
    sizes: dict[str, Any] = {d: draw(st.integers(17, 50)) for d in bound.dims}
    parts = st.lists(st.integers(0, 120 // world), min_size=world, max_size=world).filter(lambda p: sum(p) > 16)
    return Run(program, schedule, world, sizes | {d: draw(parts) for d in bound.cut})
