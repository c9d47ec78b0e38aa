"""Findings about a device: workers that must be resident together, and the heap of a run."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.analysis.check.findings import Finding
from tilelink.analysis.placement import placed
from tilelink.frontend.ir import TileProgram, Wait, every
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.workload import Allotment, kernel_workers


def residency(program: TileProgram, allotment: Mapping[str, Allotment], sms: int, reserve: int) -> list[Finding]:
    """A finding if workers wait and not all of them are resident: resident workers may then wait for others that never
    start. One worker takes one SM; `reserve` SMs are kept for other kernels."""
    workers, resident = kernel_workers(program, allotment), sms - reserve
    waits = [(r, s) for r in program.in_kernel if allotment[r.name].tiles for s in every(Wait, r.body)]
    if workers <= resident or not waits:
        return []
    places = [allotment[role.name] for role, _ in waits]
    waiting = len({w for a in places for w in range(a.first, a.first + a.workers)})
    role, wait = waits[0]
    return [
        Finding(
            kind="residency",
            tensor=wait.views[0].tensor,
            what=f"{workers} workers a rank, {waiting} of them wait; {resident} are resident ({sms} SMs, {reserve} of "
            "them reserved), so they may wait for workers that never start",
            tiles=(f"{role.name} tile 0",),
            ranks=(0,),
            regions=(str(wait.views[0]),),
            lines=(wait.site.quoted,),
            remedy=f"launch on {resident} SMs (sms={resident}), or give roles a count, {resident} in all, in the "
            f"schedule: {program.schedule_site}",
            site=wait.site,
        )
    ]


def too_large(
    program: TileProgram, allotment: Mapping[str, Allotment], sizes: Sizes, slot_bytes: int | None, stage: int
) -> list[Finding]:
    """A finding if a slot of `slot_bytes`, including its zone of signals, does not hold a run (None: it is large
    enough). `stage`: bytes of each worker for blocks on their way to another node."""
    placement = placed(program, sizes, stage=stage * kernel_workers(program, allotment))
    needed = placement.data_bytes + placement.signal_bytes
    if slot_bytes is None or needed <= slot_bytes:
        return []
    buffers = [f"{n}[{', '.join(program.tensor(n).dims)}]" for n, _ in placement.data]
    return [
        Finding(
            kind="heap",
            what=f"a slot of the heap holds {slot_bytes} bytes, and the run needs {needed}: {placement.data_bytes} for "
            f"{', '.join(buffers) or 'no buffer'}{', and blocks that are sent,' * (stage > 0)} and "
            f"{placement.signal_bytes} for signals",
            regions=tuple(buffers),
            lines=(program.site.quoted,),
            remedy=f"make slots of at least {needed} bytes, or tiles that need less",
            site=program.site,
        )
    ]
