"""AllGather alone: every rank reads the parts of all ranks. Before `matmul`, it is the unfused AllGather-GEMM."""

import tilelink as tk


@tk.tile
def gather(t, x, out):
    """Bring one tile of x from its home to the reader."""
    tk.copy(x[t], out[t])


@tk.program
def all_gather(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """out = the rows of x of all ranks, on every rank. Both have one dtype, any of TileLink's. Raises ArgumentError,
    DtypeError and others: see `tilelink.kernels`."""
    gather[tk.tiles(x, reader=tk.ranks)](x, out)


pull = tk.Schedule(gather=tk.SMs(tile=(128, 256), at="reader"))
