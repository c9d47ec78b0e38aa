"""Tile functions that the programs of this library share: the main loops of GEMMs, and the steps after a sum."""

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
def two_products(t, rows, gate, up, along):
    """rows @ gate and rows @ up in float32, for the columns of a tile, a step of `along` at a time: rows are loaded
    once."""
    left = tl.zeros(t.shape, tl.float32)
    right = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(along):
        block = rows[:, k].load()
        left = tl.dot(block, gate[k, t.cols].load(), left, input_precision="ieee")
        right = tl.dot(block, up[k, t.cols].load(), right, input_precision="ieee")
    return left, right


@tk.tile
def weight_gradient(t, full, local, dweight, turned=False):
    """One tile of a weight's gradient, x^T @ dy: over the rows of all ranks, as they come. `full` is x, and `local` is
    dy; turned: `full` is dy, and `local` is x."""
    acc = tl.zeros(t.shape, tl.float32)
    for m in tk.steps(full.rows):
        rows = tk.wait(full[m])
        block = (rows if turned else local[m])[:, t.cols].load()
        left = local[m, t.rows] if turned else rows[:, t.rows]
        acc = tl.dot(tl.trans(left.load()), block, acc, input_precision="ieee")
    dweight[t].store(acc)


@tk.tile
def bias_gradient(t, dy, dbias, gathered=False):
    """Some columns of a bias's gradient: the sum over all rows of dy; gathered: as they come from all ranks. It is a
    role of its own, because a sum in the loop of a product takes longer than the product."""
    total = tl.zeros(t.shape, tl.float32)
    for m in tk.steps(dy.rows):
        rows = tk.wait(dy[m]) if gathered else dy[m]
        total += tl.sum(rows[:, t].load().to(tl.float32), 0)
    dbias[t].store(total)


@tk.tile
def added_up(t, inbox, wanted=None):
    """The sum of what all ranks have sent of one tile, in rank order; `wanted`: -1 for a row that a rank did not."""
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(inbox[source, t]).load(where=None if wanted is None else wanted[t.rows, source])
    return acc


@tk.tile
def sum_of_rows(t, rows, place, weights=None):
    """The sum, for each row of a tile, of the rows that `place` picks for it, each times that of `weights`, in the
    order in which they stand there."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in range(place.cols.size):
        row = rows[place[t.rows, k], :].load().to(tl.float32)
        acc += row if weights is None else weights[t.rows, k].load()[:, None] * row
    return acc


@tk.tile
def finished(acc, cols, bias=None, epilogue=None):
    """A sum with its bias (along `cols`), and what the user's function makes of it."""
    if bias is not None:
        acc += bias[cols].load()[None, :]
    if epilogue is not None:
        acc = epilogue(acc)
    return acc
