"""References: the right results of each program of the library, in float64, from the inputs of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tilelink.frontend.routes import Routing
from tilelink.kernels import operators

Rank = Mapping[str, Any]
"""The inputs or results of a rank: tensors or lists of tensors, by parameter, without parameters that are left out."""
Reference = Callable[[Sequence[Rank], Any], list[dict[str, Any]]]
"""A function that returns all results of each rank, optional ones, too. It takes the inputs of all ranks, and how many
rows of M each rank has of a tensor that is cut, or the `Routing` of rows."""


def _together(ranks: Sequence[Rank], name: str) -> torch.Tensor:
    return torch.cat([r[name] for r in ranks])


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias


def _gather(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    return [{"out": _together(ranks, "x")} for _ in ranks]


def _gather_matmul(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    full = _together(ranks, "x")
    pairs = [zip(r["weight"], r.get("bias", [None] * len(r["weight"])), strict=True) for r in ranks]
    return [{"out": [_plus(full @ w, b) for w, b in of_rank], "gathered": full} for of_rank in pairs]


def _gather_split_matmul(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    full = torch.cat([r["x"] for r in ranks], 1)
    pairs = [zip(r["weight"], r.get("bias", [None] * len(r["weight"])), strict=True) for r in ranks]
    return [{"out": [_plus((full @ w).sum(0), b) for w, b in of_rank]} for of_rank in pairs]


def _gated(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    full = _together(ranks, "x")
    gates = [_plus(full @ r["gate"], r.get("gate_bias")) for r in ranks]
    ups = [_plus(full @ r["up"], r.get("up_bias")) for r in ranks]
    return [{"out": torch.nn.functional.silu(gate) * up} for gate, up in zip(gates, ups, strict=True)]


def _gather_backward(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    full = _together(ranks, "x")
    dx = torch.stack([d @ w.T for r in ranks for d, w in zip(r["dy"], r["weight"], strict=True)]).sum(0)
    made = [{"dweight": [full.T @ d for d in r["dy"]], "dbias": [d.sum(0) for d in r["dy"]]} for r in ranks]
    return [{"dx": mine, **more} for mine, more in zip(dx.split(list(parts)), made, strict=True)]


def _scatter_backward(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    full = _together(ranks, "dy")
    return [{"dx": full @ r["weight"].T, "dweight": r["x"].T @ full, "dbias": full.sum(0)} for r in ranks]


def _sum(ranks: Sequence[Rank]) -> torch.Tensor:
    return torch.stack([r["x"] for r in ranks]).sum(0)


def _sum_of_products(ranks: Sequence[Rank]) -> torch.Tensor:
    return _plus(torch.stack([r["x"] @ r["weight"] for r in ranks]).sum(0), ranks[0].get("bias"))


def _scatter(total: Callable[[Sequence[Rank]], torch.Tensor]) -> Reference:
    """Returns a reference by which each rank gets its rows of the sum over the ranks."""
    return lambda ranks, parts: [{"out": mine} for mine in total(ranks).split(list(parts))]


def _reduce(total: Callable[[Sequence[Rank]], torch.Tensor]) -> Reference:
    """Returns a reference by which each rank gets the sum over the ranks."""
    return lambda ranks, parts: [{"out": total(ranks)} for _ in ranks]


def _dispatch_matmul(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    rows = _by_home(routing, _sent(ranks, routing))
    lengths = routing.array.sum(1).reshape(len(ranks), -1).tolist()
    return [_of_experts(mine, r["weight"], of) for mine, of, r in zip(rows, lengths, ranks, strict=True)]


def _sent(ranks: Sequence[Rank], routing: Routing) -> list[list[torch.Tensor]]:
    """Returns the rows that each rank sends, by expert of all ranks."""
    of_ranks = (routing.array[:, source].tolist() for source in range(len(ranks)))
    return [list(_picked(r["x"], r["order"][: sum(of)]).split(of)) for r, of in zip(ranks, of_ranks, strict=True)]


def _picked(rows: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
    """Returns the rows that integers pick, zeros for -1."""
    some = integers.long()
    return torch.where(some[..., None] >= 0, torch.cat([rows, rows.new_zeros(1, rows.shape[1])])[some], 0)


def _summed(ranks: Sequence[Rank], back: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Returns the weighted sums of the rows that came back, and these rows."""
    weights = (r["weights"] if "weights" in r else torch.ones(r["place"].shape) for r in ranks)
    each = zip(ranks, back, weights, strict=True)
    return [{"out": (w[..., None] * _picked(rows, r["place"])).sum(1), "kept": rows} for r, rows, w in each]


def _gather_grouped(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    """Returns results for the rows of a rank's experts; `token` names the token of each row on its source."""
    made = []
    for r, of_rank in zip(ranks, routing.array.reshape(len(ranks), -1, len(ranks)), strict=True):
        tokens = r["token"][: of_rank.sum()].split(of_rank.reshape(-1).tolist())
        rows = [_picked(ranks[k % len(ranks)]["x"], some) for k, some in enumerate(tokens)]
        made.append(_of_experts(torch.cat(rows), r["weight"], of_rank.sum(1).tolist()))
    return made


def _of_experts(rows: torch.Tensor, weight: torch.Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    """Returns the products of rows, and the rows; `lengths`: rows of each expert."""
    return {"out": torch.cat([x @ w for x, w in zip(rows.split(lengths), weight, strict=True)]), "gathered": rows}


def _grouped_scatter(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    """Returns for each token the sum over the ranks of its rows there; `at` names the rows."""
    total: Any = 0
    for r, of_rank in zip(ranks, routing.array.reshape(len(ranks), -1, len(ranks)), strict=True):
        lengths = of_rank.sum(1).tolist()
        rows = _of_experts(r["rows"][: sum(lengths)], r["weight"], lengths)["out"]
        weights = r["weights"] if "weights" in r else torch.ones(r["at"].shape)
        total = total + (weights[..., None] * _picked(rows, r["at"])).sum(1)
    return [{"out": mine} for mine in total.split([len(r["wanted"]) for r in ranks])]


def _by_home(routing: Routing, of: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Returns the rows of each home, by expert and source. `of`: rows by source and expert."""
    world, experts = len(of), len(of[0]) // len(of)
    return [torch.cat([of[s][e] for e in range(h * experts, (h + 1) * experts) for s in range(world)])
            for h in range(world)]  # fmt: skip


def _dispatch(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    return [{"out": rows} for rows in _by_home(routing, _sent(ranks, routing))]


def _by_source(routing: Routing, of: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the rows that come back to each source. `of`: rows of each home, by expert and source."""
    lengths = routing.array.reshape(len(of), -1).tolist()
    got = [piece for mine, pieces in zip(of, lengths, strict=True) for piece in mine.split(pieces)]
    return [torch.cat(got[source :: len(of)]) for source in range(len(of))]


def _combine(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    return _summed(ranks, _by_source(routing, [r["rows"] for r in ranks]))


def _mixture_of_experts(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    homes = _by_home(routing, _sent(ranks, routing))
    lengths = routing.array.sum(1).reshape(len(ranks), -1).tolist()
    activation = ranks[0].get("activation", lambda gate, up: torch.nn.functional.silu(gate) * up)
    kept, made = [], []
    for r, rows, of in zip(ranks, homes, lengths, strict=True):
        by_expert = [
            (x @ gate, x @ up, activation(x @ gate, x @ up) @ w)
            for x, gate, up, w in zip(rows.split(of), r["gate"], r["up"], r["weight"], strict=True)
        ]
        gates, ups, outs = (torch.cat(each) for each in zip(*by_expert, strict=True))
        kept.append({"gathered": rows, "gates": gates, "ups": ups})
        made.append(outs)
    return [a | b for a, b in zip(_summed(ranks, _by_source(routing, made)), kept, strict=True)]


Slice = tuple[int, tuple[torch.Tensor, torch.Tensor]]
"""The number of an expert, its gate and up, and its down; or slices of these."""


def every_slice(ranks: Sequence[Rank], slices: int = 1) -> Iterator[Slice]:
    """Yields the experts of all ranks; `slices` ranks share an expert, a slice each."""
    for rank, r in enumerate(ranks):
        yield from enumerate(zip(r["gate_up"], r["down"], strict=True), rank // slices * len(r["down"]))


def layer_of_experts(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, experts: Iterable[Slice]
) -> torch.Tensor:
    """Returns the results of tokens by a layer whose experts are all in one place. `chosen`, `weights`: of each token
    its experts, and how much each counts."""
    out = torch.zeros_like(x)
    for number, (gate_up, down) in experts:
        gate, up = (x @ gate_up.T).chunk(2, -1)
        weight = weights.where(chosen == number, 0).sum(-1, keepdim=True)
        out = out + weight * ((torch.nn.functional.silu(gate) * up) @ down.T)
    return out


def _by_expert(rows: torch.Tensor, rank: int, world: int, routing: Routing) -> list[torch.Tensor]:
    """Returns the rows of a home, by its experts."""
    return list(rows.split(routing.array.sum(1).reshape(world, -1)[rank].tolist()))


def _expert_weight_gradient(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    found = []
    for rank, r in enumerate(ranks):
        of_dout, of_rows = (_by_expert(r[n], rank, len(ranks), routing) for n in ("dout", "rows"))
        found.append({"dweight": torch.stack([d.T @ x for d, x in zip(of_dout, of_rows, strict=True)])})
    return found


def _matmul_combine(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    made = []
    for rank, r in enumerate(ranks):
        each = zip(_by_expert(r["rows"], rank, len(ranks), routing), r["weight"], strict=True)
        made.append({**r, "rows": torch.cat([mine @ w for mine, w in each])})
    return _combine(made, routing)


def _dispatch_matmul_backward(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    back = _matmul_combine([{**r, "rows": r["dout"]} for r in ranks], routing)
    of_weights = _expert_weight_gradient(ranks, routing)
    return [{"dx": b["out"], **w} for b, w in zip(back, of_weights, strict=True)]


def _matmul_combine_backward(ranks: Sequence[Rank], routing: Routing) -> list[dict[str, Any]]:
    sent = [_picked(r["dout"], r["order"][:n]) for r, n in zip(ranks, routing.array.sum(0).tolist(), strict=True)]
    sent = [x * r["scale"][: len(x), None] if "scale" in r else x for x, r in zip(sent, ranks, strict=True)]
    rows = [{"x": x, "order": torch.arange(len(x)), "weight": r["weight"]} for x, r in zip(sent, ranks, strict=True)]
    made = _dispatch_matmul(rows, routing)
    of_weights = _expert_weight_gradient(
        [{"dout": m["gathered"], "rows": r["rows"]} for m, r in zip(made, ranks, strict=True)], routing
    )
    return [{"drows": m["out"], **w} for m, w in zip(made, of_weights, strict=True)]


def _matmul(ranks: Sequence[Rank], parts: Sequence[int]) -> list[dict[str, Any]]:
    return [{"out": _plus(r["x"] @ r["weight"], r.get("bias"))} for r in ranks]


PROGRAMS = operators()
_BY_NAME: dict[str, Reference] = {
    "all_gather": _gather,
    "all_gather_gated_matmul": _gated,
    "all_gather_grouped_matmul": _gather_grouped,
    "all_gather_matmul": _gather_matmul,
    "all_gather_matmul_backward": _gather_backward,
    "all_gather_split_matmul": _gather_split_matmul,
    "all_reduce": _reduce(_sum),
    "combine": _combine,
    "dispatch": _dispatch,
    "dispatch_matmul": _dispatch_matmul,
    "dispatch_matmul_backward": _dispatch_matmul_backward,
    "expert_weight_gradient": _expert_weight_gradient,
    "grouped_matmul_reduce_scatter": _grouped_scatter,
    "matmul": _matmul,
    "matmul_all_reduce": _reduce(_sum_of_products),
    "matmul_combine": _matmul_combine,
    "matmul_combine_backward": _matmul_combine_backward,
    "matmul_fabric_all_reduce": _reduce(_sum_of_products),
    "matmul_one_shot_all_reduce": _reduce(_sum_of_products),
    "matmul_reduce_scatter": _scatter(_sum_of_products),
    "matmul_reduce_scatter_backward": _scatter_backward,
    "matmul_ring_reduce_scatter": _scatter(_sum_of_products),
    "mixture_of_experts": _mixture_of_experts,
    "reduce_scatter": _scatter(_sum),
}
REFERENCES = {PROGRAMS[name]: reference for name, reference in _BY_NAME.items()}
"""The reference of each program."""
ONE_BIAS = [
    PROGRAMS[name] for name in (
        "matmul_all_reduce", "matmul_fabric_all_reduce", "matmul_one_shot_all_reduce", "matmul_reduce_scatter",
        "matmul_ring_reduce_scatter",
    )
]  # fmt: skip
"""Programs that add a bias once, to the sum over the ranks: all ranks must have the same bias."""
ROUNDED = {PROGRAMS["all_gather_gated_matmul"]: 1.0, PROGRAMS["mixture_of_experts"]: 1.25}
"""Programs whose results of whole numbers are not whole. Their relative RMS has a limit instead: this factor times the
usual limit. A layer rounds the results of its first product, of its second product, and sums of these."""
