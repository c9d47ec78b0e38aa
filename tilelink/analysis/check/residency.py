"""Residency: all workers of a run are on the device at once, or those that wait may keep out those they wait for."""

from __future__ import annotations

import numpy as np

from tilelink.analysis.check.findings import Finding, about, step
from tilelink.analysis.events import WAIT, Events


def residency(events: Events, reserve: int) -> list[Finding]:
    """A finding where workers wait and not all are resident: one worker a streaming multiprocessor, of which `reserve`
    are kept for other kernels."""
    workers = events.kernel_workers
    waits = np.flatnonzero((events.op == WAIT) & (events.worker < workers))
    resident = events.sms - reserve
    if workers <= resident or not len(waits):
        return []
    waiting = len(np.unique(events.worker[waits]))
    k = int(waits[0])
    return [
        Finding(
            kind="residency",
            what=f"{workers} workers a rank, {waiting} of which wait; {resident} are resident ({events.sms} SMs, "
            f"{reserve} of them kept for others), so those that are not may be waited for and never start",
            chain=(step(events, k, "by a worker that is resident, for one that may not be"),),
            remedy=f"launch on {resident} SMs (sms={resident}), or give roles a count, {resident} in all, in the "
            f"schedule: {events.program.schedule_site}",
            **about(events, [k]),
        )
    ]
