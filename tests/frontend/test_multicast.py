"""Roles that multicast: a rank axis that only names where things go becomes views of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import GATHER, GATHER_TILE, NOTIFY, Case, check, load, pair
from tilelink.errors import ScheduleError
from tilelink.kernels.all_gather_matmul import all_gather_matmul, multicast, push

MULTICAST = {GATHER_TILE: f'{GATHER_TILE}, via="multicast"'}
LAUNCH = "    gather[tk.tiles(x, reader=tk.ranks)](x, full)"


def asked(name: str, changes: dict[str, str], *says: str) -> Case:
    return pair(name, ScheduleError, changes, *says)


SMS = f"    gather=tk.SMs(4, {GATHER_TILE}),"
WRONG = [
    asked(
        "no such way",
        {SMS: f'    gather=tk.SMs(4, {GATHER_TILE}, via="tma"),  # <-'},
        "via='tma': it is one of 'load-store', 'multicast'",
    ),
    asked(
        "at the reader",
        {GATHER_TILE: 'tile=(16, 16), at="reader", via="multicast"', LAUNCH: f"{LAUNCH}  # <-"},
        "gather can't multicast: nothing of it goes to all ranks alike",
    ),
    asked(
        "no axis",
        MULTICAST
        | {NOTIFY: NOTIFY.replace("t.reader", "0"), LAUNCH: LAUNCH.replace(", reader=tk.ranks", "") + "  # <-"},
        "it needs a rank axis that it does not execute at",
    ),
    asked(
        "a condition on the axis",
        MULTICAST | {NOTIFY: f"    if t.reader != t.home:\n    {NOTIFY}", LAUNCH: f"{LAUNCH}  # <-"},
        "only names whose memory copies, stores and notifications go to",
    ),
    asked(
        "arithmetic on the axis",
        MULTICAST
        | {NOTIFY: NOTIFY.replace("t.reader", "(t.reader + 1) % tk.world()"), LAUNCH: f"{LAUNCH}  # <-"},
        "as reader does in tk.copy(x[t], full[t].at(t.reader)) with at='home'",
    ),
]


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
    tiles = {"gather": {"tile": (16, 32)}, "matmul": {"tile": (16, 16, 16)}}
    pushed, sent = (all_gather_matmul.unroll(s.changed(**tiles), **sizes) for s in (push, multicast))
    lines = [
        [line.split(": ", 1)[1] for line in e.text().splitlines() if " gather tile" in line] for e in (pushed, sent)
    ]
    written = [sorted(line for line in of if not line.startswith("read")) for of in lines]
    assert written[0] == written[1]
    assert [sum(line.startswith("read") for line in of) for of in lines] == [9, 3]
