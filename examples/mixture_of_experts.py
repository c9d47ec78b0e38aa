"""A mixture of experts on four CPU ranks: tokens go to the ranks of their two best experts and come back, beside the
same layer computed in one place."""

import torch

import tilelink as tk
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.matmul_combine import matmul_combine

WORLD, EXPERTS, TOP, TOKENS, WIDTH, HIDDEN = 4, 2, 2, 24, 64, 96


def mixture_of_experts(x, router, up, down, group):
    """x: (tokens of this rank, width); router: (width, experts of all ranks); up, down: the weights of the experts of
    this rank, (experts, width, 2 * hidden) and (experts, hidden, width)."""
    gates, chosen = torch.topk((x @ router).softmax(-1), TOP)
    pairs = chosen.flatten().argsort(stable=True)  # a row for each token and expert of it, in the order of experts
    place = torch.empty_like(pairs).scatter_(0, pairs, torch.arange(len(pairs))).view(-1, TOP)
    mine = torch.bincount(chosen.flatten(), minlength=router.shape[1]).to(torch.int32)
    counts = all_gather(mine[None], group=group).T  # rows of each expert, from each rank; the host does not look
    made = dispatch_matmul(x, up, counts, pairs // TOP, group=group)  # with room for the rows of all ranks
    gate, value = made.chunk(2, -1)
    parts = {"sent": (len(pairs),) * group.world}
    rows = torch.nn.functional.silu(gate) * value
    return matmul_combine(rows, down, counts, place, weights=gates, group=group, parts=parts)


def in_one_place(x, router, up, down):
    """The same in float64, with all experts: x of all ranks, up and down with the experts of all ranks."""
    x, router, up, down = (t.double() for t in (x, router, up, down))
    gates, chosen = torch.topk((x @ router).softmax(-1), TOP)
    weight = torch.zeros(len(x), router.shape[1], dtype=torch.float64).scatter_(1, chosen, gates)
    gate, value = torch.einsum("tk,ekh->eth", x, up).chunk(2, -1)
    made = torch.einsum("eth,ehk->etk", torch.nn.functional.silu(gate) * value, down)
    return torch.einsum("te,etk->tk", weight, made)


if __name__ == "__main__":
    torch.manual_seed(0)
    x, router = torch.randn(WORLD, TOKENS, WIDTH), torch.randn(WIDTH, WORLD * EXPERTS) / WIDTH**0.5
    up = torch.randn(WORLD, EXPERTS, WIDTH, 2 * HIDDEN) / WIDTH**0.5
    down = torch.randn(WORLD, EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5
    world = tk.CpuWorld(WORLD)
    outs = world.run(lambda g: mixture_of_experts(x[g.rank], router, up[g.rank], down[g.rank], g))
    right = in_one_place(x.flatten(0, 1), router, up.flatten(0, 1), down.flatten(0, 1))
    error = (torch.cat(outs) - right).square().mean().sqrt() / right.square().mean().sqrt()
    assert error < 1e-6, error
    print(f"{WORLD} ranks of {EXPERTS} experts agree with one place: relative RMS {error:.1e}")
