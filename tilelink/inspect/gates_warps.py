"""Gates of the specialised form: what warps that run separate code hand each other, in the order of TTGIR.

The rules for a stage of the ring: warps wait for it before they load blocks into it or multiply it; it expects exactly
the bytes that come; it is given back when its product is done. Warps that multiply read rows themselves only behind the
product. For a sum in tensor memory: warps wait for it before they add products into it or read it; it is handed over
behind the last product, and given back behind a barrier of the warps that read it. For a tile: it is handed over behind
a barrier of the warps that store it or lay it out; the warps that tell it or send it wait for that. And other warps
arrive at every barrier that warps wait for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from math import prod

from tilelink.inspect.accumulators import barriers_of
from tilelink.inspect.gates_ttgir import kinds_of
from tilelink.inspect.ttgir import Kernel, Operation, Region

COPY, EXPECT, WAIT, ARRIVE = (
    f"ttng.{name}" for name in ("async_tma_copy_global_to_local", "barrier_expect", "wait_barrier", "arrive_barrier")
)
DOT, DONE = "ttng.warp_group_dot", "ttng.warp_group_dot_wait"
"""Operations on sums in registers."""
READ_BY_THREADS, ROWS = "tt.load", r"tensor<.*tt\.ptr<b?f16>"
"""A load by threads; and the type of the addresses of rows, which are of a dtype that is multiplied."""
PRODUCT, COMMIT, READ = "ttng.tc_gen5_mma", "ttng.tc_gen5_commit", "ttng.tmem_load"
"""Operations on sums in tensor memory."""
LAID, FENCE, SENT = "ttg.local_store", "ttng.fence_async_shared", "ttng.async_tma_copy_local_to_global"
"""Operations on tiles that are laid out in shared memory, and sent from there."""
VIEWS = ("ttg.memdesc_index", "ttg.memdesc_trans", "ttg.memdesc_subslice")


def handed_wrongly(kernel: Kernel) -> Iterator[str]:
    """Yields the faults in what warps hand over, in words."""
    for o in kernel.named("ttg.warp_specialize"):
        for region in o.regions:
            yield from _blocks(region)
            yield from _rows(region)
            yield from _tiles(region, o.regions)
        yield from _sums(kernel, o)
        yield from _alone(kernel, o)


def _blocks(partition: Region) -> Iterator[str]:
    """Yields faults of the ring, where blocks are loaded and multiplied."""
    for region in _regions(partition):
        names = [o.name for o in region.operations]
        if COPY in names:
            if WAIT not in names[: names.index(COPY)]:
                yield "blocks are loaded into a stage that nobody waited for"
            come = sum(_bytes(o) for o in region.operations if o.name == COPY)
            told = sum(int(re.findall(r", (\d+),", o.text)[0]) for o in region.operations if o.name == EXPECT)
            if come != told:
                yield f"{come} bytes come into a stage, which waits for {told}"
        for dot in (k for k, name in enumerate(names) if name in (DOT, PRODUCT)):
            if WAIT not in names[:dot]:
                yield "a stage is multiplied that nobody waited for"
            if not _gives_back(region.operations[dot:]):
                yield "a stage is not given back when its product is done"


def _rows(partition: Region) -> Iterator[str]:
    """Yields a fault for blocks that warps which multiply read by themselves before the product of their tile: until
    then nobody has told them that the rows are here."""
    order = list(_operations(partition))
    names = [o.name for o in order]
    before = order[: names.index(DOT)] if DOT in names else []
    if any(o.name == READ_BY_THREADS and re.search(ROWS, o.text) for o in before):
        yield "rows are read before the product of their tile, when nobody knows that they are here"


def _gives_back(behind: list[Operation]) -> bool:
    """Whether a product, the first of these operations, gives its stage back: at the barrier that it names, or when at
    most one product is under way."""
    if behind[0].name == PRODUCT:
        return bool(_named(behind[0]))
    names = [o.name for o in behind]
    done = (o for o in behind[: names.index(ARRIVE) if ARRIVE in names else 0] if o.name == DONE)
    return any(re.search(r"pendings = [01]\b", o.text) for o in done)


def _sums(kernel: Kernel, o: Operation) -> Iterator[str]:
    """Yields faults of sums in tensor memory. Some warps add products into a sum, and others read it; each first wait
    for a barrier that the others arrive at."""
    multiplying = [(r, list(_operations(r))) for r in o.regions]
    multiplying = [(r, order) for r, order in multiplying if any(x.name == PRODUCT for x in order)]
    reading = [(r, list(_operations(r))) for r in o.regions if any(x.name == READ for x in _operations(r))]
    for (adds, first), (reads, second) in zip(multiplying, reading, strict=False):
        full, empty = _waited(kernel, reads, second, READ), _waited(kernel, adds, first, PRODUCT)
        last = max(k for k, x in enumerate(first) if x.name == PRODUCT)
        read = max(k for k, x in enumerate(second) if x.name == READ)
        gives = [k for k, x in enumerate(second) if x.name == ARRIVE and k > read and _memory(kernel, reads, x) & empty]
        if not full & {m for x in first[last + 1 :] if x.name == COMMIT for m in _memory(kernel, adds, x)}:
            yield "a sum is read before its products are done"
        if not gives:
            yield "products are added into a sum that is not read yet"
        elif not any(kind == "barrier" for x in second[read : gives[0]] for kind, _ in kinds_of(x)):
            yield "a sum is given back before all warps have read it"
    if len(multiplying) != len(reading):
        yield "warps read no sum, or nobody multiplies into it"


def _waited(kernel: Kernel, partition: Region, order: list[Operation], name: str) -> set[str]:
    """The barriers that are waited for before the first operation with a name."""
    before = order[: [o.name for o in order].index(name)]
    return {m for o in before if o.name == WAIT for m in _memory(kernel, partition, o)}


def _tiles(partition: Region, partitions: list[Region]) -> Iterator[str]:
    """Yields faults of tiles, where they are stored and told."""
    order = [step for o in _operations(partition) for step in _steps(o)]
    stored = any("store" in _steps(o) for region in partitions for o in _operations(region))
    if "release" in order and "store" not in order and stored and "wait" not in order[: order.index("release")]:
        yield "a tile is told, but nobody waited until it is stored"
    if "send" in order and "store" not in order and "wait" not in order[: order.index("send")]:
        yield "a tile is sent that nobody waited for"
    if "store" in order:
        behind = order[len(order) - order[::-1].index("store") :]
        if "arrive" in behind and "barrier" not in behind[: behind.index("arrive")]:
            yield "a tile is handed over before all warps have stored"
    names = [o.name for o in _operations(partition)]
    if LAID in names and FENCE not in names[names.index(LAID) :]:
        yield "a tile is laid out, and no fence lets the copy engine see it"


def _alone(kernel: Kernel, o: Operation) -> Iterator[str]:
    """Yields a fault for barriers that warps wait for, but no other warps arrive at."""
    waits = [_barriers(kernel, region, WAIT) for region in o.regions]
    arrives = [_barriers(kernel, region, ARRIVE, EXPECT, PRODUCT, COMMIT) for region in o.regions]
    for k, waited in enumerate(waits):
        others = set[str]().union(*(found for j, found in enumerate(arrives) if j != k))
        if waited - others:
            yield "warps wait at a barrier that no others arrive at"


def _barriers(kernel: Kernel, partition: Region, *names: str) -> set[str]:
    """The memory of the barriers that operations with these names use."""
    return {m for o in _operations(partition) if o.name in names for m in _memory(kernel, partition, o)}


def _memory(kernel: Kernel, partition: Region, o: Operation) -> set[str]:
    """The memory of the barriers that an operation of a partition uses."""
    given = dict(partition.carried)
    found = set()
    for value in _named(o):
        while value in given or (value in kernel.made_by and kernel.made_by[value].name in VIEWS):
            value = given[value] if value in given else kernel.made_by[value].operands[0]
        found.add(value)
    return found


def _named(o: Operation) -> Collection[str]:
    """The barriers that an operation names."""
    return barriers_of(o) if o.name == PRODUCT else o.operands[:1]


def _steps(o: Operation) -> Iterator[str]:
    yield from (kind for kind, _ in kinds_of(o) if kind in ("barrier", "release"))
    means = {"tt.store": "store", LAID: "store", SENT: "send", WAIT: "wait", ARRIVE: "arrive"}
    yield from (means[name] for name in means if name == o.name)


def _bytes(copy: Operation) -> int:
    """Bytes of the block that is loaded."""
    shape, bits = re.findall(r"-> !ttg\.memdesc<((?:\d+x)+)[a-z]+(\d+)", copy.text)[0]
    return prod(int(n) for n in shape.split("x") if n) * int(bits) // 8


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for o in region.operations:
        for inner in o.regions:
            yield from _regions(inner)


def _operations(region: Region) -> Iterator[Operation]:
    """Yields the operations in the order of the text."""
    for o in region.operations:
        yield o
        for inner in o.regions:
            yield from _operations(inner)
