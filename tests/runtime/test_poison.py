"""Mailboxes: what stands in the words, and what a person reads."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.gather_gemm import small_world
from tests.programs.exchanges import readers_first, shared_workers
from tilelink.backend.targets import portable
from tilelink.emulator import DeadlockError
from tilelink.errors import StuckError
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.lane import HOST, Reason, Report
from tilelink.runtime.launch import Record
from tilelink.runtime.layout import CONTROL_WORDS, place
from tilelink.runtime.stuck import first_wait, of_report


@pytest.mark.parametrize("waiter", [0, 17, HOST])
def test_words_of_a_mailbox(waiter: int) -> None:
    report = Report(3, 7, waiter, 4096, 5, 2, Reason.STUCK)
    control = [0] * (CONTROL_WORDS + 8)
    control[portable.RUN.value] = 7
    for word, value in report.mailbox().items():
        control[word] = value
    assert Report.of(3, control) == report
    assert control[portable.WAITER.value] != 0, "an empty mailbox is told from one of worker 0"


pytestmark = pytest.mark.usefixtures("unchecked")


def deadlock() -> tuple[CpuWorld, str, DeadlockError, Record]:
    """A world that was stuck, its message, its cause, and the run."""
    world = small_world(2, sms=1)
    with pytest.raises(StuckError) as e:
        world.run(lambda group: readers_first(torch.ones(8, 16), schedule=shared_workers, group=group))
    (prepared,) = world.lane.prepared.values()
    placement = place(prepared.program, prepared.sizes, world.layout)
    at = tuple((name, world.layout.signals_at(0) + at, cells) for name, at, cells in placement.signals)
    cause = e.value.__context__
    assert isinstance(cause, DeadlockError)
    return world, str(e.value), cause, Record(0, "readers_first run 0", prepared, at)


def test_a_report_says_what_the_deadlock_does() -> None:
    world, message, cause, run = deadlock()
    report = first_wait(cause, run, Reason.STUCK)
    line = of_report(report, world.layout, run)
    assert "role take, tile 0, waits for full[M[" in line and "expected 1, observed 0" in line
    assert f"\n  {line}" in message
    assert (report.expected, report.observed) == (1, 0)


def test_reports_about_what_this_rank_did_not_launch() -> None:
    world, _, cause, run = deadlock()
    report = first_wait(cause, run, Reason.STUCK)
    assert of_report(report, world.layout, None).endswith("of run 0: waits for a signal: expected 1, observed 0")
    progress = Report(1, 4, HOST, 8 * CONTROL_WORDS, 9, 7, Reason.NEVER_ENTERED)
    assert of_report(progress, world.layout, None) == (
        "rank 1 host of run 4: waits for rank 0 to go on, which has entered run 3: expected 9, observed 7"
    )
    elsewhere = Report(0, 0, 1, world.layout.heap_bytes - 8, 1, 0, Reason.STUCK)
    assert "waits for byte" in of_report(elsewhere, world.layout, run)
