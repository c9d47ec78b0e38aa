"""Copy engines that wait for tiles of the kernel: right however late, and found out where anything is amiss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from tests.backend.edited import EITHER, in_function
from tests.kernels.gather_gemm import run_and_check, small_world
from tests.kernels.gemm_reduce import Sum
from tests.parameters import covering, first_of, rarely, some_of
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.plans import Plan, planned, without
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend.host import Join, KernelLaunch, LetGo, SignalWait, SignalWrite
from tilelink.backend.targets import portable
from tilelink.emulator import Operation, RaceError
from tilelink.errors import CaptureError, StuckError, TraceMismatchError, WorldError
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.runtime.trace import align

SMALL: dict[str, Any] = {"matmul": (16, 16, 16), "moved": (16, 16)}
PARTS = [(33,), (7, 40), (16, 0, 33), (0, 0, 0, 5)]
EIGHT = pytest.param((3, 0, 17, 1, 0, 0, 5, 2), 1, marks=pytest.mark.verify)
SEVERAL = [*rarely(covering(product(PARTS, (1, 2))), lambda parts, _: len(parts) == 3), EIGHT]
"""A lane of several schedules has three ranks in every run."""


def by_engine(parts: tuple[int, ...], schedule: str = "engine", **options: Any) -> Sum:
    return Sum(parts, N=20, K=8, integers=True, **options).by((matmul_reduce_scatter, schedule), **SMALL)


@pytest.mark.parametrize(("parts", "slots"), SEVERAL, ids=str)
def test_several_times_in_a_row(parts: tuple[int, ...], slots: int) -> None:
    call, other = by_engine(parts), by_engine(parts, seed=1)
    run_and_check(call, other, call, slots=slots, seed=slots)


def test_beside_other_schedules_in_one_lane() -> None:
    names = "engine", "fused", "engine", "pull", "engine", "push", "engine"
    run_and_check(*(by_engine((5, 0, 9), name) for name in names), slots=1)


def test_engines_go_on_while_the_kernel_makes_more_tiles() -> None:
    """And no cell is let go before the kernel has ended."""
    operations: list[Operation] = []
    call = by_engine((64, 64))
    call.check(small_world(2, observer=operations.append, sms=3).run(call.on))
    name = "matmul_reduce_scatter run 0"
    copied = next(o.sequence for o in operations if o.region.name == "inbox" and o.kind == "store")
    made = [o for o in operations if o.region.name == "partial" and o.kind == "store" and o.sequence > copied]
    assert made
    gone = [o.sequence for o in operations if o.rank == 0 and o.name == f"{name}, ended"]
    assert gone and all(o.sequence < min(gone) for o in operations if o.rank == 0 and o.name == name and o.program < 3)


def test_the_trace_looks_at_the_kernels_beside() -> None:
    operations: list[Operation] = []
    call = by_engine((20, 13))
    world = small_world(2, observer=operations.append)
    call.check(world.run(call.on))
    (prepared,) = world.lane.prepared.values()
    name = "matmul_reduce_scatter run 0"
    assert align(prepared.events, operations, name).done
    for kernel in ("enter", "leave"):
        without_it = [o for o in operations if o.name != f"matmul_reduce_scatter_{kernel} run 0"]
        with pytest.raises(TraceMismatchError, match="once that it has entered, and then that it has left; the kernel"):
            align(prepared.events, without_it, name)


# ---- what the host, or a kernel, may do wrong


def leaves_early(plan: Plan) -> Plan:
    """The rank leaves before its engine is done."""
    return (*(s for s in plan if not isinstance(s, Join)), next(s for s in plan if isinstance(s, Join)))


def lets_go_early(plan: Plan) -> Plan:
    """The cells are let go before the kernel runs."""
    k = next(k for k, s in enumerate(plan) if isinstance(s, KernelLaunch) and s.kernel.name == "matmul_reduce_scatter")
    gone = tuple(s for s in plan if isinstance(s, LetGo))
    return (*plan[:k], *gone, *(s for s in plan[k:] if not isinstance(s, LetGo)))


EDITED_PLANS = [
    ("no wait", without(SignalWait), RaceError),
    ("no signal", without(SignalWrite), StuckError),
    ("leaves before its engine", leaves_early, EITHER),
    ("lets go before the kernel", lets_go_early, RaceError),
]


@some_of(4, first=1)
@pytest.mark.parametrize(("what", "edit", "found"), EDITED_PLANS, ids=[what for what, *_ in EDITED_PLANS])
def test_edited_plans_are_caught(
    what: str, edit: Callable[[Plan], Plan], found: Any, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    planned(monkeypatch, edit)
    for seed in seeds:
        with pytest.raises(found):
            run_and_check(*[by_engine((80, 96))] * 3, world=small_world(2, slots=1, sms=8), seed=seed)


EDITED_KERNELS = [
    ("no zeroing", "matmul_reduce_scatter_leave", r"^ +drain_partial\(.*\n", ""),
    ("does not leave", "matmul_reduce_scatter_leave", r"^ +leave\(.*\n", ""),
    ("a tile without its signal", "matmul", r"^( +)notify\(.*", r"\1pass"),
]


@some_of(2, first=1)
@pytest.mark.parametrize(("what", "name", "old", "new"), EDITED_KERNELS, ids=[what for what, *_ in EDITED_KERNELS])
@pytest.mark.usefixtures("own_cache")
def test_edited_kernels_are_caught(what: str, name: str, old: str, new: str, seeds: range) -> None:
    edit = in_function(name, old, new)
    for seed in seeds:
        world = MutatedWorld(2, kernel=edit, primitives=portable, heap_bytes=4 << 20, sms=8, slots=1)
        with pytest.raises(EITHER):
            run_and_check(*[by_engine((32, 32))] * 3, world=world, seed=seed)


def test_a_poisoned_rank_does_not_leave() -> None:
    """What it was let go for need not be there: it tells nobody that the run is over."""
    world, call = small_world(2), by_engine((16, 16))
    control = [group.lane.heaps[group.rank][: 8 * 16].view(torch.int64) for group in world.groups]
    control[1][portable.POISON.value] = 1
    world.run(call.on)
    assert [int(words[portable.RUN.value]) for words in control] == [1, 0]


# ---- on a device


@pytest.mark.parametrize("world", first_of([1, 2, 4], 2))
def test_virtual_ranks(world: int) -> None:
    """The kernel is launched before what waits for it, on one more stream a rank."""
    device = StandIn(sms=24)
    ranks, call = virtual_world(world, device), by_engine((16, 0, 5, 33)[:world] if world > 1 else (33,))
    for _ in range(3):
        call.check(ranks.run(call.on))
    kernels = [f"matmul_reduce_scatter{k}" for k in ("_enter", "", "_leave")]
    assert [name for _, name, _ in device.launched] == kernels * world * 3


def test_calls_that_wait_in_streams_are_not_captured() -> None:
    device, call = StandIn(sms=24), by_engine((16, 16))
    ranks = virtual_world(2, device)
    ranks.run(lambda group: [call.on(group) for _ in range(ranks.groups[0].lane.layout.slots)])
    with pytest.raises(CaptureError, match="waits for tiles of the kernel, which graphs can't have"), device.capture():
        ranks.run(call.on)


def test_streams_that_wait_need_queues() -> None:
    device = StandIn(sms=24)
    device.queues = 3
    with pytest.raises(WorldError, match="need"):
        virtual_world(2, device).run(by_engine((16, 16)).on)
