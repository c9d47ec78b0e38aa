"""Gates on the TTGIR of a kernel, by the calls in the generated source that it comes from: signals, the reads that
depend on them, and the order of releases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tilelink.backend.targets import Target
from tilelink.inspect.accumulators import read_too_early
from tilelink.inspect.dialects import DIALECTS
from tilelink.inspect.ttgir import Kernel, Operation

LOADS = frozenset(
    ["tt.load", "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local", "tt.descriptor_load"]
    + [f"{dialect}.buffer_load{to}" for dialect in ("amdg", "amdgpu") for to in ("", "_to_local")]
)


class Read:
    """A kernel as it was compiled for a target; `file`: its source."""

    def __init__(self, kernel: Kernel, file: str, target: Target) -> None:
        self.kernel, self.file, self.target = kernel, file, target
        self.sites: dict[tuple[tuple[int, int], ...], list[Operation]] = {}
        for o in kernel.operations:
            self.sites.setdefault(o.site(file), []).append(o)

    def signals(self) -> Counter[tuple[str, str]]:
        """Counts what the calls do, by kind and scope."""
        found: Counter[tuple[str, str]] = Counter()
        for operations in self.sites.values():
            kinds = {(kind, scope) for o in operations for kind, scope in kinds_of(o) if kind != "stored"}
            if any(o.name == "scf.condition" for o in operations) and any(k == "acquire" for k, _ in kinds):
                kinds.add(("poll", ""))
            found.update(kinds)
        return found

    def guarded(self) -> int:
        """The number of reads that depend on an acquired word."""
        return len({o.site(self.file) for o, acquired in self._reads() if acquired})

    def guarding(self) -> int:
        """The number of acquired words that a read depends on."""
        return len({o.site(self.file) for _, acquired in self._reads() for o in acquired})

    def _reads(self) -> Iterator[tuple[Operation, list[Operation]]]:
        """Yields the loads, each with the operations that acquired the words its address depends on."""
        for load in self.kernel.operations:
            if load.name not in LOADS and "multimem.ld_reduce" not in load.assembly:
                continue
            behind = self.kernel.depends_on(load.address or load.operands)
            makers = (self.kernel.made_by[v] for v in behind if v in self.kernel.made_by)
            yield load, [o for o in makers if any(kind == "acquire" for kind, _ in kinds_of(o))]

    def findings(self) -> Iterator[str]:
        """Yields the faults that do not depend on counts."""
        for site, operations in self.sites.items():
            steps = [step for o in operations for step in _steps(o)]
            order = [kind for kind, _ in steps]
            if "barrier" not in order:
                continue
            line, barrier = _line(site), order.index("barrier")
            if "release" not in order:
                if "acquire" in order[barrier:] or "store" in order[:barrier]:
                    yield f"{line}: no barrier between what threads have acquired for each other and its use"
                continue
            release = order.index("release")
            if release < barrier:
                yield f"{line}: released before the barrier"
            if "complete" in order[barrier:]:
                yield f"{line}: waits for bulk copies after the barrier that comes before the release"
            if "store" in order[barrier:release]:
                yield f"{line}: stores after the barrier that comes before the release"
            _, scope = steps[release]
            if "stored" in DIALECTS[self.target.backend].assembly and ("stored", scope) not in steps[:barrier]:
                yield f"{line}: waves reach the barrier with stores that are not written back as far as is released"
        for o in read_too_early(self.kernel):
            yield f"{_line(o.site(self.file))}: a sum is read before the last matrix instruction into it is done"
        if self.kernel.named("ttg.warp_specialize") and not self.target.specialised:
            yield "warps are specialised automatically, which deletes signals"

    def blocks_copied(self) -> Iterator[Operation]:
        """Yields loads of blocks of two dimensions, and stores of what was just loaded."""
        for o in self.kernel.operations:
            if o.name in ("tt.load", "ttg.async_copy_global_to_local"):
                yield o
            elif o.name == "tt.store" and len(o.operands) > 1:
                made = self.kernel.made_by.get(o.operands[1])
                if made is not None and made.name == "tt.load":
                    yield o


def _line(site: tuple[tuple[int, int], ...]) -> str:
    return f"line {site[0][0]}" if site else "somewhere"


def kinds_of(o: Operation) -> Iterator[tuple[str, str]]:
    """Yields what an operation does for signals, each with its scope."""
    if o.name in ("gpu.barrier", "ttg.barrier"):
        yield "barrier", ""
    if o.name == "ttng.async_tma_copy_local_to_global":
        yield "bulk", ""
    if o.name.endswith("atomic_rmw"):  # AMD also has one for blocks with one base
        order, scope = re.findall(r"\b(relaxed|acquire|release|acq_rel), (cta|gpu|sys)\b", o.text)[0]
        yield from ((kind, scope) for kind in ("acquire", "release") if order in (kind, "acq_rel"))
    for dialect in DIALECTS.values() if o.assembly else ():
        for kind, pattern in dialect.assembly.items():
            for found in re.finditer(pattern, o.assembly):
                scope = found.groupdict().get("scope", "")
                yield kind, dialect.scopes.get(scope, scope)


def _steps(o: Operation) -> Iterator[tuple[str, str]]:
    """Yields what an operation does for a release, each with its scope: stores, barriers, releases."""
    yield from kinds_of(o)
    if o.name == "tt.store":
        yield "store", ""
