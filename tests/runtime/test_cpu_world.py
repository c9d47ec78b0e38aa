"""Worlds of ranks on the CPU: many calls in a row, ranks that do not agree, deadlocks in the words of the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink as tk
from tilelink.errors import ArgumentError, HeapError, RankMismatchError, StuckError, UnsafeProgramError, shown
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.runtime.cpu import RaceError
from tilelink.runtime.cpu_world import CpuWorld, Group

K, N = 16, 24
SMALL = push.changed(gather={"count": 2, "tile": (16, 16)}, matmul={"tile": (16, 16, 16)})


# ---- A program whose readers come first: with too few workers nobody is left to give.


@tk.tile
def take(t, full, out):  # type: ignore[no-untyped-def]
    """Waits for a tile."""
    out[t].store(tk.wait(full[t]).load())  # the wait


@tk.tile
def give(t, x, full):  # type: ignore[no-untyped-def]
    """Brings a tile to a reader."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.program
def readers_first(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):  # type: ignore[no-untyped-def, valid-type]
    """out = all rows of x, by workers that take before they give."""
    full = tk.local("M", "K")
    take[tk.tiles(out)](full, out)
    give[tk.tiles(x, reader=tk.ranks)](x, full)


shared_workers = tk.Schedule(take=tk.SMs(tile=(16, 16)), give=tk.SMs(tile=(16, 16), at="home"))
own_workers = tk.Schedule(take=tk.SMs(1, tile=(16, 16)), give=tk.SMs(1, tile=(16, 16), at="home"))


# ---- Calls of all ranks, and what has to come out.


class Call:
    """One call of all_gather_matmul of every rank, on whole numbers, of which all sums are exact."""

    def __init__(
        self,
        parts: Sequence[int],
        dtype: torch.dtype = torch.float32,
        schedule: Any = "push",
        seed: int = 0,
        **options: Any,
    ) -> None:
        numbers = torch.Generator().manual_seed(seed)
        whole = torch.randint(-2, 3, (sum(parts), K), generator=numbers)
        weights = [torch.randint(-2, 3, (K, N), generator=numbers) for _ in parts]
        self.parts, self.schedule, self.options = tuple(parts), schedule, options
        self.x = [part.to(dtype) for part in whole.split(list(parts))]
        self.weight = [w.to(dtype) for w in weights]
        self.expected = [(whole @ w).to(dtype) for w in weights]
        self.outs = [torch.full((sum(parts), N), float("nan"), dtype=dtype) for _ in parts]

    def on(self, group: Group) -> torch.Tensor:
        """Makes the call on a rank."""
        tensors = (t[group.rank] for t in (self.x, self.weight, self.outs))
        parts = {"M": self.parts}
        return all_gather_matmul(*tensors, schedule=self.schedule, parts=parts, group=group, **self.options)

    def check(self) -> None:
        """Raises AssertionError unless the results of all ranks are right."""
        assert all(torch.equal(a, b) for a, b in zip(self.outs, self.expected, strict=True))


def small_world(world: int, **options: Any) -> CpuWorld:
    return CpuWorld(world, **{"heap_bytes": 64 << 10, "signal_bytes": 512, "sms": 20, **options})


def check_usable(world: CpuWorld) -> None:
    """Correct calls in the same world give what they should."""
    calls = [Call((5,) * world.world, seed=s) for s in range(2)]
    world.run(lambda group: [call.on(group) for call in calls])
    for call in calls:
        call.check()


def line(marker: str) -> int:
    """The line of this file that ends with a marker."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [k for k, text in enumerate(lines, 1) if text.endswith(f"# {marker}")]
    return found


# ---- Calls that agree.


@pytest.mark.parametrize("schedule", ["push", "pull"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_worlds(world: int, schedule: str) -> None:
    call = Call([3 * r % 7 for r in range(1, world + 1)], schedule=schedule)
    small_world(world).run(call.on)
    call.check()


@pytest.mark.parametrize("slots", [1, 2])
def test_twenty_calls_in_one_run(slots: int) -> None:
    calls = [Call((5, 3), seed=s, schedule=("push", "pull")[s % 3 == 1]) for s in range(20)]
    small_world(2, slots=slots).run(lambda group: [call.on(group) for call in calls])
    for call in calls:
        call.check()


def test_slots_picked_by_hand() -> None:
    calls = [Call((5, 3), seed=k, slot=slot) for k, slot in enumerate((0, 1, 0, 0, 1))]
    world = small_world(2)
    for _ in range(2):
        world.run(lambda group: [call.on(group) for call in calls])
        for call in calls:
            call.check()
            for out in call.outs:
                out.fill_(float("nan"))


def test_shapes_and_dtypes_change_from_call_to_call() -> None:
    calls = [
        Call((32, 32)),
        Call((5, 0), torch.bfloat16, seed=1),
        Call((0, 1), torch.float16, "pull", seed=2),
        Call((0, 0), seed=3),
        Call((1, 40), torch.bfloat16, SMALL, seed=4),
        Call((32, 32), torch.float16, seed=5),
    ]
    small_world(2).run(lambda group: [call.on(group) for call in calls])
    for call in calls:
        call.check()


def test_programs_take_turns() -> None:
    def rank(group: Group) -> None:
        for call, y in zip(calls, gathered, strict=True):
            all_gather(call.x[group.rank], y[group.rank], group=group)
            call.on(group)

    calls = [Call((6, 6), seed=s) for s in range(3)]
    gathered = [[torch.empty(12, K) for _ in range(2)] for _ in calls]
    small_world(2).run(rank)
    for call, y in zip(calls, gathered, strict=True):
        call.check()
        assert all(torch.equal(of_rank, torch.cat(call.x)) for of_rank in y)


def test_worlds_take_turns() -> None:
    worlds = [small_world(1), small_world(2), small_world(3, slots=1), small_world(2)]
    for seed in range(2):
        for world in worlds:
            call = Call((4,) * world.world, seed=seed)
            world.run(call.on)
            call.check()


def test_a_rank_may_wait_for_its_results() -> None:
    """And make the next call of them."""

    def rank(group: Group) -> None:
        first.on(group)
        group.synchronize()
        assert torch.equal(first.outs[group.rank], first.expected[group.rank])
        second.x[group.rank].copy_(first.outs[group.rank][: second.parts[group.rank], :K])
        second.on(group)

    first, second = Call((5, 3)), Call((2, 4), seed=1)
    small_world(2).run(rank)
    x = torch.cat([first.expected[0][:2, :K], first.expected[1][:4, :K]])
    assert all(torch.equal(out, x @ w) for out, w in zip(second.outs, second.weight, strict=True))


def test_outputs_are_those_given_and_inputs_stay() -> None:
    call = Call((5, 0, 33))
    before = [t.clone() for t in call.x + call.weight]
    results = small_world(3).run(call.on)
    call.check()
    assert all(a is b for a, b in zip(results, call.outs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, call.x + call.weight, strict=True))


def test_results_come_by_rank() -> None:
    assert small_world(3).run(lambda group: (group.rank, group.world)) == [(0, 3), (1, 3), (2, 3)]


def bits(seed: int = 0, sms: int = 20) -> tuple[list[torch.Tensor], int]:
    """Results on any numbers, and the hash of the order in which they were made."""
    numbers = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 20, 40, generator=numbers), torch.randn(2, 40, N, generator=numbers)
    world = small_world(2, sms=sms)
    executions: list[Any] = []

    def rank(group: Group) -> torch.Tensor:
        executions.append(world.execution)
        return all_gather_matmul(x[group.rank], weight[group.rank], schedule=SMALL, group=group)

    outs = world.run(rank, seed=seed)
    return outs, executions[0].schedule_hash


def test_the_seed_fixes_the_order_and_no_order_changes_a_bit() -> None:
    first, order = bits()
    assert bits()[1] == order
    others = [bits(seed) for seed in range(1, 4)]
    assert len({order, *(o for _, o in others)}) == 4
    assert all(torch.equal(a, b) for outs, _ in others for a, b in zip(first, outs, strict=True))


def test_results_do_not_depend_on_the_sms() -> None:
    first, _ = bits()
    for sms in (3, 4, 7, 132):
        assert all(torch.equal(a, b) for a, b in zip(first, bits(sms=sms)[0], strict=True))


# ---- Ranks that do not agree.


def called(call: Call) -> Callable[[Group], Any]:
    return lambda group: call.on(group)


def gathered(group: Group) -> Any:
    return all_gather(torch.ones(4, K), group=group)


DISAGREE: dict[str, tuple[Sequence[Callable[[Group], Any]], Sequence[Callable[[Group], Any]], str]] = {
    "parts": ([called(Call((4, 4)))], [called(Call((3, 4)))], "sizes"),
    "schedules": ([called(Call((4, 4)))], [called(Call((4, 4), schedule="pull"))], "schedule"),
    "tiles": ([called(Call((4, 4), schedule=SMALL))], [called(Call((4, 4)))], "schedule"),
    "dtypes": ([called(Call((4, 4)))], [called(Call((4, 4), torch.float16))], "dtypes"),
    "bias": ([called(Call((4, 4)))], [called(Call((4, 4), bias=torch.zeros(N)))], "dtypes"),
    "slots": ([called(Call((4, 4), slot=0))], [called(Call((4, 4), slot=1))], "slot"),
    "programs": ([called(Call((4, 4)))], [gathered], "program"),
    "order": ([called(Call((4, 4))), gathered], [gathered, called(Call((4, 4)))], "program"),
    "second call": ([gathered, called(Call((4, 4)))], [gathered, gathered], "program"),
}


@pytest.mark.parametrize("case", DISAGREE)
def test_ranks_have_to_agree(case: str) -> None:
    mine, theirs, what = DISAGREE[case]
    world = small_world(2)
    with pytest.raises(RankMismatchError) as e:
        world.run(lambda group: [call(group) for call in (mine, theirs)[group.rank]])
    number = 1 if case == "second call" else 0
    assert re.search(
        rf"test_cpu_world.py:\d+: call {number} of this group: rank (0 has {what} .*, rank 1|1 has {what} .*, rank 0) ",
        str(e.value),
    )
    assert e.value.site is not None and e.value.site.file == __file__
    check_usable(world)


def test_values_in_which_ranks_differ_are_said() -> None:
    def rank(group: Group) -> Any:
        return all_gather(torch.ones(4 + group.rank, K), group=group)  # differs

    with pytest.raises(RankMismatchError) as e:
        small_world(2).run(rank)
    assert f"{shown(__file__)}:{line('differs')}: call 0 of this group: rank " in str(e.value)
    for r in range(2):
        assert f"'M': ({4 + r}, {4 + r})" in str(e.value)
    assert "shards of different lengths are told to every rank, by parts=" in str(e.value)
    assert "'K'" not in str(e.value), "what they have in common is left out"


def test_a_rank_that_calls_once_too_often_waits_in_vain() -> None:
    world = small_world(2)
    call = Call((4, 4))
    with pytest.raises(StuckError, match=r"rank 1 worker \d+ of all_gather_matmul run 1: role matmul") as e:
        world.run(lambda group: [call.on(group) for _ in range(1 + group.rank)])
    assert "2 calls were made by rank 1; rank 0 made 1: the ranks of a group make the same calls" in str(e.value)
    check_usable(world)


# ---- Heaps.


@pytest.mark.parametrize("slots", [1, 2])
def test_recommended_heap_is_enough(slots: int) -> None:
    call = Call((200, 120))
    with pytest.raises(HeapError) as e:
        small_world(2, slots=slots, heap_bytes=8 << 10).run(call.on)
    message = str(e.value)
    assert "too small for all_gather_matmul at {'M': 320, 'K': 16, 'N': 24} on 2 ranks" in message
    assert "a slot needs 20480 bytes for full" in message
    (heap_bytes,) = map(int, re.findall(r"heap_bytes=(\d+)", message))
    small_world(2, slots=slots, heap_bytes=heap_bytes).run(call.on)
    call.check()


def test_recommended_signals_are_enough() -> None:
    call = Call((16 * 66,), schedule=SMALL)
    small = small_world(1, heap_bytes=256 << 10, signal_bytes=256, slots=1)
    with pytest.raises(HeapError, match="signal_bytes=512") as e:
        small.run(call.on)
    (heap_bytes,) = map(int, re.findall(r"heap_bytes=(\d+)", str(e.value)))
    check_usable(small)
    small_world(1, heap_bytes=heap_bytes, signal_bytes=512, slots=1, races=False).run(call.on)
    call.check()


# ---- Deadlocks.


def gather_readers_first(schedule: tk.Schedule, calls: int = 1, **options: Any) -> list[torch.Tensor]:
    """The results of the last call. Whatever happens, the world can be used again."""

    def rank(group: Group) -> torch.Tensor:
        x = torch.full((8, K), float(group.rank))
        return [readers_first(x, schedule=schedule, group=group) for _ in range(calls)][-1]

    world = small_world(2, **options)
    try:
        return world.run(rank)
    finally:
        assert all(torch.equal(out, torch.ones(8, K)) for out in world.run(gathered))


def test_enough_workers_are_not_stuck() -> None:
    for options in ({}, {"sms": 2}, {"resident": 2}, {"sms": 2, "resident": 2}):
        for out in gather_readers_first(own_workers, calls=2, **options):
            assert (out[:8] == 0).all() and (out[8:] == 1).all()


def test_unsafe_programs_are_not_launched() -> None:
    """The check says so before the first launch, on every rank, with the lines."""
    for _ in range(2):
        with pytest.raises(UnsafeProgramError, match="deadlock: 2 workers wait for ever") as e:
            gather_readers_first(shared_workers, sms=1)
        assert e.value.site is not None and e.value.site.line in (line("the wait"), line("the wait") + 6)
        assert f"{shown(__file__)}:{line('the wait')}: tk.wait(full[t])" in str(e.value)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check would refuse is launched."""
    monkeypatch.setenv("TILELINK_CHECK", "0")


def stuck(schedule: tk.Schedule, **options: Any) -> list[str]:
    """The lines of the message, by rank."""
    with pytest.raises(StuckError) as e:
        gather_readers_first(schedule, **options)
    head, *lines = str(e.value).splitlines()
    assert head == "no rank can go on:"
    return sorted(lines)


def waiting(rank: int) -> str:
    """How a rank waits for its first rows."""
    return (
        f"  rank {rank} worker 0 of readers_first run 0: role take, tile 0, waits for "
        f"full[M[{8 * rank}:{8 * rank + 8}], K[0:16]] of rank {rank} (signal {rank}): expected 1, observed 0 "
        f"({shown(__file__)}:{line('the wait')}: tk.wait(full[t]))"
    )


@pytest.mark.usefixtures("unchecked")
def test_worker_that_takes_before_it_gives() -> None:
    assert stuck(shared_workers, sms=1) == [waiting(0), waiting(1)]


def test_workers_that_can_not_all_be_resident() -> None:
    never = "of readers_first run 0: never started, because no more workers may be resident (of role give)"
    assert stuck(own_workers, resident=1) == [
        waiting(0),
        f"  rank 0 worker 1 {never}",
        waiting(1),
        f"  rank 1 worker 1 {never}",
    ]


@pytest.mark.usefixtures("unchecked")
def test_call_behind_one_that_is_stuck() -> None:
    never = "of readers_first run 1: never started, because a launch before it is not done"
    assert stuck(shared_workers, sms=1, calls=2) == [
        waiting(0),
        f"  rank 0 worker 0 {never}",
        waiting(1),
        f"  rank 1 worker 0 {never}",
    ]


def test_a_rank_that_does_not_call_is_waited_for() -> None:
    world = small_world(2)
    with pytest.raises(StuckError) as e:
        world.run(lambda group: gathered(group) if group.rank else None)
    waits = r"rank 1 worker \d+ of all_gather run 0: waits for rank 0 to go on, which has not entered any run"
    assert re.search(waits, str(e.value))
    assert str(e.value).endswith(
        "1 call was made by rank 1; rank 0 made 0: the ranks of a group make the same calls"
    )
    check_usable(world)


# ---- Hosts that fail.


@pytest.mark.parametrize("raising", [0, 2])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_rank_that_raises_ends_the_run_of_all(raising: int, calls_before: int) -> None:
    error = LookupError("of a user")

    def rank(group: Group) -> None:
        for _ in range(calls_before):
            call.on(group)
        if group.rank == raising:
            raise error
        call.on(group)
        group.synchronize()
        pytest.fail("the other ranks wait for the one that raised")

    world, call = small_world(3), Call((4, 4, 4))
    with pytest.raises(LookupError) as e:
        world.run(rank)
    assert e.value is error
    check_usable(world)


def test_one_rank_makes_a_bad_call() -> None:
    """Its own output is untouched; the ranks that called before it are not left waiting."""
    world, call = small_world(2), Call((4, 4))
    own = torch.full((8, N), -7.0)

    def rank(group: Group) -> None:
        if group.rank == 0:
            call.on(group)
            group.synchronize()
        all_gather_matmul(call.x[1], call.weight[1].half()[:-1], own, group=group)  # one bad call

    with pytest.raises(ArgumentError, match="weight has shape") as e:
        world.run(rank)
    assert e.value.site is not None and (e.value.site.file, e.value.site.line) == (__file__, line("one bad call"))
    assert (own == -7).all()
    check_usable(world)


def test_ranks_that_write_one_output() -> None:
    world, out = small_world(2), torch.empty(8, K)
    with pytest.raises(RaceError, match=r"out\[4:8, 0:16\] of rank 0: two accesses that nothing orders"):
        world.run(lambda group: all_gather(torch.ones(4, K), out, group=group))
    check_usable(world)
