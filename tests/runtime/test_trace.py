"""Trace equality: the lowered kernel does, in the interpreter, exactly what the unrolled program says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tilelink as tk
from tests.parameters import each_once
from tilelink.analysis.unroll import unroll
from tilelink.emulator import Operation
from tilelink.emulator.memory import Region
from tilelink.errors import TraceMismatchError
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cpu.world import CpuWorld, Group
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.trace import CONTROL, align, timeline

SMS = 8


def execute(
    parts: tuple[int, ...], n: int, k: int, schedule: tk.Schedule, *, bias: bool = False, calls: int = 2
) -> tuple[Prepared, list[Operation]]:
    """Runs all_gather_matmul and returns what was prepared and every memory operation."""
    world = len(parts)
    xs = [torch.randn(m, k) for m in parts]
    weights = [torch.randn(n, k).T for _ in range(world)]
    b = torch.randn(n) if bias else None
    operations: list[Operation] = []
    cpu = CpuWorld(world, observer=operations.append, sms=SMS, heap_bytes=8 << 20)

    def rank(group: Group) -> None:
        for _ in range(calls):
            all_gather_matmul(
                xs[group.rank], weights[group.rank], bias=b, schedule=schedule, group=group, parts={"M": parts}
            )

    cpu.run(rank)
    (prepared,) = cpu.lane.prepared.values()
    return prepared, operations


def schedule(name: str, gather: tuple[int | None, ...], matmul: tuple[int, ...], count: int = 3) -> tk.Schedule:
    if name.startswith("engine"):
        at = "home" if name == "engine pushes" else "reader"
        by_rows = {"tile": (gather[0], None), "at": at}
        return all_gather_matmul.schedule("engine").changed(gather=by_rows, matmul={"tile": matmul})
    return all_gather_matmul.schedule(name).changed(gather={"tile": gather, "count": count}, matmul={"tile": matmul})


CASES = [
    ((64, 64), 64, 128, (16, 64), (32, 32, 32)),
    ((5, 0, 33), 40, 72, (16, 32), (16, 32, 16)),
    ((64, 64, 64, 64), 64, 64, (32, None), (16, 64, 64)),
    ((1, 0, 0, 0), 16, 16, (16, 16), (16, 16, 16)),
    ((37,), 50, 30, (16, 16), (32, 16, 32)),
]


NAMES = ["push", "pull", "multicast", "engine", "engine pushes"]


@each_once(
    "name, case",
    NAMES,
    CASES,
    ids=lambda c: c if isinstance(c, str) else "x".join(map(str, c[0])),
    dear=lambda name, _: name in ("multicast", "pull"),
)
def test_trace_is_the_unrolled_program(name: str, case: tuple) -> None:  # type: ignore[type-arg]
    parts, n, k, gather, matmul = case
    prepared, operations = execute(parts, n, k, schedule(name, gather, matmul), bias=len(parts) == 2)
    expanded = unroll(prepared.program, prepared.sizes, sms=SMS, summarise=False)
    for run in range(2):
        for events in (prepared.events, expanded):
            trace = align(events, operations, f"all_gather_matmul run {run}")
            assert len(trace.done) == (events.op != 4).sum()


def test_program_without_signals() -> None:
    """Reads of published inputs are in the trace too."""
    operations: list[Operation] = []
    cpu = CpuWorld(2, observer=operations.append, sms=SMS, heap_bytes=4 << 20)
    cpu.run(lambda group: all_gather(torch.randn(20, 40), group=group))
    (prepared,) = cpu.lane.prepared.values()
    assert align(prepared.events, operations, "all_gather run 0").done


@pytest.fixture(scope="module")
def pushed() -> tuple[Prepared, list[Operation]]:
    """One call, whose trace is edited."""
    return execute((32, 32), 32, 64, schedule("push", (16, 32), (16, 32, 32)), calls=1)


def change(operations: list[Operation], pick, edit) -> list[Operation]:  # type: ignore[no-untyped-def]
    k = next(k for k, o in enumerate(operations) if pick(o))
    return [*operations[:k], *edit(operations[k]), *operations[k + 1 :]]


@pytest.mark.parametrize(
    ("pick", "edit"),
    [
        pytest.param(lambda o: o.kind == "store" and o.region.name == "full", lambda o: [], id="store is missing"),
        pytest.param(lambda o: o.kind == "load" and o.region.name == "weight", lambda o: [o, o], id="load done twice"),
        pytest.param(
            lambda o: o.kind == "load" and o.region.name == "full",
            lambda o: [dataclasses.replace(o, box=((0, 1), (0, 1)))],
            id="another region",
        ),
        pytest.param(
            lambda o: o.region.kind == "signal" and o.semantic == "release",
            lambda o: [dataclasses.replace(o, semantic="relaxed")],
            id="notify without release",
        ),
        pytest.param(
            lambda o: o.region.kind == "signal" and o.semantic == "release",
            lambda o: [dataclasses.replace(o, scope="gpu")],
            id="notify in a narrower scope",
        ),
        pytest.param(
            lambda o: o.region.kind == "signal" and o.semantic == "acquire" and o.old == o.new == 2,
            lambda o: [dataclasses.replace(o, old=1, new=1)],
            id="wait for less than all",
        ),
        pytest.param(
            lambda o: o.region.kind == "signal" and o.semantic == "release", lambda o: [], id="notify is missing"
        ),
        pytest.param(
            lambda o: o.region.name == CONTROL and o.semantic == "release", lambda o: [], id="entry is not told"
        ),
        pytest.param(
            lambda o: o.region.name == CONTROL and o.semantic == "release", lambda o: [o, o], id="entry is told twice"
        ),
        pytest.param(
            lambda o: o.region.name == CONTROL and o.semantic == "release" and o.new == 2,
            lambda o: [],
            id="leaving is not told",
        ),
        pytest.param(
            lambda o: o.region.name == CONTROL and o.semantic == "acq_rel",
            lambda o: [dataclasses.replace(o, region=Region(CONTROL, 1 - o.rank, o.region.tensor, "control"))],
            id="ticket of a peer",
        ),
    ],
)
def test_a_differing_trace_is_refused(pick, edit, pushed) -> None:  # type: ignore[no-untyped-def]
    prepared, operations = pushed
    align(prepared.events, operations, "all_gather_matmul run 0")
    with pytest.raises(TraceMismatchError, match=r"rank \d (worker|of all_gather_matmul)"):
        align(prepared.events, change(operations, pick, edit), "all_gather_matmul run 0")


def test_inputs_are_published_on_their_own_rank() -> None:
    prepared, operations = execute((16, 16), 16, 16, schedule("pull", (16, 16), (16, 16, 16)), calls=1)
    name = "all_gather_matmul run 0"
    align(prepared.events, operations, name)
    own = next(o for o in operations if o.name == "all_gather_matmul_publish run 0" and o.kind == "store")
    theirs = Region(own.region.name, 1 - own.rank, own.region.tensor)
    astray = dataclasses.replace(own, region=theirs)
    with pytest.raises(TraceMismatchError, match=r"rank \d of all_gather_matmul publishes inputs on its own heap"):
        align(prepared.events, [astray if o is own else o for o in operations], name)


def test_timeline_of_an_execution() -> None:
    copied = schedule("pull", (16, 32), (16, 32, 32)).changed(gather={"own": "copied"})
    prepared, operations = execute((32, 32), 64, 64, copied, calls=1)
    made = timeline(align(prepared.events, operations, "all_gather_matmul run 0"), "all_gather_matmul")
    tiles = [s for s in made.spans if s.kind == "tile"]
    assert len(tiles) == sum(a.tiles for a in prepared.allotment.values()) * 2
    waits = [s for s in made.spans if s.kind == "wait"]
    assert waits and all(w.cause is not None for w in waits)
    for w in waits:
        assert w.cause is not None
        assert made.spans[w.cause].role == "gather" and made.spans[w.cause].rank == w.rank
