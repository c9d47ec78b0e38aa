"""Attention over gathered keys: waits in the loop over keys, several views waited for at once, a causal gather."""

import triton.language as tl

import tilelink as tk


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
