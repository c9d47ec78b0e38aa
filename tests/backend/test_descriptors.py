"""Loads through tensor descriptors: where they stand in the source, and that the interpreter runs them as pointers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.backend.edited import WAIT, replaced
from tests.kernels.gather_gemm import Call
from tests.kernels.routed import FORMS, Routed, random_counts
from tests.parameters import seldom
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend.lower import lower_at
from tilelink.backend.targets import CPU, TARGETS, portable
from tilelink.emulator import Operation, RaceError
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.expert_weight_gradient import expert_weight_gradient
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.trace import align

DESCRIBING = replace(CPU, name="cpu with descriptors", descriptors=True)
TILES = {"gather": {"tile": (16, 32), "count": 2}, "matmul": {"tile": (16, 32, 16)}}
COPIED = all_gather_matmul.schedule("push").changed(**TILES).changed(gather={"own": "copied"})
"""Its main loop loads the rows of all ranks from one place."""


def described(target: str = "sm_90", schedule: str = "push", **sizes: Any) -> set[str]:
    """The tensors that main loops load through descriptors. All rows are copied to full; `test_choices.py` has loops
    that read a rank's own rows in x."""
    fitted = all_gather_matmul.fit(f"{schedule},gather.own=copied", world=4, dtypes="bf16", **sizes)
    bound = all_gather_matmul.bind(fitted, "bf16")
    lowered = lower_at(bound, Sizes.of(bound, 4, sizes), TARGETS[target])
    loads = set(re.findall(r"(\w+)_blocks_\d+_by_\d+\.load\(", lowered.source))
    assert loads <= {p.of for p in lowered.main.parameters if p.kind == "blocks"}
    return loads - {"x"}  # which is copied


def test_loads_of_pipelined_loops_go_through_descriptors() -> None:
    assert described(M=512, N=512, K=512) == {"full", "weight"}
    assert described(M=512, N=512, K=512, schedule="pull") == {"full", "weight"}
    assert described("sm_100", M=512, N=512, K=512) == {"full", "weight"}
    assert described("gfx942", M=512, N=512, K=512) == described("cpu", M=512, N=512, K=512) == set()


def test_ends_inside_a_tensor_are_described_and_odd_rows_loaded_through_pointers() -> None:
    """Where blocks end at that of a rank's part, a descriptor is told so; and its rows begin at 16 bytes."""
    assert described(M=[130, 1, 7, 5], N=512, K=512) == {"full", "weight"}
    assert described(M=[130, 0, 7, 5], N=512, K=512) == {"weight"}, "no rows"
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
@pytest.mark.parametrize(
    "call", seldom(CALLS, lambda c: c.K in (40, 64) or len(c.parts) == 4), ids=lambda c: f"{c.parts}x{c.N}x{c.K}"
)
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
    call = replace(CALLS[0], schedule=COPIED)
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
    call = Call((48, 48), N=56, K=42, transposed=True, integers=True, schedule=COPIED)
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


@pytest.mark.versions
@pytest.mark.parametrize(
    "form",
    seldom(FORMS, lambda f: (f[0].name, f[1]) not in (("dispatch_matmul", "push"), ("matmul_combine", "pull"))),
    ids=lambda f: f"{f[0].name} {f[1]}",
)
def test_rows_and_weights_of_experts_are_described(form: Any) -> None:
    """Rows of an expert end in a block where those of the next begin: what is behind them is not read, so that peers
    may still be writing it, and is zero. Traces are those of pointers."""
    counts = [random_counts(3, 2, seed, most=9) for seed in (1, 2)]
    calls = [Routed(form, c, K=24, N=24, integers=True, seed=seed, room=200) for seed, c in enumerate(counts)]
    turned = form[1] == "push"
    for call in calls if turned else []:
        call.weight = [w.mT.contiguous().mT for w in call.weight]
    operations: list[Operation] = []
    world = CpuWorld(3, target=DESCRIBING, observer=operations.append, heap_bytes=8 << 20, sms=8)
    for n, call in enumerate(calls):
        call.check(world.run(call.on))
        record = world.groups[0].recent[n]
        assert align(record.counted.events, operations, f"{form[0].name} run {n}").done
    (prepared,) = world.lane.prepared.values()
    assert prepared.lowered.source.count("_blocks_16_by_16.load([") == 2
    assert loads_of_weight(world).startswith("tl.trans(") == turned


def test_gradients_of_weights_of_experts_read_no_row_of_the_next() -> None:
    counts = random_counts(2, 3, 4)
    rows = [sum(map(sum, counts[3 * r : 3 * r + 3])) for r in range(2)]
    x, dout = ([torch.randint(-2, 3, (n, k)).float() for n in rows] for k in (24, 20))

    def rank(group: Any) -> torch.Tensor:
        dweight, parts = torch.full((3, 24, 20), float("nan")), {"sent": (sum(rows),) * 2, "routed": rows}
        schedule = expert_weight_gradient.schedule("gemm").changed(weight_gradient={"tile": (None, 16, 16, 16)})
        given = x[group.rank], dout[group.rank], torch.tensor(counts)
        return expert_weight_gradient(*given, dweight, parts=parts, schedule=schedule, group=group)

    world = CpuWorld(2, target=DESCRIBING, heap_bytes=8 << 20, sms=8)
    outs = world.run(rank)
    for r, out in enumerate(outs):
        lengths = [sum(counts[3 * r + e]) for e in range(3)]
        each = zip(x[r].split(lengths), dout[r].split(lengths), strict=True)
        assert torch.equal(out, torch.stack([a.T @ b for a, b in each]))
    (prepared,) = world.lane.prepared.values()
    assert len(re.findall(r"_blocks_16_by_16\.load\(\[1073741824, tl", prepared.lowered.source)) == 2
