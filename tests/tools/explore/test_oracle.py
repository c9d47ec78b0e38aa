"""The oracle: what it finds in events, and that it is an executor like the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.analysis.check.damage import without
from tests.parameters import each_once
from tests.programs.exchanges import readers_first
from tests.programs.reducing import ring_reduce_scatter
from tests.programs.ring_attention import stale_entry
from tests.programs.unsafe import output_written_twice, part_of_the_output, stores_after_notify
from tilelink.analysis.events import NOTIFY, WAIT, Events
from tilelink.errors import WorldError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.tools.explore import Exploration, Lowered, Oracle, explore, of_world

moved = tk.SMs(1, tile=(16, 16))
SMALL = tk.Schedule(gather=tk.SMs(1, tile=(16, 16), at="home"), matmul=tk.SMs(2, tile=(16, 16, 16)))
SIZES = {"M": 40, "N": 16, "K": 16}


def gathering(**changes: Any) -> Events:
    return all_gather_matmul.unroll(SMALL.changed(**changes), world=2, **SIZES)


def kinds(exploration: Exploration) -> set[str]:
    return {f.kind for f in exploration.findings}


@each_once("world, policy", [2, 3, 4], ["random", "pct"])
def test_nothing_in_what_is_right(world: int, policy: str) -> None:
    for name in all_gather_matmul.schedules:
        tile = (16, None) if name == "engine" else (16, 16)
        schedule = all_gather_matmul.schedule(name).changed(gather={"tile": tile}, matmul={"tile": (16, 16, 16)})
        subject = Oracle.of(all_gather_matmul, schedule, world=world, sms=24, **SIZES)
        explored = explore(subject, range(20), policy)
        assert not explored.findings, explored
        assert explored.distinct > 15


def test_a_seed_repeats_its_schedule() -> None:
    subject = Oracle(gathering())
    hashes = explore(subject, range(5)).hashes
    assert explore(Oracle(gathering()), [4, 2]).hashes == [hashes[4], hashes[2]]


def test_a_race_has_both_lines_and_shows_under_every_schedule() -> None:
    subject = Oracle.of(stores_after_notify, tk.Schedule(store_after_notify=moved, take=moved), world=2, M=32, K=16)
    explored = explore(subject, range(6))
    race = next(f for f in explored.findings if f.kind == "race")
    assert any("there.store(x[t].load() * 2)" in line for line in race.lines)
    assert any("tk.wait(full[t]).load()" in line for line in race.lines)
    assert explored.times["race", race.lines] == 6


def test_an_entry_whose_place_another_has_taken() -> None:
    schedule = tk.Schedule(pass_on=moved, own_rows_last=moved)
    subject = Oracle.of(stale_entry, schedule, world=3, M=16, K=16)
    (found,) = explore(subject, range(3)).findings
    assert found.kind == "stale read" and any("out[t].store(first.load())" in line for line in found.lines)
    assert "entry 2 in buffer 0" in found.what


def test_results_of_a_race_differ_from_schedule_to_schedule() -> None:
    subject = Oracle.of(stores_after_notify, tk.Schedule(store_after_notify=moved, take=moved), world=2, M=32, K=16)
    explored = explore(subject, range(20))
    assert kinds(explored) == {"race", "unequal results"}
    assert "it is made of other versions of what its tile read than in the first schedule" in str(explored)
    assert all(f.remedy.startswith("notify what") for f in explored.findings)


def test_a_deadlock_says_who_waits_for_what() -> None:
    shared = tk.Schedule(take=tk.SMs(tile=(16, 16)), gather=tk.SMs(tile=(16, 16)))
    subject = Oracle.of(readers_first, shared, world=2, sms=1, M=32, K=16)
    (found,) = explore(subject, range(3)).findings
    assert found.kind == "deadlock" and "tk.wait(full[t])" in found.lines[0]
    assert "rank 0 worker 0 take tile 0: wait full[M[0:16], K[0:16]] at rank 0, cell 0 until 1, given 0" in found.what
    assert found.remedy.startswith("launch gather (") and "and 1 more" not in found.what
    assert not found.what.startswith("deadlock")


def test_waiters_that_take_all_the_room() -> None:
    assert not explore(Oracle(gathering(), resident=3), range(3)).findings
    (found,) = explore(Oracle(gathering(), resident=2), range(3)).findings
    assert found.kind == "deadlock" and "rank 0: 1 worker never started, no more may be resident" in found.what
    assert found.remedy.startswith("launch on 2 SMs")


@pytest.mark.parametrize("resident", [0, -1])
def test_at_least_one_is_resident(resident: int) -> None:
    for make in (Oracle.of, Lowered):
        with pytest.raises(WorldError, match=f"resident={resident}: at least 1 worker of a rank"):
            make(all_gather_matmul, SMALL, world=2, resident=resident, **SIZES)
    with pytest.raises(WorldError, match=f"resident={resident}"):
        of_world(lambda **schedule: pytest.fail("no world is made"), resident)


@pytest.mark.parametrize("make", [Oracle.of, Lowered])
def test_lists_and_optional_tensors(make: Any) -> None:
    dtypes = {"x": "float32", "weight": "float32", "bias": "float32"}
    subject = make(all_gather_matmul, SMALL, world=2, dtypes=dtypes, M=18, N=(16, 20), K=16)
    assert {"bias_0", "bias_1"} <= {t.name for t in subject.events.program.tensors}
    assert not explore(subject, range(2)).findings


def test_outputs_that_nobody_writes_or_two_tiles_do() -> None:
    schedule = tk.Schedule(gather=moved, use_own=moved)
    (found,) = explore(Oracle.of(part_of_the_output, schedule, world=2, M=32, K=16), range(2)).findings
    assert found.kind == "unwritten output" and found.remedy.startswith("store out on every path of use_own (line ")
    schedule = tk.Schedule(gather=moved, take=moved, use_again=moved)
    subject = Oracle.of(output_written_twice, schedule, world=2, M=32, K=16)
    explored = explore(subject, range(4))
    assert kinds(explored) >= {"race", "written twice"}
    assert all(f.remedy == "let each tile of out be stored by one tile of one role" for f in explored.findings)


def test_damaged_events() -> None:
    events = gathering()
    no_wait = without(events, np.flatnonzero(events.op == WAIT).tolist()[:1])
    assert kinds(explore(Oracle(no_wait), range(10))) >= {"race"}
    no_notify = without(events, np.flatnonzero(events.op == NOTIFY).tolist()[:1])
    assert kinds(explore(Oracle(no_notify), range(2))) == {"deadlock"}
    read_first = replace(no_wait, op=np.where(no_wait.op == WAIT, NOTIFY, no_wait.op), cell=no_wait.cell * 0)
    assert "unwritten read" in kinds(explore(Oracle(read_first), range(10)))


def test_a_ring_that_goes_the_wrong_way_round_gets_stuck() -> None:
    forwards = tk.order(lambda step, rank, world: (rank + step) % world)
    backwards = tk.order(lambda step, rank, world: (rank - step - 1) % world)
    one = tk.SMs(1, tile=(16, 16, 16))
    for order, found in ((backwards, set()), (forwards, {"deadlock"})):
        schedule = tk.Schedule(matmul=one, ring=tk.SMs(1, tile=(16, 16), order=order))
        subject = Oracle.of(ring_reduce_scatter, schedule, world=3, M=48, N=16, K=16)
        assert kinds(explore(subject, range(5), "pct")) == found
