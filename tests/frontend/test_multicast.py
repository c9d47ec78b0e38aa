"""Roles that multicast: a rank axis that only names where things go becomes views of all ranks, and so does a loop that
adds up the same of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import triton.language as tl

import tilelink as tk
from tests.frontend.wrong import GATHER, GATHER_TILE, NOTIFY, Case, check, load, pair
from tilelink.errors import ScheduleError
from tilelink.kernels import matmul_fabric_all_reduce as fabric
from tilelink.kernels.all_gather_matmul import all_gather_matmul, multicast, push

MULTICAST = {GATHER_TILE: f'{GATHER_TILE}, via="multicast"'}
LAUNCH = "    gather[tk.tiles(x, reader=tk.ranks)](x, full)"


def asked(name: str, changes: dict[str, str], *says: str) -> Case:
    return pair(name, ScheduleError, changes, *says)


SMS = f"    gather=tk.SMs(4, {GATHER_TILE}),"
WRONG = [
    asked(
        "no such way",
        {SMS: f'    gather=tk.SMs(4, {GATHER_TILE}, via="bulk"),  # <-'},
        "via='bulk': it is one of 'load-store', 'tma', 'multicast'",
    ),
    asked(
        "at the reader",
        {GATHER_TILE: 'tile=(16, 16), at="reader", via="multicast"', LAUNCH: f"{LAUNCH}  # <-"},
        "gather can't multicast: at='reader' gives each reader tiles of its own; what goes to all ranks is sent from",
    ),
    asked(
        "no axis",
        MULTICAST
        | {NOTIFY: NOTIFY.replace("t.reader", "0"), LAUNCH: LAUNCH.replace(", reader=tk.ranks", "") + "  # <-"},
        "gather can't multicast: it writes nothing to all ranks alike, and reads no sum over them. It needs a rank "
        "axis that only names where copies, stores and notifications go, as reader does in tk.copy(x[t], ",
    ),
    asked(
        "a condition on the axis",
        MULTICAST | {NOTIFY: f"    if t.reader != t.home:\n    {NOTIFY}", LAUNCH: f"{LAUNCH}  # <-"},
        "gather can't multicast: `if t.reader != t.home:` (",
        "user.py:8) depends on reader, and all ranks get the same",
    ),
    asked(
        "arithmetic on the axis",
        MULTICAST
        | {NOTIFY: NOTIFY.replace("t.reader", "(t.reader + 1) % tk.world()"), LAUNCH: f"{LAUNCH}  # <-"},
        "gather can't multicast: `tk.copy(x[t], full[t].at((t.reader + 1) % tk.world()))` (",
        "depends on reader, and all ranks get the same",
    ),
]


@tk.tile
def tell(t, x, flag):  # type: ignore[no-untyped-def]
    tk.notify(tk.copy(x[t], flag[t]))


@tk.tile
def add_inputs(t, x, flag, out):  # type: ignore[no-untyped-def]
    acc = tl.zeros(t.shape, tl.float32)
    for r in tk.ranks():
        tk.wait(flag[t].at(r))
        acc += x[t].at(r).load()
    out[t].store(acc)


@tk.program
def sum_of_inputs(x: tk.Local("M", "N"), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def]
    flag = tk.local("M", "N")
    tell[tk.tiles(flag)](x, flag)
    add_inputs[tk.tiles(out)](x, flag, out)


def test_a_sum_of_what_was_not_waited_for_can_not_multicast() -> None:
    few = tk.SMs(1, tile=(4, 4))
    said = r"add_inputs can't multicast: .* x\[.*\]\.at\(r\) is not the same region of each rank, or not what flag\["
    with pytest.raises(ScheduleError, match=said):
        sum_of_inputs.bind(tk.Schedule(tell=few, add_inputs=tk.SMs(1, tile=(4, 4), via="multicast")))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_can_not_multicast(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_the_axis_disappears() -> None:
    text = str(all_gather_matmul.bind(multicast))
    assert "reader" not in text.split("role matmul")[0]
    assert "copy x[M[M_lo:+128], K[K_lo:+256]] -> full[M[M_lo:+128], K[K_lo:+256]].at(all ranks)\n" in text
    assert "notify(full[M[M_lo:+128], K[K_lo:+256]].at(all ranks))\n" in text


def test_views_of_all_ranks_may_multicast(tmp_path: Path) -> None:
    source = GATHER.replace("t.reader", "tk.ranks").replace(", reader=tk.ranks", "")
    module = load(tmp_path, source)
    asked = module.schedule.changed(gather={"via": "multicast"})
    assert module.program.bind(asked).role("gather").walk == module.program.bind(module.schedule).role("gather").walk


def test_a_loop_over_the_ranks_reads_once() -> None:
    """The same events as a push in another order: every tile is read once, and written and notified once a rank."""
    sizes = {"world": 3, "M": 48, "N": 16, "K": 32}
    tiles = {"gather": {"tile": (16, 32), "own": "copied"}, "matmul": {"tile": (16, 16, 16)}}
    pushed, sent = (all_gather_matmul.unroll(s.changed(**tiles), **sizes) for s in (push, multicast))
    lines = [
        [line.split(": ", 1)[1] for line in e.text().splitlines() if " gather tile" in line] for e in (pushed, sent)
    ]
    written = [sorted(line for line in of if not line.startswith("read")) for of in lines]
    assert written[0] == written[1]
    assert [sum(line.startswith("read") for line in of) for of in lines] == [9, 3]


def test_a_sum_over_all_ranks_is_one_load() -> None:
    program = fabric.matmul_fabric_all_reduce.bind(fabric.multicast, "bfloat16")
    text = str(program).split("role share")[1].split("role take")[0]
    assert "ready = wait(partial[M[M_lo:+128], N[N_lo:+256]].at(all ranks))\n" in text
    assert "+ partial[M[M_lo:+128], N[N_lo:+256]].at(all ranks).load()\n" in text
    assert "for source" not in text
    assert "rows" not in {t.name for t in program.tensors}, "it only says how tiles are spread"


@tk.tile
def hand(t, x, there):
    tk.notify(tk.copy(x[t], there[t]))


@tk.tile
def add(t, there, out):
    acc = tl.zeros(t.shape, there.dtype)
    for source in tk.ranks():
        acc += tk.wait(there[t].at(source)).load()
    out[t].store(acc)


@tk.tile
def add_twice(t, there, out):
    acc = tl.zeros(t.shape, there.dtype)
    for source in tk.ranks():
        acc += 2 * tk.wait(there[t].at(source)).load()
    out[t].store(acc)


def summing(tile: Any) -> Any:
    def body(x, out):  # type: ignore[no-untyped-def]
        there = tk.local("M")
        hand[tk.tiles(x)](x, there)
        tile.named("add")[tk.tiles(out)](there, out)

    body.__annotations__ = {"x": tk.Local("M"), "out": tk.Local("M")}
    return tk.program(body)


@tk.tile
def add_where(t, there, out):
    acc = tl.zeros(t.shape, there.dtype)
    for source in tk.ranks():
        here = tk.wait(there[t].at(source))
        acc += here.load(where=here)
    out[t].store(acc)


@tk.tile
def add_squares(t, there, out):
    acc = tl.zeros(t.shape, there.dtype)
    for source in tk.ranks():
        block = tk.wait(there[t].at(source)).load()
        acc += block * block
    out[t].store(acc)


ADDED = "float32, float16, bfloat16"


@pytest.mark.parametrize(
    ("tile", "dtype", "why"),
    [
        (add, "int32", f"there is int32, and fabrics add up {ADDED}"),
        (add, "float64", f"there is float64, and fabrics add up {ADDED}"),
        (add_twice, "float32", r"acc = acc \+ 2 \* there.* does more than add up"),
        (add_squares, "float32", "it does more than wait for a view and add it up"),
        (add_where, "int32", r"where=there\[.*\]\.at\(source\) leaves rows out"),
    ],
)
def test_what_a_fabric_does_not_add_stays_a_loop(tile: Any, dtype: str, why: str) -> None:
    schedule = tk.Schedule(hand=tk.SMs(tile=(16,)), add=tk.SMs(tile=(16,), via="multicast"))
    said = rf"add can't multicast: the loop over the ranks \(.*\) is no sum that a fabric makes: {why}"
    with pytest.raises(ScheduleError, match=said):
        summing(tile).bind(schedule, dtype)


def test_the_same_tiles_are_read_and_awaited_as_by_a_loop() -> None:
    """One wait and one read of each rank, as many notifications, and a proof for all sizes in both forms."""
    program, near = fabric.matmul_fabric_all_reduce, fabric.multicast.changed(share={"via": "load-store"})
    tiles = {"matmul": {"tile": (16, 16, 16)}, "share": {"tile": (16, 16)}, "take": {"tile": (16, 16)}}
    found = []
    for schedule in (near, fabric.multicast):
        events = program.unroll(schedule.changed(**tiles), world=3, M=48, N=32, K=16)
        lines = (line.split(": ", 1)[1] for line in events.text().splitlines() if " share tile" in line)
        found.append(sorted(lines))
        assert "structural" in str(program.check(schedule.changed(**tiles), world=3, M=48, N=32, K=16))
    assert found[0] == found[1] and sum(line.startswith("wait") for line in found[0]) == 18
