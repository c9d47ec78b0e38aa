"""Entries of a buffer take turns: claimed before they are stored, released when they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import Case, alone, check
from tests.parameters import seldom
from tests.programs import ring_attention as rings
from tilelink.analysis.events import DOT, NOTIFY, READ, WAIT, WRITE
from tilelink.emulator import RaceError
from tilelink.errors import (
    ArgumentError,
    BudgetError,
    DimensionError,
    HomeError,
    TileLinkError,
    ViewError,
    WaitWithoutNotifyError,
)
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.trace import align

SIZES = {"Q": 50, "T": 20, "D": 16}


def schedule(attend: str = "attend", pass_on: str = "pass_on", workers: int = 4) -> tk.Schedule:
    return tk.Schedule(**{pass_on: tk.SMs(2, tile=(16, 16)), attend: tk.SMs(workers, tile=(16, 16, 16))})


def run(program: Program, schedule: tk.Schedule, world: int, *, calls: int = 2, **options: Any) -> CpuWorld:
    """Small integers, so every sum is exact; two calls in a row."""
    q, k = ([torch.randint(-2, 3, (n, SIZES["D"])).float() for _ in range(world)] for n in (SIZES["Q"], SIZES["T"]))
    cpu = CpuWorld(world, heap_bytes=1 << 20, sms=8, **options)
    outs = cpu.run(lambda g: [program(q[g.rank], k[g.rank], schedule=schedule, group=g) for _ in range(calls)])
    for mine, results in zip(q, outs, strict=True):
        for out in results:
            assert torch.equal(out, sum(mine @ x.T @ x for x in k))
    return cpu


@pytest.mark.parametrize("world", seldom([1, 2, 3, 4], lambda world: world in (2, 4)))
def test_ring_attention_runs(world: int) -> None:
    run(rings.ring_attention, schedule(), world)


def test_trace_is_the_unrolled_program() -> None:
    operations: list[Any] = []
    cpu = run(rings.ring_attention, schedule(), 3, calls=1, observer=operations.append)
    (prepared,) = cpu.lane.prepared.values()
    events = prepared.events
    assert len(align(events, operations, "ring_attention run 0").done) == (events.op != DOT).sum()


def test_events_say_where_entries_lie() -> None:
    """An entry's memory is that of its buffer, its signals are its own."""
    events = rings.ring_attention.unroll(schedule(), world=4, **SIZES)
    names = [t.name for t in events.program.tensors]
    ring, token = names.index("ring"), names.index("ring.free")
    touched = (events.tensor == ring) & ((events.op == READ) | (events.op == WRITE))
    assert set(events.lo[touched, 0].tolist()) == {0, 1}
    steps = (events.tensor == ring) & ((events.op == WAIT) | (events.op == NOTIFY))
    assert set(events.lo[steps, 0].tolist()) == {0, 1, 2, 3}
    claims = (events.tensor == token) & (events.op == WAIT)
    assert set(events.lo[claims, 0].tolist()) == {0, 1}
    tiles = -(-SIZES["Q"] // 16)
    assert set(events.expected[claims].tolist()) == {tiles + 1}  # all tiles that attend, and the one that passes it on
    shown = rings.ring_attention.show("program", schedule(), world=4, dtypes="float32", **SIZES)
    assert "buffer ring: float32[ranks, T, D] in 2 buffers\n    token ring.free[ranks, T, D]\n" in shown


def test_without_claims_the_execution_finds_races(unchecked: None) -> None:
    with pytest.raises(RaceError):
        run(rings.ring_attention_unasked, schedule("attend_unsaid", "pass_on_unasked"), 3)


def test_a_check_before_a_call_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CHECK_BUDGET", "10")
    with pytest.raises(BudgetError, match=r"the budget is 10; .* entries of ring take turns in 2 buffers"):
        run(rings.ring_attention, schedule(), 2, calls=1)
    monkeypatch.setenv("TILELINK_CHECK_BUDGET", "many")
    with pytest.raises(ArgumentError, match="'many'; it must be a number of events, such as 10000000"):
        run(rings.ring_attention, schedule(), 2, calls=1)


# ---- misuse

REUSING = alone("{body}").replace(
    'inbox = tk.local(tk.ranks, "M", "N")', 'inbox = tk.local(tk.ranks, "M", "N", buffers=2)'
)


def case(name: str, kind: type[TileLinkError], body: str, *says: str, source: str = REUSING) -> Case:
    return Case(name, kind, source.replace("{body}", body.replace("\n", "\n    ")), says)


MISUSES = [
    case(
        "claim of what does not take turns",
        ViewError,
        "tk.claim(out[t]).store(0.0)  # <-",
        "each entry of out has its own memory",
        "buffers=2",
    ),
    case(
        "release of what was not waited for",
        ViewError,
        "tk.release(inbox[0, t])  # <-",
        "release of inbox[0, M[M_lo:+16], N[N_lo:+16]], which this tile did not wait for",
    ),
    case(
        "claim on all ranks",
        HomeError,
        "tk.claim(inbox[0, t].at(tk.ranks)).store(0.0)  # <-",
        "it has more than one home",
    ),
    case(
        "claim that nobody releases",
        WaitWithoutNotifyError,
        "tk.claim(inbox[tk.rank(), t]).store(0.0)  # <-",
        "role claims entries of inbox, but no tile of the program releases any: the entry before would never be "
        "released. tk.release(...) what tk.wait(inbox[...]) returned, after its last read",
    ),
    case("claim of two", ViewError, "tk.claim(inbox[0, t], inbox[1, t])  # <-", "tk.claim takes one view"),
    case(
        "buffers of a tensor without entries",
        DimensionError,
        "pass",
        "it must be a number of buffers, at least 1, and the first dimension must be tk.ranks",
        source=REUSING.replace('tk.ranks, "M", "N", buffers=2)', '"M", "N", buffers=2)  # <-'),
    ),
    case(
        "no buffers",
        DimensionError,
        "pass",
        "buffers=0",
        source=REUSING.replace("buffers=2)", "buffers=0)  # <-"),
    ),
]


@pytest.mark.parametrize("case", MISUSES, ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Any) -> None:
    check(case, tmp_path)
