"""Loads through tensor descriptors: where they stand in the source, and that the interpreter runs them as pointers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.backend.edited import WAIT, replaced
from tests.kernels.gather_gemm import Call
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend.facts import Facts
from tilelink.backend.lower import lower
from tilelink.backend.targets import CPU, TARGETS, portable
from tilelink.emulator import Operation, RaceError
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.trace import align

DESCRIBING = replace(CPU, name="cpu with descriptors", descriptors=True)
TILES = {"gather": {"tile": (16, 32), "count": 2}, "matmul": {"tile": (16, 32, 16)}}


def described(target: str = "sm_90", schedule: str = "push", **sizes: Any) -> set[str]:
    """The tensors that are loaded through descriptors."""
    fitted = all_gather_matmul.fit(schedule, world=4, dtypes="bf16", **sizes)
    bound = all_gather_matmul.bind(fitted, "bf16")
    lowered = lower(bound, Facts.of(bound, Sizes.of(bound, 4, sizes)), TARGETS[target])
    loads = set(re.findall(r"(\w+)_blocks_\d+_by_\d+\.load\(", lowered.source))
    assert loads == {p.of for p in lowered.main.parameters if p.kind == "blocks"}
    return loads


def test_loads_of_pipelined_loops_go_through_descriptors() -> None:
    assert described(M=512, N=512, K=512) == {"full", "weight"}
    assert described(M=512, N=512, K=512, schedule="pull") == {"full", "weight"}
    assert described("sm_100", M=512, N=512, K=512) == {"full", "weight"}
    assert described("gfx942", M=512, N=512, K=512) == described("cpu", M=512, N=512, K=512) == set()


def test_ends_inside_a_tensor_and_odd_rows_are_loaded_through_pointers() -> None:
    """A descriptor masks at the tensor's end, not at that of a rank's part; and its rows begin at 16 bytes."""
    assert described(M=[130, 0, 7, 5], N=512, K=512) == {"weight"}
    assert described(M=512, N=500, K=512) == {"full", "weight"}, "a rest at the tensor's end is masked"
    assert described(M=512, N=512, K=504) == {"full", "weight"}
    assert described(M=512, N=512, K=500) == set(), "lines of 500 elements of bf16 are no multiple of 16 bytes"
    assert described(M=512, N=512, K=0) == set()


CALLS = [
    Call((48, 48), N=64, K=64, integers=True, schedule=all_gather_matmul.schedule("push").changed(**TILES)),
    Call((48, 48), N=56, K=40, integers=True, schedule=all_gather_matmul.schedule("pull").changed(**TILES)),
    Call((37, 0, 5), N=44, K=52, integers=True, schedule=all_gather_matmul.schedule("push").changed(**TILES)),
    Call((32, 32), N=48, K=48, dtype=torch.bfloat16, schedule=all_gather_matmul.schedule("push").changed(**TILES)),
    Call((32,), N=48, K=48, transposed=True, integers=True, bias=True),
    Call((16, 16, 16, 16), N=48, K=48, layout="offset", integers=True),
]


@pytest.mark.versions
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.parts}x{c.N}x{c.K}")
def test_descriptors_in_the_interpreter(call: Call) -> None:
    """Results are right, in both slots; races would be found; and the trace is that of the unrolled program."""
    operations: list[Operation] = []
    world = CpuWorld(call.world, target=DESCRIBING, observer=operations.append, heap_bytes=8 << 20, sms=8)
    for _ in range(3):
        call.check(world.run(call.on))
    (prepared,) = world.lane.prepared.values()
    assert align(prepared.events, operations, "all_gather_matmul run 0").done


def test_the_token_of_a_wait_goes_into_the_coordinate() -> None:
    """Else a block could be asked for before the wait."""
    call = CALLS[0]
    world = CpuWorld(call.world, target=DESCRIBING, heap_bytes=8 << 20, sms=8)
    world.run(call.on)
    (prepared,) = world.lane.prepared.values()
    assert re.search(r"full_blocks_16_by_16\.load\(\[M_lo \+ rows_ready, k_\]\)", prepared.lowered.source)
    assert prepared.lowered.facts.described == {("x", 1), ("full", 1), ("weight", 1)}


def loads_of_weight(world: CpuWorld) -> str:
    """How the one program that a world has prepared loads its weight."""
    (prepared,) = world.lane.prepared.values()
    (line,) = re.findall(r"weight_block = (.*)", prepared.lowered.source)
    return str(line)


@pytest.mark.parametrize(("transposed", "loads"), [
    (False, "weight_blocks_16_by_32.load([k_, N_lo])"),
    (True, "tl.trans(weight_blocks_32_by_16.load([N_lo, k_]))"),
], ids=["by rows", "by columns"])  # fmt: skip
def test_a_weight_is_described_as_it_lies(transposed: bool, loads: str) -> None:
    """A weight of nn.Linear is given as `weight.T`: its columns are contiguous."""
    schedule = all_gather_matmul.schedule("push").changed(**TILES)
    call = Call((48, 48), N=56, K=40, transposed=transposed, integers=True, bias=True, schedule=schedule)
    world = CpuWorld(2, target=DESCRIBING, heap_bytes=8 << 20, sms=8)
    for _ in range(2):
        call.check(world.run(call.on))
    assert loads_of_weight(world) == loads


def test_columns_that_do_not_begin_at_16_bytes_are_loaded_through_pointers() -> None:
    schedule = all_gather_matmul.schedule("push").changed(**TILES)
    call = Call((48, 48), N=56, K=42, transposed=True, integers=True, schedule=schedule)
    world = CpuWorld(2, target=DESCRIBING, heap_bytes=8 << 20, sms=8)
    call.check(world.run(call.on))
    assert loads_of_weight(world).startswith("tl.load(")


def test_a_block_that_is_asked_for_without_a_wait_is_a_race() -> None:
    world = MutatedWorld(
        2, kernel=replaced(WAIT, "rows_ready = 0"), primitives=portable, target=DESCRIBING, heap_bytes=8 << 20, sms=8
    )
    with pytest.raises(RaceError):
        world.run(CALLS[0].on)


def test_ranks_agree_although_each_loads_its_own_tensors_in_its_own_way() -> None:
    """Only one rank's weight lies row by row: its kernel has a descriptor more, which is nobody else's business."""
    call = replace(CALLS[0])
    call.weight[1] = call.weight[1].T.contiguous().T
    call.check(CpuWorld(2, target=DESCRIBING, heap_bytes=8 << 20, sms=8).run(call.on))
