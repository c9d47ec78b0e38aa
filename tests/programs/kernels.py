"""Kernels written by hand, each for one thing that the interpreter has to do, and one GEMM that gathers rows."""

import triton
import triton.language as tl

from tests.programs.signalling import at, clear_lock, notify, set_lock, wait


@triton.jit
def _square(x):
    return x * x


@triton.jit
def library(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """Triton's own jitted functions, called as functions and as methods."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr, tl.sum(x))
    tl.store(out_ptr + 1, tl.max(x, axis=0))
    tl.store(out_ptr + 2, _square(x).sum())
    tl.store(out_ptr + 3, tl.sum(tl.minimum(x, y)))
    tl.store(out_ptr + 4, tl.cdiv(N + 1, 2))
    tl.store(out_ptr + 5, tl.sum(tl.zeros((N,), tl.float32) + tl.sigmoid(x)))
    tl.store(out_ptr + 6, tl.max(tl.softmax(x)))
    tl.store(out_ptr + 7, tl.argmax(x, axis=0).to(tl.float32))
    tl.store(out_ptr + 8 + i, tl.cumsum(x, 0))


@triton.jit
def bfloat16_arithmetic(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + N + i, x * y)
    tl.store(out_ptr + 2 * N + i, tl.where(x > y, x, -y))
    tl.store(out_ptr + 3 * N + i, tl.maximum(x, y) + tl.full((N,), 1.5, tl.bfloat16))
    tl.store(out_ptr + 4 * N + i, (x.to(tl.float32) / 3.0).to(tl.bfloat16))
    tl.store(out_ptr + 5 * N + i, tl.abs(x))


@triton.jit
def without_numbers(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """Maxima, minima and clamps of NaN and numbers."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.maximum(x, y))
    tl.store(out_ptr + N + i, tl.minimum(x, y))
    tl.store(out_ptr + 2 * N + i, tl.clamp(x, -1.0, 1.0))
    tl.store(out_ptr + 3 * N + i, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 4 * N + i, tl.clamp(x, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def cut_off(x_ptr, out_ptr, N: tl.constexpr, DTYPE: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(DTYPE).to(tl.int64))


@triton.jit
def bits(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """Arithmetic of bool, which has one bit."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i) != 0
    y = tl.load(y_ptr + i) != 0
    tl.store(out_ptr + i, (x + y).to(tl.int32))
    tl.store(out_ptr + N + i, (x - y).to(tl.int32))
    tl.store(out_ptr + 2 * N + i, (-x).to(tl.int32))
    tl.store(out_ptr + 3 * N + i, (x * y).to(tl.int32))


@triton.jit
def ranges(out_ptr, start, stop, step):
    for i in range(start, stop, step):
        tl.store(out_ptr + (i - start) // step, i)


@triton.jit
def copy(source_ptr, target_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(target_ptr + i, tl.load(source_ptr + i))


@triton.jit
def shifted_copy(source_ptr, target_ptr, shift, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(target_ptr + i + shift, tl.load(source_ptr + i))


@triton.jit
def masked_copy(source_ptr, target_ptr, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.arange(0, BM)[:, None]
    rn = tl.arange(0, BN)[None, :]
    mask = (rm < M) & (rn < N)
    tile = tl.load(source_ptr + rm * stride + rn, mask=mask, other=7)
    tl.store(target_ptr + rm * BN + rn, tile)


@triton.jit
def checkerboard(source_ptr, target_ptr, BM: tl.constexpr):
    rm = tl.arange(0, BM)[:, None]
    rn = tl.arange(0, BM)[None, :]
    mask = (rm + rn) % 2 == 0
    tile = tl.load(source_ptr + rm * BM + rn, mask=mask, other=0)
    tl.store(target_ptr + rm * BM + rn, tile, mask=mask)


@triton.jit
def barrier(signal_ptrs, rank, WORLD: tl.constexpr):
    """All ranks meet: one block of atomics signals all peers, and one polls a whole block of words."""
    peers = tl.arange(0, WORLD)
    theirs = tl.load(signal_ptrs + peers).to(tl.pointer_type(tl.int32)) + rank
    tl.atomic_xchg(theirs, 1, sem="release", scope="sys")
    mine = at(signal_ptrs, rank) + peers
    while tl.sum(tl.atomic_add(mine, 0, sem="acquire", scope="sys")) < WORLD:
        pass


@triton.jit
def exchange(slot_ptrs, signal_ptrs, out_ptr, rank, WORLD: tl.constexpr, N: tl.constexpr):
    """Stores to the next rank between two barriers' halves: right only if the barrier orders memory."""
    i = tl.arange(0, N)
    following = tl.load(slot_ptrs + (rank + 1) % WORLD).to(out_ptr.dtype)
    tl.store(following + i, rank + i)
    barrier(signal_ptrs, rank, WORLD)
    mine = tl.load(slot_ptrs + rank).to(out_ptr.dtype)
    tl.store(out_ptr + i, tl.load(mine + i))


@triton.jit
def lock(word_ptrs, rounds):
    """A lock of all ranks around a plain counter."""
    word = at(word_ptrs, 0)
    for _ in range(rounds):
        set_lock(word)
        tl.store(word + 1, tl.load(word + 1) + 1)
        clear_lock(word)


@triton.jit
def wait_for_one(flag_ptr, giver):
    """Every program waits for one of them."""
    if tl.program_id(0) == giver:
        tl.atomic_xchg(flag_ptr, 1, sem="release", scope="gpu")
    else:
        while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="gpu") == 0:
            pass


@triton.jit
def last_wins(word):
    tl.atomic_xchg(word, tl.program_id(0), sem="acq_rel", scope="gpu")


@triton.jit
def spin(flag_ptr):
    while tl.load(flag_ptr) == 0:
        pass


@triton.jit
def toggle(flag_ptr):
    while tl.atomic_xor(flag_ptr, 1, sem="relaxed", scope="gpu") < 2:
        pass


@triton.jit
def two_widths(word_ptr, WIDE: tl.constexpr):
    """Two programs count a word up by atomics; the second may take it for one of twice the width."""
    if tl.program_id(0) == 1 and WIDE:
        tl.atomic_add(word_ptr.to(tl.pointer_type(tl.int64)), 1, sem="relaxed", scope="sys")
    else:
        tl.atomic_add(word_ptr, 1, sem="relaxed", scope="sys")


@triton.jit
def failing(x_ptr):
    value = tl.load(x_ptr)
    tl.device_assert(value == 0, "not zero")


@triton.jit
def read_twice(flag_ptr, out_ptr, times):
    """Looks at a word again and again, without waiting for it."""
    total = 0
    for _ in range(times):
        total += tl.atomic_add(flag_ptr, 0, sem="relaxed", scope="gpu")
    tl.store(out_ptr, total)


@triton.jit
def poll_39(flag_ptr, data_ptr, out_ptr):
    """`atomic_load`, `atomic_store` and `atomic_poll` of Triton 3.9."""
    if tl.program_id(0) == 1:
        tl.store(data_ptr, 5)
        tl.atomic_store(flag_ptr + tl.arange(0, 2), 1, sem="release", scope="gpu")
    else:
        tl.atomic_poll(flag_ptr + tl.arange(0, 2), 1, sem="acquire", scope="gpu")
        tl.store(out_ptr, tl.load(data_ptr) + tl.atomic_load(flag_ptr, sem="acquire", scope="gpu"))


@triton.jit
def gather_matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    gathered_ptrs,
    signal_ptrs,
    M,
    N,
    K,
    rank,
    epoch,
    WORLD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FAULT: tl.constexpr,
):
    """C = gather(A) @ B: the first programs push the rank's rows to all ranks, the others wait and multiply."""
    pid = tl.program_id(0)
    rows_per_rank = M // WORLD
    pushers = rows_per_rank // BM
    if pid < pushers:
        rm = tl.arange(0, BM)
        rk = tl.arange(0, BK)
        for step in range(WORLD):
            peer = (rank + step) % WORLD
            gathered = tl.load(gathered_ptrs + peer).to(a_ptr.dtype)
            signal = at(signal_ptrs, peer) + rank * pushers + pid
            if FAULT == "notify early":
                notify(signal)
            row = rank * rows_per_rank + pid * BM
            if FAULT == "out of bounds":
                row = row + rows_per_rank
            if FAULT == "overlap":
                row = tl.maximum(row - 1, 0)
            for k in range(0, K, BK):
                tile = tl.load(a_ptr + (pid * BM + rm)[:, None] * K + (k + rk)[None, :])
                tl.store(gathered + (row + rm)[:, None] * K + (k + rk)[None, :], tile)
            if FAULT == "plain notify":
                tl.store(signal, epoch)
            elif FAULT == "relaxed notify":
                tl.atomic_add(signal, 1, sem="relaxed", scope="sys")
            elif FAULT == "gpu notify":
                tl.atomic_add(signal, 1, sem="release", scope="gpu")
            elif FAULT == "lost notify":
                if step + 1 < WORLD:
                    notify(signal)
            elif FAULT == "wrong signal":
                notify(signal - pid - rank * pushers)
            elif FAULT != "notify early":
                tl.debug_barrier()
                notify(signal)
    else:
        tile_id = pid - pushers
        columns = N // BN
        m = (tile_id // columns + rank * pushers) % (M // BM)
        n = tile_id % columns
        gathered = tl.load(gathered_ptrs + rank).to(a_ptr.dtype)
        signal = at(signal_ptrs, rank) + m
        if FAULT == "relaxed wait":
            while tl.atomic_add(signal, 0, sem="relaxed", scope="sys") < epoch:
                pass
        elif FAULT == "gpu wait":
            while tl.atomic_add(signal, 0, sem="acquire", scope="gpu") < epoch:
                pass
        elif FAULT == "plain wait":
            while tl.load(signal) < epoch:
                pass
        elif FAULT != "no wait":
            wait(signal, epoch)
        rm = m * BM + tl.arange(0, BM)
        rn = n * BN + tl.arange(0, BN)
        rk = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            a = tl.load(gathered + rm[:, None] * K + (k + rk)[None, :])
            b = tl.load(b_ptr + (k + rk)[:, None] * N + rn[None, :])
            acc = tl.dot(a, b, acc)
        tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(c_ptr.dtype.element_ty))
