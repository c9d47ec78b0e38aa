"""Programs that are prepared are kept, so many of them; a call whose program went is made anew, and right."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import triton.language as tl

import tilelink as tk
from tests.kernels.routed import Routed, run_and_check
from tests.programs.alone import scaled_by_rank
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.small_worlds import SMALL, whole
from tilelink.errors import HeapError, StrideError, UnsafeProgramError
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.kept import Kept
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.runtime import prepare
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.cuda.group import KEPT_CALLS, CudaGroup
from tilelink.runtime.prepare import KEPT_PROGRAMS

ROWS = (3, 5, 7)


def test_how_many_are_kept() -> None:
    assert CpuWorld(1).lane.prepared.most == KEPT_PROGRAMS
    (group,) = virtual_world(1, StandIn()).groups
    assert (group.lane.prepared.most, group._known.most) == (KEPT_PROGRAMS, KEPT_CALLS)


def test_a_call_after_its_program_went() -> None:
    world = CpuWorld(2, heap_bytes=64 << 10, signal_bytes=512, sms=4)
    world.lane.prepared = Kept(2)
    sets = [whole((rows, rows)) for rows in ROWS]
    for inputs in sets:
        inputs.check(world.run(inputs.on))
    assert [p.sizes.values["M"] for p in world.lane.prepared.values()] == [10, 14]
    oldest = weakref.ref(next(iter(world.lane.prepared.values())))
    for inputs in (sets[0], sets[0]):
        inputs.check(world.run(inputs.on))
    assert [p.sizes.values["M"] for p in world.lane.prepared.values()] == [14, 6]
    gc.collect()
    assert oldest() is None, "what went is held by nothing"


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The sizes at which programs are unrolled."""
    found: list[dict[str, int]] = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def unroll(program: TileProgram, sizes: Sizes, **options: Any) -> Any:
            found.append(dict(sizes.dims))
            return real(program, sizes, **options)

        return unroll

    for name in ("unroll", "unrolled"):
        monkeypatch.setattr(prepare, name, noted(getattr(prepare, name)))
    return found


def test_new_sizes_and_routings_are_launched_without_unrolling(unrolled: list[dict[str, int]]) -> None:
    world = CpuWorld(2, heap_bytes=64 << 10, signal_bytes=2048, sms=8)
    for rows in ROWS:
        inputs = whole((rows, rows))
        inputs.check(world.run(inputs.on))
    for counts in ([[1, 0], [2, 3]], [[0, 2], [4, 0]]):
        run_and_check(Routed((dispatch_matmul, "push"), counts, K=16, N=16, integers=True), world=world)
    assert len(world.lane.prepared) == 5 and not unrolled
    report = next(iter(world.lane.prepared.values())).report
    assert unrolled == [{"M": 6, "K": 16, "N": 24}], "who asks for events gets them"
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_programs_on_engines_and_those_that_the_structure_does_not_show_are_unrolled(
    unrolled: list[dict[str, int]],
) -> None:
    """Two entries of scale are enough for two ranks, and not for three."""
    world = CpuWorld(2, heap_bytes=64 << 10, signal_bytes=2048, sms=8)
    inputs = whole((16, 16))
    inputs.check(world.run(lambda group: inputs.on(group, schedule=SMALL["engine"])))
    for ranks, safe in ((2, True), (3, False)):
        world = CpuWorld(ranks, heap_bytes=64 << 10, signal_bytes=512, sms=8)
        x, scale = torch.ones(16, 16), torch.tensor([2.0, 3.0])
        schedule = tk.Schedule(scaled=tk.SMs(2, tile=(16, 16)))
        refused = pytest.raises(UnsafeProgramError, match=r"scale\[rank\]: S\[0:3\] is outside S\[0:2\]")
        with nullcontext() if safe else refused:
            outs = world.run(lambda group: scaled_by_rank(x, scale, schedule=schedule, group=group))  # noqa: B023
            assert all((out == 6).all() for out in outs)
    assert [sizes["M"] for sizes in unrolled] == [32, 32, 16, 16], "the engines of each rank alone, and all there is"


def test_a_call_after_its_script_went() -> None:
    device = StandIn()
    ranks, sets = virtual_world(2, device), [whole((rows, 0)) for rows in ROWS]
    calls = (*sets, sets[2], sets[0])

    def body(group: CudaGroup) -> list[torch.Tensor]:
        group._known, outs, kept = Kept(2), [], []
        for inputs in calls:
            outs.append(inputs.on(group, slot=0))
            kept.append(list(group._known.values()))
        assert [len(k) for k in kept] == [1, 2, 2, 2, 2]
        assert kept[2] == [kept[1][1], kept[3][1]], "the oldest goes"
        assert kept[3] == kept[2] and kept[4][0] is kept[2][1], "what is kept is not made again"
        return outs

    results = ranks.run(body)
    for k, inputs in enumerate(calls):
        inputs.check([r[k] for r in results])


def test_what_is_in_a_graph_stays() -> None:
    device = StandIn()
    ranks, others = virtual_world(2, device), [whole((rows, rows)) for rows in ROWS]
    first, second = whole((16, 16), seed=1), whole((16, 16), seed=2)

    def body(group: CudaGroup) -> torch.Tensor:
        group._known = Kept(2)
        x, weight = first.x[group.rank].clone(), first.weight[group.rank]
        call: Callable[[], torch.Tensor] = lambda: all_gather_matmul(  # noqa: E731
            x, weight, schedule=SMALL["pull"], group=group
        )
        all_gather_matmul.prepare(x, weight, schedule=SMALL["pull"], group=group)
        with device.capture() as graph:
            out = call()
        (script,) = group._captured.values()
        for inputs in others:
            inputs.on(group)
        assert all(script not in known.scripts.values() for known in group._known.values())
        x.copy_(second.x[group.rank])
        group.replay(graph)
        group.synchronize()
        assert script in group._captured.values()
        return out.clone()

    x = torch.cat(second.x)
    for rank, out in enumerate(ranks.run(body)):
        torch.testing.assert_close(out, x @ first.weight[rank], rtol=0, atol=0)


@tk.tile
def keep(t, x, kept):
    tk.notify(tk.copy(x[t], kept[t]))


@tk.tile
def add_up(t, kept, out):
    acc = tl.zeros(t.shape, tl.float32)
    for n in tk.steps(kept.N):
        acc += tl.sum(tk.wait(kept[t, n]).load().to(tl.float32), 2)
    out[t].store(acc)


@tk.program
def kept_and_added_up(x: tk.Local("E", "M", "N"), out: tk.Local("E", "M", dtype=tl.float32)):
    kept = tk.local("E", "M", "N")
    keep[tk.tiles(x)](x, kept)
    add_up[tk.tiles(out)](kept, out)


OF_128_ROWS = tk.Schedule(keep=tk.SMs(tile=(1, 128, 16)), add_up=tk.SMs(tile=(1, 128, 16)))
OF_16_ROWS = tk.Schedule(keep=tk.SMs(tile=(1, 16, 16)), add_up=tk.SMs(tile=(1, 16, 16)))
FARTHEST_ROWS = 16909319
"""The longest rows of which 127 and 15 elements are fewer than 2**31."""


@pytest.mark.parametrize(("shape", "schedule", "error", "says"), [
    ((1, 128, FARTHEST_ROWS + 1), OF_128_ROWS, StrideError, "blocks of 1 x 128 x 16 reach 2147483655 elements far"),
    ((1, 128, FARTHEST_ROWS), OF_128_ROWS, HeapError, "heap is too small"),
    ((1, 127, FARTHEST_ROWS + 1), OF_128_ROWS, HeapError, "heap is too small"),
    ((2, 2**16, 2**16), OF_16_ROWS, StrideError, "blocks of 1 x 16 x 16 reach 4294967296 elements far"),
    ((2, 2**15, 2**15), OF_16_ROWS, HeapError, "heap is too small"),
])  # fmt: skip
def test_a_block_on_the_heap_does_not_reach_farther_than_32_bits(
    shape: tuple[int, ...], schedule: tk.Schedule, error: type[Exception], says: str
) -> None:
    """A matrix of 2**32 elements is too far from the next one, even for blocks of one matrix."""
    x = torch.zeros(1, dtype=torch.int8).expand(shape)  # one byte of memory
    with pytest.raises(error, match=rf"test_prepare.py:\d+: .*{says}"):
        CpuWorld(1).run(lambda group: kept_and_added_up(x, schedule=schedule, group=group))
