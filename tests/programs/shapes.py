"""Tile functions that take blocks of several shapes: from one tensor, for all ranks, and from all ranks."""

import triton.language as tl

import tilelink as tk


@tk.tile
def row_sums(t, x, out):
    """A block before a loop, another one of the same tensor in it, and the first one again behind it."""
    total = tl.sum(x[t.M, :].load(), 1)
    for n in tk.steps(x.N, by=16):
        total += tl.sum(x[t.M, n].load(), 1)
    out[t].store(total + tl.sum(x[t.M, :].load(), 1))


@tk.program
def summed(x: tk.Local("M", "N"), out: tk.Local("M")):
    row_sums[tk.tiles(out)](x, out)


@tk.tile
def picked_sums(t, x, order, out):
    """The same of rows that integers pick."""
    total = tl.sum(x[order[t.S], :].load(), 1)
    for n in tk.steps(x.N, by=16):
        total += tl.sum(x[order[t.S], n].load(), 1)
    out[t].store(total)


@tk.program
def picked(x: tk.Local("M", "N"), order: tk.Local("S", dtype=tl.int32), out: tk.Local("S")):
    picked_sums[tk.tiles(order)](x, order, out)


@tk.tile
def one_or_all(t, x, out):
    """A block in one branch, and another one of the same tensor in the other."""
    if t.M.start == 0:
        out[t].store(x[t].load())
    else:
        out[t].store(tl.sum(x[t.M, :].load(), 1)[:, None])


@tk.program
def branched(x: tk.Local("M", "N"), out: tk.Local("M", "N")):
    one_or_all[tk.tiles(out)](x, out)


@tk.tile
def send(t, x, sums, rows):
    """Stores to all ranks, of blocks with two shapes."""
    tk.notify(sums[t.M].at(tk.ranks).store(tl.sum(x[t.M, :].load(), 1)))
    for n in tk.steps(x.N):
        tk.notify(rows[t.M, n].at(tk.ranks).store(x[t.M, n].load() * 2))


@tk.tile
def take(t, sums, rows, out):
    s, b = tk.wait(sums[t.M], rows[t])
    out[t].store(b.load() + s.load()[:, None])


@tk.program
def sent(x: tk.Sharded("M", "N"), out: tk.Local("M", "N")):
    sums, rows = tk.local("M"), tk.local("M", "N")
    send[tk.tiles(x.M)](x, sums, rows)
    take[tk.tiles(out)](sums, rows, out)


@tk.tile
def send_one(t, x, scale, scales, rows):
    """The same in two branches, from two tensors."""
    if tk.rank() == 0:
        tk.notify(scales[t.M].at(tk.ranks).store(scale[t.M].load() * 2))
    else:
        tk.notify(rows[t].at(tk.ranks).store(x[t].load() * 2))


@tk.tile
def take_one(t, scales, rows, out):
    if t.home == 0:
        out[t].store(tk.wait(scales[t.M]).load()[:, None] + tl.zeros(t.shape, tl.float32))
    else:
        out[t].store(tk.wait(rows[t]).load())


@tk.program
def sent_one(x: tk.Sharded("M", "N"), scale: tk.Sharded("M"), out: tk.Local("M", "N")):
    scales, rows = tk.local("M"), tk.local("M", "N")
    send_one[tk.tiles(x)](x, scale, scales, rows)
    take_one[tk.tiles(out)](scales, rows, out)


@tk.tile
def put(t, x, there):
    tk.notify(tk.copy(x[t], there[t]))


@tk.tile
def add_up(t, rows, scales, out):
    """Sums over all ranks, of blocks with two shapes."""
    total = tl.zeros((len(t.M),), tl.float32)
    for rank in tk.ranks():
        total += tk.wait(scales[t.M].at(rank)).load()
    for n in tk.steps(rows.N):
        part = tl.zeros((len(t.M), 16), tl.float32)
        for rank in tk.ranks():
            part += tk.wait(rows[t.M, n].at(rank)).load()
        total += tl.sum(part, 1)
    out[t].store(total)


@tk.program
def added(x: tk.Local("M", "N"), scale: tk.Local("M"), out: tk.Local("M")):
    rows, scales = tk.local("M", "N"), tk.local("M")
    put[tk.tiles(x)](x, rows)
    put.named("put_scale")[tk.tiles(scale)](scale, scales)
    add_up[tk.tiles(out)](rows, scales, out)


def schedules(via="load-store"):
    """A schedule for each program of this file."""
    whole = {"N": 64}
    return {
        summed: tk.Schedule(row_sums=tk.SMs(tile=(16,), whole=whole)),
        picked: tk.Schedule(picked_sums=tk.SMs(tile=(16,), whole=whole)),
        branched: tk.Schedule(one_or_all=tk.SMs(tile=(16, 32), whole=whole)),
        sent: tk.Schedule(send=tk.SMs(2, tile=(16, 32), whole=whole, via=via), take=tk.SMs(2, tile=(16, 64))),
        sent_one: tk.Schedule(send_one=tk.SMs(2, tile=(16, 64)), take_one=tk.SMs(2, tile=(16, 64))),
        added: tk.Schedule(
            put=tk.SMs(2, tile=(16, 16)), put_scale=tk.SMs(1, tile=(16,)),
            add_up=tk.SMs(2, tile=(16, 16), via="multicast"),
        ),
    }
