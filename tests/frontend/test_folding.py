"""Roles in the epilogue of another: what becomes of the tile program, and what can't be in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import Case, changed, check, load
from tilelink.errors import ScheduleError

SOURCE = """
@tk.tile
def make(t, x, partial):
    block = x[t].load()
    tk.notify(partial[t].store(block + block))


@tk.tile
def send(t, x, partial, inbox):
    mine = tk.wait(partial[t].at(t.source))
    tk.notify(tk.copy(mine, inbox[t.source, t]))


@tk.tile
def add(t, inbox, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(inbox[source, t]).load()
    out[t].store(acc)


@tk.program
def program(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    partial = tk.local("M", "K")
    inbox = tk.sharded(tk.ranks, "M", "K", axis=1)
    make[tk.tiles(partial)](x, partial)
    send[tk.tiles(out, source=tk.ranks)](x, partial, inbox)
    add[tk.tiles(out)](inbox, out)


schedule = tk.Schedule(make=tk.SMs(tile=(16, 16)), send=tk.Epilogue("make"), add=tk.SMs(tile=(16, 16)))


def main():
    return program.bind(schedule)
"""
SEND = "    tk.notify(tk.copy(mine, inbox[t.source, t]))"
WAIT = "    mine = tk.wait(partial[t].at(t.source))"
LAUNCH = "    send[tk.tiles(out, source=tk.ranks)](x, partial, inbox)"
STORE = "    tk.notify(partial[t].store(block + block))"
SCHEDULE = 'schedule = tk.Schedule(make=tk.SMs(tile=(16, 16)), send=tk.Epilogue("make"), add=tk.SMs(tile=(16, 16)))'


def case(name: str, changes: dict[str, str], *says: str) -> Case:
    return Case(name, ScheduleError, changed(SOURCE, changes), says)


def other(send: str) -> dict[str, str]:
    return {SCHEDULE: SCHEDULE.replace('tk.Epilogue("make")', send) + "  # <-"}


WRONG = [
    case(
        "no such role",
        other('tk.Epilogue("mak")'),
        "send=Epilogue('mak'): mak is no role of the program; tk.Epilogue takes the name of a role on SMs that is "
        "launched before send: make",
    ),
    case("itself", other('tk.Epilogue("send")'), "send is in an epilogue itself"),
    case("a later role", other('tk.Epilogue("add")'), "add is launched later"),
    case(
        "in an epilogue itself",
        {SCHEDULE: SCHEDULE.replace("add=tk.SMs(tile=(16, 16))", 'add=tk.Epilogue("send")') + "  # <-"},
        "send is in an epilogue itself",
    ),
    case("no name", other("tk.Epilogue(3)"), "tk.Epilogue(3): it takes the name of a role"),
    case(
        "other dimensions",
        {LAUNCH: LAUNCH.replace("(out, source", "(out.cols, source") + "  # <-"},
        "send can't be done in the epilogue of make: it runs over K, make over M, K",
    ),
    case(
        "other tiles",
        {LAUNCH: LAUNCH.replace("source=tk.ranks", "source=tk.ranks, reader=tk.ranks") + "  # <-"},
        "make over M by 16, K by 16 (home in turn on each rank); a role in an epilogue has the same tiles on the same "
        "rank",
    ),
    case(
        "waits for a peer",
        {WAIT: WAIT.replace("t.source)", "(t.source + 1) % tk.world())") + "  # <-"},
        "it waits for partial[M[M_lo:+16], K[K_lo:+16]].at((rank + 1) % world), and a tile of make notifies "
        "partial[M[M_lo:+16], K[K_lo:+16]]; wait for exactly what the tile notifies",
    ),
    case(
        "waits for more",
        {WAIT: WAIT.replace("partial[t]", "partial[t.rows]") + "  # <-", SEND: SEND.replace("mine", "mine[:, t.cols]")},
        "it waits for partial[M[M_lo:+16], K], and a tile of make notifies partial[M[M_lo:+16], K[K_lo:+16]]",
    ),
    case(
        "waits for nothing",
        {WAIT: "", SEND: SEND.replace("mine", "x[t].at(t.source)") + "  # <-"},
        "it waits for nothing that make makes; tk.SMs gives it workers of its own",
    ),
    case(
        "computes",
        {SEND: "    block = mine.load()  # <-\n    tk.notify(inbox[t.source, t].store(block))"},
        "send can't be done in the epilogue of make: it computes; a role in an epilogue only copies what make made",
    ),
    case(
        "producer that copies",
        {
            "    block = x[t].load()\n": "",
            STORE: "    tk.notify(tk.copy(x[t], partial[t]))",
            "    make[tk.tiles(partial)](x, partial)": "    make[tk.tiles(partial)](x, partial)  # <-",
        },
        "make does not store and notify partial[M[M_lo:+16], K[K_lo:+16]] once in each tile",
    ),
    case(
        "producer that copies over its block",
        {
            "def make(t, x, partial):": "def make(t, x, w, partial):", "make[tk.tiles(partial)](x, partial)":
            "make[tk.tiles(partial)](x, x, partial)",
            STORE: "    partial[t].store(block + block)\n"
            "    tk.copy(w[t], partial[t])  # <-\n    tk.notify(partial[t])",
        },
        "make writes partial here, too; the block in registers does not change with it",
    ),
    case(
        "producer that copies over a part of its block in a loop",
        {
            STORE: "    partial[t].store(block + block)\n    for k in tk.steps(t.cols, by=8):\n"
            "        tk.copy(x[t.rows, k], partial[t.rows, k])  # <-\n    tk.notify(partial[t])",
        },
        "make writes partial here, too",
    ),
    case(
        "producer that stores some rows",
        {
            "def make(t, x, partial):": "def make(t, x, wanted, partial):",
            "make[tk.tiles(partial)](x, partial)": "make[tk.tiles(partial)](x, wanted, partial)",
            'x: tk.Local("M", "K"),': 'x: tk.Local("M", "K"), wanted: tk.Local("M", dtype=tl.int32),',
            "block + block))": "block + block, where=wanted[t.rows]))  # <-",
        },
        "make stores some rows of partial[M[M_lo:+16], K[K_lo:+16]] only; the block in registers has all of them",
    ),
    case(
        "another role that writes the buffer",
        {
            LAUNCH: "    again[tk.tiles(partial)](x, partial)\n" + LAUNCH,
            "@tk.program": "@tk.tile\ndef again(t, x, partial):\n    tk.copy(x[t], partial[t])  # <-\n\n\n@tk.program",
            SCHEDULE: SCHEDULE.replace("add=", "again=tk.SMs(tile=(16, 16)), add="),
        },
        "again writes partial here, too",
    ),
    case(
        "producer with a branch",
        {STORE: "    if t.home > 0:\n        tk.notify(partial[t].store(block + block))", WAIT: f"{WAIT}  # <-"},
        "and make notifies partial[M[M_lo:+16], K[K_lo:+16]] in a loop or a branch (",
        "let every tile notify exactly what is waited for, once",
    ),
    case(
        "producer that notifies in a loop",
        {
            STORE: "    for k in tk.steps(t.cols, by=8):\n"
            "        tk.notify(partial[t.rows, k].store(x[t.rows, k].load()))",
            WAIT: f"{WAIT}  # <-",
        },
        "it waits for partial[M[M_lo:+16], K[K_lo:+16]], and make notifies partial[M[M_lo:+16], K[k:+8]] in a loop or",
    ),
    case(
        "producer that notifies nothing",
        {STORE: "    partial[t].store(block + block)", WAIT: f"{WAIT}  # <-"},
        "it waits for partial[M[M_lo:+16], K[K_lo:+16]], and a tile of make notifies nothing; wait",
    ),
    case(
        "producer whose tiles go across parts",
        {
            SCHEDULE: SCHEDULE.replace("(16, 16))", "(16, 16), order=tk.across_parts)", 1),
            LAUNCH: f"{LAUNCH}  # <-",
        },
        "send: order=across_parts is for tiles of local tensors on SMs",
        "; its tiles and their order are those of make: ",
    ),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_can_not_be_folded(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_the_buffer_disappears(tmp_path: Path) -> None:
    program = load(tmp_path, SOURCE).main()
    assert [t.name for t in program.tensors] == ["x", "out", "inbox"]
    assert [r.name for r in program.roles] == ["make", "add"]
    assert [s.tensor for s in program.signals] == ["inbox"]
    text = str(program)
    assert "stages=3, warps=8), with send in its epilogue" in text
    assert "wait(partial" not in text and "notify(partial" not in text
    assert "partial_kept = (block + block).to(tl.float32)" in text
    assert "inbox[rank, M[M_lo:+16], K[K_lo:+16]].at(home).store(partial_kept)" in text


def test_a_buffer_that_others_read_stays(tmp_path: Path) -> None:
    source = changed(SOURCE, {
        "def add(t, inbox, out):": "def add(t, partial, inbox, out):",
        "    acc = tl.zeros(t.shape, tl.float32)": "    acc = tk.wait(partial[t]).load()",
        "add[tk.tiles(out)](inbox, out)": "add[tk.tiles(out)](partial, inbox, out)",
    })  # fmt: skip
    program = load(tmp_path, source).main()
    assert [s.tensor for s in program.signals] == ["partial", "inbox"]
    assert "partial[M[M_lo:+16], K[K_lo:+16]].store(partial_kept)\n    notify(partial" in str(program)


def test_two_roles_in_one_epilogue(tmp_path: Path) -> None:
    source = changed(SOURCE, {
        LAUNCH: f'{LAUNCH}\n    send.named("again")[tk.tiles(out, source=tk.ranks)](x, partial, twice)',
        "    make[tk.tiles": '    twice = tk.sharded(tk.ranks, "M", "K", axis=1)\n    make[tk.tiles',
        'send=tk.Epilogue("make")': 'send=tk.Epilogue("make"), again=tk.Epilogue("make")',
    })  # fmt: skip
    program = load(tmp_path, source).main()
    assert program.role("make").folded == ("send", "again")
    assert str(program).count("partial_kept = ") == 1 and "partial[" not in str(program)


def test_names_of_both_roles_stay_apart(tmp_path: Path) -> None:
    """A loop of the folded role does not overwrite a block of the producer."""
    loop = "    for block in range(1):\n        tk.notify(tk.copy(mine, inbox[t.source + block, t]))"
    source = changed(SOURCE, {SEND: loop})
    assert "for block_ in range(0, 1, 1):" in str(load(tmp_path, source).main())


def test_a_folded_schedule_fits(tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE)
    fitted = module.program.fit(module.schedule.changed(make={"tile": (64, 64)}), world=2, M=20, K=20)
    assert fitted["make"].tile == (16, 32) and fitted["send"] == module.schedule["send"]
