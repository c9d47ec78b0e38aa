"""Tile functions that the kernels of this library call: the main loop of a GEMM, and what follows a sum."""

import triton.language as tl

import tilelink as tk


@tk.tile
def product(rows, columns, along, shape, acc=None, transposed=False):
    """rows @ columns in float32, of views (shape[0], K) and (K, shape[1]), a step of `along` at a time; added to `acc`.
    transposed: columns is a view (shape[1], K)."""
    if acc is None:
        acc = tl.zeros(shape, tl.float32)
    for k in tk.steps(along):
        acc = tl.dot(
            rows[:, k].load(),
            tl.trans(columns[:, k].load()) if transposed else columns[k, :].load(),
            acc,
            input_precision="ieee",
        )
    return acc


@tk.tile
def finished(acc, cols, bias=None, epilogue=None):
    """A sum with its bias (along `cols`), and what the user's function makes of it."""
    if bias is not None:
        acc += bias[cols].load()[None, :]
    if epilogue is not None:
        acc = epilogue(acc)
    return acc
