"""Programs that move some rows alone: copies, loads and stores, to peers and on the own rank."""

import triton.language as tl

import tilelink as tk

INTEGERS = tl.int32


@tk.tile
def send(t, x, wanted, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader), where=wanted[t.rows, t.reader]))


@tk.tile
def keep(t, full, mine, out):
    tk.copy(tk.wait(full[t]), out[t], where=mine[t.rows])


@tk.program
def gathered_where(
    x: tk.Sharded("M", "N"), wanted: tk.Sharded("M", tk.ranks, dtype=INTEGERS), mine: tk.Local("M", dtype=INTEGERS),
    out: tk.Local("M", "N"),
):  # fmt: skip
    """out = the rows of x that this rank wants."""
    full = tk.local("M", "N")
    send[tk.tiles(x, reader=tk.ranks)](x, wanted, full)
    keep[tk.tiles(out)](full, mine, out)


@tk.tile
def twice(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    tk.notify(partial[t].store(acc))


@tk.tile
def to_home(t, partial, here, inbox):
    """Rows that this rank has go to their home."""
    mine = tk.wait(partial[t].at(t.source))
    tk.notify(tk.copy(mine, inbox[t.source, t], where=here[t.rows]))


@tk.tile
def total(t, inbox, there, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(inbox[source, t]).load(where=there[t.rows, source])
    out[t].store(acc)


@tk.program
def scattered_where(
    x: tk.Local("M", "K"), weight: tk.Local("K", "N"), here: tk.Local("M", dtype=INTEGERS),
    there: tk.Sharded("M", tk.ranks, dtype=INTEGERS), out: tk.Sharded("M", "N"),
):  # fmt: skip
    """out = the sum over the ranks of x @ weight, of the rows that each has: those with here >= 0."""
    partial = tk.local("M", "N")
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)
    twice[tk.tiles(partial)](x, weight, partial)
    to_home[tk.tiles(out, source=tk.ranks)](partial, here, inbox)
    total[tk.tiles(out)](inbox, there, out)


@tk.tile
def store_some(t, x, taken, put, there):
    """Twice the rows that are taken, zeros for others, to the right neighbour, where they are put."""
    right = (tk.rank() + 1) % tk.world()
    tk.notify(there[t].at(right).store(2 * x[t].load(where=taken[t.rows]), where=put[t.rows]))


@tk.tile
def get_some(t, there, got, out):
    tk.copy(tk.wait(there[t]), out[t], where=got[t.rows])


@tk.program
def stored_where(
    x: tk.Local("M", "N"), taken: tk.Local("M", dtype=INTEGERS), put: tk.Local("M", dtype=INTEGERS),
    got: tk.Local("M", dtype=INTEGERS), out: tk.Local("M", "N"),
):  # fmt: skip
    there = tk.local("M", "N")
    store_some[tk.tiles(x)](x, taken, put, there)
    get_some[tk.tiles(out)](there, got, out)


@tk.tile
def pick_some(t, x, order, put, out):
    tk.copy(x[order[t.rows], t.cols], out[t], where=put[t.rows])


@tk.program
def picked_where(
    x: tk.Local("M", "N"), order: tk.Local("S", dtype=INTEGERS), put: tk.Local("S", dtype=INTEGERS),
    out: tk.Local("S", "N"),
):  # fmt: skip
    pick_some[tk.tiles(out)](x, order, put, out)
