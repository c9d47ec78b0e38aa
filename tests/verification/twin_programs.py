"""Tile programs with mistakes that real projects shipped, each beside the same without it (`..._mended`)."""

import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def double(t, full, out):
    out[t].store(tk.wait(full[t]).load() * 2)


@tk.program
def gathered(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """What others are compared with: nothing is wrong here."""
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    double[tk.tiles(out)](full, out)


# ---- acquire missing


@tk.tile
def double_unasked(t, full, out):
    out[t].store(full[t].load() * 2)


@tk.program
def read_without_wait(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    double_unasked[tk.tiles(out)](full, out)


# ---- release missing: the second store comes after it


@tk.tile
def gather_halves(t, x, full):
    there = full[t].at(t.reader)
    tk.notify(tk.copy(x[t], there))
    there.store(x[t].load() * 2)


@tk.program
def store_after_signal(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather_halves[tk.tiles(x, reader=tk.ranks)](x, full)
    double[tk.tiles(out)](full, out)


# ---- consumer before producer


@tk.program
def consumer_first(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """The roles share their workers: the tiles of the first come first."""
    full = tk.local("M", "K")
    double[tk.tiles(out)](full, out)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)


# ---- rings


@tk.tile
def around(t, x, passed, out):
    """The sum of a tile goes round, from the rank after its home to its home."""
    acc = x[t].load()
    if (tk.rank() - t.home - 1) % tk.world():
        acc += tk.wait(passed[t]).load()
    if tk.rank() == t.home:
        out[t].store(acc)
    else:
        tk.notify(passed[t].at((tk.rank() + 1) % tk.world()).store(acc))


@tk.program
def ring_sum(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    passed = tk.local("M", "K")
    around[tk.tiles(x)](x, passed, out)


# ---- reuse inside a run


@tk.tile
def pass_on(t, x, turns):
    """Rank by rank, through two buffers."""
    tk.notify(tk.copy(x[t], turns[0, t]))
    for s in range(tk.world() - 1):
        here = tk.wait(turns[s, t])
        tk.notify(tk.copy(here, turns[s + 1, t].at((tk.rank() + 1) % tk.world())))


@tk.tile
def pass_on_mended(t, x, turns):
    tk.notify(tk.copy(x[t], turns[0, t]))
    for s in range(tk.world() - 1):
        here = tk.wait(turns[s, t])
        there = tk.claim(turns[s + 1, t].at((tk.rank() + 1) % tk.world()))
        tk.notify(tk.copy(here, there))
        tk.release(here)


@tk.tile
def add_all(t, turns, out):
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.ranks():
        acc += tk.wait(turns[s, t]).load()
    out[t].store(acc)


@tk.tile
def add_all_mended(t, turns, out):
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.ranks():
        here = tk.wait(turns[s, t])
        acc += here.load()
        tk.release(here)
    out[t].store(acc)


@tk.program
def two_buffers(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    turns = tk.local(tk.ranks, "M", "K", buffers=2)
    pass_on[tk.tiles(x)](x, turns)
    add_all[tk.tiles(out)](turns, out)


@tk.program
def two_buffers_mended(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    turns = tk.local(tk.ranks, "M", "K", buffers=2)
    pass_on_mended[tk.tiles(x)](x, turns)
    add_all_mended[tk.tiles(out)](turns, out)


# ---- partial sums


@tk.tile
def add_here(t, x, sums):
    """Every rank's part goes to one place."""
    tk.notify(sums[t].store(x[t].load()))


@tk.tile
def take(t, sums, out):
    tk.copy(tk.wait(sums[t]), out[t])


@tk.tile
def put_beside(t, x, parts):
    tk.notify(parts[tk.rank(), t].store(x[t].load()))


@tk.tile
def add_parts(t, parts, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(parts[source, t]).load()
    out[t].store(acc)


@tk.program
def one_place_for_all(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    sums = tk.sharded("M", "K")
    add_here[tk.tiles(x)](x, sums)
    take[tk.tiles(out)](sums, out)


@tk.program
def a_place_for_each(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    parts = tk.sharded(tk.ranks, "M", "K", axis=1)
    put_beside[tk.tiles(x)](x, parts)
    add_parts[tk.tiles(out)](parts, out)


@tk.tile
def add_atomically(t, x, sums):
    tl.atomic_add(sums[t], x[t].load())
    tk.notify(sums[t])


@tk.program
def atomics(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    sums = tk.sharded("M", "K")
    add_atomically[tk.tiles(x)](x, sums)
    take[tk.tiles(out)](sums, out)
