"""A ring that goes round inside one tile: each rank takes the maximum over the blocks of all ranks, through two
buffers."""

import triton.language as tl

import tilelink as tk


@tk.tile
def started(t, x, ring):
    best = x[t].load()
    tk.notify(ring[0, t].at((tk.rank() + 1) % tk.world()).store(best))
    return best


@tk.tile
def taken(t, ring, s, here, best):
    """The maximum with a block that came, which goes on to the right if it has not been everywhere."""
    block = here.load()
    if s + 1 < tk.world() - 1:
        there = tk.claim(ring[s + 1, t].at((tk.rank() + 1) % tk.world()))
        tk.notify(there.store(block))
    return tl.maximum(best, block).to(best.dtype)


@tk.tile
def turn(t, x, ring, out):
    best = started(t, x, ring)
    for s in range(tk.world() - 1):
        here = tk.wait(ring[s, t])
        best = taken(t, ring, s, here, best)
        tk.release(here)
    out[t].store(best)


@tk.program
def ring_maximum(x: tk.Local("T", "D"), out: tk.Local("T", "D")):
    ring = tk.local(tk.ranks, "T", "D", buffers=2)
    turn[tk.tiles(x)](x, ring, out)


main = tk.Schedule(turn=tk.SMs(4, tile=(16, 32)))


# ---- the same with mistakes


@tk.tile
def turn_off_by_one(t, x, ring, out):
    """Waits for the entry after the right one, so it never releases entry 0."""
    best = started(t, x, ring)
    for s in range(tk.world() - 1):
        here = tk.wait(ring[s + 1, t])
        best = taken(t, ring, s, here, best)
        tk.release(here)
    out[t].store(best)


@tk.program
def ring_off_by_one(x: tk.Local("T", "D"), out: tk.Local("T", "D")):
    ring = tk.local(tk.ranks, "T", "D", buffers=2)
    turn_off_by_one[tk.tiles(x)](x, ring, out)


@tk.tile
def turn_twice(t, x, ring, out):
    """Releases an entry twice."""
    best = started(t, x, ring)
    for s in range(tk.world() - 1):
        here = tk.wait(ring[s, t])
        best = taken(t, ring, s, here, best)
        tk.release(here)
        tk.release(here)
    out[t].store(best)


@tk.program
def ring_twice(x: tk.Local("T", "D"), out: tk.Local("T", "D")):
    ring = tk.local(tk.ranks, "T", "D", buffers=2)
    turn_twice[tk.tiles(x)](x, ring, out)


mistaken = tk.Schedule(turn_off_by_one=tk.SMs(4, tile=(16, 32)))
twice = tk.Schedule(turn_twice=tk.SMs(4, tile=(16, 32)))
