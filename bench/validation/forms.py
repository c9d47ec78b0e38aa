"""Published kernels as programs of ours: a program, a schedule, and the agents of its roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import tilelink as tk
from bench.validation.programs import adding_scatter
from tilelink.analysis.machine import Machine, machine
from tilelink.analysis.simulate import steps_of
from tilelink.analysis.simulate.steps import Steps
from tilelink.frontend.schedule import smallest_tile
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.plans import unfused as library
from tilelink.programs.program import Program

TILE = (128, 256, 64)
"""The tile of all fused matmuls, as FLUX, Triton-distributed and kraken use it on Hopper."""

ADD = tk.SMs(tile=(64, 256))
"""The resource of roles that add up the partial sums of all ranks."""


@dataclass(frozen=True)
class Form:
    """A way to run an operator. `schedule`: a function of M and world; `agents`: by role, if they differ from the
    agents of its resource; `moves`: the agent whose link rate the form has."""

    program: Program
    schedule: Callable[[int, int], tk.Schedule]
    agents: tuple[tuple[str, str], ...]
    moves: str

    def steps(self, machine: Machine, world: int, m: int, n: int, k: int) -> Steps:
        """Returns the steps of a run. M is the whole size; N (all-gather) or K (reduce-scatter) is a rank's size."""
        schedule, sizes = self.schedule(m, world), {"M": m, "N": n, "K": k}
        bound = self.program.bound_at(schedule, world=world, sizes=sizes, dtypes="bfloat16")
        return steps_of(*bound, machine, dict(self.agents))


def _chunk(m: int, world: int) -> int:
    """Returns the rows of a rank, which an engine moves in one copy."""
    return smallest_tile(-(-m // world))


def _product(group: int = 8, order: tk.Order = tk.next_rank_first) -> tk.SMs:
    return tk.SMs(tile=TILE, order=tk.grouped(group, order))


def _gather(m: int, world: int, group: int = 8) -> tk.Schedule:
    gather = tk.CopyEngine(tile=(_chunk(m, world), None), at="reader", streams="one")
    return tk.Schedule(gather=gather, matmul=_product(group, tk.own_rank_first))


def _kraken_gather(m: int, world: int) -> tk.Schedule:
    """Returns the schedule of kraken's source: tiles in groups of four rows if there are enough rows."""
    return _gather(m, world, group=4 if m >= 4096 else 1)


def _epilogue(m: int, world: int) -> tk.Schedule:
    return tk.Schedule(matmul=_product(), send=tk.Epilogue("matmul"), reduce=ADD)


def _engine(m: int, world: int) -> tk.Schedule:
    bring = tk.CopyEngine(tile=(_chunk(m, world), None), at="source", order=tk.next_rank_first, streams="one")
    return tk.Schedule(matmul=_product(), send=bring, reduce=ADD)


def _adding(m: int, world: int) -> tk.Schedule:
    return tk.Schedule(scattered_matmul=_product())


ENGINE = "copy_engine"
FORMS: Mapping[str, Form] = {
    "engine gather": Form(all_gather_matmul, _gather, (), ENGINE),
    "engine gather, kraken": Form(all_gather_matmul, _kraken_gather, (), ENGINE),
    "engine scatter": Form(matmul_reduce_scatter, _engine, (), ENGINE),
    "epilogue scatter": Form(matmul_reduce_scatter, _epilogue, (("matmul", "tma"),), "tma"),
    "epilogue scatter, PCIe": Form(matmul_reduce_scatter, _epilogue, (), "load_store"),
    "adding scatter": Form(adding_scatter, _adding, (("scattered_matmul", "tma"),), "tma"),
}


@lru_cache(maxsize=4096)
def library_matmul(name: str, rate: float, m: int, n: int, k: int) -> float:
    """Returns microseconds of a library's matmul at `rate` TFLOP/s on a machine, without its launch."""
    return library.library_matmul(machine(name).changed(matmul__bfloat16=rate), "bfloat16", m, n, k)
