"""Gates of the specialised form: what warps that go separate ways hand each other, in the order of TTGIR.

A stage of the ring is waited for before blocks are loaded into it, or multiplied; it is told how many bytes come; it is
given back when its product is done. A tile is handed over behind a barrier of the warps that store it, and what tells
that it is stored waits for that. Whatever is waited for, somebody else arrives at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from tilelink.inspect.gates_ttgir import kinds_of
from tilelink.inspect.ttgir import Kernel, Operation, Region

COPY, EXPECT, WAIT, ARRIVE = (
    f"ttng.{name}" for name in ("async_tma_copy_global_to_local", "barrier_expect", "wait_barrier", "arrive_barrier")
)
DOT, DONE = "ttng.warp_group_dot", "ttng.warp_group_dot_wait"
VIEWS = ("ttg.memdesc_index", "ttg.memdesc_trans", "ttg.memdesc_subslice")


def handed_wrongly(kernel: Kernel) -> Iterator[str]:
    """What is wrong with what is handed over, in words."""
    for o in kernel.named("ttg.warp_specialize"):
        for region in o.regions:
            yield from _blocks(region)
            yield from _tiles(region, o.regions)
        yield from _alone(kernel, o)


def _blocks(partition: Region) -> Iterator[str]:
    """Of the ring, where blocks are loaded and multiplied."""
    for region in _regions(partition):
        names = [o.name for o in region.operations]
        if COPY in names:
            if WAIT not in names[: names.index(COPY)]:
                yield "blocks are loaded into a stage that nobody waited for"
            come = sum(_bytes(o) for o in region.operations if o.name == COPY)
            told = sum(int(re.findall(r", (\d+),", o.text)[0]) for o in region.operations if o.name == EXPECT)
            if come != told:
                yield f"{come} bytes come into a stage, which waits for {told}"
        if DOT in names:
            dot = names.index(DOT)
            if WAIT not in names[:dot]:
                yield "a stage is multiplied that nobody waited for"
            behind = names[dot:].index(ARRIVE) if ARRIVE in names[dot:] else 0
            done = (o for o in region.operations[dot : dot + behind] if o.name == DONE)
            if not any(re.search(r"pendings = [01]\b", o.text) for o in done):
                yield "a stage is not given back when its product is done"


def _tiles(partition: Region, partitions: list[Region]) -> Iterator[str]:
    """Of tiles, where they are stored and told."""
    order = [step for o in _operations(partition) for step in _steps(o)]
    stored = any("store" in _steps(o) for region in partitions for o in _operations(region))
    if "release" in order and "store" not in order and stored and "wait" not in order[: order.index("release")]:
        yield "it is told that a tile is stored, which nobody waited for"
    if "store" in order:
        behind = order[len(order) - order[::-1].index("store") :]
        if "arrive" in behind and "barrier" not in behind[: behind.index("arrive")]:
            yield "a tile is handed over before all warps have stored"


def _alone(kernel: Kernel, o: Operation) -> Iterator[str]:
    """Barriers that somebody waits for, and nobody else arrives at."""
    waits = [_barriers(kernel, region, WAIT) for region in o.regions]
    arrives = [_barriers(kernel, region, ARRIVE, EXPECT) for region in o.regions]
    for k, waited in enumerate(waits):
        others = set[str]().union(*(found for j, found in enumerate(arrives) if j != k))
        if waited - others:
            yield "warps wait at a barrier that no others arrive at"


def _barriers(kernel: Kernel, partition: Region, *names: str) -> set[str]:
    """The memory of the barriers that these operations name."""
    given = dict(partition.carried)
    found = set()
    for o in _operations(partition):
        if o.name in names:
            value = o.operands[0]
            while value in given or (value in kernel.made_by and kernel.made_by[value].name in VIEWS):
                value = given[value] if value in given else kernel.made_by[value].operands[0]
            found.add(value)
    return found


def _steps(o: Operation) -> Iterator[str]:
    yield from (kind for kind, _ in kinds_of(o) if kind in ("barrier", "release"))
    yield from {"tt.store": ["store"], WAIT: ["wait"], ARRIVE: ["arrive"]}.get(o.name, [])


def _bytes(copy: Operation) -> int:
    """Of the block that is loaded."""
    shape, bits = re.findall(r"-> !ttg\.memdesc<((?:\d+x)+)[a-z]+(\d+)", copy.text)[0]
    return prod(int(n) for n in shape.split("x") if n) * int(bits) // 8


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for o in region.operations:
        for inner in o.regions:
            yield from _regions(inner)


def _operations(region: Region) -> Iterator[Operation]:
    """In the order of the text."""
    for o in region.operations:
        yield o
        for inner in o.regions:
            yield from _operations(inner)
