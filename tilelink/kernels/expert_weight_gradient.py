"""The gradients of the weights of experts, each over the rows of its expert: a grouped GEMM that is ragged in K."""

import triton.language as tl

import tilelink as tk


@tk.tile
def weight_gradient(t, rows, dout, dweight):
    """One tile of the gradient of an expert's weight, rows^T @ dout; zeros, where the expert has no rows."""
    acc = tl.zeros((len(t.K), len(t.N)), tl.float32)
    for m in tk.steps(t.rows):
        acc = tl.dot(tl.trans(rows[m, t.K].load()), dout[m, t.N].load(), acc, input_precision="ieee")
    dweight[t.expert, t.K, t.N].store(acc)


@tk.program
def expert_weight_gradient(
    rows: tk.Sharded("routed", "K"),
    dout: tk.Sharded("routed", "N"),
    route: tk.Route("sent", "routed", "experts"),
    dweight: tk.Local("experts", "K", "N"),
):
    """dweight = for each expert of this rank, the transpose of its rows times their gradients."""
    weight_gradient[tk.tiles(route.experts, dweight.K, dweight.N)](rows, dout, dweight)


gemm = tk.Schedule(weight_gradient=tk.SMs(tile=(None, 128, 256, 64), stages=3, warps=8))
