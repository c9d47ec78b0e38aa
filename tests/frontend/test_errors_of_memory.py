"""Memory is touched through views, what others wrote is waited for, and a view has one home: else an error says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import (
    GATHER_TILE,
    LAUNCH_GATHER,
    LAUNCH_USE,
    NOTIFY,
    PROGRAM,
    READ,
    WAIT,
    Case,
    alone,
    changed,
    check,
    load,
    pair,
    tile,
)
from tilelink.errors import (
    DataBranchError,
    GuardError,
    HomeError,
    NotifyWithoutStoreError,
    NotUnderstoodError,
    RankError,
    SignalCountError,
    UnguardedReadError,
    ViewError,
    WaitWithoutNotifyError,
)

ONE_RANK = NOTIFY.replace("t.reader", "t.reader // 2")
MEMORY = [
    tile("load by tl", ViewError, "out[t].store(tl.load(x))  # <-", "tl.load", "outside of views", "view.load()"),
    tile("atomics", ViewError, "tl.atomic_add(x, 1)  # <-", "tl.atomic_add", "tk.notify"),
    tile("descriptor", ViewError, "tl.make_tensor_descriptor(x, [1], [1], [1])  # <-", "tl.make_tensor_descriptor"),
    tile("tensor in arithmetic", ViewError, "a = x + 1  # <-", "x + 1 is", "x is a tensor", "x[...].load()"),
    tile(
        "view in arithmetic", ViewError, "a = x[t.rows] * 2.0  # <-",
        "x[t.rows] * 2.0 is not understood; x[t.rows] is a view: its elements are x[t.rows].load()",
    ),
    tile(
        "view of a row in arithmetic", ViewError, "a = x[t.rows, 0] + 1  # <-",
        "its elements are x[t.rows, 0].load(), and an index that picks rows takes it as it is",
    ),
    tile("tensor given to tl", ViewError, "a = tl.exp(x)  # <-", "x is used as if it were a block"),
    tile("view given to tl", ViewError, "a = tl.exp(x[t.rows])  # <-", "x[M[M_lo:+16], K]", ".load()"),
    tile("slice", ViewError, "a = x[0:4].load()  # <-", "0:4", "t.rows", "tk.steps"),
    tile(
        "number in a wait",
        ViewError,
        "a = tk.wait(inbox[0, 3])  # <-",
        "name a range along M, not the number 3: a range of the tile, or one entry of",
        "`for i in tk.steps(inbox.M, by=1)`",
    ),
    tile("attribute of a tensor", ViewError, "out.store(1.0)  # <-", "out has .rows, .cols", "out[...]"),
    tile(
        "attribute of a view", ViewError, "a = out[t].shape  # <-", ".load(), .store(), .at() and .home", "not .shape"
    ),
    tile("store of a view", ViewError, "out[t].store(x[t.rows])  # <-", "x[M[M_lo:+16], K]", "use tk.copy"),
    tile("store of a tensor", ViewError, "out[t].store(x)  # <-", "a block in registers or a number, not x"),
    tile("wait for a block", ViewError, "tk.wait(tl.zeros(t.shape, tl.float32))  # <-", "takes views, not tl.zeros"),
    tile("wait for nothing", ViewError, "tk.wait()  # <-", "takes views"),
    tile("notify of a tensor", ViewError, "tk.notify(out)  # <-", "takes views, not out"),
    tile(
        "copy of a block", ViewError, "tk.copy(tl.zeros((16, 16), tl.float32), out[t])  # <-", "two views", "tl.zeros"
    ),
    tile("steps along a number", ViewError, "for k in tk.steps(3):  # <-\n    pass", "a dimension or a range, not 3"),
    tile(
        "entry of a rank that is none",
        ViewError,
        "inbox[tk.rank() + 1, t].store(1.0)  # <-",
        "inbox[rank + 1, M[M_lo:+16], N[N_lo:+16]]",
        "ranks[2:3] is outside ranks[0:2]",
        "tile 0 of role: rank 1",
    ),
    pair(
        "read outside of what was waited for",
        GuardError,
        {
            f"    rows = {WAIT}\n": "",
            READ: "        rows = tk.wait(full[t.rows, k])\n        for j in tk.steps(full.cols):\n"
            "            acc += rows[:, j].load()  # <-",
        },
        "full[M[M_lo:+16], K[j:+16]]",
        "K[0:64] is outside of what was waited for, K[0:16]",
        "tile 0 of use: rank 0",
    ),
]

SIGNALS = [
    pair(
        "read without a wait",
        UnguardedReadError,
        {WAIT: "full[t.rows]", READ: f"{READ}  # <-"},
        "full[M[M_lo:+16], K[k:+16]] is written by tiles of this program (",
        "what tk.wait(full[...]) returns",
    ),
    pair(
        "copy without a wait",
        UnguardedReadError,
        {NOTIFY: f"    tk.copy(full[t], full[t].at(t.reader))  # <-\n{NOTIFY}"},
        "full[M[M_lo:+16], K[K_lo:+16]]",
        "what tk.wait(full[...]) returns",
    ),
    pair(
        "another rank's memory than was waited for",
        UnguardedReadError,
        {"rows[:, k].load()": "rows[:, k].at(1).load()  # <-"},
        "full[M[M_lo:+16], K[k:+16]].at(1)",
        "without a wait",
    ),
    pair(
        "read of what is written under another name",
        UnguardedReadError,
        {
            NOTIFY: "    here, there = x[t], full[t].at(t.reader)\n    tk.notify(tk.copy(here, there))",
            WAIT: "full[t.rows]",
            READ: f"{READ}  # <-",
        },
        "full[M[M_lo:+16], K[k:+16]]",
        "tk.wait(full[...])",
    ),
    tile(
        "write that the source hides",
        NotUnderstoodError,
        "a = [out, out]\na[0][t].store(1.0)  # <-",
        "store to out[M[M_lo:+16], N[N_lo:+16]]",
        "there = out[...]",
    ),
    pair(
        "wait in a branch, read after it",
        NotUnderstoodError,
        {f"    rows = {WAIT}": f"    rows = full[t.rows]\n    if tk.rank() == 0:\n        rows = {WAIT}  # <-"},
        "rows is known before the run (it is full[M[M_lo:+16], K])",
        "can't change in a loop or a branch",
    ),
    pair(
        "wait that nobody notifies",
        WaitWithoutNotifyError,
        {NOTIFY: "    tk.copy(x[t], full[t].at(t.reader))", WAIT: f"{WAIT}  # <-"},
        "use waits for full[M[M_lo:+16], K]",
        "no tile of the program notifies full. Write tk.notify(...) around the copy to full: ",
        "tk.copy(x[t], full[t].at(t.reader))",
    ),
    pair(
        "wait for what nobody stores",
        WaitWithoutNotifyError,
        {NOTIFY: "    pass", WAIT: f"{WAIT}  # <-"},
        "no tile of the program notifies full, and no tile stores to it. Store to full, and call tk.notify(...) on",
    ),
    pair(
        "wait that is notified elsewhere",
        WaitWithoutNotifyError,
        {"at(t.reader)": "at(t.home)", WAIT: f"{WAIT}  # <-"},
        "full[M[M_lo:+16], K]: no tile of the run notifies full[M[32:48], K[0:64]] (cell 2 on rank 0), so the wait "
        "passes at once, and what is read was not written (tile 2 of use: ",
        "tile 2 of use: rank 0, home 1, M_lo 32, N_lo 0); ",
        "user.py:8 notifies full in the memory of the executing rank only: its tiles have a rank axis reader that no "
        "view names; write full[...].at(t.reader)",
    ),
    pair(
        "wait that is notified at one rank",
        WaitWithoutNotifyError,
        {"at(t.reader)": "at(t.reader // 2)", WAIT: f"{WAIT}  # <-"},
        "so the wait passes at once",
        "N_lo 0); full is notified: ",
    ),
    pair(
        "wait that is notified at one rank by two roles",
        WaitWithoutNotifyError,
        {
            NOTIFY: ONE_RANK,
            LAUNCH_GATHER: f"{LAUNCH_GATHER}\n    again[tk.tiles(x, reader=tk.ranks)](x, full)",
            "@tk.program": f"@tk.tile\ndef again(t, x, full):\n{ONE_RANK}\n\n\n@tk.program",
            "    use=tk.SMs": f"    again=tk.SMs(4, {GATHER_TILE}),\n    use=tk.SMs",
            WAIT: f"{WAIT}  # <-",
        },
        "N_lo 0); full is notified: ",
        "user.py:8, ",
    ),
    pair(
        "wait that a condition leaves out",
        WaitWithoutNotifyError,
        {NOTIFY: f"    if t.reader >= t.home:\n    {NOTIFY}", WAIT: f"{WAIT}  # <-"},
        "no tile of the run notifies full[M[32:48], K[0:64]] (cell 2 on rank 0), so the wait passes at once",
        "home 1",
    ),
    Case(
        "entry that nobody notifies",
        WaitWithoutNotifyError,
        changed(
            alone(
                "tk.notify(inbox[1, t].store(x[t.rows, t.cols].load()))\n"
                "for s in range(2):\n    out[t].store(tk.wait(inbox[s, t]).load())  # <-"
            ),
            {'x: tk.Local("M", "K")': 'x: tk.Local("M", "N")'},
        ),
        (
            "no tile of the run notifies inbox[ranks[0:1], M[0:16], N[0:16]] (cell 0 on rank 0), so the wait passes",
            "(tile 0 of role: rank 0, M_lo 0, N_lo 0, s 0)",
        ),
    ),
    pair(
        "notify of nothing",
        NotifyWithoutStoreError,
        {NOTIFY: "    tk.notify(full[t].at(t.reader))  # <-"},
        "full[M[M_lo:+16], K[K_lo:+16]].at(reader)",
        "it stored nothing",
        "what store and copy return",
    ),
    pair(
        "notify of another region",
        NotifyWithoutStoreError,
        {NOTIFY: "    tk.copy(x[t], full[t].at(t.reader))\n    tk.notify(full[t.rows].at(t.reader))  # <-"},
        "full[M[M_lo:+16], K].at(reader)",
        "it stored full[M[M_lo:+16], K[K_lo:+16]].at(reader)",
    ),
    pair(
        "notify of another rank's",
        NotifyWithoutStoreError,
        {NOTIFY: "    tk.copy(x[t], full[t].at(t.reader))\n    tk.notify(full[t].at(0))  # <-"},
        ".at(0)",
        ".at(reader)",
    ),
    pair(
        "notify after a branch",
        NotifyWithoutStoreError,
        {
            NOTIFY: "    there = full[t].at(t.reader)\n    if t.reader == 0:\n        tk.copy(x[t], there)\n"
            "    tk.notify(there)  # <-"
        },
        "notify of full[M[M_lo:+16], K[K_lo:+16]].at(reader), which this tile stored in a loop or a branch that has "
        "ended (",
        "user.py:10: tk.copy(x[t], there)): whether and how often it did is not known here. Notify it there, after "
        "that line",
    ),
    pair(
        "notify of pieces that a loop stored",
        NotifyWithoutStoreError,
        {
            NOTIFY: "    there = full[t].at(t.reader)\n    for k in tk.steps(t.cols, by=4):\n"
            "        there[:, k].store(x[t.rows, k].load())\n    tk.notify(there)  # <-"
        },
        "it stored nothing before, and full[M[M_lo:+16], K[k:+4]].at(reader) in a loop or a branch that has ended (",
        "user.py:10): notify that there. Notify what store and copy return",
    ),
    pair(
        "notify after a loop",
        NotifyWithoutStoreError,
        {
            NOTIFY: "    there = full[t].at(t.reader)\n    for n in range(tk.rank()):\n        tk.copy(x[t], there)\n"
            "    tk.notify(there)  # <-"
        },
        "notify of full[M[M_lo:+16], K[K_lo:+16]].at(reader), which this tile stored in a loop or a branch that has "
        "ended (",
        "user.py:10: tk.copy(x[t], there)): whether and how often it did is not known here. Notify it there, after "
        "that line",
    ),
    pair(
        "notify that depends on a coordinate",
        SignalCountError,
        {
            NOTIFY: "    there = tk.copy(x[t], full[t].at(t.reader))\n"
            "    if t.rows.start >= 16:\n        tk.notify(there)  # <-"
        },
        "full[M[M_lo:+16], K[K_lo:+16]].at(reader) depends on M_lo (where M_lo >= 16)",
        "on ranks only",
    ),
    pair(
        "notify as often as a coordinate says",
        SignalCountError,
        {NOTIFY: "    for n in range(t.rows.start):\n        tk.notify(tk.copy(x[t], full[t].at(t.reader)))  # <-"},
        "depends on M_lo, so",
        "on ranks only",
    ),
    pair(
        "notify in the steps of another dimension",
        SignalCountError,
        {NOTIFY: f"    for k in tk.steps(x.cols):\n    {NOTIFY}  # <-", GATHER_TILE: 'tile=(16, 16, 16), at="home"'},
        "in every step of a loop that does not go along it",
        "user.py:8",
        "notify once, after the loop",
    ),
    pair(
        "notify of all parts",
        SignalCountError,
        {
            NOTIFY: "    tk.notify(tk.copy(x[:, t.cols], full[:, t.cols]))  # <-",
            LAUNCH_GATHER: "gather[tk.tiles(x.cols)](y, full)",
            PROGRAM: PROGRAM.replace("x:", 'y: tk.Local("M", "K"), x:'),
            GATHER_TILE: "tile=(16,)",
        },
        "full[M, K[K_lo:+16]] crosses the parts of the ranks along M",
        "run along M too",
    ),
    pair(
        "more notifies than derived",
        SignalCountError,
        {
            NOTIFY: "    for k in tk.steps(t.cols, stop=32):\n"
            "        tk.notify(tk.copy(x[t.rows, k], full[t.rows, k].at(t.reader)))"
            "  # <-",
            GATHER_TILE: 'tile=(16, 16, 16), at="home"',
        },
        "signal 0 of full on rank 0 is given 2 times in a run; 4 were derived",
        "on ranks only",
    ),
]

PULLING = """
@tk.tile
def make(t, x, y):
    tk.notify(y[t].store(x[t].load() * 2))


@tk.tile
def spread(t, y, full):
    tk.notify(tk.copy(tk.wait(y[t]), full[t].at(t.reader)))  # <-


@tk.tile
def take(t, full, out):
    tk.copy(tk.wait(full[t]), out[t])


@tk.program
def program(x: tk.Sharded("M", "K"), y: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    make[tk.tiles(y)](x, y)
    spread[tk.tiles(y, reader=tk.ranks)](y, full)
    take[tk.tiles(out)](full, out)


one = tk.SMs(1, tile=(16, 16))
push = tk.Schedule(make=one, spread=tk.SMs(1, tile=(16, 16), at="home"), take=one)
pull = tk.Schedule(make=one, spread=tk.SMs(1, tile=(16, 16), at="reader"), take=one)


def main():
    program.bind(pull)
"""
"""Every rank doubles its rows, an output, and all gather them from there: by push each rank reads its own."""

HOMES = [
    pair(
        "copy from two homes",
        HomeError,
        {NOTIFY: "    tk.copy(x[:, t.cols], full[:, t.cols].at(t.reader))  # <-"},
        "load of x[M, K[K_lo:+16]]",
        "more than one home",
        "M is spread over the ranks",
        "a range of the tile",
    ),
    pair(
        "store to two homes",
        HomeError,
        {
            "    out[t].store(acc)": "    out[t].store(acc)\n    summed[:, t.cols].store(acc)  # <-",
            "full, out):": "full, out, summed):",
            'tk.Local("M", "N")):': 'tk.Local("M", "N"), summed: tk.Sharded("M", "N")):',
            LAUNCH_USE: "use[tk.tiles(out)](full, out, summed)",
        },
        "store to summed[M, N[N_lo:+16]]",
        "more than one home",
    ),
    pair(
        "load from all ranks",
        HomeError,
        {"rows[:, k].load()": "full[t.rows, k].at(tk.ranks).load()  # <-"},
        "full[M[M_lo:+16], K[k:+16]].at(all ranks)",
        "name the rank, with .at(rank)",
    ),
    pair("wait for all ranks", HomeError, {WAIT: "tk.wait(full[t.rows].at(tk.ranks))  # <-"}, "a wait looks at one"),
    pair("home of all ranks", HomeError, {WAIT: "full[t.rows].at(tk.ranks).home  # <-"}, "more than one home"),
    pair(
        "at of a sharded tensor",
        HomeError,
        {"x[t], full": "x[t].at(1), full", "t.reader)))": "t.reader)))  # <-"},
        "x[M[M_lo:+16], K[K_lo:+16]] is sharded",
        ".at() is for local tensors",
    ),
    tile(
        "output of a peer",
        HomeError,
        "out[t].at(1).store(1.0)  # <-",
        "an output is written by its own rank",
        "tk.local",
    ),
    tile(
        "read of the output of a peer",
        HomeError,
        "tk.notify(out[t].store(1.0))\ninbox[0, t].store(tk.wait(out[t].at(1)).load())  # <-",
        "out[M[M_lo:+16], N[N_lo:+16]].at(1) may be another rank's output, and outputs are memory that peers can't "
        'read. Store what peers read to a buffer, tk.local("M", "N"), notify it there, and copy it to out',
    ),
    Case(
        "pull from an output",
        HomeError,
        PULLING,
        (
            "y[M[M_lo:+16], K[K_lo:+16]].at(home) may be another rank's output",
            'a buffer, tk.sharded("M", "K"), notify it there, and copy it to y',
        ),
    ),
    tile(
        "negative rank", RankError, "inbox[0, t].at(-1).store(1.0)  # <-", ".at(-1): there is no rank -1", "from 0 to"
    ),
    tile(
        "rank that is no number", RankError, "inbox[0, t].at('next').store(1.0)  # <-", "a rank or tk.ranks, not 'next'"
    ),
    tile("rank above the world", RankError, "inbox[0, t].at(2).store(1.0)  # <-", ".at(2): rank 2 in a world of 2"),
    pair(
        "neighbour of the last rank",
        RankError,
        {"t.reader)))": "t.reader + 1)))  # <-"},
        "full[M[M_lo:+16], K[K_lo:+16]].at(reader + 1): rank 2 in a world of 2: ranks go from 0 to 1, and (...) % "
        "tk.world() stays among them",
        "of gather: rank 0, reader 1, M_lo 0, K_lo 0",
    ),
    pair(
        "wait at the neighbour of the last rank",
        RankError,
        {WAIT: "tk.wait(full[t.rows].at(tk.rank() + 1))  # <-"},
        "rank 2 in a world of 2",
        "use: rank 1",
    ),
    pair(
        "wait for the part of the neighbour of the last rank",
        RankError,
        {WAIT: "tk.wait(full[tk.part(tk.rank() + 1), :])  # <-", READ: "        pass"},
        "rank 2 in a world of 2",
        "use: rank 1",
    ),
    pair(
        "neighbour of the first rank", RankError, {"t.reader)))": "tk.rank() - 1)))  # <-"}, "rank -1 in a world of 2"
    ),
]

BRANCHES = [
    tile(
        "store",
        DataBranchError,
        "if tl.sum(inbox[0, t].load()) > 0:\n    out[t].store(1.0)  # <-",
        "out[t].store(1.0) stands in a branch on data (tl.sum(inbox[0, t].load()) > 0, line 8)",
        "tl.where",
    ),
    tile(
        "load",
        DataBranchError,
        "a = tl.zeros((16, 16), tl.float32)\nif tl.sum(a) > 0:\n    a = inbox[0, t].load()  # <-",
        "tl.where",
    ),
    tile(
        "notify",
        DataBranchError,
        "there = out[t].store(1.0)\nif tl.max(inbox[0, t].load()) > 0:\n    tk.notify(there)  # <-",
        "tk.notify",
    ),
    pair(
        "wait",
        DataBranchError,
        {
            f"    rows = {WAIT}": "    acc = tl.zeros(t.shape, tl.float32)\n"
            f"    if tl.sum(acc) > 0:\n        rows = {WAIT}  # <-",
            READ: "        pass",
        },
        "tk.wait(full[t.rows])",
        "branch on ranks and coordinates",
    ),
    tile(
        "loop",
        DataBranchError,
        "a = tl.zeros((16, 16), tl.float32)\nif tl.sum(a) > 0:\n    for n in range(3):  # <-\n        a += 1",
        "for n",
    ),
    tile(
        "conditional expression",
        NotUnderstoodError,
        "n = 1 if tk.rank() == 0 else 2  # <-",
        "an if statement",
        "for data take tl.where",
    ),
    tile(
        "branch on a block",
        DataBranchError,
        "a = tl.zeros((16, 16), tl.float32)\nif a > 0:  # <-\n    a += 1",
        "a branch on a block of shape (16, 16)",
        "tl.where",
    ),
    tile(
        "branch on a view",
        NotUnderstoodError,
        "if out[t]:  # <-\n    pass",
        "a branch on out[M[M_lo:+16], N[N_lo:+16]]",
    ),
]


@pytest.mark.parametrize("case", [*MEMORY, *SIGNALS, *HOMES, *BRANCHES], ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_push_from_an_output_is_right(tmp_path: Path) -> None:
    user = load(tmp_path, PULLING)
    x = [torch.full((16, 16), float(rank + 1)) for rank in range(2)]
    outs = tk.CpuWorld(2).run(lambda g: user.program(x[g.rank], schedule="push", group=g))
    for _, out in outs:
        assert out[:, 0].tolist() == [2.0] * 16 + [4.0] * 16
