"""AllGather-GEMM on int8 with a scale for each block of a row, and an epilogue of the user's.

The dimension of the sum is B blocks of E elements. Rows and their scales are gathered together, a fraction of the bytes
of bfloat16; one wait guards both. Each block is summed exactly, in int32, and scaled then.
"""

import torch
import triton
import triton.language as tl

import tilelink as tk


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@tk.tile
def gather(t, x, scale, full, scales):
    """Bring a block of rows, and their scales, to one reader."""
    rows = tk.copy(x[t.M], full[t.M].at(t.reader))
    theirs = tk.copy(scale[t.M], scales[t.M].at(t.reader))
    tk.notify(rows, theirs)


@tk.tile
def matmul(t, full, scales, weight, weight_scale, out, epilogue):
    rows, scale = tk.wait(full[t.M], scales[t.M])
    acc = tl.zeros(t.shape, tl.float32)
    for b in range(full.B.size):
        block = tl.dot(rows[:, b].load(), weight[b, :, t.N].load(), out_dtype=tl.int32)
        acc += block.to(tl.float32) * scale[:, b].load()[:, None] * weight_scale[b, t.N].load()[None, :]
    out[t].store(epilogue(acc))


@tk.program
def scaled_matmul(
    x: tk.Sharded("M", "B", "E"),
    scale: tk.Sharded("M", "B"),
    weight: tk.Local("B", "E", "N"),
    weight_scale: tk.Local("B", "N"),
    out: tk.Local("M", "N"),
):
    """out = silu(all_gather(x * scale) @ (weight * weight_scale)) on every rank."""
    full, scales = tk.local("M", "B", "E"), tk.local("M", "B", dtype=scale)
    gather[tk.tiles(x.M, reader=tk.ranks)](x, scale, full, scales)
    matmul[tk.tiles(out)](full, scales, weight, weight_scale, out, silu)


gemm = tk.SMs(tile=(64, 64), whole={"E": 128}, order=tk.own_rank_first)
push = tk.Schedule(gather=tk.SMs(4, tile=(64,), at="home", order=tk.ring), matmul=gemm)
pull = tk.Schedule(gather=tk.SMs(4, tile=(64,), at="reader"), matmul=gemm)


def quantized(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x as int8, and its scales, one for all elements along a dimension."""
    scale = x.abs().amax(dim, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale.squeeze(dim)


def main(world: int = 4, B: int = 3, E: int = 64, N: int = 80) -> None:
    """Runs both schedules on CPU ranks with uneven shards and compares with torch in float64."""
    parts = tuple(10 + 23 * r for r in range(world))
    x = [quantized(torch.randn(m, B, E), 2) for m in parts]
    weight = [quantized(torch.randn(B, E, N), 1) for _ in parts]
    rows = torch.cat([(v * s[..., None]).double().flatten(1) for v, s in x])
    want = [torch.nn.functional.silu(rows @ (v * s[:, None]).double().flatten(0, 1)) for v, s in weight]
    for name in ("push", "pull"):

        def on_rank(group, name=name):
            out = torch.empty(sum(parts), N)
            return scaled_matmul(
                *x[group.rank], *weight[group.rank], out, schedule=name, group=group, parts={"M": parts}
            )

        outs = tk.CpuWorld(world).run(on_rank)
        error = max(float((out - w).norm() / w.norm()) for out, w in zip(outs, want, strict=True))
        assert error < 1e-6, error
        print(f"{name}: {world} ranks with {parts} rows, relative RMS {error:.1e} against float64")


if __name__ == "__main__":
    main()
