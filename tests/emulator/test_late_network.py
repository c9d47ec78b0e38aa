"""Lowered kernels across nodes, whose puts are late: one thing taken out of the primitives at a time is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tilelink as tk
from tests.kernels.gather_gemm import NAMED, Call
from tests.modules import importable, text_of
from tests.parameters import seldom, some_of
from tilelink.backend.targets import Target
from tilelink.emulator import RaceError, late_network
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.runtime.cpu.world import LATE

World = Callable[..., tk.CpuWorld]


def gather(world: tk.CpuWorld, name: str, tile: tuple[int, int | None]) -> None:
    """Two calls of a gather and matmul; whole rows are one put, others a put each."""
    schedule = NAMED[name].changed(gather={"tile": tile, "count": 2}, matmul={"tile": (16, 32, 32)})
    call = Call((33, 20), N=24, K=40, schedule=schedule, integers=True)
    outs = world.run(lambda g: [call.on(g, out=call.poison()) for _ in range(2)])
    for run in range(2):
        call.check([of_rank[run] for of_rank in outs])


def scatter(world: tk.CpuWorld) -> None:
    """Blocks go to another node out of registers, by way of a stage that is used again."""
    x, weight = torch.ones(2, 64, 16), torch.ones(2, 16, 32)
    gemm = tk.SMs(1, tile=(16, 16, 16))
    schedule = tk.Schedule(matmul=gemm, send=tk.Epilogue("matmul"), reduce=tk.SMs(1, tile=(16, 16)))
    outs = world.run(lambda g: matmul_reduce_scatter(x[g.rank], weight[g.rank], schedule=schedule, group=g))
    assert torch.equal(torch.cat(outs), torch.full((64, 32), 32.0))


RUNS: dict[str, Callable[[tk.CpuWorld], None]] = {
    "push rows": lambda world: gather(world, "push", (16, None)),
    "push pieces": lambda world: gather(world, "push", (16, 32)),
    "pull": lambda world: gather(world, "pull", (16, None)),
    "scatter": scatter,
}
PUT_SIGNAL = "put_signal_nbi(target, source, count, signal + 1, 1, shmem.SIGNAL_ADD, other)"
PUT_AND_SIGNAL = "put_nbi(target, source, count, other); shmem.signal_op(signal + 1, 1, shmem.SIGNAL_ADD, other)"
MUTANTS = [
    ("a notification without a fence", "push pieces", "shmem.fence()\n    shmem.signal_op", "shmem.signal_op"),
    ("a signal beside its put", "push rows", PUT_SIGNAL, PUT_AND_SIGNAL),
    ("a get that is not waited for", "pull", "shmem.get(", "shmem.get_nbi("),
    ("ranks that leave without a fence", "push rows", "shmem.fence()\n    for other", "for other"),
    ("a stage that is used before it was sent", "scatter", "    shmem.quiet()\n", ""),
]


@pytest.fixture
def edited(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], World]:
    """Makes worlds with an edited copy of the primitives."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def edit(old: str, new: str) -> World:
        source = text_of(late_network.__name__)
        assert source.count(old) == 1
        name = importable(tmp_path, source.replace(old, new))
        return lambda seed: world(seed, dataclasses.replace(LATE, module=name))

    return edit


def world(seed: int, target: Target = LATE) -> tk.CpuWorld:
    return tk.CpuWorld(2, per_node=1, heap_bytes=2 << 20, sms=4, slots=1, seed=seed, target=target)


@some_of(2, first=1)
@pytest.mark.parametrize("run", seldom(RUNS, lambda run: run == "push pieces"))
def test_nothing_is_found_where_nothing_is_missing(run: str, seeds: range) -> None:
    for seed in seeds:
        RUNS[run](world(seed))


@some_of(2, first=1)
@pytest.mark.parametrize(("what", "run", "old", "new"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_what_is_missing_is_a_race(
    edited: Callable[[str, str], World], what: str, run: str, old: str, new: str, seeds: range
) -> None:
    for seed in seeds:
        with pytest.raises(RaceError):
            RUNS[run](edited(old, new)(seed))


def test_worlds_of_several_nodes_are_late() -> None:
    assert tk.CpuWorld(4, per_node=2).lane.target == LATE
    assert tk.CpuWorld(4, per_node=4).lane.target != LATE
