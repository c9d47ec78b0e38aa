"""Kernels that measure a GPU; see `measure.py`."""

import triton
import triton.language as tl


@triton.jit
def multiply(x, weight, out, k_size, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Multiplies one tile in each program. All programs read the same operands, so that the cache holds them."""
    rows, cols, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, k_size, BK):
        a = tl.load(x + rows[:, None] * k_size + k + ks[None, :])
        b = tl.load(weight + (k + ks)[:, None] * BN + cols[None, :])
        acc = tl.dot(a, b, acc)
    first = tl.program_id(0).to(tl.int64) * BM * BN
    tl.store(out + first + rows[:, None] * BN + cols[None, :], acc.to(out.dtype.element_ty))


@triton.jit
def read(words, out, size, BLOCK: tl.constexpr):
    """Reads all words once in each program, in whole blocks, each program from another block on, and past L1."""
    at, total = tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.int32)
    for k in range(0, size, BLOCK):
        first = tl.multiple_of((tl.program_id(0) * BLOCK + k) % size, BLOCK)
        total += tl.load(words + first + at, cache_modifier=".cg")
    tl.store(out + tl.program_id(0) * BLOCK + at, total)


@triton.jit
def notify(word, count, SCOPE: tl.constexpr):
    for _ in range(count):
        tl.atomic_add(word, 1, sem="acq_rel", scope=SCOPE)


@triton.jit
def nothing(word):
    pass
