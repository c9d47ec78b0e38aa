"""Roles on the copy engine: what they become, and what can't be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.frontend.wrong import Case, changed, check, load
from tilelink.analysis.events import READ, Events
from tilelink.analysis.unroll import unroll
from tilelink.errors import ScheduleError, TileSizeError
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul, engine, gemm

COPYING = engine.changed(gather={"own": "copied"})
"""A rank copies its own rows, too."""

SOURCE = """
@tk.tile
def bring(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def pass_on(t, full, passed):
    mine = tk.wait(full[t].at(t.reader))
    tk.notify(tk.copy(mine, passed[t].at(t.reader)))


@tk.tile
def take(t, passed, out):
    out[t].store(tk.wait(passed[t]).load())


@tk.program
def program(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    passed = tk.local("M", "K")
    bring[tk.tiles(x, reader=tk.ranks)](x, full)
    pass_on[tk.tiles(full, reader=tk.ranks)](full, passed)
    take[tk.tiles(out)](passed, out)


schedule = tk.Schedule(
    bring=tk.CopyEngine(tile=(16, 16), at="home"),
    pass_on=tk.SMs(tile=(16, 16), at="reader"),
    take=tk.SMs(tile=(16, 16)),
)


def main():
    return program.unroll(schedule, world=3, M=48, K=32)
"""
COPY = "    tk.notify(tk.copy(x[t], full[t].at(t.reader)))"
ENGINE = 'bring=tk.CopyEngine(tile=(16, 16), at="home")'
PASS_ON = 'pass_on=tk.SMs(tile=(16, 16), at="reader")'
WAIT = "    mine = tk.wait(full[t].at(t.reader))"
ON = "    tk.notify(tk.copy(mine, passed[t].at(t.reader)))"
STORE = "    out[t].store(tk.wait(passed[t]).load())"


def case(name: str, changes: dict[str, str], *says: str) -> Case:
    return Case(name, ScheduleError, changed(SOURCE, changes), says)


BACK = {
    "bring[tk.tiles(x, reader=tk.ranks)](x, full)": "bring[tk.tiles(full, reader=tk.ranks)](x, passed, full)",
    "def bring(t, x, full):": "def bring(t, x, passed, full):",
    COPY: f"    tk.wait(passed[t].at(t.reader))  # <-\n{COPY}",
    ENGINE: ENGINE.replace("home", "reader"),
}
LATER = {
    "def bring(t, x, full):": "def bring(t, x, full, made):",
    COPY: "    mine = tk.wait(made[t].at(t.source))  # <-\n    tk.notify(tk.copy(mine, full[t]))",
    "@tk.program": "@tk.tile\ndef make(t, x, made):\n    tk.notify(made[t].store(x[t].load()))\n\n\n@tk.program",
    "bring[tk.tiles(x, reader=tk.ranks)](x, full)": "bring[tk.tiles(x, source=tk.ranks)](x, full, made)",
    "    passed = ": "    made = tk.local(\"M\", \"K\")\n    passed = ",
    "    take[": "    make[tk.tiles(x)](x, made)\n    take[",
    "    take=tk.SMs": "    make=tk.SMs(2, tile=(16, 16)),\n    take=tk.SMs",
}
FETCHED = {
    "take[tk.tiles(out)](passed, out)": "take[tk.tiles(out)](passed, out, made)",
    "def take(t, passed, out):": "def take(t, passed, out, made):\n    tk.wait(made[t].at((tk.rank() + 1) % 2))",
    "    make[tk.tiles(x)](x, made)\n": "",
    "    bring[": "    make[tk.tiles(x)](x, made)\n    bring[",
}
IN_FRONT = {
    "    take=tk.SMs": "    make=tk.SMs(tile=(16, 16)),\n    take=tk.SMs",
    "    make[tk.tiles(x)](x, made)\n": "",
    "    pass_on[tk.tiles(full, reader=tk.ranks)](full, passed)\n": "",
    "    bring[": (
        "    pass_on[tk.tiles(full, reader=tk.ranks)](full, passed)\n    make[tk.tiles(x)](x, made)\n    bring["
    ),
}
SWAPPED = {PASS_ON: PASS_ON.replace("SMs", "CopyEngine"), ENGINE: ENGINE.replace("CopyEngine", "SMs")}
WRONG = [
    Case(
        "no power of two", TileSizeError, changed(SOURCE, {ENGINE: "bring=tk.CopyEngine(tile=(24,)),  # <-\n    #"}),
        ("24 is not a power of two",),
    ),
    case("no order", {ENGINE: "bring=tk.CopyEngine(tile=(16, 16), order=max),  # <-\n    #"}, "by tk.order(function)"),
    case(
        "computes with a whole dimension as a block",
        {"    take=tk.SMs(tile=(16, 16)),": "    take=tk.CopyEngine(tile=(16, None)),", STORE: f"{STORE}  # <-"},
        "take can't be on the copy engine: it computes, and an engine only waits, copies and notifies. Give it SMs",
    ),
    case(
        "waits for another rank",
        {PASS_ON: PASS_ON.replace("SMs", "CopyEngine").replace("reader", "home"), WAIT: f"{WAIT}  # <-"},
        "it waits for full[M[M_lo:+16], K[K_lo:+16]].at(reader), which another rank "
        "makes",
        "Give it SMs, or let the rank that makes full execute it: at='reader'",
    ),
    case(
        "waits for an engine",
        {PASS_ON: PASS_ON.replace("SMs", "CopyEngine"), WAIT: f"{WAIT}  # <-"},
        "pass_on can't be on the copy engine: it waits for full[M[M_lo:+16], K[K_lo:+16]], which bring brings on the "
        "copy engine, and an engine waits only for what the kernel of its own rank makes",
        "Give it SMs, or put it into the epilogue of the role that it waits for",
    ),
    case(
        "waits for what comes from elsewhere",
        {**SWAPPED, WAIT: f"{WAIT}  # <-"},
        "it waits for full[M[M_lo:+16], K[K_lo:+16]], which bring notifies at reader, and an engine waits only for",
    ),
    case(
        "waits for what others fetch, too",
        {**LATER, ENGINE: ENGINE.replace("home", "source"), **FETCHED},
        "it waits for made[M[M_lo:+16], K[K_lo:+16]], and take does for tiles of made at (rank + 1) % 2: their signals "
        "come from other ranks",
    ),
    case(
        "waits for what needs its own SMs",
        {**LATER, ENGINE: ENGINE.replace("home", "source"), **IN_FRONT},
        "bring can't be on the copy engine: it is in a cycle of roles, bring -> pass_on -> make -> bring.",
    ),
    case("in a cycle", BACK, "it is in a cycle of roles, bring -> pass_on -> bring."),
    case(
        "waits for a later role",
        {**LATER, ENGINE: ENGINE.replace("home", "source")},
        "bring can't be on the copy engine: it needs make (make -> bring), which is launched after it",
        "Launch bring behind make",
    ),
    case(
        "computes",
        {"take=tk.SMs(tile=(16, 16))": "take=tk.CopyEngine(tile=(16, 16))",
         STORE: "    block = passed[t].load()  # <-\n    out[t].store(block)", ON: ON.replace("passed", "full")},
        "take can't be on the copy engine: it computes, and an engine only waits, copies and notifies",
    ),
    case(
        "goes to all",
        {COPY: f"{COPY.replace('t.reader', 'tk.ranks')}  # <-"},
        "it copies to all ranks at once, and a copy of an engine is between two",
    ),
    case(
        "notifies nobody",
        {COPY: "    tk.copy(x[t], full[t])  # <-\n    tk.notify(tk.copy(x[t], full[t].at(t.reader)))"},
        "it notifies nobody of its copy to full[M[M_lo:+16], K[K_lo:+16]]",
        "Notify what tk.copy returns",
    ),
    case(
        "two peers in a tile",
        {COPY: f"    for k in range(2):\n    {COPY.replace('t.reader', '(t.reader + k) % tk.world()')}  # <-"},
        "copies between its rank and two others",
        "a tile on the copy engine has one peer",
    ),
    case(
        "counts",
        {WAIT: "    mine = tk.wait(full[t.rows].at(t.reader))[:, t.cols]", COPY: f"{COPY}  # <-"},
        "signal 0 of full on rank 0 is given 2 times in a run, and a copy engine writes 1",
        "A cell is 16 along M x the whole along K: let one tile of bring cover it",
    ),
    case(
        "two givers",
        {COPY: f"{COPY}  # <-", ON: f"{ON}\n{ON.replace('passed', 'full')}"},
        "is given 2 times in a run (by pass_on, too)",
    ),
    case(
        "an epilogue of its own",
        {PASS_ON: 'pass_on=tk.Epilogue("bring")', "schedule = tk.Schedule(": "schedule = tk.Schedule(  # <-"},
        "pass_on=Epilogue('bring'): bring is on the copy engine; tk.Epilogue takes the name of a role on SMs that",
    ),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_can_not_be_on_the_copy_engine(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_engines_are_agents_behind_the_workers_of_the_kernel() -> None:
    small = COPYING.changed(gather={"tile": (16, None), "streams": "peers"}, matmul={"tile": (16, 16, 16)})
    for at, other in (("reader", "at rank 2"), ("home", "write full[M[0:16], K[0:16]] at rank 2")):
        events = all_gather_matmul.unroll(small.changed(gather={"at": at}), world=3, M=48, N=16, K=16)
        assert events.kernel_workers == 3
        agents = [w for r, w in events.workers if r == 0 and w >= events.kernel_workers]
        assert [events.worker_name(w) for w in agents] == [f"engine to rank {p}" for p in range(3)]
        assert other in [events.describe(k) for k in events.of_worker(0, agents[2])][at == "home"]


def test_engines_take_no_sms() -> None:
    small = engine.changed(gather={"tile": (16, None)}, matmul={"tile": (16, 16, 16)})
    bound = all_gather_matmul.bind(small)
    assert unroll(bound, Sizes.of(bound, 2, {"M": 64, "N": 64, "K": 16}), sms=1).kernel_workers == 1


def test_signals_of_an_engine_are_of_the_system() -> None:
    pulled = tk.Schedule(gather=tk.SMs(tile=(512, None), at="reader"), matmul=gemm)
    assert [all_gather_matmul.bind(s).signals_of("full").scope for s in (pulled, engine)] == ["gpu", "sys"]


def test_text_of_a_schedule() -> None:
    assert str(engine["gather"]) == "CopyEngine(tile=(512, None), order=ring, at='home', streams='one', own='read')"
    several = COPYING.changed(gather={"streams": "peers", "at": "reader", "order": tk.own_rank_first})
    assert str(several["gather"]) == "CopyEngine(tile=(512, None), order=own_rank_first, at='reader')"


def test_on_one_stream_a_rank_copies_in_its_order() -> None:
    """Its own rows first, then those of the next rank, and so on; on a stream a peer they go on at the same time."""
    sizes: dict[str, Any] = {"world": 4, "M": 128, "N": 32, "K": 32}
    for streams, count in (("one", 1), ("peers", 4)):
        gather = {"tile": (16, None), "at": "reader", "order": tk.own_rank_first, "streams": streams}
        small = COPYING.changed(gather=gather, matmul={"tile": (16, 16, 16)})
        events = all_gather_matmul.unroll(small, **sizes)
        for rank in range(4):
            mine = np.flatnonzero((events.rank == rank) & (events.worker >= events.kernel_workers))
            assert len(np.unique(events.worker[mine])) == count
            if streams == "one":
                sources = events.home[mine[events.op[mine] == READ]]
                assert sources.tolist() == [(rank + step) % 4 for step in range(4) for _ in range(2)]
        assert all_gather_matmul.check(small, **sizes).verdict == "safe"


def test_engine_and_sms_have_the_same_events_apart_from_who_does_them(tmp_path: Path) -> None:
    program = load(tmp_path, SOURCE)
    ours = program.main()
    theirs = program.program.unroll(
        tk.Schedule(**{**program.schedule.roles, "bring": tk.SMs(tile=(16, 16), at="home")}), world=3, M=48, K=32
    )
    assert sorted(_without_worker(ours)) == sorted(_without_worker(theirs))


def _without_worker(events: Events) -> list[str]:
    lines = (line.split() for line in events.text().splitlines())
    return [" ".join([*words[:2], *words[words.index("tile") - 1 :]]) for words in lines]
