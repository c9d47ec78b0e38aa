"""An exchange through DeepEP's buffer on every rank, beside what each rank has to get."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from tests.integrations.plugs import said, wrong
from tests.nn.on_ranks import far
from tests.ops.on_ranks import computed_by
from tilelink.integrations.deep_ep import ElasticBuffer, EPHandle
from tilelink.ops import even_placement, expert_places
from tilelink.ops.moe_routing import placed


def of_deep_ep(group: dist.ProcessGroup, backend: str, placements: Sequence[str]) -> list[str]:
    """As below, computed by a backend; and what is not said of bad calls, where plain torch computes."""
    with computed_by(backend, group):
        return [e for placed in placements for e in exchanged(group, placed, backend == "torch")]


def placement_of(kind: str, world: int) -> list[int]:
    """The expert at each place: two on each rank; one less on the last; or two copies of the first, on two ranks."""
    if kind == "copies":
        return [0, 1, 0, *range(2, 2 * world - 1)]
    return even_placement(2 * world - (kind == "uneven"), world)


def exchanged(group: dist.ProcessGroup, kind: str, with_bad_calls: bool) -> list[str]:
    """What is wrong of an exchange in both layouts, with counts read by the host or not, beside what each rank has to
    get; expert e multiplies by e + 1."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    placement = placement_of(kind, world)
    places, at = expert_places(placement), torch.tensor(placement)
    buffer = ElasticBuffer(
        group, num_max_tokens_per_rank=6, hidden=8, num_topk=3, places=places if kind == "copies" else None
    )
    experts, found, given = len(places), list[str](), []
    number = len(placement) if kind == "copies" else experts
    for r in range(world):
        drawn = torch.Generator().manual_seed(r)
        chosen = torch.rand(6 - r, experts, generator=drawn).topk(3).indices
        chosen[torch.rand(chosen.shape, generator=drawn) < 0.3] = -1
        given.append((torch.randn(6 - r, 8, generator=drawn), chosen, torch.rand(6 - r, 3, generator=drawn)))
    x, chosen, weights = given[rank]
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    scaled = torch.where(chosen >= 0, chosen + 1, 0)
    right, bias = (weights * scaled).sum(1, keepdim=True) * x, torch.randn(x.shape)
    wanted = torch.autograd.grad((right**2).sum(), (x, weights))
    every = [torch.cat(parts) for parts in zip(*given, strict=True)]
    every[1] = torch.cat([placed(ids, places, 2 * world, r) for r, (_, ids, _) in enumerate(given)])
    mine = [place for place in (2 * rank, 2 * rank + 1) if placement[place] >= 0]
    cases = (False, True, 1), (False, False, 4), (True, True, 1), (True, True, 4), (True, False, 4)
    for expand, sync, alignment in cases:
        case = f"{kind}: expand={expand}, sync={sync}, alignment={alignment}"
        how = {"num_experts": number, "expert_alignment": alignment, "do_cpu_sync": sync, "do_expand": expand}
        seen = torch.ones(len(mine), dtype=torch.int32)
        got, ids, got_weights, handle, event = buffer.dispatch(x, chosen, weights, seen, **how)
        event.current_stream_wait()
        again = buffer.dispatch(x, handle=handle, previous_event=event, num_sms=8)[0]
        found += [] if torch.equal(got, again) else [f"{case}: not the same ways"]
        counts = [int((every[1] == e).sum()) for e in mine]
        found += [] if seen.tolist() == [n + 1 for n in counts] else [f"{case}: statistics"]
        aligned = [-(-n // alignment) * alignment for n in counts]
        found += [] if not sync or handle.num_recv_tokens_per_expert_list == aligned else [f"{case}: lengths"]
        if expand:
            begins = [0, aligned[0]][: len(mine)]
            ends = [b + n for b, n in zip(begins, counts, strict=True)]
            found += [] if handle.psum_num_recv_tokens_per_expert.tolist() == ends else [f"{case}: sums"]
            sent = [every[0][(every[1] == e).any(1)] for e in mine]
            same = all(torch.equal(got[b : b + len(s)], s) for b, s in zip(begins, sent, strict=True))
            scale = torch.zeros(len(got))
            for e, b, n in zip(mine, begins, counts, strict=True):
                scale[b : b + n] = at[e] + 1
            made = got * (scale * got_weights)[:, None]
        else:
            here = ((every[1] >= mine[0]) & (every[1] <= mine[-1])).any(1)
            local = torch.where((every[1] >= mine[0]) & (every[1] <= mine[-1]), every[1] - mine[0], -1)[here]
            n = len(local)
            same = torch.equal(got[:n], every[0][here]) and torch.equal(ids[:n], local) and bool((ids[n:] == -1).all())
            scale = torch.where(ids >= 0, at[ids + mine[0]] + 1, 0)
            made = got * (scale * got_weights).sum(1, keepdim=True)
        found += [] if same else [f"{case}: other rows"]
        found += [f"{case}: {e}" for e in of_float8(buffer, x.detach(), got.detach(), handle)]
        out, back, _ = buffer.combine(made, handle, topk_weights=got_weights, bias=bias)
        grads = torch.autograd.grad(((out - bias) ** 2).sum(), (x, weights), retain_graph=True)
        errors = {"result": far(out, right + bias), "x": far(grads[0], wanted[0]), "weights": far(grads[1], wanted[1])}
        errors["weights back"] = far(back, torch.where(chosen >= 0, weights, 0))
        found += [f"{case}: {e}" for e in wrong(errors)]
    for make, text in bad_of_deep_ep(buffer, x, chosen) if with_bad_calls and kind == "even" else []:
        found += [] if text in (made := said(make)) else [f"{made}, not {text}"]
    return found


def of_float8(buffer: ElasticBuffer, x: torch.Tensor, got: torch.Tensor, handle: EPHandle) -> list[str]:
    """What is wrong of rows in float8 that go the same ways, whose scale factors are floats or integers."""
    found = []
    rows, right = (t.to(torch.float8_e4m3fn).view(torch.uint8) for t in (x, got))
    rows[:, :2], right[:, :2] = 0x7F, torch.where((got == 0).all(1, keepdim=True), 0, 0x7F)  # bits that are no number
    for dtype in (torch.float32, torch.int32):
        scales, right_scales = ((t[:, :3] * 100).to(dtype) for t in (x, got))
        received, *_ = buffer.dispatch((rows.view(torch.float8_e4m3fn), scales), handle=handle)
        assert isinstance(received, tuple) and received[0].dtype == torch.float8_e4m3fn
        same = torch.equal(received[0].view(torch.uint8), right) and torch.equal(received[1], right_scales)
        found += [] if same else [f"other rows of float8 with factors in {dtype}"]
    return found


def bad_of_deep_ep(
    buffer: ElasticBuffer, x: torch.Tensor, chosen: torch.Tensor
) -> list[tuple[Callable[[], object], str]]:
    """Bad calls, and what is said of them; rank 0 alone is wrong in the last ones."""
    experts, rank = 2 * buffer.num_ranks, buffer.rank_idx
    handle = buffer.dispatch(x, chosen, num_experts=experts)[3]
    eights, copies = x.detach().to(torch.float8_e4m3fn), copy.copy(buffer)
    copies.places = torch.arange(experts)[:, None]
    beyond = torch.where(torch.tensor(rank == 0), experts, chosen)
    more = torch.cat([x, x])[: 7 if rank == 0 else 6].detach()
    return [
        (lambda: buffer.dispatch((x,), chosen), "ArgumentError: x is rows, or a pair of rows in float8 and their"),
        (lambda: buffer.dispatch((x, x), chosen), "ArgumentError: x is a pair of torch.float32 and torch.float"),
        (lambda: buffer.dispatch((eights, x[:1]), chosen), "and (1, 8); they must be (tokens, hidden), hidden even, "),
        (lambda: buffer.dispatch(x), "ArgumentError: give topk_idx of new tokens, or the handle of a dispatch"),
        (lambda: buffer.dispatch(x, chosen, num_experts=1), "num_experts=1: at least one on each of"),
        (lambda: copies.dispatch(x, chosen, num_experts=experts + 1), f"num_experts={experts + 1} places: as many on"),
        (lambda: buffer.dispatch(x, chosen, x, None, experts), "ShapeError: topk_weights have shape"),
        (lambda: buffer.dispatch(x, chosen[:, 0], num_experts=experts), "ShapeError: topk_idx has shape"),
        (lambda: buffer.dispatch(x, chosen + 0.5, num_experts=experts), "DtypeError: topk_idx is float32"),
        (lambda: buffer.combine(torch.zeros(handle.num_recv_tokens, 8), handle, x), "ShapeError: topk_weights have"),
        (
            lambda: buffer.dispatch(x, chosen, num_experts=experts, expert_alignment=1 - 2 * rank),
            ("ArgumentError: expert_alignment=-" if rank else "RankFailedError: rank 1 raised ArgumentError"),
        ),
        (lambda: buffer.combine(torch.zeros(99, 8), handle), "x has shape (99, 8); it must be a matrix of as many"),
        (lambda: buffer.dispatch(x, chosen, None, None, experts, 0), "num_max_tokens_per_rank=0; it must be 1 or more"),
        (lambda: buffer.dispatch(x, chosen, num_expert=experts), "num_expert= is no argument; there are num_sms"),
        (lambda: buffer.combine(x, handle, num_experts=experts), "num_experts= is no argument; there are num_sms"),
        (lambda: ElasticBuffer(dist.group.WORLD, hiden=8), "hiden= is no argument; there are"),
        (lambda: buffer.dispatch(x, beyond, num_experts=experts), "CapacityError"),
        (lambda: buffer.dispatch(x, beyond, num_experts=experts, do_expand=True), "CapacityError"),
        (
            lambda: buffer.dispatch(more, more[:, :3].long() * 0 - 1, num_experts=experts),
            "ArgumentError: tokens=6 is less than the 7" if rank == 0 else "RankFailedError: rank 0 raised Argument",
        ),
    ]
