"""A program whose variables are called as a lowered kernel calls its own."""

import triton.language as tl

import tilelink as tk


@tk.tile
def gather(i, run, worker):
    tk.notify(tk.copy(run[i], worker[i].at(i.reader)))


@tk.tile
def scale(tile, full, factor, out):
    home = tk.wait(full[tile])
    rank, M, control = home.load(), tk.rank(), factor[tile].load()
    world = rank + 3 * M
    for before in range(2):
        run = world + before
        world = run
    i = tl.zeros(tile.shape, tl.float32)
    M_lo = i + world
    N_tiles, heaps, slot = M_lo * control, 0, control
    expected = N_tiles + heaps * slot
    value = expected
    out[tile].store(value)


@tk.program
def gather_and_scale(x: tk.Sharded("M", "N"), factor: tk.Local("M", "N"), out: tk.Local("M", "N")):
    full = tk.local("M", "N")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    scale[tk.tiles(out)](full, factor, out)


push = tk.Schedule(gather=tk.SMs(2, tile=(16, 16), at="home"), scale=tk.SMs(tile=(16, 16)))
