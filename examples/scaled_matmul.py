"""AllGather-GEMM with a scale for each row and SiLU in the epilogue: a user's own program, outside of the package.

The rows of x and their scales are gathered together; one wait guards both.
"""

import torch
import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, x, scale, full, scales):
    """Bring a block of rows, and their scales, to one reader."""
    rows = tk.copy(x[t.rows], full[t.rows].at(t.reader))
    theirs = tk.copy(scale[t.rows], scales[t.rows].at(t.reader))
    tk.notify(rows, theirs)


@tk.tile
def matmul(t, full, scales, weight, out):
    rows, scale = tk.wait(full[t.rows], scales[t.rows])
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    acc *= scale.load()[:, None]
    out[t].store(acc * tl.sigmoid(acc))


@tk.program
def scaled_matmul(
    x: tk.Sharded("M", "K"),
    scale: tk.Sharded("M"),
    weight: tk.Local("K", "N"),
    out: tk.Local("M", "N"),
):
    """out = silu(scale * (all_gather(x) @ weight)) on every rank."""
    full, scales = tk.local("M", "K"), tk.local("M", dtype=scale)
    gather[tk.tiles(x.rows, reader=tk.ranks)](x, scale, full, scales)
    matmul[tk.tiles(out)](full, scales, weight, out)


gemm = tk.SMs(tile=(64, 64, 64), order=tk.own_rank_first)
push = tk.Schedule(gather=tk.SMs(4, tile=(32,), at="home", order=tk.ring), matmul=gemm)
pull = tk.Schedule(gather=tk.SMs(4, tile=(32,), at="reader"), matmul=gemm)


def main(world: int = 4) -> None:
    """Runs both schedules on CPU ranks with uneven shards and compares with torch in float64."""
    parts = tuple(10 + 23 * r for r in range(world))
    x = [torch.randn(m, 96) for m in parts]
    scale = [torch.rand(m) for m in parts]
    weight = [torch.randn(96, 80) for _ in parts]
    rows = torch.cat(scale)[:, None].double() * torch.cat(x).double()
    want = [torch.nn.functional.silu(rows @ w.double()) for w in weight]
    for name in ("push", "pull"):
        outs = tk.CpuWorld(world).run(
            lambda group, name=name: scaled_matmul(
                x[group.rank], scale[group.rank], weight[group.rank], schedule=name, group=group, parts={"M": parts}
            )
        )
        error = max(float((out - w).norm() / w.norm()) for out, w in zip(outs, want, strict=True))
        assert error < 1e-6, error
        print(f"{name}: {world} ranks with {parts} rows, relative RMS {error:.1e} against float64")


if __name__ == "__main__":
    main()
