"""Coverage: every element of every output is written, and once."""

from __future__ import annotations

import numpy as np

from tilelink.analysis.check.cells import Cells
from tilelink.analysis.check.findings import SHOWN, Finding, about, firsts, step
from tilelink.analysis.events import WRITE
from tilelink.frontend.ir import Copy, Store, walk


def coverage(cells: Cells) -> list[Finding]:
    """Findings for an output on one rank: what nobody writes, and what is written more than once."""
    events, tensor = cells.events, cells.events.program.tensors[cells.tensor]
    if tensor.kind != "output":
        return []
    writes = events.op[cells.access] == WRITE
    cell, access = cells.cell[writes], cells.access[writes]
    times = np.bincount(cell, minlength=int(np.prod(cells.shape)))
    missing = np.flatnonzero(times == 0)
    found = []
    if len(missing):
        found.append(_missing(cells, missing))
    twice = np.flatnonzero(times[cell] > 1)
    order = twice[np.lexsort((access[twice], cell[twice]))]
    one, other = order[:-1], order[1:]
    same = cell[one] == cell[other]
    one, other = one[same], other[same]
    for k in firsts(events.site[access[one]], events.site[access[other]])[:SHOWN]:
        both = [int(access[one[k]]), int(access[other[k]])]
        where = cells.box(cell[one[(access[one] == both[0]) & (access[other] == both[1])]])
        found.append(
            Finding(
                kind="written twice",
                what=f"{where} is written {int(times[cell[one[k]]])} times in a run, and an output is written once",
                chain=tuple(step(events, j) for j in both),
                remedy=f"let each tile of {tensor.name} be stored by one tile of one role",
                **about(events, both),
            )
        )
    return found


def _missing(cells: Cells, missing: np.ndarray) -> Finding:
    events, tensor = cells.events, cells.events.program.tensors[cells.tensor]
    more = f", nor {len(missing) - 1} more such pieces of {cells.box(missing)}" if len(missing) > 1 else ""
    stores = [s for role in events.program.roles for s in walk(role.body) if isinstance(s, Store | Copy)]
    lines = dict.fromkeys(f"{s.site}: {s.site.text}" for s in stores if s.target.tensor == tensor.name)
    return Finding(
        kind="unwritten output",
        tensor=tensor.name,
        what=f"no tile writes {cells.box(missing[:1])}{more}",
        tiles=(),
        ranks=(cells.home,),
        regions=(cells.box(missing),),
        lines=tuple(lines),
        chain=(),
        remedy=f"launch the role that stores {tensor.name} over tk.tiles({tensor.name}), on every path of its body",
        site=events.program.site,
    )
