"""Programs of users that are not in the library: every form of the surface that tests of the front need."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.all_gather_matmul import gather, matmul

# ---- GEMM-ReduceScatter: three roles; peers write into an inbox, which is summed in rank order


@tk.tile
def partial_matmul(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    tk.notify(partial[t].store(acc))


@tk.tile
def send(t, partial, inbox):
    """Bring one tile of one rank's partial sum to the home of its rows."""
    mine = tk.wait(partial[t].at(t.source))
    tk.notify(tk.copy(mine, inbox[t.source, t]))


@tk.tile
def reduce(t, inbox, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():  # in rank order: every run gives the same bits
        acc += tk.wait(inbox[source, t]).load()
    out[t].store(acc)


@tk.program
def matmul_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    partial = tk.local("M", "N")
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)  # one place for every source
    partial_matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(out, source=tk.ranks)](partial, inbox)
    reduce[tk.tiles(out)](inbox, out)


# ---- ring reduce-scatter: the sum of a tile comes round, each rank waits for the one after it


@tk.tile
def ring(t, partial, passed, out):
    """Add this rank's part to the sum that comes round; the rank after the home starts it, the home ends it."""
    acc = tk.wait(partial[t]).load()
    if (tk.rank() - t.home - 1) % tk.world():
        acc += tk.wait(passed[t]).load()
    if tk.rank() == t.home:
        out[t].store(acc)
    else:
        tk.notify(passed[t].at((tk.rank() + 1) % tk.world()).store(acc))


@tk.program
def ring_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    partial, passed = tk.local("M", "N"), tk.local("M", "N")
    partial_matmul[tk.tiles(partial)](x, weight, partial)
    ring[tk.tiles(passed)](partial, passed, out)


# ---- attention over gathered keys: waits in the loop over keys, several views waited for at once, a causal gather


@tk.tile
def gather_kv(t, k, v, keys, values):
    if t.reader >= t.home:  # later ranks only
        here, there = keys[t.rows].at(t.reader), values[t.rows].at(t.reader)
        tk.copy(k[t.rows], here)
        tk.copy(v[t.rows], there)
        tk.notify(here, there)


@tk.tile
def attend(t, q, keys, values, out):
    """Without the softmax, which makes no event."""
    mine = q[t].load()
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.steps(keys.rows, stop=t.rows.stop):
        k, v = tk.wait(keys[s], values[s])
        weights = tl.dot(mine, tl.trans(k[:, t.cols].load()))
        acc = tl.dot(weights, v[:, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def gathered_attention(
    q: tk.Sharded("S", "D"), k: tk.Sharded("S", "D"), v: tk.Sharded("S", "D"), out: tk.Sharded("S", "D")
):
    keys, values = tk.local("S", "D"), tk.local("S", "D")
    gather_kv[tk.tiles(k.rows, reader=tk.ranks)](k, v, keys, values)
    attend[tk.tiles(q)](q, keys, values, out)


# ---- gather in two levels: once between nodes, then inside them; waits for another rank's memory

LOCAL = 2


@tk.tile
def across(t, x, full):
    if t.node < tk.world() // LOCAL:
        there = full[t].at(t.node * LOCAL + x[t].home % LOCAL)  # the rank of the same place on that node
        tk.notify(tk.copy(x[t], there))


@tk.tile
def inside(t, x, full):
    relay = t.reader // LOCAL * LOCAL + x[t].home % LOCAL
    if relay != t.reader:
        tk.notify(tk.copy(tk.wait(full[t].at(relay)), full[t].at(t.reader)))


@tk.program
def hierarchical_matmul(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    full = tk.local("M", "K")
    across[tk.tiles(x, node=tk.ranks)](x, full)
    inside[tk.tiles(x, reader=tk.ranks)](x, full)
    matmul[tk.tiles(out)](full, weight, out, None)


# ---- gradient of a weight: rows of all ranks in steps, waits in the loop


@tk.tile
def weight_gradient(t, full, dy, dw):
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.steps(full.rows):
        acc = tl.dot(tl.trans(tk.wait(full[s, t.rows]).load()), dy[s, t.cols].load(), acc)
    dw[t].store(acc)


@tk.program
def matmul_backward(
    dy: tk.Local("M", "N"),
    weight_t: tk.Local("N", "K"),
    x: tk.Sharded("M", "K"),
    dx: tk.Sharded("M", "K"),
    dw: tk.Local("K", "N"),
):
    partial, full = tk.local("M", "K"), tk.local("M", "K")
    inbox = tk.sharded(tk.ranks, "M", "K", axis=1)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    partial_matmul[tk.tiles(partial)](dy, weight_t, partial)
    send[tk.tiles(dx, source=tk.ranks)](partial, inbox)
    reduce[tk.tiles(dx)](inbox, dx)
    weight_gradient[tk.tiles(dw)](full, dy, dw)


# ---- notifications under conditions and in loops, which nobody waits for: what is counted is still what is given


@tk.tile
def later(t, x, full):
    if t.reader >= t.home:
        tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def every_second(t, x, full):
    if (t.reader + t.home) % 2 == 0 and t.reader != 0:
        tk.notify(tk.copy(x[t], full[t].at(t.reader)))
    else:
        pass


@tk.tile
def one_or_two(t, x, full):
    there = full[t].at(t.reader)
    if t.reader == t.home or not t.home:
        tk.notify(tk.copy(x[t], there))
    else:
        tk.notify(tk.copy(x[t], there))
        tk.notify(tk.copy(x[t], there))


@tk.tile
def as_often_as_the_reader_says(t, x, full):
    for _ in range(t.reader % 3):
        tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def at_home_for_one_reader(t, x, full):
    if t.reader == 2:
        tk.notify(tk.copy(x[t], full[t].at(t.home)))


@tk.tile
def to_the_ranks_up_to_here(t, x, full):
    if t.reader == 0:
        for r in range(t.home + 1):
            tk.notify(tk.copy(x[t], full[t].at(r)))


@tk.tile
def to_all(t, x, full):
    if t.reader == t.home:
        tk.notify(tk.copy(x[t], full[t].at(tk.ranks)))


@tk.tile
def in_steps(t, x, full):
    for k in tk.steps(x.cols):
        tk.notify(tk.copy(x[t.rows, k], full[t.rows, k].at(t.reader)))


def notifying(function, rows=False):
    """A program of this role alone, over tiles of x or of its rows."""

    @tk.program
    def program(x: tk.Sharded("M", "K"), unused: tk.Local("K")):
        full = tk.local("M", "K")
        function[tk.tiles(x.rows if rows else x, reader=tk.ranks)](x, full)

    return program


NOTIFYING = [
    *(notifying(f) for f in (later, every_second, one_or_two, as_often_as_the_reader_says, at_home_for_one_reader)),
    *(notifying(f) for f in (to_the_ranks_up_to_here, to_all)),
    notifying(in_steps, rows=True),
]


# ---- two views of one tensor, waited for together


@tk.tile
def two_at_once(t, full, out):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        fixed, moving = tk.wait(full[t.rows, t.cols], full[t.rows, k])
        acc += fixed.load() + moving.load()
    out[t].store(acc)


@tk.program
def waits_for_two(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    two_at_once[tk.tiles(out)](full, out)


@tk.tile
def fill_with_numbers(t, x, halves, ranks, flags, out):
    halves[t].store(0.5)
    ranks[t].store(tk.rank() + 1)
    flags[t].store(True)
    out[t].store(x[t].load())


@tk.program
def numbers(
    x: tk.Local("M", "N"),
    halves: tk.Local("M", "N"),
    ranks: tk.Local("M", "N"),
    flags: tk.Local("M", "N"),
    out: tk.Local("M", "N"),
):
    """Numbers instead of blocks are stored to every element."""
    fill_with_numbers[tk.tiles(x)](x, halves, ranks, flags, out)


in_tiles = tk.Schedule(fill_with_numbers=tk.SMs(tile=(16, 16)))
scatter = tk.Schedule(
    partial_matmul=tk.SMs(tile=(128, 256, 64), order=tk.next_rank_first),
    send=tk.SMs(16, tile=(128, 256), at="source"),
    reduce=tk.SMs(16, tile=(64, 256)),
)
