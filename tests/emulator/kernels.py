"""Hand-written kernels over a small symmetric heap, right ones and, by `FAULT`, wrong ones."""

import triton
import triton.language as tl


@triton.jit
def wait(signal, value):
    while tl.atomic_add(signal, 0, sem="acquire", scope="sys") < value:
        pass


@triton.jit
def notify(signal):
    tl.atomic_add(signal, 1, sem="release", scope="sys")


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
            signal = tl.load(signal_ptrs + peer).to(tl.pointer_type(tl.int32)) + rank * pushers + pid
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
        signal = tl.load(signal_ptrs + rank).to(tl.pointer_type(tl.int32)) + m
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
