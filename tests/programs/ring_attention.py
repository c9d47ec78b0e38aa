"""Ring attention: keys and values go round from rank to rank, through two buffers on each."""

import triton.language as tl

import tilelink as tk


@tk.tile
def pass_on(t, k, ring):
    """A rank's own keys are those of step 0; what it has at step s goes to its right neighbour, for step s + 1."""
    tk.notify(tk.copy(k[t], ring[0, t]))
    for s in range(tk.world() - 1):
        here = tk.wait(ring[s, t])
        there = tk.claim(ring[s + 1, t].at((tk.rank() + 1) % tk.world()))
        tk.notify(tk.copy(here, there))
        tk.release(here)


@tk.tile
def attend(t, q, ring, out):
    """Without the softmax: q times the keys of all ranks, each as it comes round, times the keys."""
    mine = q[t].load()
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.ranks():
        for j in tk.steps(ring.rows):
            keys = tk.wait(ring[s, j])
            block = keys[:, t.cols].load()
            acc = tl.dot(tl.dot(mine, tl.trans(block)), block, acc)
            tk.release(keys)
    out[t].store(acc)


@tk.program
def ring_attention(q: tk.Local("Q", "D"), k: tk.Local("T", "D"), out: tk.Local("Q", "D")):
    ring = tk.local(tk.ranks, "T", "D", buffers=2)
    pass_on[tk.tiles(k)](k, ring)
    attend[tk.tiles(out)](q, ring, out)


# ---- the same without claims and releases: wrong from 3 ranks on


@tk.tile
def pass_on_unasked(t, k, ring):
    tk.notify(tk.copy(k[t], ring[0, t]))
    for s in range(tk.world() - 1):
        here = tk.wait(ring[s, t])
        tk.notify(tk.copy(here, ring[s + 1, t].at((tk.rank() + 1) % tk.world())))


@tk.tile
def attend_unsaid(t, q, ring, out):
    mine = q[t].load()
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.ranks():
        for j in tk.steps(ring.rows):
            block = tk.wait(ring[s, j])[:, t.cols].load()
            acc = tl.dot(tl.dot(mine, tl.trans(block)), block, acc)
    out[t].store(acc)


@tk.program
def ring_attention_unasked(q: tk.Local("Q", "D"), k: tk.Local("T", "D"), out: tk.Local("Q", "D")):
    ring = tk.local(tk.ranks, "T", "D", buffers=2)
    pass_on_unasked[tk.tiles(k)](k, ring)
    attend_unsaid[tk.tiles(out)](q, ring, out)


# ---- what reads an entry when another has taken its place: all of it is ordered


@tk.tile
def own_rows_last(t, ring, out):
    first = tk.wait(ring[0, t])
    for s in range(1, tk.world()):
        tk.wait(ring[s, t])
    out[t].store(first.load())


@tk.tile
def own_rows_released(t, ring, out):
    first = tk.wait(ring[0, t])
    tk.release(first)
    for s in range(1, tk.world()):
        tk.release(tk.wait(ring[s, t]))
    out[t].store(first.load())


@tk.program
def stale_entry(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    ring = tk.local(tk.ranks, "M", "K", buffers=2)
    pass_on[tk.tiles(x)](x, ring)
    own_rows_last[tk.tiles(out)](ring, out)


@tk.program
def stale_after_release(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    ring = tk.local(tk.ranks, "M", "K", buffers=2)
    pass_on[tk.tiles(x)](x, ring)
    own_rows_released[tk.tiles(out)](ring, out)


@tk.program
def ring_in_one_buffer(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    ring = tk.local(tk.ranks, "M", "K", buffers=1)
    pass_on[tk.tiles(x)](x, ring)
    own_rows_released[tk.tiles(out)](ring, out)


# ---- a tile waits for all that its rank has at a step, and there is a signal for each tile of that


@tk.tile
def attend_all(t, q, ring, out):
    mine = q[t].load()
    acc = tl.zeros(t.shape, tl.float32)
    for s in tk.ranks():
        keys = tk.wait(ring[s])
        for j in tk.steps(ring.rows):
            block = keys[j, t.cols].load()
            acc = tl.dot(tl.dot(mine, tl.trans(block)), block, acc)
    out[t].store(acc)


@tk.program
def waits_for_whole_entries(q: tk.Local("Q", "D"), k: tk.Local("T", "D"), out: tk.Local("Q", "D")):
    ring = tk.local(tk.ranks, "T", "D")
    pass_on_unasked[tk.tiles(k)](k, ring)
    attend_all[tk.tiles(out)](q, ring, out)
