"""Roles with own="read": what stays on a rank is read in the input, and only the rest is copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
import triton.language as tl

import tilelink as tk
from tests.frontend.wrong import (
    GATHER,
    GATHER_TILE,
    LAUNCH_GATHER,
    LAUNCH_USE,
    NOTIFY,
    PROGRAM,
    USE_TILE,
    WAIT,
    Case,
    changed,
    check,
    load,
)
from tests.kernels.gather_gemm import in_tiles
from tilelink.analysis.check import check as check_program
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.counting import expected_counts
from tilelink.analysis.events import NOTIFY as NOTIFIES
from tilelink.analysis.events import READ, WRITE, Events
from tilelink.analysis.events import WAIT as WAITS
from tilelink.errors import ScheduleError
from tilelink.frontend import ir
from tilelink.frontend.expressions import parts_of
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cpu.world import CpuWorld

OWN = f'{GATHER_TILE}, own="read"'
FULL = '    full = tk.local("M", "K")'
USE = "    rows = tk.wait(full[t.rows])"
REGION = "[M[M_lo:+16], K[K_lo:+16]]"
SCHEDULE = "schedule = tk.Schedule(\n"
SAYS = 'gather has own="read", and '
CURE = '. Leave out own="read"'


def source(changes: dict[str, str] | None = None) -> str:
    return changed(GATHER, {GATHER_TILE: OWN, **(changes or {})})


def case(name: str, changes: dict[str, str], *says: str) -> Case:
    return Case(name, ScheduleError, source(changes), (*says, CURE))


WRONG = [
    case(
        "computes",
        {NOTIFY: "    block = x[t].load()  # <-\n    tk.notify(full[t].at(t.reader).store(block))"},
        f'{SAYS}it computes; own="read" is for roles that only copy inputs and notify',
    ),
    case(
        "stores",
        {NOTIFY: "    tk.notify(full[t].at(t.reader).store(x[t].load()))  # <-"},
        f"{SAYS}it computes; ",
    ),
    case(
        "waits",
        {
            "@tk.program": "@tk.tile\ndef pass_on(t, full, again):\n    rows = tk.wait(full[t])  # <-\n"
            "    tk.notify(tk.copy(rows, again[t].at(t.reader)))\n\n\n@tk.program",
            FULL: f'{FULL}\n    again = tk.local("M", "K")',
            LAUNCH_USE: f"pass_on[tk.tiles(x, reader=tk.ranks)](full, again)\n    {LAUNCH_USE}",
            OWN: GATHER_TILE, SCHEDULE: f'{SCHEDULE}    pass_on=tk.SMs(4, {OWN}),\n',
        },
        f'pass_on has own="read", and it waits for full{REGION}; own="read" is for roles that only copy inputs',
    ),
    case(
        "copies a buffer",
        {
            FULL: f'{FULL}\n    other = tk.sharded("M", "K")', "(x, full)": "(x, full, other)",
            "def gather(t, x, full)": "def gather(t, x, full, other)",
            NOTIFY: f"{NOTIFY.replace('x[t]', 'other[t]')}  # <-",
        },
        f"{SAYS}it copies other{REGION} to full{REGION}.at(reader); "
        'own="read" is for copies of all rows of a sharded input to a buffer',
    ),
    case(
        "copies nothing",
        {NOTIFY: "    pass", LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        f'{SAYS}it copies nothing; own="read" is for roles that copy inputs',
    ),
    case(
        "copies an input of each rank",
        {PROGRAM: PROGRAM.replace("Sharded", "Local"), NOTIFY: f"{NOTIFY}  # <-", 'at="home"': 'at="reader"'},
        f"{SAYS}it copies x{REGION} to full{REGION}; ",
    ),
    case(
        "copies some rows",
        {
            PROGRAM: PROGRAM.replace("out: ", 'wanted: tk.Sharded("M", tk.ranks, dtype="int32"), out: '),
            "(x, full)": "(x, full, wanted)", "def gather(t, x, full)": "def gather(t, x, full, wanted)",
            NOTIFY: "    tk.notify(tk.copy(x[t], full[t].at(t.reader), where=wanted[t.rows, t.reader]))  # <-",
        },
        f"{SAYS}it copies some rows of x{REGION} to full{REGION}.at(reader); ",
    ),
    case(
        "copies to another region",
        {
            FULL: '    full = tk.local(tk.ranks, "M", "K")',
            NOTIFY: f"{NOTIFY.replace('full[t]', 'full[t.reader, t]')}  # <-", WAIT: "tk.wait(full[tk.rank(), t.rows])",
        },
        f"{SAYS}it copies x{REGION} to another region, full[reader, M[M_lo:+16], K[K_lo:+16]].at(reader)",
    ),
    case(
        "copies memory of two ranks",
        {NOTIFY: f"{NOTIFY}\n    tk.notify(tk.copy(x[tk.part(t.reader), t.cols], "
                 "full[tk.part(t.reader), t.cols].at(t.reader)))  # <-"},
        f"{SAYS}a tile of it copies memory of rank and of reader; a tile copies memory of one rank only",
    ),
    case(
        "copies to one buffer twice",
        {NOTIFY: f"{NOTIFY}\n    tk.notify(tk.copy(x[t], full[t].at(t.reader)))  # <-"},
        f"{SAYS}it copies to full in two places",
    ),
    case(
        "another role writes to the buffer",
        {
            "@tk.program": "@tk.tile\ndef clear(t, full):\n    full[t].store(tl.zeros(t.shape, tl.float32))  # <-\n\n\n"
            "@tk.program",
            LAUNCH_USE: f"clear[tk.tiles(full)](full)\n    {LAUNCH_USE}",
            SCHEDULE: f"{SCHEDULE}    clear=tk.SMs(tile=(16, 16)),\n",
        },
        f"{SAYS}clear writes to full, too; nobody would read what it writes for its own rank",
    ),
    case(
        "a wait for several views",
        {
            NOTIFY: f"{NOTIFY}\n    tk.notify(tk.copy(x[t], again[t].at(t.reader)))",
            FULL: f'{FULL}\n    again = tk.local("M", "K")', "(x, full)": "(x, full, again)",
            "def gather(t, x, full)": "def gather(t, x, full, again)", "def use(t, full": "def use(t, full, again",
            "(full, out)": "(full, again, out)",
            USE: "    rows, more = tk.wait(full[t.rows], again[t.rows])  # <-",
        },
        f"{SAYS}this wait is for full[M[M_lo:+16], K] and for other views; write a wait for each view",
    ),
    case(
        "a reader of another rank's buffer",
        {USE: "    rows = tk.wait(full[t.rows].at(0))  # <-"},
        f"{SAYS}full[M[M_lo:+16], K].at(0) is memory of another rank, which lacks that rank's own rows",
    ),
    case(
        "rows of several ranks",
        {USE: f"{USE}  # <-", f"{USE_TILE})": f"{USE_TILE}, order=tk.across_parts)"},
        f"{SAYS}full[M[M_lo:+16], K] may have rows of several ranks, which would lie apart: its own in x, the others "
        "in full",
    ),
    case(
        "copies to all",
        {NOTIFY: NOTIFY.replace("t.reader", "tk.ranks"), LAUNCH_GATHER: "gather[tk.tiles(x)](x, full)  # <-",
         ', at="home"': ""},
        f"{SAYS}a tile of it copies to several ranks, or to all, so no part of it stays on one rank",
    ),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_can_not_be_read(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_the_program_says_where_rows_are_read(tmp_path: Path) -> None:
    module = load(tmp_path, source())
    text = str(module.program.bind(module.schedule))
    assert """
    if reader != rank:
        copy x[M[M_lo:+16], K[K_lo:+16]] -> full[M[M_lo:+16], K[K_lo:+16]].at(reader)
        notify(full[M[M_lo:+16], K[K_lo:+16]].at(reader))
""" in text
    assert """
    rows_ready = wait(full[M[M_lo:+16], K]) if home != rank
""" in text
    assert """
    if home == rank:
        for k in range(0, K, 16):
            acc = acc + x[M[M_lo:+16], K[k:+16]].load()
    else:
        for k in range(0, K, 16):
            acc = acc + full[M[M_lo:+16], K[k:+16]].load()
""" in text


# ---- the schedules of all_gather_matmul

ROWS = [5, 16, 33, 7, 1, 0, 17, 2]
WORLDS = [1, 2, 3, 4, 8]
NAMES = ["push", "pull", "engine", "pieces"]
WITH_ROWS = dict.fromkeys(["x", "weight", "out", "gathered"], "float32")


def parts(world: int) -> tuple[int, ...]:
    """Parts that no tile divides; in three ranks and more, one is empty."""
    return tuple(0 if world > 2 and r == world // 2 else n for r, n in enumerate(ROWS[:world]))


def schedule(name: str) -> Any:
    made = in_tiles(name, (16, 32), (16, 16, 16))
    assert made["gather"].own == "read"
    return made


def of_full(events: Events, *ops: int) -> np.ndarray:
    """The events of full, in whichever rank's memory, by what they do."""
    full = [t.name for t in events.program.tensors].index("full")
    return np.flatnonzero((events.tensor == full) & np.isin(events.op, ops))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_own_rows_are_neither_copied_nor_waited_for(name: str, world: int) -> None:
    sizes: dict[str, Any] = {"world": world, "M": parts(world), "N": 20, "K": 40}
    for dtypes in ("float32", WITH_ROWS):
        report = all_gather_matmul.check(schedule(name), **sizes, dtypes=dtypes)
        assert (report.verdict, report.proof) == ("safe", "structural"), report
    events = all_gather_matmul.unroll(schedule(name), **sizes)
    starts = events.sizes.values[parts_of("M")]

    def homes(k: np.ndarray) -> np.ndarray:
        return np.searchsorted(starts, events.lo[k, 0], side="right") - 1

    for op in (WRITE, NOTIFIES):
        k = of_full(events, op)
        assert (homes(k) != events.home[k]).all(), "what is copied and told is another rank's"
    k = of_full(events, WAITS, READ)
    assert (homes(k) != events.rank[k]).all() and (events.home[k] == events.rank[k]).all()
    blocks = -(-np.array(parts(world)) // 16)
    copies = (world - 1) * blocks.sum() * (1 if name == "engine" else 2)
    assert len(of_full(events, WRITE)) == len(of_full(events, NOTIFIES)) == copies
    waits = (world - 1) * blocks.sum() * 2 * (2 if name == "pieces" else 1)  # of two tiles along N
    assert len(of_full(events, WAITS)) == waits


@pytest.mark.parametrize("name", NAMES)
def test_signals_of_own_rows_are_never_given(name: str) -> None:
    bound = all_gather_matmul.bind(schedule(name))
    (signals,) = bound.signals
    counts = expected_counts(signals, Sizes.of(bound, 3, {"M": (20, 0, 9), "N": 16, "K": 32}))
    assert counts.tolist() == [[0, 0, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize("world", [*WORLDS[:-1], pytest.param(WORLDS[-1], marks=pytest.mark.verify)])
@pytest.mark.parametrize("name", NAMES)
def test_the_product_is_the_same(name: str, world: int) -> None:
    """Two calls, with rows that are kept: the bits are those of the schedule that copies."""
    x = torch.randint(-4, 5, (2, sum(parts(world)), 40)).float().split(parts(world), dim=1)
    weight = torch.randint(-4, 5, (world, 40, 20)).float()

    def rank(group: Any) -> list[torch.Tensor]:
        made = []
        for n in range(2):
            out = torch.full((sum(parts(world)), 20), torch.nan)
            kept = torch.full((sum(parts(world)), 40), torch.nan)
            all_gather_matmul(
                x[group.rank][n], weight[group.rank], out, gathered=kept, schedule=schedule(name), group=group,
                parts={"M": parts(world)},
            )  # fmt: skip
            made += [out, kept]
        return made

    whole = torch.cat(x, dim=1)
    for r, (first, rows, second, again) in enumerate(CpuWorld(world, seed=world).run(rank)):
        assert torch.equal(rows, whole[0]) and torch.equal(again, whole[1])
        assert torch.equal(first, whole[0] @ weight[r]) and torch.equal(second, whole[1] @ weight[r])


# ---- a reader that goes wrong


def damaged(program: ir.TileProgram, *, waits: bool) -> ir.TileProgram:
    """The program with readers that read full without the branch, and if `waits`, wait for all rows."""

    def change(s: ir.Statement) -> ir.Body:
        if isinstance(s, ir.Wait) and waits:
            return (replace(s, when=sympy.true),)
        return s.orelse if isinstance(s, ir.If) and s.orelse else (s,)

    reader = program.role("matmul")
    body = ir.rewritten(reader.body, change)
    assert body != reader.body and not any(s.orelse for s in ir.every(ir.If, body))
    return replace(program, roles=(program.role("gather"), replace(reader, body=body)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("waits", [False, True], ids=["without a wait", "after a wait"])
def test_a_reader_of_own_rows_in_the_buffer_is_found(name: str, waits: bool) -> None:
    right = all_gather_matmul.bind(schedule(name))
    wrong = damaged(right, waits=waits)
    assert why_not_structural(right) == ""
    assert " may be a part of full that nobody writes (" in why_not_structural(wrong)
    sizes = Sizes.of(wrong, 2, {"M": 32, "N": 16, "K": 32})
    report = check_program(wrong, sizes)
    assert report.verdict == "unsafe"
    (found,) = report.findings
    assert found.kind == ("lost signal" if waits else "unwritten read")
    assert "full[M[0:16], K[0:32]]" in found.what


@pytest.mark.parametrize("name", NAMES)
def test_kept_rows_are_proved_half_by_half(name: str) -> None:
    """A reader keeps its own rows from x and the others from full, in two branches."""
    right = all_gather_matmul.bind(schedule(name), WITH_ROWS, absent=frozenset({"bias", "epilogue"}))
    sizes: dict[str, Any] = {"M": 32, "N": 16, "K": 32}
    assert why_not_structural(right, Sizes.of(right, 2, sizes)) == ""
    empty = why_not_structural(right, Sizes.of(right, 2, {**sizes, "N": 0}))
    assert empty == "the first tile along N writes a tensor, and N is 0"

    def others_only(s: ir.Statement) -> ir.Body:
        keeps = isinstance(s, ir.If) and any(c.target.tensor == "gathered" for c in ir.every(ir.Copy, s.body))
        return (s.around((), s.orelse),) if keeps and s.blocks[1] else (s,)

    reader = right.role("matmul")
    lacking = replace(reader, body=ir.rewritten(reader.body, others_only))
    assert lacking.body != reader.body
    wrong = replace(right, roles=(right.role("gather"), lacking))
    assert "whether gathered[" in why_not_structural(wrong)
    assert [f.kind for f in check_program(wrong, Sizes.of(wrong, 2, sizes)).findings] == ["unwritten output"]


@tk.tile
def bring(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def twice_through(t, full, out):
    """Statements that read rows of two parts."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.M, by=16):
        a = tk.wait(full[k, t.cols])
        for j in tk.steps(full.M, by=16):
            b = tk.wait(full[j, t.cols])
            acc += a.load() + 3 * b.load()
    out[t].store(acc)


@tk.program
def all_pairs(x: tk.Sharded("M", "K"), out: tk.Local("S", "K")):
    full = tk.local("M", "K")
    bring[tk.tiles(x, reader=tk.ranks)](x, full)
    twice_through[tk.tiles(out)](full, out)


@tk.tile
def pass_on(t, full, passed):
    """A role between: it writes the same whether rows are its own or not."""
    tk.notify(passed[t].store(2 * tk.wait(full[t]).load()))


@tk.tile
def take(t, passed, out):
    out[t].store(tk.wait(passed[t]).load())


@tk.program
def in_between(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full, passed = tk.local("M", "K"), tk.local("M", "K")
    bring[tk.tiles(x, reader=tk.ranks)](x, full)
    pass_on[tk.tiles(full)](full, passed)
    take[tk.tiles(out)](passed, out)


TILED = tk.SMs(tile=(16, 16))
BRINGS = tk.SMs(2, tile=(16, 16), at="home", own="read")
PAIRS = tk.Schedule(bring=BRINGS, twice_through=TILED), {"S": 16}
BETWEEN = tk.Schedule(bring=BRINGS, pass_on=TILED, take=TILED), {}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("program", "given"), [(all_pairs, PAIRS), (in_between, BETWEEN)], ids=["pairs", "between"])
def test_readers_of_two_parts_and_readers_that_pass_on(program: Any, given: Any, world: int) -> None:
    schedule, sizes = given
    rows = parts(world)
    assert program.check(schedule, world=world, M=rows, K=24, **sizes).proof == "structural"
    x = torch.randint(-4, 5, (sum(rows), 24)).float()
    blocks = (b for part in x.split(rows) for b in part.split(16) if len(b))
    steps = [torch.nn.functional.pad(b, (0, 0, 0, 16 - len(b))) for b in blocks]
    both = sum(a + 3 * b for a in steps for b in steps) if program is all_pairs else 2 * x
    outs = [[torch.full(both.shape, torch.nan) for _ in range(2)] for _ in range(world)]

    def rank(group: Any) -> None:
        for out in outs[group.rank]:
            program(x.split(rows)[group.rank], out, schedule=schedule, group=group, parts={"M": rows})

    CpuWorld(world).run(rank)
    assert all(torch.equal(out, both) for of_rank in outs for out in of_rank)


@tk.tile
def pick(t, picks, y, out):
    here = tk.wait(picks[t.M])
    tk.copy(y[here, t.cols], out[t])


@tk.program
def picking(x: tk.Sharded("M", dtype=tl.int32), y: tk.Local("S", "K"), out: tk.Local("M", "K")):
    picks = tk.local("M", dtype=tl.int32)
    bring[tk.tiles(x, reader=tk.ranks)](x, picks)
    pick[tk.tiles(out)](picks, y, out)


def test_integers_that_pick_rows_are_not_read_in_the_input() -> None:
    schedule = tk.Schedule(bring=replace(BRINGS, tile=(16,)), pick=TILED)
    with pytest.raises(ScheduleError, match=r"picks\[.*\] picks or marks rows; copy it to another buffer first"):
        picking.bind(schedule)
