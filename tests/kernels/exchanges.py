"""Programs that only move: one dimension and three, an entry a rank, parts that are columns, stores to all ranks; and
one whose sums go through a buffer that rounds."""

import triton.language as tl

import tilelink as tk


@tk.tile
def fetch(t, x, out):
    """What every rank has for this one."""
    for source in tk.ranks():
        tk.copy(x[tk.rank(), t].at(source), out[source, t])


@tk.program
def all_to_all(x: tk.Local(tk.ranks, "M", "K"), out: tk.Local(tk.ranks, "M", "K")):
    fetch[tk.tiles(out)](x, out)


@tk.tile
def right(t, x, out):
    out[t].store(x[t].at((tk.rank() + 1) % tk.world()).load())


@tk.program
def from_the_right(x: tk.Local("A", "B", "C"), out: tk.Local("A", "B", "C")):
    right[tk.tiles(out)](x, out)


@tk.program
def vector_from_the_right(x: tk.Local("A"), out: tk.Local("A")):
    right.named("right_vector")[tk.tiles(out)](x, out)


@tk.tile
def send(t, x, full):
    """To all ranks at once."""
    tk.notify(full[t].at(tk.ranks).store(x[t].load()))


@tk.tile
def take(t, full, out):
    out[t].store(tk.wait(full[t]).load())


@tk.program
def broadcast(x: tk.Sharded("A", "B", axis=1), out: tk.Local("A", "B")):
    full = tk.local("A", "B")
    send[tk.tiles(x)](x, full)
    take[tk.tiles(out)](full, out)


by_rank = tk.Schedule(fetch=tk.SMs(tile=(16, 16)))
cubes = tk.Schedule(right=tk.SMs(tile=(1, 16, 16)))
pieces = tk.Schedule(right_vector=tk.SMs(tile=(16,)))
to_all = tk.Schedule(send=tk.SMs(2, tile=(16, 16)), take=tk.SMs(tile=(32, 16)))


@tk.tile
def multiply(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    tk.notify(partial[t].store(acc * 1.5))


@tk.tile
def deal(t, partial, own, inbox):
    """A rank's partial sum stays where it is, or goes to the home of its rows, in a loop of one step."""
    mine = tk.wait(partial[t].at(t.source))
    if t.home == t.source:
        tk.notify(tk.copy(mine, own[t]))
    else:
        for k in range(1):
            tk.notify(tk.copy(mine, inbox[t.source + k, t]))


@tk.tile
def add_up(t, own, inbox, out):
    acc = tk.wait(own[t]).load().to(tl.float32)
    for source in tk.ranks():
        if source != tk.rank():
            acc += tk.wait(inbox[source, t]).load()
    out[t].store(acc / 1.5)


@tk.program
def rounded_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    """As the example, with partial sums in the dtype of x."""
    partial = tk.local("M", "N")
    own = tk.sharded("M", "N")
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)
    multiply[tk.tiles(partial)](x, weight, partial)
    deal[tk.tiles(out, source=tk.ranks)](partial, own, inbox)
    add_up[tk.tiles(out)](own, inbox, out)


multiplied = tk.SMs(tile=(16, 16, 16))
push = tk.Schedule(multiply=multiplied, deal=tk.SMs(2, tile=(16, 16), at="source"), add_up=tk.SMs(tile=(16, 16)))
fused = tk.Schedule(multiply=multiplied, deal=tk.Epilogue("multiply"), add_up=tk.SMs(tile=(16, 16)))
