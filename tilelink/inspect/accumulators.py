"""A gate for sums in tensor memory: a sum is read behind the barrier of the last matrix instruction into it.

Triton 3.6 to 3.8 breaks this rule for several dots into one sum in a pipelined loop (triton-lang/triton 10821). Matrix
instructions end in the order in which they were issued, so the barrier of the last one stands for all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from tilelink.inspect.ttgir import Kernel, Operation, Region

PARTS = ("ttg.memdesc_index", "ttng.tmem_subslice", "ttg.memdesc_reinterpret")
"""Operations that make a part of an accumulator, or another view of it."""
Barrier = frozenset[str]
"""All names of a barrier: loops hand barriers on under other names."""
Unfinished = Mapping[str, frozenset[Barrier]]
"""For each accumulator, the barriers not yet waited for, of matrix instructions that may be its last."""


def read_too_early(kernel: Kernel) -> list[Operation]:
    """The reads of accumulators into which a matrix instruction may be under way."""
    reading = _Reading(kernel)
    reading.through(kernel.body, {})
    return list(reading.early.values())


class _Reading:
    """Follows the kernel in the order of execution, and each loop until nothing changes.

    It does not read conditions and predicates: a matrix instruction and its wait have the same ones. It therefore
    follows branches one after the other.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.early: dict[int, Operation] = {}

    def through(self, region: Region, now: Unfinished) -> Unfinished:
        """The unfinished accumulators after a region."""
        for o in region.operations:
            now = self.around(o, now) if o.name == "scf.for" else self.after(o, now)
            for inner in o.regions if o.name != "scf.for" else ():
                handed = zip(inner.yields, o.results, strict=False)
                now = _renamed(self.through(inner, now), handed, set(inner.names()))
        return now

    def after(self, o: Operation, now: Unfinished) -> Unfinished:
        if o.name.startswith("ttng.tc_gen5_mma"):
            return {**now, self.whole(o.operands[2]): frozenset([barriers_of(o)])}
        if o.name == "ttng.wait_barrier":
            return {s: frozenset(b for b in left if o.operands[0] not in b) for s, left in now.items()}
        if o.name == "ttng.tmem_alloc":
            return {s: left for s, left in now.items() if s not in o.results}
        if o.name == "ttng.tmem_load" and now.get(self.whole(o.operands[0])):
            self.early[id(o)] = o
        return now

    def around(self, loop: Operation, before: Unfinished) -> Unfinished:
        (region,) = loop.regions
        arguments, inside = [a for a, _ in region.handed_on], set(region.names())
        now = _renamed(before, [(start, a) for a, start in region.handed_on])
        while True:
            again = _renamed(self.through(region, now), zip(region.yields, arguments, strict=True), inside)
            either = {s: now.get(s, frozenset()) | again.get(s, frozenset()) for s in {**now, **again}}
            if either == now:
                return _renamed(now, zip(arguments, loop.results, strict=True), inside)
            now = either

    def whole(self, value: str) -> str:
        """The accumulator that a value is, or is a part of."""
        maker = self.kernel.made_by.get(value)
        return self.whole(maker.operands[0]) if maker is not None and maker.name in PARTS else value


def barriers_of(mma: Operation) -> Barrier:
    """The barriers that a matrix instruction arrives at: `%barrier[%predicate]`, behind both factors and the sum."""
    values = list(zip(mma.operands, re.finditer(r"%[\w#-]+(\[?)", mma.text), strict=True))
    return frozenset(value for value, written in values[3:] if written[1])


def _renamed(now: Unfinished, handed: Iterable[tuple[str, str]], inside: Collection[str] = ()) -> Unfinished:
    """The unfinished accumulators with barriers renamed by pairs (old, new), without names that end here."""
    pairs = list(handed)

    def name(barrier: Barrier) -> Barrier:
        return (barrier - set(inside)) | {new for old, new in pairs if old in barrier}

    return {s: frozenset(map(name, left)) for s, left in now.items()}
