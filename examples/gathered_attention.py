"""Causal attention on a sequence that is spread over the ranks: keys and values are gathered while they are used.

A tile of queries waits for keys where it comes to them, in its loop over keys; only ranks that come later in the
sequence are sent any. The softmax is made online: blocks of keys come one by one, and what was summed is rescaled
whenever a larger score is found (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135).
"""

import torch
import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, k, v, keys, values):
    """Bring a block of keys and values of one head to a reader that does not come earlier in the sequence."""
    if t.reader >= t.home:
        tk.notify(tk.copy(k[t], keys[t].at(t.reader)), tk.copy(v[t], values[t].at(t.reader)))


@tk.tile
def attend(t, q, keys, values, out):
    """A block of queries of one head, over all keys up to its own."""
    head = t.H.start
    queries = q[t.S, head].load()
    places = t.S.start + tl.arange(0, len(t.S))
    scale = tl.rsqrt(tl.cast(q.D.size, tl.float32))
    most = tl.full((len(t.S),), float("-inf"), tl.float32)
    total = tl.zeros((len(t.S),), tl.float32)
    acc = tl.zeros((len(t.S), len(q.D)), tl.float32)
    for s in tk.steps(keys.S, stop=t.S.stop):
        k, v = tk.wait(keys[s, t.H], values[s, t.H])
        scores = tl.dot(queries, tl.trans(k[:, head].load()), input_precision="ieee") * scale
        at = s.start + tl.arange(0, len(s))
        seen = (at < s.stop)[None, :] & (at[None, :] <= places[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - larger[:, None])
        rescale = tl.exp(most - larger)
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(values.dtype), v[:, head].load(), acc * rescale[:, None], input_precision="ieee")
        most = larger
    out[t.S, head].store(acc / total[:, None])


@tk.program
def gathered_attention(
    q: tk.Sharded("S", "H", "D"), k: tk.Sharded("S", "H", "D"), v: tk.Sharded("S", "H", "D"),
    out: tk.Sharded("S", "H", "D"),
):  # fmt: skip
    """out = softmax(q k^T / sqrt(D)) v for each head, over what does not come later; sequence, heads, head size."""
    keys, values = tk.local("S", "H", "D"), tk.local("S", "H", "D")
    gather[tk.tiles(k.S, k.H, reader=tk.ranks)](k, v, keys, values)
    attend[tk.tiles(q.S, q.H)](q, keys, values, out)


causal = tk.Schedule(
    gather=tk.SMs(4, tile=(128, 1), at="home", order=tk.ring),
    attend=tk.SMs(tile=(64, 1, 32), whole={"D": 128}),
)


def main(world: int = 4, heads: int = 2, size: int = 40) -> None:
    """Runs on CPU ranks with uneven parts of a sequence, one of them empty, and compares with torch in float64."""
    parts = (40, 0, 33, 7, 21, 16, 1, 50)[:world]
    q, k, v = (torch.randn(sum(parts), heads, size) for _ in range(3))
    shards = list(zip(*(x.split(parts) for x in (q, k, v)), strict=True))
    outs = tk.CpuWorld(world).run(
        lambda group: gathered_attention(*shards[group.rank], group=group, parts={"S": parts})
    )
    by_head = (x.double().transpose(0, 1) for x in (q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(*by_head, is_causal=True).transpose(0, 1)
    error = float((torch.cat(outs) - want).norm() / want.norm())
    assert error < 1e-6, error
    print(f"{world} ranks with {parts} of the sequence, relative RMS {error:.1e} against float64")


if __name__ == "__main__":
    main()
