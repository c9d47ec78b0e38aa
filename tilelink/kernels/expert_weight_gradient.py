"""The gradients of the weights of experts, each over the rows of its expert: a grouped GEMM that is ragged in K."""

import triton.language as tl

import tilelink as tk


@tk.tile
def weight_gradient(t, dout, rows, dweight, arriving=False):
    """One tile of the gradient of an expert's weight, dout^T @ rows; zeros, where the expert has no rows. arriving: its
    rows of dout are waited for."""
    grads = tk.wait(dout[t.rows]) if arriving else dout[t.rows]
    acc = tl.zeros((len(t.N), len(t.K)), tl.float32)
    for m in tk.steps(t.rows):
        acc = tl.dot(tl.trans(grads[m, t.N].load()), rows[m, t.K].load(), acc, input_precision="ieee")
    dweight[t.expert, t.N, t.K].store(acc)


@tk.program
def expert_weight_gradient(
    dout: tk.Sharded("routed", "N"),
    rows: tk.Sharded("routed", "K"),
    route: tk.Route("sent", "routed", "experts"),
    dweight: tk.Local("experts", "N", "K"),
):
    """dweight[expert] = the transpose of the expert's rows of dout, times its rows; for the experts of this rank."""
    weight_gradient[tk.tiles(route.experts, dweight.N, dweight.K)](dout, rows, dweight)


gemm = tk.Schedule(weight_gradient=tk.SMs(tile=(None, 128, 256, 64), stages=3, warps=8))
