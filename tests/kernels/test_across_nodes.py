"""Programs on several nodes: CPU ranks that reach those of other nodes as over a network, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch

import tilelink as tk
from tests.kernels.gather_gemm import NAMED, Call
from tests.parameters import covering, seldom
from tests.programs.alone import sum_of_peers
from tests.programs.places import MAYBE_FAR, READ, SUMS, first_of_node
from tilelink.backend.targets import CPU, TARGETS
from tilelink.emulator import Operation
from tilelink.errors import FarAccessError, ScheduleError, StuckError, TargetError, WorldError
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_one_shot_all_reduce import matmul_one_shot_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter
from tilelink.programs.program import Program
from tilelink.runtime.trace import align

NODES, MORE = [(2, 1), (4, 2)], [(3, 1), (8, 4)]
"""Ranks, and how many a node has: those of every run, and those of `make verify` alone."""
REDUCING = [matmul_ring_reduce_scatter, matmul_all_reduce, matmul_one_shot_all_reduce]
World = tk.CpuWorld


def nodes(world: int, per_node: int, **more: Any) -> tk.CpuWorld:
    return World(world, per_node=per_node, heap_bytes=4 << 20, sms=12, **more)


def on_nodes(*others: Sequence[str], every: int = 2) -> list[Any]:
    """Parameters of a test on nodes: few of the first `NODES` with the others, in every run; the rest in `make
    verify`."""
    more = [pytest.param(*case, marks=pytest.mark.verify) for case in product(NODES[every:] + MORE, *others)]
    return [*covering(product(NODES[:every], *others)), *more]


@pytest.mark.parametrize(
    ("nodes_of", "name", "tile"), on_nodes(["push", "pull", "multicast"], ["rows", "pieces"], every=1), ids=str
)
def test_all_gather_matmul(nodes_of: tuple[int, int], name: str, tile: str) -> None:
    """Twice in a row, with parts of all lengths; whole rows are one put, others a put each."""
    world, per_node = nodes_of
    parts = (1, 2, 9, 7, 5, 0, 33, 20)[-world:]
    schedule = NAMED[name].changed(
        gather={"tile": (16, None) if tile == "rows" else (16, 32), "count": 3}, matmul={"tile": (16, 32, 32)}
    )
    call = Call(parts, N=24, K=40, schedule=schedule, integers=True)
    outs = nodes(world, per_node).run(lambda g: [call.on(g, out=call.poison()) for _ in range(2)])
    for run in range(2):
        call.check([of_rank[run] for of_rank in outs])


@pytest.mark.parametrize(("nodes_of",), on_nodes(), ids=str)
def test_all_gather_fetches(nodes_of: tuple[int, int]) -> None:
    world, per_node = nodes_of
    x = [torch.randn(7 + r, 50) for r in range(world)]
    parts = tuple(len(a) for a in x)
    outs = nodes(world, per_node).run(lambda g: [all_gather(x[g.rank], group=g, parts={"M": parts}) for _ in range(2)])
    assert all(torch.equal(out, torch.cat(x)) for of_rank in outs for out in of_rank)


@pytest.mark.parametrize(("nodes_of", "schedule"), on_nodes(["push", "pull", "fused"], every=1), ids=str)
def test_reduce_scatter(nodes_of: tuple[int, int], schedule: str) -> None:
    """Fused, blocks go to other nodes out of registers."""
    world, per_node = nodes_of
    x = [torch.randint(-3, 4, (world * 12, 24)).float() for _ in range(world)]
    weight = [torch.randint(-3, 4, (24, 40)).float() for _ in range(world)]
    want = sum((a @ b for a, b in zip(x, weight, strict=True)), torch.zeros(()))
    outs = nodes(world, per_node).run(
        lambda g: [matmul_reduce_scatter(x[g.rank], weight[g.rank], schedule=schedule, group=g) for _ in range(2)]
    )
    for run in range(2):
        assert torch.equal(torch.cat([of_rank[run] for of_rank in outs]), want)


@pytest.mark.parametrize(
    "program", seldom(REDUCING, lambda p: p is matmul_one_shot_all_reduce), ids=lambda p: p.name
)
def test_sums(program: Any) -> None:
    """In the rank's own rows, or in all: out of registers, around a ring, and to all ranks."""
    x = [torch.randint(-3, 4, (50, 24)).float() for _ in range(4)]
    weight = [torch.randint(-3, 4, (24, 40)).float() for _ in range(4)]
    want = sum((a @ b for a, b in zip(x, weight, strict=True)), torch.zeros(()))
    outs = nodes(4, 2).run(lambda g: program(x[g.rank], weight[g.rank], group=g))
    whole = [torch.cat(outs)] if sum(map(len, outs)) == 50 else outs
    assert all(torch.equal(out, want) for out in whole)


def test_examples(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tk, "CpuWorld", lambda world, per_node=2: nodes(world, per_node))
    example("hierarchical_gather").main()


@pytest.mark.parametrize(
    ("name", "tile"),
    [("push", (32, None)), *(pytest.param(n, (32, 32), marks=pytest.mark.verify) for n in ("pull", "push"))],
)
def test_trace_is_the_unrolled_program(name: str, tile: tuple[int | None, ...]) -> None:
    operations: list[Operation] = []
    # Puts at once: a trace is in the order of the program.
    world = nodes(4, 2, observer=operations.append, target=CPU.across_nodes())
    schedule = NAMED[name].changed(gather={"tile": tile, "count": 3}, matmul={"tile": (32, 32, 32)})
    call = Call((32, 64, 32, 32), N=64, K=64, schedule=schedule)
    world.run(lambda g: [call.on(g) for _ in range(2)])
    (prepared,) = world.lane.prepared.values()
    for run in range(2):
        assert align(prepared.events, operations, f"all_gather_matmul run {run}").done
    counted = [o for o in operations if o.region.kind == "signal" and o.kind == "atomic_add" and o.new != o.old]
    assert counted
    for o in counted:
        far = o.rank // 2 != o.region.rank // 2
        assert o.box[1] == (far, far + 1), "near ranks count in the first word, far ones in the second"


def test_a_load_from_another_node_has_to_be_a_copy_first() -> None:
    x = [torch.ones(16, 16) for _ in range(4)]
    assert all((out == 4).all() for out in World(4).run(lambda g: sum_of_peers(x[g.rank], group=g)))
    with pytest.raises(FarAccessError, match=r"alone\.py:\d+: .*tk\.copy it to a buffer of the reader's"):
        nodes(4, 2).run(lambda g: sum_of_peers(x[g.rank], group=g))
    with pytest.raises(FarAccessError, match="no network loads into registers"):
        sum_of_peers.check(world=4, per_node=2, M=16, N=16)


@pytest.mark.parametrize("program", SUMS, ids=lambda p: p.name)
def test_a_rank_at_a_place_of_the_own_node_is_near(program: Program) -> None:
    """However its place is named: it is read as on one node, in a kernel that asks nowhere where a rank is."""
    x = [torch.full((20, 24), float(rank)) for rank in range(4)]
    outs = nodes(4, 2).run(lambda g: program(x[g.rank], schedule=READ, group=g))
    assert [out.unique().tolist() for out in outs] == [[1.0], [1.0], [5.0], [5.0]]
    assert "is_far(" not in program.show("triton", READ, world=4, per_node=2, M=20, N=24)


def test_the_first_rank_of_a_node_is_near_on_nodes_of_any_size() -> None:
    x = [torch.full((20, 24), float(rank)) for rank in range(4)]
    for per_node in (1, 2):
        outs = nodes(4, per_node).run(lambda g: first_of_node(x[g.rank], schedule=READ, group=g))
        assert [out[0, 0] for out in outs] == [rank // per_node * per_node for rank in range(4)]


@pytest.mark.parametrize(
    ("program", "per_node"), [*((p, 2) for p in MAYBE_FAR), *((p, 1) for p in SUMS[1:]), (SUMS[2], 4)],
    ids=lambda v: getattr(v, "name", v),
)  # fmt: skip
def test_a_rank_that_may_be_on_another_node_is_far(program: Program, per_node: int) -> None:
    with pytest.raises(FarAccessError, match=r"places\.py:\d+: .*may be on another node"):
        program.check(READ, world=8, per_node=per_node, M=20, N=24)


def test_the_copy_engine_does_not_reach_other_nodes() -> None:
    call = Call((16, 16), N=16, K=16, schedule="engine")
    with pytest.raises(ScheduleError, match=r"gather is on the copy engine, which reaches the ranks of its own node"):
        nodes(2, 1).run(lambda g: call.on(g))


def test_ranks_of_a_node() -> None:
    for wrong in (0, 3, 8):
        with pytest.raises(WorldError, match=f"per_node={wrong}"):
            nodes(4, wrong)


def test_a_wait_in_vain_for_another_node() -> None:
    call = Call((16, 16, 16, 16), N=16, K=16, schedule=NAMED["push"].changed(
        gather={"tile": (16, None), "count": 1}, matmul={"tile": (16, 16, 16)}))  # fmt: skip
    waits = r"rank 0 worker 4 of .*: role matmul, tile 3, waits for full\[M\[48.* \(signal 3\): expected 1, observed 0"
    with pytest.raises(StuckError, match=waits):
        nodes(4, 2).run(lambda g: call.on(g) if g.rank != 3 else None)


def test_amd_gpus_have_no_network_yet() -> None:
    with pytest.raises(TargetError, match=r"gfx942 has no network to other nodes here; these have: cpu, sm_90, sm_100"):
        TARGETS["gfx942"].across_nodes()
    assert TARGETS["sm_90"].across_nodes().across_nodes().name == "sm_90+nvshmem"
