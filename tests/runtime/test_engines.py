"""Copy engines on CPU ranks: late, on streams that overtake each other, and found out where the host does it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from tests.backend.edited import EITHER, in_function
from tests.kernels.gather_gemm import ENGINES, Call, run_and_check, small_world
from tests.parameters import covering, first_of, rarely, some_of
from tests.runtime.plans import Plan, planned, without
from tests.verification.mutants.tools import MutatedWorld
from tilelink.analysis.draw import perfetto
from tilelink.analysis.events import NOTIFY
from tilelink.backend.host import Fork, Join, RegionCopy, SignalWrite
from tilelink.backend.targets import portable
from tilelink.emulator import Operation, RaceError
from tilelink.errors import StuckError
from tilelink.kernels.matmul import matmul
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.trace import align, timeline

PARTS = [(33,), (7, 40), (16, 0, 33), (0, 0, 0, 5), (5, 1, 0, 0, 17, 0, 0, 3)]
SEVERAL = rarely(covering(product(ENGINES, PARTS[:-1], (1, 2))), lambda at, parts, _: len(parts) in (2, 3))
"""A lane of engines and SMs has three ranks in every run, and two engines that wait."""
OF_EIGHT = [*product(ENGINES, PARTS[-1:], (1, 2))]


def engine_call(at: str, parts: tuple[int, ...], own: str = "read", **options: object) -> Call:
    tiles: dict[str, Any] = {"gather": {"tile": (16, None), "own": own}, "matmul": {"tile": (16, 16, 16)}}
    return Call(parts, N=20, K=24, schedule=ENGINES[at].changed(**tiles), integers=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "parts", "slots"),
    [*SEVERAL, *(pytest.param(*c, marks=pytest.mark.verify) for c in OF_EIGHT)],
    ids=str,
)
def test_push_and_pull_several_times_in_a_row(at: str, parts: tuple[int, ...], slots: int) -> None:
    call, other = engine_call(at, parts), engine_call(at, parts, seed=1)
    several = (call, other, call) if len(parts) < 8 else (call, other)
    run_and_check(*several, slots=slots, seed=slots)
    if len(parts) < 4:
        run_and_check(call, other, slots=slots, seed=3, resident=1)


@some_of(3, first=1)
def test_engines_and_sms_in_one_lane(seeds: range) -> None:
    parts = (5, 0, 20)
    calls = [engine_call(at, parts) for at in ENGINES] + [Call(parts, schedule=name) for name in ("push", "pull")]
    for seed in seeds:
        run_and_check(*calls, *calls[::-1], slots=1, seed=seed)


def operations_of(call: Call, seed: int = 0) -> tuple[Prepared, list[Operation]]:
    """What ran."""
    operations: list[Operation] = []
    world = small_world(call.world, observer=operations.append, sms=4)
    call.check(world.run(call.on, seed=seed))
    (prepared,) = world.lane.prepared.values()
    return prepared, operations


def signals_written(at: str, seed: int) -> list[tuple[int, int]]:
    """(agent, cell) of the signals that the engine of rank 0 gives, in order."""
    _, operations = operations_of(engine_call(at, (40, 40, 40), "copied"), seed)
    return [(o.program, o.box[0][0]) for o in operations if o.rank == 0 and o.kind == "atomic_store"]


@pytest.mark.parametrize("at", first_of(ENGINES))
def test_streams_overtake_each_other_and_each_keeps_its_order(at: str) -> None:
    orders = [signals_written(at, seed) for seed in range(3)]
    assert len({tuple(o) for o in orders}) > 2
    for order in orders:
        agents = {agent for agent, _ in order}
        assert len(agents) == 3
        for agent in agents:
            cells = [cell for other, cell in order if other == agent]
            assert len(cells) == 3 and cells == sorted(cells)


@some_of(3, first=1)
@pytest.mark.parametrize("at", first_of(ENGINES))
def test_on_one_stream_all_is_done_in_order(at: str, seeds: range) -> None:
    """However late: the signals of all peers come in the order of the tiles, and results are right."""
    call = engine_call(at, (20, 20, 20), "copied")
    one = replace(call, schedule=call.schedule.changed(gather={"streams": "one"}))
    for seed in seeds:
        prepared, operations = operations_of(one, seed)
        given = [o for o in operations if o.rank == 0 and o.kind == "atomic_store"]
        assert len({o.program for o in given}) == 1 and len(given) == 6
        events = prepared.events
        mine = np.flatnonzero((events.rank == 0) & (events.op == NOTIFY) & (events.worker >= events.kernel_workers))
        assert [o.box[0][0] for o in given] == events.cell[mine].tolist()
    run_and_check(one, call, one, slots=1, seed=0)


def test_engines_are_late() -> None:
    """Workers have polled in vain before the first signal is given, and copies to several peers are under way."""
    _, operations = operations_of(engine_call("home", (40, 40, 40), "copied"))
    first = next(k for k, o in enumerate(operations) if o.kind == "atomic_store")
    assert any(o.region.kind == "signal" and o.old == 0 for o in operations[:first])
    copying = [o.program for o in operations if o.rank == 0 and o.kind == "store" and o.region.name == "full"]
    turns = sum(a != b for a, b in pairwise(copying))
    assert turns > len(set(copying))


def test_timeline_names_engines() -> None:
    prepared, operations = operations_of(engine_call("home", (16, 33), "copied"))
    drawn = timeline(align(prepared.events, operations, "all_gather_matmul run 0"), "engine")
    agents = prepared.events.kernel_workers
    assert drawn.agents == agents and drawn.workers(0)[-2:] == (agents, agents + 1)
    assert [drawn.peer_of(w) for w in (agents - 1, agents, agents + 1)] == [None, 0, 1]
    names = {e["args"]["name"] for e in perfetto(drawn)["traceEvents"] if e["name"] == "thread_name"}
    assert {"engine to rank 0", "engine to rank 1", "worker 0"} <= names


# ---- what the host may do wrong


def signals_first(plan: Plan) -> Plan:
    """Each signal before the copy that it is about."""
    made = list(plan)
    for k, step in enumerate(plan):
        if isinstance(step, SignalWrite) and isinstance(made[k - 1], RegionCopy):
            made[k - 1], made[k] = step, made[k - 1]
    return tuple(made)


def call_thrice(world: CpuWorld, at: str, seed: int) -> None:
    run_and_check(*[engine_call(at, (32, 32))] * 3, world=world, seed=seed)


EDITED_PLANS = [
    ("signal before the copy", "home", signals_first, RaceError),
    ("signal before the copy", "reader", signals_first, RaceError),
    ("no signal", "home", without(SignalWrite), StuckError),
    ("no copy", "home", without(RegionCopy), AssertionError),
    ("before the rank has entered", "home", without(Fork), EITHER),
    ("before peers have entered", "reader", without(Fork), EITHER),
]


@some_of(4, first=1)
@pytest.mark.parametrize(("what", "at", "edit", "found"), EDITED_PLANS, ids=[f"{w} {at}" for w, at, *_ in EDITED_PLANS])
def test_edited_plans_are_caught(
    what: str, at: str, edit: Callable[[Plan], Plan], found: Any, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    planned(monkeypatch, edit)
    for seed in seeds:
        with pytest.raises(found):
            call_thrice(small_world(2, slots=1, sms=8), at, seed)


EDITED_ENTRIES = [
    ("no credit", "home", r"^ +credit\(.*\n", ""),
    ("does not await peers", "reader", r"^ +entered\(control.*\n", "        pass\n"),
]


@some_of(4, first=1)
@pytest.mark.parametrize(
    ("what", "at", "old", "new"), EDITED_ENTRIES, ids=[f"{w} {at}" for w, at, *_ in EDITED_ENTRIES]
)
@pytest.mark.usefixtures("own_cache")
def test_edited_entries_are_caught(what: str, at: str, old: str, new: str, seeds: range) -> None:
    edit = in_function("all_gather_matmul_enter", old, new)
    for seed in seeds:
        world = MutatedWorld(2, kernel=edit, primitives=portable, heap_bytes=4 << 20, sms=8, slots=1)
        with pytest.raises(EITHER):
            call_thrice(world, at, seed)


def overwrite(group: Group) -> None:
    """Pushes its rows by engine, then computes others in their place."""
    call, r = engine_call("home", (32, 32)), group.rank
    x = call.x[r].clone()
    call.program(x, call.weight[r], schedule=call.schedule, group=group)
    matmul(torch.randn(32, 16), torch.randn(16, 24), x, group=group)


@some_of(4, first=1)
def test_what_comes_after_a_run_comes_after_its_copies(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    for seed in seeds:
        small_world(2, sms=8).run(overwrite, seed=seed)
    planned(monkeypatch, without(Join))
    for seed in seeds:
        with pytest.raises(RaceError, match=r"engine\.py"):
            small_world(2, sms=8).run(overwrite, seed=seed)


def test_a_rank_that_does_not_come_is_named() -> None:
    """The kernel that enters before the copies waits for it, and who waits for that is said, each once."""
    call = engine_call("reader", (16, 16), "copied")
    with pytest.raises(StuckError) as e:
        small_world(2).run(lambda group: call.on(group) if group.rank == 0 else None)
    lines = [line.strip() for line in str(e.value).splitlines()]
    assert "worker 0 of all_gather_matmul_enter run 0: waits for rank 1 to go on, which has not entered" in lines[1]
    late = "of all_gather_matmul run 0: not begun, because a launch before it is not done"
    engines = [line for line in lines if line.startswith("rank 0 engine")]
    assert engines == [f"rank 0 engine to rank {p} {late}" for p in range(2)]
