"""Bad input: a clear error on every rank, with the user's line, before anything is computed; then the group goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import tilelink
import tilelink.ops as ops
from tests.nn.on_ranks import mesh_of
from tests.ops import on_ranks
from tests.ops.groups import bad_sites, on_two
from tests.runtime.processes import Pool
from tilelink.errors import TileLinkError


def zeros(*shape: int, **more: Any) -> torch.Tensor:
    return torch.zeros(shape, **more)


def first(group: dist.ProcessGroup) -> bool:
    return dist.get_rank(group) == 0


# ---- what is bad on all ranks


def other_features(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 5), group=g)


def one_dimension(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(4), zeros(6, 4), group=g)


def no_such_dimension(g: dist.ProcessGroup) -> None:
    ops.linear_reduce_scatter(zeros(2, 4), zeros(6, 4), scatter_dim=2, group=g)


def can_not_be_shared(g: dist.ProcessGroup) -> None:
    ops.linear_reduce_scatter(zeros(3, 4), zeros(6, 4), group=g)


def mixed_dtypes(g: dist.ProcessGroup) -> None:
    ops.linear_reduce_scatter(zeros(2, 4), zeros(6, 4, dtype=torch.float16), group=g)


def integers(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4, dtype=torch.int32), zeros(6, 4, dtype=torch.int32), group=g)


def bias_of_other_length(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), [zeros(6, 4), zeros(5, 4)], [None, zeros(6)], group=g)


def one_bias_for_two(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), [zeros(6, 4), zeros(5, 4)], [zeros(6)], group=g)


def no_weights(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), [], group=g)


def other_device(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4, device="meta"), group=g)


def sparse(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4).to_sparse(), group=g)


def no_such_plan(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 4), plan="fastest", group=g)


def plan_of_another_operator(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), plan="ring", group=g)


def plan_where_there_is_none(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 8), gather_dim=-1, plan="push", group=g)


def no_such_reduction(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), reduce_op="max", group=g)


def too_many_lengths(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 4), lengths=(2, 2, 2), group=g)


def lengths_of_another_tensor(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 4), lengths=(3, 3), group=g)


def too_few_after_the_gather(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 4), gather_dim=-1, group=g)


def a_dtensor(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), DTensor.from_local(zeros(6, 4), mesh_of(g), [Shard(1)]), group=g)


def dtensors(g: dist.ProcessGroup) -> None:
    x, weight = (DTensor.from_local(t, mesh_of(g), [Shard(1)]) for t in (zeros(2, 4), zeros(6, 4)))
    ops.linear_all_reduce(x, weight, group=g)


def a_mesh_of_two_dimensions(g: dist.ProcessGroup) -> None:
    mesh = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("a", "b"), _init_backend=False)
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=mesh)  # type: ignore[arg-type]


def a_mesh_without_names(g: dist.ProcessGroup) -> None:
    mesh = DeviceMesh("cpu", [[0, 1]], _init_backend=False)
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=mesh)  # type: ignore[arg-type]


def no_such_backend(g: dist.ProcessGroup) -> None:
    with on_ranks.computed_by("gpu", g):
        ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=g)


def pieces_of_an_odd_sum(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 5), zeros(6, 5), plan="split", group=g)


def a_lane(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=tilelink.group(g, **on_ranks.LANE))  # type: ignore[arg-type]


def a_layer(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), torch.nn.Linear(4, 6), group=g)  # type: ignore[arg-type]


def no_group(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=[0, 1])  # type: ignore[arg-type]


def no_name_of_a_group(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group="nope")


EVERYWHERE = {
    other_features: ("ShapeError", "x has shape (2, 4), 4 features; weight has shape (6, 5), it takes 5"),
    one_dimension: ("ShapeError", "at least two dimensions"),
    no_such_dimension: ("ShapeError", "scatter_dim=2 is no dimension of x, whose shape is (2, 4)"),
    can_not_be_shared: ("ShapeError", "dimension 0 of x is 3, which 2 ranks can't share evenly: pass lengths="),
    mixed_dtypes: ("DtypeError", "weight is float16, x float32"),
    integers: ("DtypeError", "x is int32; operators take float32, float16, bfloat16"),
    bias_of_other_length: ("ShapeError", "bias 1 has shape (6,); for weight 1 it must be (5,)"),
    one_bias_for_two: ("ArgumentError", "1 biases for 2 weights"),
    no_weights: ("ArgumentError", "no weights"),
    other_device: ("DeviceError", "weight is on meta, x on cpu"),
    sparse: ("ArgumentError", "weight has layout torch.sparse_coo"),
    no_such_plan: ("ScheduleError", "plans of all_gather_linear are push, pull, multicast, engine, pieces, few, split"),
    plan_of_another_operator: ("ScheduleError", "fabric, one_shot, one_shot:push, one_shot:multicast, torch and auto"),
    plan_where_there_is_none: ("ScheduleError", "along the dimension that is summed over has only the plan torch"),
    no_such_reduction: ("ArgumentError", "reduce_op is 'max'; it must be one of sum, avg"),
    too_many_lengths: ("ShapeError", "lengths are (2, 2, 2): 2 are needed"),
    lengths_of_another_tensor: ("ShapeError", "lengths are (3, 3); x has shape (2, 4) on rank"),
    pieces_of_an_odd_sum: ("ShapeError", "K is 5: a sum in 4 pieces needs a multiple of 4"),
    a_lane: ("ArgumentError", "take a group of torch.distributed, the one given to tilelink.group, or its name"),
    a_layer: ("ArgumentError", "weight is a Linear, not a tensor: its tensors are .weight and .bias"),
    no_group: ("ArgumentError", "group is a list: operators take a group of torch.distributed, or its name"),
    no_name_of_a_group: ("ArgumentError", "group is 'nope', no name of a group: it must be one that this process"),
    too_few_after_the_gather: ("ShapeError", "(2, 4), 8 features after the gather; weight has shape (6, 4)"),
    a_dtensor: ("ArgumentError", "a DTensor of shape (6, 8): operators take the rank's part, weight.to_local()"),
    dtensors: ("ArgumentError", "x is a DTensor of shape (2, 8): operators take the rank's part, x.to_local()"),
    a_mesh_of_two_dimensions: ("ArgumentError", "2 dimensions ('a', 'b'); pass one of them, mesh['a'] or mesh['b']"),
    a_mesh_without_names: ("ArgumentError", "2 dimensions: name them, mesh_dim_names=, and pass one of them, mesh[na"),
    no_such_backend: ("ArgumentError", "TILELINK_BACKEND is 'gpu'; it must be one of torch, interpret"),
}


@pytest.mark.parametrize("bad", EVERYWHERE, ids=lambda f: f.__name__)
def test_bad_on_all_ranks(pool: Pool, bad: Any) -> None:
    for site in bad_sites(pool, bad, *EVERYWHERE[bad]):
        assert "ops." in site.text


# ---- what differs between ranks


def longer_on_one(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(3 if first(g) else 2, 4), zeros(6, 4), group=g)


def other_lengths_on_one(g: dist.ProcessGroup) -> None:
    ops.all_gather_linear(zeros(2, 4), zeros(6, 4), lengths=(2, 3 if first(g) else 2), group=g)


def longer_and_wider_on_one(g: dist.ProcessGroup) -> None:
    more = first(g)
    ops.all_gather_linear(zeros(2 + more, 4 + more), zeros(6, 4 + more), group=g)


def other_sizes_on_one(g: dist.ProcessGroup) -> None:
    ops.linear_reduce_scatter(zeros(2, 4), zeros(6 if first(g) else 8, 4), group=g)


def other_operator_on_one(g: dist.ProcessGroup) -> None:
    (ops.linear_all_reduce if first(g) else ops.linear_reduce_scatter)(zeros(2, 4), zeros(6, 4), group=g)


def other_backend_on_one(g: dist.ProcessGroup) -> None:
    with on_ranks.computed_by("torch", g):
        if first(g):
            on_ranks.os.environ["TILELINK_BACKEND"] = "interpret"
        ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=g)


DIFFERENT = {
    longer_on_one: "x has 2 along dimension 0 on rank 1, and 3 on rank 0; pass lengths=(3, 2) on every rank, or a DT",
    other_lengths_on_one: "rank 1 has lengths (2, 2), rank 0 (2, 3); pass the same lengths= on every rank",
    longer_and_wider_on_one: "has shapes {'x': (-1, 4), 'lengths': (2, 2), 'weight': (6, 4)}, rank 0 {'x': (-1, 5),",
    other_sizes_on_one: "has shapes {'weight': (8, 4)}, rank 0 {'weight': (6, 4)}",
    other_operator_on_one: "has operator linear_reduce_scatter, rank 0 linear_all_reduce",
    other_backend_on_one: "has computed by tilelink.ops.plain, rank 0 tilelink.ops.programs",
}


@pytest.mark.parametrize("bad", DIFFERENT, ids=lambda f: f.__name__)
def test_different_on_one_rank(pool: Pool, bad: Any) -> None:
    for kind, message, _ in on_two(pool, on_ranks.raised, bad):
        assert kind == "RankMismatchError" and DIFFERENT[bad] in message


def bad_on_one(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 5 if first(g) else 4), group=g)


def meta_on_one(g: dist.ProcessGroup) -> None:
    ops.linear_all_reduce(zeros(2, 4), zeros(6, 4, device="meta" if first(g) else "cpu"), group=g)


@pytest.mark.parametrize(
    "bad, kind, said", [(bad_on_one, "ShapeError", "x has shape"), (meta_on_one, "DeviceError", "weight is on")]
)
def test_bad_on_one_rank(pool: Pool, bad: Any, kind: str, said: str) -> None:
    own, other = on_two(pool, on_ranks.raised, bad)
    assert own[0] == kind
    assert other[0] == "RankFailedError" and f"rank 0 raised {kind}: {said}" in other[1]


TYPES: list[tuple[Any, dict[str, Any], str]] = [
    (ops.all_gather_linear, {"gather_dim": 0.0}, "gather_dim is 0.0; it must be an integer"),
    (ops.all_gather_linear, {"gather_dim": 10**30}, "it must be an integer"),
    (ops.all_gather_linear, {"lengths": (2.0, 2.0)}, "lengths is (2.0, 2.0); it must be a sequence of integers"),
    (ops.all_gather_linear, {"lengths": 4}, "lengths is 4; it must be a sequence of integers"),
    (ops.all_gather_linear, {"weights": None}, "weights is None, not a tensor"),
    (ops.all_gather_linear, {"weights": [torch.zeros(6, 4), None]}, "weights is None, not a tensor"),
    (ops.all_gather_linear, {"return_gathered": 1}, "return_gathered is 1; it must be True or False"),
    (ops.linear_reduce_scatter, {"weight": [torch.zeros(6, 4)]}, "weight is a list, not a tensor"),
    (ops.linear_reduce_scatter, {"scatter_dim": True}, "scatter_dim is True; it must be an integer"),
    (ops.linear_all_reduce, {"x": None}, "x is None, not a tensor"),
    (ops.linear_all_reduce, {"plan": 3}, "plan is 3; it must be a string"),
    (ops.linear_all_reduce, {"reduce_op": None}, "reduce_op is None; it must be a string"),
]


def called(operator: Any, given: dict[str, Any], group: dist.ProcessGroup) -> None:
    operator(**given, group=group)


def types_on_one(g: dist.ProcessGroup) -> list[tuple[str, str]]:
    """What a rank raises of each, where the first rank has an argument of a wrong type."""
    found = []
    for operator, bad, _ in TYPES:
        weight = "weights" if operator is ops.all_gather_linear else "weight"
        given = {"x": torch.zeros(2, 4), weight: torch.zeros(6, 4)} | (bad if first(g) else {})
        found.append(on_ranks.raised(g, partial(called, operator, given))[:2])
    return found


def test_a_wrong_type_on_one_rank(pool: Pool) -> None:
    """Torch would raise of it before the ranks have met."""
    own, other = on_two(pool, types_on_one)
    for (_, _, said), (kind, message), (theirs, told) in zip(TYPES, own, other, strict=True):
        assert kind == "ArgumentError" and said in message
        assert theirs == "RankFailedError" and f"rank 0 raised ArgumentError: {message}" in told


def test_not_a_member(pool: Pool) -> None:
    for kind, message, _ in pool.results(as_another)[2:]:
        assert kind == "RankError" and "only its members call operators" in message


def as_another() -> Any:
    g = on_ranks.members(0, 1)
    return on_ranks.raised(g, other_features) if dist.get_rank() < 2 else outside(g)


def outside(g: Any) -> tuple[str, str, Any]:
    try:
        ops.linear_all_reduce(zeros(2, 4), zeros(6, 4), group=g)
    except TileLinkError as e:
        return type(e).__name__, e.message, e.site
    return "nothing", "", None
