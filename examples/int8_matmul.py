"""A kernel of a user: AllGather-GEMM on int8, with a scale for each row of x and each column of the weight.

Half the bytes of bfloat16 cross the links. The scales are gathered by the same tile function under another name; one
wait guards both. Run it: python examples/int8_matmul.py
"""

import torch
import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, x, full):
    """Bring one tile of a tensor from its home to one reader."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def matmul(t, full, scales, weight, weight_scale, out):
    """One tile of out: summed in int32, scaled at the end."""
    rows, scale = tk.wait(full[t.rows], scales[t.rows])
    acc = tl.zeros(t.shape, tl.int32)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc, out_dtype=tl.int32)
    out[t].store(acc.to(tl.float32) * scale.load()[:, None] * weight_scale[t.cols].load()[None, :])


@tk.program
def int8_matmul(
    x: tk.Sharded("M", "K"),
    x_scale: tk.Sharded("M"),
    weight: tk.Local("K", "N"),
    weight_scale: tk.Local("N"),
    out: tk.Local("M", "N"),
):
    """out = (x * x_scale) @ (weight * weight_scale), the rows of x gathered from all ranks."""
    full = tk.local("M", "K", dtype=x)
    scales = tk.local("M", dtype=x_scale)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    gather.named("gather_scales")[tk.tiles(x_scale, reader=tk.ranks)](x_scale, scales)
    matmul[tk.tiles(out)](full, scales, weight, weight_scale, out)


push = tk.Schedule(
    gather=tk.SMs(4, tile=(64, 128), at="home"),
    gather_scales=tk.SMs(1, tile=(64,), at="home"),
    matmul=tk.SMs(tile=(64, 64, 64), order=tk.own_rank_first),
)
pull = push.changed(gather={"at": "reader"}, gather_scales={"at": "reader"})


def quantized(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x as int8, and the scales along a dimension."""
    scale = x.abs().amax(dim, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale.squeeze(dim)


def main(world: int = 4, M: int = 200, K: int = 160, N: int = 96) -> None:
    torch.manual_seed(0)
    x, x_scale = quantized(torch.randn(M, K), dim=1)
    weights = [quantized(torch.randn(K, N), dim=0) for _ in range(world)]
    shards = list(zip(x.chunk(world), x_scale.chunk(world), strict=True))
    for schedule in ("push", "pull"):

        def on_rank(group, schedule=schedule):
            out = torch.empty(M, N)
            return int8_matmul(*shards[group.rank], *weights[group.rank], out, schedule=schedule, group=group)

        for out, (weight, weight_scale) in zip(tk.CpuWorld(world).run(on_rank), weights, strict=True):
            exact = (x.double() @ weight.double()) * x_scale.double()[:, None] * weight_scale.double()
            torch.testing.assert_close(out.double(), exact, rtol=1e-6, atol=1e-6)
        print(f"{schedule}: {world} ranks, {M} x {K} x {N}, right on every rank")


if __name__ == "__main__":
    main()
