"""Programs all of whose names are awkward: words of kernels, of Triton, of Python and of TileLink itself, and names
that look as if they were made of others."""

import triton
import triton.language as L

import tilelink as tk


def _of_the_same_name(function):
    @triton.jit
    def notify(a):
        return a + 1

    return notify if function is None else function


@triton.jit
def notify(a):
    return 2 * a


more = _of_the_same_name(None)

# ---- rows are gathered, then multiplied


@tk.tile
def wait(i, heaps, control):
    tk.notify(tk.copy(heaps[i], control[i].at(i.world)))


@tk.tile
def peer(tile, control, stamps, M_parts, M):
    home, rank, tl = tk.wait(control[tile.rows]), tk.rank(), M_parts[tile].load()
    world = L.zeros(tile.shape, L.float32)
    for k in tk.steps(control.cols):
        world = L.dot(home[:, k].load(), stamps[k, tile.cols].load(), world, input_precision="ieee")
    for M_lo in range(2):
        before = M_lo + rank
        world = world + before
    control_block, M_tiles, slot = notify(tl), 0, more(tl)
    expected = control_block + M_tiles * slot
    value = expected + slot
    M[tile].store(world + value)


@tk.program
def enter(
    heaps: tk.Sharded("M", "for"), stamps: tk.Local("for", "M_lo"), M_parts: tk.Local("M", "M_lo"),
    M: tk.Local("M", "M_lo"),
):  # fmt: skip
    control = tk.local("M", "for")
    wait[tk.tiles(heaps, world=tk.ranks)](heaps, control)
    peer[tk.tiles(M)](control, stamps, M_parts, M)


_product = tk.SMs(tile=(16, 16, 16))
push = tk.Schedule(wait=tk.SMs(2, tile=(16, 16), at="home"), peer=_product)
pull = tk.Schedule(wait=tk.SMs(2, tile=(16, 16), at="world"), peer=_product)
multicast = tk.Schedule(wait=tk.SMs(2, tile=(16, 16), at="home", via="multicast"), peer=_product)
engine = tk.Schedule(wait=tk.CopyEngine(tile=(16, None), at="world"), peer=_product)

# ---- partial sums are sent from the epilogue, and added up


@tk.tile
def partial(t, range, rank):
    rank_kept = range[t].load()
    tk.notify(rank[t].store(2 * rank_kept))


@tk.tile
def per_node(t, rank, rank_at):
    tk.notify(tk.copy(tk.wait(rank[t].at(t.waiter)), rank_at[t.waiter, t]))


@tk.tile
def drain_rank(t, rank_at, other):
    i = L.zeros(t.shape, L.float32)
    for executor in tk.ranks():
        i += tk.wait(rank_at[executor, t]).load()
    other[t].store(i)


@tk.program
def credit(range: tk.Local("rank", "world"), other: tk.Sharded("rank", "world")):
    rank = tk.local("rank", "world")
    rank_at = tk.sharded(tk.ranks, "rank", "world", axis=1)
    partial[tk.tiles(rank)](range, rank)
    per_node[tk.tiles(other, waiter=tk.ranks)](rank, rank_at)
    drain_rank[tk.tiles(other)](rank_at, other)


_tile = tk.SMs(tile=(16, 16))
folded = tk.Schedule(partial=_tile, per_node=tk.Epilogue("partial"), drain_rank=_tile)
apart = tk.Schedule(partial=_tile, per_node=tk.SMs(tile=(16, 16), at="home"), drain_rank=_tile)

# ---- rows go to experts


@tk.tile
def segment_of(t, tile, cell):
    tk.notify(tk.copy(tile[t], cell[t]))


@tk.tile
def begin_of(t, cell, tile_segments, first):
    part = tk.wait(cell[t.rows])
    first[t].store(part[:, t.cols].load() * tile_segments[t.expert].load())


@tk.program
def leave(
    tile: tk.Sharded("segment", "index_0"),
    tile_segments: tk.Local("source"),
    counted: tk.Route("segment", "home", "source"),
    first: tk.Sharded("home", "index_0"),
):
    cell = tk.sharded("home", "index_0")
    segment_of[tk.tiles(counted, tile.cols)](tile, cell)
    begin_of[tk.tiles(counted.experts, first.cols)](cell, tile_segments, first)


by_source = tk.Schedule(segment_of=tk.SMs(2, tile=(16, 16), at="source"), begin_of=_tile)

# ---- entries of a buffer take turns


@tk.tile
def claimed(t, run, run_free_signals):
    tk.notify(tk.copy(run[t], run_free_signals[0, t]))
    for r in range(tk.world() - 1):
        ready = tk.wait(run_free_signals[r, t])
        there = tk.claim(run_free_signals[r + 1, t].at((tk.rank() + 1) % tk.world()))
        tk.notify(tk.copy(ready, there))
        tk.release(ready)


@tk.tile
def ready(t, run_free_signals, run_free_signals_free, stage):
    i = run_free_signals_free[t].load()
    for r in tk.ranks():
        token = tk.wait(run_free_signals[r, t])
        i += (r + 1) * token.load()
        tk.release(token)
    stage[t].store(i)


@tk.program
def last_out(
    run: tk.Local("tl", "triton"), run_free_signals_free: tk.Local("tl", "triton"), stage: tk.Local("tl", "triton")
):
    run_free_signals = tk.local(tk.ranks, "tl", "triton", buffers=2)
    claimed[tk.tiles(run)](run, run_free_signals)
    ready[tk.tiles(stage)](run_free_signals, run_free_signals_free, stage)


in_two = tk.Schedule(claimed=tk.SMs(4, tile=(16, 16)), ready=tk.SMs(4, tile=(16, 16)))
