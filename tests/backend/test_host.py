"""What hosts do for a run: kernels with what is passed to them, copies and signals of the copy engine, in order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

import tilelink as tk
from tilelink.analysis.unroll import unroll
from tilelink.backend import host
from tilelink.backend.host import (
    Fork,
    Join,
    KernelLaunch,
    Place,
    RegionCopy,
    SignalWait,
    SignalWrite,
    Step,
    host_plan,
)
from tilelink.backend.lower import lower_at
from tilelink.backend.targets import CPU
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul, engine
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter

PARTS = {"M": (32, 0, 40), "N": 32, "K": 48}


def plan(schedule: tk.Schedule | str, rank: int) -> tuple[Step, ...]:
    if not isinstance(schedule, tk.Schedule):
        schedule = all_gather_matmul.fit(schedule, world=3, **PARTS)
    bound = all_gather_matmul.bind(schedule)
    sizes = Sizes.of(bound, 3, PARTS)
    events = unroll(bound, sizes)
    lowered = lower_at(bound, sizes, CPU)
    made = host_plan(lowered, sizes, events.sms, events.kernel_workers, lambda: events, rank)
    alone = unroll(bound, sizes, roles=bound.on_engine, ranks=[rank])
    assert made == host_plan(lowered, sizes, events.sms, events.kernel_workers, lambda: alone, rank)  # all it takes
    return made


def by_engine(at: str) -> tk.Schedule:
    gather = {"tile": (32, None), "at": at, "order": tk.own_rank_first, "streams": "peers", "own": "copied"}
    return engine.changed(gather=gather, matmul={"tile": (32, 32, 16)})


def kernels(steps: tuple[Step, ...]) -> list[str]:
    return [s.kernel.name.removeprefix("all_gather_matmul") for s in steps if isinstance(s, KernelLaunch)]


@pytest.mark.parametrize(("schedule", "names"), [("push", [""]), ("pull", ["_publish", ""]), ("multicast", [""])])
def test_without_an_engine_there_are_one_or_two_kernels(schedule: str, names: list[str]) -> None:
    steps = plan(schedule, 0)
    assert kernels(steps) == names and len(steps) == len(names)


@pytest.mark.parametrize(("at", "names"), [("home", ["_enter", ""]), ("reader", ["_publish", "_enter", ""])])
def test_copies_stand_between_the_entry_and_the_kernel(at: str, names: list[str]) -> None:
    steps = plan(by_engine(at), 0)
    assert kernels(steps) == names
    before = next(k for k, s in enumerate(steps) if isinstance(s, Fork))
    assert isinstance(steps[before - 1], KernelLaunch) and isinstance(steps[-2], KernelLaunch)
    assert all(isinstance(s, RegionCopy | SignalWrite) for s in steps[before + 1 : -2])
    assert isinstance(steps[-1], Join) and steps[-1].peers == steps[before].peers  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", ["home", "reader"])
def test_every_signal_is_given_once_after_its_copy(at: str) -> None:
    """On all ranks together: one signal a tile of rows, to each rank, right after the copy of these rows to it."""
    given: Counter[tuple[int, int]] = Counter()
    for rank in range(3):
        steps = plan(by_engine(at), rank)
        for copy, signal in pairwise(steps):
            if not isinstance(signal, SignalWrite):
                continue
            assert isinstance(copy, RegionCopy) and copy.peer == signal.peer
            assert copy.target.tensor == signal.tensor == "full" and copy.target.rank == signal.rank
            assert copy.source.box == copy.target.box and copy.peer in (copy.source.rank, copy.target.rank)
            assert copy.ahead == signal.ahead == (copy.source.rank == copy.target.rank)
            (first, last), columns = copy.target.box
            assert (
                columns == (0, 48)
                and signal.cell == {0: 0, 32: 4, 64: 5}[first]
                and last == {0: 32, 32: 64, 64: 72}[first]
            )
            given[signal.rank, signal.cell] += 1
    assert given == {(reader, cell): 1 for reader in range(3) for cell in (0, 4, 5)}


@pytest.mark.parametrize("at", ["home", "reader"])
def test_rows_that_stay_on_a_rank_and_are_read_there_are_not_copied(at: str) -> None:
    """All other copies and signals are the same, in the same order."""
    for rank in range(3):
        copied, read = (plan(by_engine(at).changed(gather={"own": own}), rank) for own in ("copied", "read"))
        others = [s for s in copied if isinstance(s, RegionCopy | SignalWrite) and not s.ahead]
        assert others == [s for s in read if isinstance(s, RegionCopy | SignalWrite)]
        assert kernels(read) == kernels(copied)


def test_ranks_without_copies_fork_nothing() -> None:
    assert kernels(plan(by_engine("home"), 1)) == ["_enter", ""]
    assert len(plan(by_engine("home"), 1)) == 2


def test_the_order_of_the_schedule_is_that_of_the_host() -> None:
    for order, peers in ((tk.own_rank_first, [2, 0, 1]), (tk.next_rank_first, [0, 1, 2])):
        steps = plan(by_engine("home").changed(gather={"order": order}), 2)
        copies = [s.peer for s in steps if isinstance(s, RegionCopy)]
        assert copies == [p for p in peers for _ in range(2)]


def test_text() -> None:
    text = all_gather_matmul.show("host", by_engine("reader"), world=3, dtypes="float32", **PARTS)
    of_rank_1 = text.split("rank 1:\n")[1].split("rank 2:")[0].splitlines()
    assert of_rank_1[0].strip().startswith("launch all_gather_matmul_publish on 1 SM: x, x_stride_M")
    assert of_rank_1[1].strip() == "launch all_gather_matmul_enter on 1 SM: heaps, rank=1, slot, world=3"
    assert of_rank_1[2].strip() == "streams 0, 2 go on after that"
    assert of_rank_1[3].strip() == "stream 2: copy x[M[32:64], K[0:48]] of rank 2 to full[M[32:64], K[0:48]] of rank 1"
    assert of_rank_1[4].strip() == "stream 2: write 1 to signal 4 of full on rank 1"
    assert of_rank_1[-2].strip().startswith("launch all_gather_matmul on 6 SMs: weight")
    assert "K=48, N=32" in of_rank_1[-2] and "rank=1" in of_rank_1[-2]
    assert of_rank_1[-1].strip() == "what follows comes after streams 0, 2"


def test_text_says_how_many_workers_roles_have() -> None:
    text = all_gather_matmul.show("host", world=2, M=64, N=64, K=64)
    assert "gather_workers=2" in text and text.count("launch") == 2


def test_one_stream_is_one() -> None:
    engine = by_engine("home").changed(gather={"streams": "one"})
    text = all_gather_matmul.show("host", engine, world=3, dtypes="float32", **PARTS)
    assert "stream 0 goes on after that" in text and "what follows comes after stream 0\n" in text


def test_what_may_come_ahead_stands_before_the_kernel_also_behind_a_wait_of_its_stream() -> None:
    """Behind the kernel, on its stream, it would come too late for the kernel that waits for it."""
    own = Place("x", 0, ("M",), ((0, 16),))
    wait, copy, late = SignalWait(0, "partial", 0, 1), RegionCopy(0, own, own, ahead=True), RegionCopy(0, own, own)
    signal = SignalWrite(0, "full", 0, 0, ahead=True)
    assert host._around_the_kernel([wait, copy, signal, late]) == ([copy, signal], [wait, late])


def test_a_copy_inside_a_rank_that_waits_is_not_ahead() -> None:
    """Behind a wait for a tile of the kernel, a copy can't come before the kernel."""
    sizes = {"M": (32, 32), "N": 32, "K": 48}
    fitted = matmul_reduce_scatter.fit("engine", world=2, **sizes)
    bound = matmul_reduce_scatter.bind(fitted.changed(send={"own": "copied"}))
    at = Sizes.of(bound, 2, sizes)
    events = unroll(bound, at)
    steps = host_plan(lower_at(bound, at, CPU), at, events.sms, events.kernel_workers, lambda: events, 0)
    copies = [s for s in steps if isinstance(s, RegionCopy)]
    assert {(c.source.rank, c.target.rank) for c in copies} == {(0, 0), (0, 1)} and not any(c.ahead for c in copies)
