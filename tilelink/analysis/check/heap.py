"""Whether the buffers and signals of a run fit into a slot of the symmetric heap."""

from __future__ import annotations

from tilelink.analysis.check.findings import Finding
from tilelink.analysis.placement import placed
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes


def too_large(program: TileProgram, sizes: Sizes, slot_bytes: int) -> list[Finding]:
    """A finding where a slot of so many bytes, its zone of signals included, does not hold a run."""
    placement = placed(program, sizes)
    needed = placement.data_bytes + placement.signal_bytes
    if needed <= slot_bytes:
        return []
    buffers = [f"{n}[{', '.join(program.tensor(n).dims)}]" for n, _ in placement.data]
    return [
        Finding(
            kind="heap",
            tensor="",
            what=f"a slot of the heap holds {slot_bytes} bytes, and the run needs {needed}: {placement.data_bytes} for "
            f"{', '.join(buffers) or 'no buffer'} and {placement.signal_bytes} for signals",
            tiles=(),
            ranks=(),
            regions=tuple(buffers),
            lines=(f"{program.site}: {program.site.text}",),
            chain=(),
            remedy=f"make slots of at least {needed} bytes, or tiles that need less",
            site=program.site,
        )
    ]
