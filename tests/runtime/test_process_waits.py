"""One process a rank: waits that end in vain, and ranks that fail or die, are named on every rank."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import tilelink as tk
from tests.programs.gathered import lower_rows
from tests.runtime.processes import SMALL, Pool, members
from tests.runtime.ranks import WORLD, check_usable, drawn, everybody, gathered, use
from tilelink.backend import cache as kernels
from tilelink.errors import NeverEnteredError, StuckError
from tilelink.runtime.group import Group


def impatient() -> Group:
    return everybody(stuck_timeout=2.0)


def withheld(program: str) -> Any:
    """Rank 1 does not tell rank 0 of its rows. All ranks call twice."""
    group = impatient()
    if group.rank == 1:
        prepare = group.lane.prepare

        def mutated(*arguments: Any) -> Any:
            prepared = prepare(*arguments)
            lowered = prepared.lowered
            source, count = re.subn(r"^( +)(notify\(.*)", r"\1if reader != 0:\n\1    \2", lowered.source, flags=re.M)
            assert count == 1
            return dataclasses.replace(prepared, module=kernels.load(dataclasses.replace(lowered, source=source)))

        group.lane.prepare = mutated  # type: ignore[method-assign]
    try:
        call = drawn()
        for _ in range(2):
            if program == "gather":
                call.on(group)
            else:
                lower_rows(call.x[group.rank], group=group)
    finally:
        vars(group.lane).pop("prepare", None)


def reset(function: Callable[[], Group]) -> None:
    function().reset()


def test_a_withheld_signal_is_named_on_every_rank(pool: Pool) -> None:
    failures = pool.failures(withheld, "gather")
    assert {f.kind for f in failures} == {"StuckError"}
    (line,) = {f.text.splitlines()[1] for f in failures}
    assert re.fullmatch(
        r"  rank 0 worker \d+ of all_gather_matmul run 0: role matmul, tile \d+, waits for full\[M\[4:8\], K\[0:24\]\] "
        r"of rank 0 \(signal 1\): expected 1, observed 0 \(.*all_gather_matmul.py:\d+: tk.wait\(full\[t.rows\]\)\)",
        line,
    )
    assert all("nothing moved for 2 s" in f.text for f in failures)
    again = pool.failures(use, impatient)
    assert [f.text.splitlines()[1] for f in again] == [line] * WORLD
    pool.results(reset, impatient)
    check_usable(pool, impatient)


def test_a_withheld_signal_that_no_tile_waits_for(pool: Pool) -> None:
    """The last worker of the run does: it would count in the next one."""
    failures = pool.failures(withheld, "lower")
    assert {f.kind for f in failures} == {"StuckError"}
    (line,) = {f.text.splitlines()[1] for f in failures}
    assert re.fullmatch(
        r"  rank 0 worker \d+ of lower_rows run 1: leaving the run, waits for all notifications of full on rank 0 "
        r"\(signal 1\): expected 1, observed 0",
        line,
    )
    pool.results(reset, impatient)
    check_usable(pool, impatient)


def hurried() -> Group:
    return everybody(enter_timeout=2.0)


def one_stays_away() -> None:
    """Rank 3 comes to the second call when the others have given up."""
    group = hurried()
    use(hurried)
    if group.rank == 3:
        dist.barrier(members(*range(WORLD)))
    try:
        gathered(group)
    finally:
        if group.rank != 3:
            dist.barrier(members(*range(WORLD)))


def test_a_rank_that_does_not_come_is_named_on_every_rank(pool: Pool) -> None:
    assert issubclass(NeverEnteredError, StuckError)
    failures = pool.failures(one_stays_away)
    assert {f.kind for f in failures} == {"NeverEnteredError"}
    (line,) = {f.text.splitlines()[1] for f in failures}
    assert re.fullmatch(
        r"  rank \d host of run 1: waits for rank 3 to go on, which has left run 0: expected 3, observed 2",
        line,
    )
    assert all("within 2 s" in f.text and "rank 2 made 2 calls, rank 3 made 1 call" in f.text for f in failures)
    pool.results(reset, hurried)
    check_usable(pool, hurried)


def fails_in_the_run() -> None:
    group = everybody()
    if group.rank == 2:
        group.lane.launch = _fail  # type: ignore[attr-defined]
    try:
        gathered(group)
    finally:
        vars(group.lane).pop("launch", None)  # type: ignore[attr-defined]


def _fail(*arguments: Any) -> None:
    raise LookupError("of a kernel")


def test_a_rank_that_raises_in_a_run_ends_it_for_all(pool: Pool) -> None:
    failures = pool.failures(fails_in_the_run)
    assert [f.kind for f in failures] == ["RankFailedError", "RankFailedError", "LookupError", "RankFailedError"]
    assert all("rank 2 raised LookupError: of a kernel" in failures[r].text for r in (0, 1, 3))
    pool.results(reset, everybody)
    check_usable(pool, everybody)


def killed(before: int, in_run: bool) -> None:
    """Rank 1 dies after some calls, at the beginning of a run or between two of them."""
    group = tk.group(**SMALL)
    for _ in range(before):
        gathered(group)
    if group.rank == 1:
        if not in_run:
            os.kill(os.getpid(), signal.SIGKILL)
        group.lane.launch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
    gathered(group)


@pytest.mark.parametrize("in_run", [False, True])
def test_a_process_that_is_killed_is_named(in_run: bool) -> None:
    names = set(os.listdir("/dev/shm"))
    pool = Pool(3)
    try:
        alive, dead, other = pool.run(killed, 1, in_run)
        assert dead is None and pool.processes[1].exitcode == -signal.SIGKILL
        for f in (alive, other):
            assert f.kind == "RankDiedError"
            when = "in all_gather run 1" if in_run else "before call 1"
            assert f"rank 1 has died: its process, {pool.processes[1].pid}, is gone, {when} (" in f.text
            assert "ranks.py:" in f.text and f"rank 1 made {1 + in_run} call" in f.text
    finally:
        pool.close()
    assert set(os.listdir("/dev/shm")) <= names
