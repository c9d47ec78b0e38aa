"""Primitives for NVIDIA GPUs on several nodes: pointers reach peers of the own node, and NVSHMEM reaches all others.

The table `heaps` holds the address of the heap of a rank of this node. For a far rank it holds -(pe + 1), where `pe` is
its number in NVSHMEM. NVSHMEM names far memory by the own address of the same symmetric place. The table therefore
suffices, and a sub-group has a table of fewer entries.

Signals are pairs of words. Near ranks add to the first with GPU atomics; far ranks add to the second through the
network, since NVSHMEM's signals are only atomic to each other. A wait adds both up.

The externs are declared with the types of the C functions in NVSHMEM's headers; a pointer has 64 bits. Triton calls an
extern of scalars once in every thread. Functions ending in `_block` need that; one thread calls the others.
"""

import triton
import triton.language as tl
from triton.language import core

from tilelink.backend.targets import portable
from tilelink.backend.targets.cuda import _until, clock, credit, entered, notify  # noqa: F401, kernels import them from here
from tilelink.backend.targets.multimem import by_one_thread, count_at_all, multicast_store, multicast_sum  # noqa: F401, kernels import it from here
from tilelink.backend.targets.polling import polling
from tilelink.backend.targets.portable import PROGRESS, RUN, SLOT_LEFT, last_out, peer  # noqa: F401, kernels import them from here

ADD = tl.constexpr(10)  # NVSHMEM_SIGNAL_ADD
AT_LEAST = tl.constexpr(5)  # NVSHMEM_CMP_GE
INT32, INT64 = core.dtype("int32"), core.dtype("int64")


def _extern(function, *dtypes):
    """Declares a C function. A function without a result is declared with a result that nobody reads."""

    @core.extern
    def call(*arguments, _semantic=None):
        symbols = {tuple(dtypes): (function, INT32)}
        return core.extern_elementwise("", "", list(arguments), symbols, is_pure=False, _semantic=_semantic)

    return call


# Called by the block. Copies of `size` bytes: target, source, size, ..., pe. The first two return when one has started.
# The second adds to a peer's word when it is there (signal, value, operation). The third returns when it is here.
putmem_nbi_block = _extern("nvshmemx_putmem_nbi_block", INT64, INT64, INT64, INT32)
putmem_signal_nbi_block = _extern(
    "nvshmemx_putmem_signal_nbi_block", INT64, INT64, INT64, INT64, INT64, INT32, INT32
)
getmem_block = _extern("nvshmemx_getmem_block", INT64, INT64, INT64, INT32)

# Called by one thread. signal_op: an operation on a word of a peer (signal, value, operation, pe). uint64_test:
# compares a word; where the comparison holds, what was put before the word was signalled can be read. fence: what this
# PE has put to a peer arrives there before all that it puts or signals later. quiet: all that it has put has arrived.
signal_op = _extern("nvshmemx_signal_op", INT64, INT64, INT32, INT32)
uint64_test = _extern("nvshmem_uint64_test", INT64, INT32, INT64)
fence = _extern("nvshmem_fence")
quiet = _extern("nvshmem_quiet")


# ---- who, and how much -------------------------------------------------------------------------------------------


@triton.jit
def is_far(heaps, other):
    """Whether a rank is on another node."""
    return tl.load(heaps + other) < 0


@triton.jit
def pe_of(heaps, other):
    """NVSHMEM's number of a far rank."""
    return (-1 - tl.load(heaps + other)).to(tl.int32)


@triton.jit
def bytes_of(pointer, count):
    """Bytes of `count` elements."""
    return tl.cast(count, tl.int64) * (pointer.dtype.element_ty.primitive_bitwidth // 8)


@triton.jit
def leader():
    """Whether this is the first thread of the block, so only one thread takes a branch on it. No barrier may stand in
    the branch. (A block of one element would not do: every thread holds a copy of it, and calls.)"""
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1) == 0


# ---- data --------------------------------------------------------------------------------------------------------


@triton.jit
def put_far(heaps, other, target, source, count):
    """Sends `count` elements to a far rank. Both are places of the own heap; `target` means the same place there."""
    size = bytes_of(source, count)
    putmem_nbi_block(target.to(tl.int64), source.to(tl.int64), size, pe_of(heaps, other))


@triton.jit
def put_notify_far(heaps, other, target, source, count, signal):
    """Sends `count` elements, then adds 1 to a signal of the peer; NVSHMEM orders the two without a fence."""
    size = bytes_of(source, count)
    word = (signal + 1).to(tl.int64)
    pe = pe_of(heaps, other)
    putmem_signal_nbi_block(target.to(tl.int64), source.to(tl.int64), size, word, tl.cast(1, tl.int64), ADD, pe)


@triton.jit
def fetch_far(heaps, other, target, source, count):
    """Brings `count` elements from a far rank, and returns when all threads may read them."""
    getmem_block(target.to(tl.int64), source.to(tl.int64), bytes_of(source, count), pe_of(heaps, other))


@triton.jit
def complete_far():
    """Waits until everything that this rank has put has arrived. Then its sources may be written to again, and ranks
    other than the targets may be told, which a fence does not order."""
    if leader():
        quiet()
    tl.debug_barrier()


# ---- signals -----------------------------------------------------------------------------------------------------


@triton.jit
def notify_far(heaps, other, signal):
    """Adds 1 to a signal of a far rank, after everything that was put there before. Only a fence orders a put and a
    later signal, whichever thread starts them."""
    pe = pe_of(heaps, other)
    tl.debug_barrier()
    if leader():
        fence()
        signal_op((signal + 1).to(tl.int64), tl.cast(1, tl.int64), ADD, pe)


@triton.jit
def multicast_notify(multicast, at, cell):
    """Adds 1 to a signal of every rank of the node: to its first word, which near ranks add to."""
    count_at_all(tl.cast(multicast + at, tl.pointer_type(tl.int64)) + 2 * cell)


@triton.jit
def _until_both(control, signal, expected, scope: tl.constexpr, lanes: tl.constexpr, fence: tl.constexpr):
    """Waits until near and far ranks have counted up to `expected`, with acquire order. Returns the far count."""
    asm: tl.constexpr = polling(64, scope, lanes, fence, pair=True)
    operands = [signal, tl.cast(expected, tl.int64), control.to(tl.int64)]
    return tl.inline_asm_elementwise(asm, "=r,l,l,l,~{memory}", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait(control, signal, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """Waits until a signal is at least `expected`, with acquire order. Returns 0 as `cuda.wait` does. If far ranks have
    counted, NVSHMEM is asked, too: some machines have to be told to make visible what came with the signal. Only then
    does the proxy fence hand it to the TMA."""
    if scope == "gpu":  # this rank alone counts it
        return _until(control, signal, expected, scope, "one", tma)
    from_far = _until_both(control, signal, expected, scope, "one", False)
    if (from_far > 0) & leader():
        uint64_test((signal + 1).to(tl.int64), AT_LEAST, tl.cast(0, tl.int64))
    tl.debug_barrier()
    if tma:
        proxy: tl.constexpr = "fence.proxy.async.global; mov.b32 $0, 0;"
        tl.inline_asm_elementwise(proxy, "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)
    return tl.inline_asm_elementwise("and.b32 $0, $1, 0;", "=r,r", [from_far], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def drain(control, signals, expected, here, scope: tl.constexpr):
    """Waits until a block of signals have `expected` notifications, where `here` holds; then zeroes them. The barrier
    stands there because several threads may poll one signal, and none may see it zeroed."""
    _until_both(control, signals, tl.where(here, expected, 0), scope, "all", False)
    tl.debug_barrier()
    tl.store(signals, tl.zeros(signals.shape, tl.int64), mask=here)
    tl.store(signals + 1, tl.zeros(signals.shape, tl.int64), mask=here)


# ---- the run -----------------------------------------------------------------------------------------------------


@triton.jit
def tell(heaps, control, rank, progress, world: tl.constexpr):
    """Tells every peer this rank's progress. Progress grows by one each time, so a word of a far peer is counted up:
    additions give the same sum in any order of delivery, while a late older value could overwrite a newer one."""
    store: tl.constexpr = by_one_thread("st.relaxed.sys.global.s64 [$1], $2;")
    if leader():
        fence()  # also of the whole GPU's stores, which releases what near peers are told
    for other in range(world):
        if is_far(heaps, other):
            pe = pe_of(heaps, other)
            if leader():
                signal_op((control + PROGRESS + rank).to(tl.int64), tl.cast(1, tl.int64), ADD, pe)
        else:
            word = peer(heaps, other, 0, tl.int64) + PROGRESS + rank
            tl.inline_asm_elementwise(
                store, "=r,l,l,~{memory}", [word, progress], dtype=tl.int32, is_pure=False, pack=1
            )


enter, leave = portable.over(globals(), portable.enter, portable.leave)
