"""The explorer on lowered kernels: nothing in what is right, and each thing that goes wrong in what is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import tilelink as tk
from tests.backend.edited import in_function, primitives, replaced
from tests.parameters import first_of
from tests.programs.exchanges import readers_first
from tests.programs.gathered import lower_rows
from tests.programs.unsafe import part_of_the_output, stores_after_notify
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend.targets import portable
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.tools.explore import Exploration, Lowered, explore

__all__ = ["primitives"]
pytestmark = pytest.mark.usefixtures("own_cache")
SIZES = {"M": 20, "N": 16, "K": 20}
TILES = {"gather": {"tile": (16, 16), "count": 2}, "matmul": {"tile": (16, 16, 16), "count": 2}}
moved = tk.SMs(1, tile=(16, 16))


def gather_matmul(name: str = "push", **options: Any) -> Lowered:
    tiles = TILES | ({"gather": {"tile": (16, None)}} if name == "engine" else {})
    schedule = all_gather_matmul.schedule(name).changed(**tiles)
    return Lowered(all_gather_matmul, schedule, world=2, sms=8, **options, **SIZES)


def kinds(exploration: Exploration) -> set[str]:
    return {f.kind for f in exploration.findings}


@pytest.mark.parametrize(("name", "policy"), [
    ("push", "random"), ("engine", "pct"),
    *(pytest.param(*c, marks=pytest.mark.verify) for c in (("push", "pct"), ("pull", "random"))),
])  # fmt: skip
def test_what_is_right_has_no_finding_and_every_seed_its_schedule(name: str, policy: str) -> None:
    explored = explore(gather_matmul(name), range(3), policy)
    assert not explored.findings
    assert explored.schedules_run == explored.distinct == 3
    assert str(explored) == f"no finding in 3 schedules, 3 of them distinct ({policy})\n"


@pytest.mark.parametrize("policy", first_of(["pct", "random"]))
def test_a_seed_repeats_its_schedule_wherever_it_comes(policy: str) -> None:
    subject = gather_matmul("pull")
    hashes = explore(subject, range(3), policy).hashes
    assert [explore(subject, [seed], policy).hashes[0] for seed in (2, 0)] == [hashes[2], hashes[0]]
    assert explore(gather_matmul("pull"), [2], policy).hashes == hashes[2:]


def mutated(old: str, new: str, **options: Any) -> Lowered:
    make = partial(MutatedWorld, kernel=replaced(old, new), primitives=portable)
    return gather_matmul(make_world=make, **options)


def test_a_race_of_a_lowered_kernel_names_both_lines_and_its_seed() -> None:
    subject = mutated(r"rows_ready \+= wait\(.*\)", "rows_ready = 0")
    explored = explore(subject, range(1, 4))
    assert kinds(explored) == {"race"}
    lines = explored.findings[0].lines
    assert any("tk.copy(x[t], full[t].at(t.reader))" in line for line in lines)
    assert any("rows[:, k].load()" in line for line in lines)
    assert "release a signal" in explored.findings[0].remedy
    seed = explored.found[0].seed
    again = explore(subject, [seed])
    assert again.found[0] == explored.found[0]
    assert f"race (seed {seed}): " in str(explored) and "of 3 schedules" in str(explored)


def test_a_deadlock_of_a_lowered_kernel_names_the_line_that_waits() -> None:
    explored = explore(mutated(r"^( +)notify\(.*\n", ""), range(2))
    assert kinds(explored) == {"deadlock"}
    assert any("tk.wait(full[t.rows])" in line for line in explored.findings[0].lines)


def test_what_is_reused_too_early_shows_in_the_second_call() -> None:
    assert kinds(explore(mutated(r"^ +credit\(.*\n", ""), range(4))) & {"race", "deadlock"}


@pytest.mark.parametrize("policy", first_of(["random", "pct"]))
def test_what_the_check_refuses_can_be_explored(policy: str) -> None:
    schedule = tk.Schedule(store_after_notify=moved, take=moved)
    subject = Lowered(stores_after_notify, schedule, world=2, M=32, K=16)
    explored = explore(subject, range(6), policy)
    assert "race" in kinds(explored)
    assert all(f.remedy.startswith("notify what") for f in explored.findings if f.kind == "race")
    shared = tk.Schedule(take=tk.SMs(tile=(16, 16)), gather=tk.SMs(tile=(16, 16)))
    subject = Lowered(readers_first, shared, world=2, sms=1, M=32, K=16)
    (deadlock,) = explore(subject, range(2), policy).findings
    assert deadlock.kind == "deadlock" and any("tk.wait(full[t])" in line for line in deadlock.lines)
    assert deadlock.remedy.startswith("launch gather (") and not deadlock.what.startswith("deadlock")


def test_workers_that_are_stuck_alike_are_told_once() -> None:
    shared = tk.Schedule(take=tk.SMs(tile=(16, 16)), gather=tk.SMs(tile=(16, 16)))
    subject = Lowered(readers_first, shared, world=2, sms=4, M=64, K=32)
    (deadlock,) = explore(subject, [0]).findings
    told = [line.strip() for line in deadlock.what.splitlines()]
    assert sum("role take, tile" in line for line in told) == 2  # one of a rank
    assert told.count("and 3 more workers of take") == 2


def test_too_few_resident_workers_are_told_with_what_would_do() -> None:
    subject = gather_matmul(resident=1)
    (deadlock,) = explore(subject, [1]).findings
    assert deadlock.kind == "deadlock" and deadlock.remedy.startswith("launch on 1 SMs (sms=1), or give roles a count")


def test_what_nobody_wrote_shows_in_the_results() -> None:
    subject = Lowered(part_of_the_output, tk.Schedule(gather=moved, use_own=moved), world=2, M=32, K=16)
    found = explore(subject, [0, 3]).findings
    assert {f.kind for f in found} == {"unwritten output"}
    assert any("out[t].store(tk.wait(full[t]).load())" in line for line in found[0].lines)
    assert found[0].remedy.startswith("store out on every path of use_own (line ")


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'fair'; there is random, pct"):
        explore(gather_matmul(), range(2), "fair")


def test_calls_in_two_slots() -> None:
    assert not explore(gather_matmul("pull", slots=2), [0, 5]).findings


def test_a_primitive_that_is_wrong(primitives: Any) -> None:
    """The first worker out leaves for all: peers are told before the run is over."""
    edited = primitives(in_function("last_out", r"== workers - 1", "== 0"))
    world = partial(MutatedWorld, kernel=lambda source: source, primitives=edited)
    assert explore(gather_matmul("push", make_world=world), range(4)).findings


def test_signals_that_nobody_zeroes_are_left_behind() -> None:
    """Nobody waits for those of higher ranks, so that no call goes wrong."""
    world = partial(MutatedWorld, kernel=replaced(", here, ", ", here & (cell <= rank), "), primitives=portable)
    subject = Lowered(lower_rows, lower_rows.schedule("push"), world=2, make_world=world, M=32, K=32)
    (found,) = explore(subject, range(2)).findings
    assert found.kind == "signals left"
    assert found.what.startswith("rank 0, slot 0: signals of full are not zero after the last run")
    assert any("tk.notify(tk.copy(x[t], full[t].at(t.reader)))" in line for line in found.lines)
