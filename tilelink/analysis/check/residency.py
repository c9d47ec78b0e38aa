"""Residency: all workers of a run are on the device at once, or those that wait may keep out those they wait for."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.analysis.check.findings import Finding
from tilelink.frontend.ir import TileProgram, Wait, walk
from tilelink.frontend.sizes import Allotment, kernel_workers


def residency(program: TileProgram, allotment: Mapping[str, Allotment], sms: int, reserve: int) -> list[Finding]:
    """A finding where workers wait and not all are resident: one worker a streaming multiprocessor, of which `reserve`
    are kept for other kernels."""
    workers, resident = kernel_workers(program, allotment), sms - reserve
    waits = [(r, s) for r in program.in_kernel if allotment[r.name].tiles for s in walk(r.body) if isinstance(s, Wait)]
    if workers <= resident or not waits:
        return []
    places = [allotment[role.name] for role, _ in waits]
    waiting = len({w for a in places for w in range(a.first, a.first + a.workers)})
    role, wait = waits[0]
    return [
        Finding(
            kind="residency",
            tensor=wait.views[0].tensor,
            what=f"{workers} workers a rank, {waiting} of which wait; {resident} are resident ({sms} SMs, {reserve} of "
            "them kept for others), so those that are not may be waited for and never start",
            tiles=(f"{role.name} tile 0",),
            ranks=(0,),
            regions=(str(wait.views[0]),),
            lines=(f"{wait.site}: {wait.site.text}",),
            chain=(),
            remedy=f"launch on {resident} SMs (sms={resident}), or give roles a count, {resident} in all, in the "
            f"schedule: {program.schedule_site}",
            site=wait.site,
        )
    ]
