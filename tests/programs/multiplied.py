"""Products whose matrix instructions have to be counted with care; no rank needs another."""

import triton.language as tl

import tilelink as tk


@tk.tile
def squares(t, x, weight, out):
    """The sum of the squares of several products. (Triton splits each dot in two, along its sum.)"""
    total = tl.zeros(t.shape, tl.float32)
    for b in range(x.B.size):
        acc = tl.zeros(t.shape, tl.float32)
        for e in tk.steps(x.E):
            acc = tl.dot(x[t.M, b, e].load(), weight[b, e, t.N].load(), acc)
        total += acc * acc
    out[t].store(total)


@tk.program
def sum_of_squares(x: tk.Local("M", "B", "E"), weight: tk.Local("B", "E", "N"), out: tk.Local("M", "N")):
    squares[tk.tiles(out)](x, weight, out)


in_blocks = tk.Schedule(squares=tk.SMs(tile=(64, 64, 64), warps=4))


@tk.tile
def product(t, x, weight, out):
    """Several products by one dot."""
    out[t].store(tl.dot(x[t.B, t.H, :].load(), weight[t.B, :, :].load()))


@tk.program
def products(x: tk.Local("B", "H", "K"), weight: tk.Local("B", "K", "N"), out: tk.Local("B", "H", "N")):
    product[tk.tiles(out.B, out.H)](x, weight, out)


side_by_side = tk.Schedule(product=tk.SMs(tile=(1, 16), whole={"K": 32, "N": 32}, warps=8))


@tk.tile
def add_up(t, x, weight, out):
    acc = tl.zeros(t.shape, tl.int32)
    for k in tk.steps(x.K):
        acc = tl.dot(x[t.M, k].load(), weight[k, t.N].load(), acc)
    out[t].store(acc)


@tk.program
def sum_of_integers(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N", dtype="int32")):
    add_up[tk.tiles(out)](x, weight, out)


one_warp = tk.Schedule(add_up=tk.SMs(tile=(16, 16, 32), warps=1))
many_warps = tk.Schedule(add_up=tk.SMs(tile=(16, 16, 32), warps=8))
