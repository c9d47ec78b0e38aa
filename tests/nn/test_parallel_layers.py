"""Layers in Megatron's way, against layers that are whole on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.nn.on_ranks import Part, errors, far, mesh_of, nothing, step
from tests.ops.groups import GROUPS, assert_right, bad_sites, on_two
from tests.ops.on_ranks import computed_by, raised, unsaid
from tests.parameters import first_of
from tests.runtime.processes import Pool
from tilelink.nn import ColumnParallelLinear, RowParallelLinear

WIDTH, SIZES = 10, (24, 24, 48)


class Whole(nn.Module):
    """Three layers on one input, a fourth on what they give."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(WIDTH, n, bias) for n in SIZES)
        self.last = nn.Linear(72, WIDTH, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(joined([layer(x) for layer in self.first]))


def joined(outs: Sequence[torch.Tensor]) -> torch.Tensor:
    """In which features stay with their rank, whatever part of them there is."""
    a, b, c = outs
    c, d = c.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a.sigmoid() * b, c, d], -1).flatten(-2)


class Parallel(nn.Module):
    def __init__(self, whole: Whole, **options: Any) -> None:
        super().__init__()
        dim, lengths = options.pop("dim"), options.pop("lengths", None)
        self.first = ColumnParallelLinear.from_linear(list(whole.first), gather_dim=dim, **options)
        self.last = RowParallelLinear.from_linear(whole.last, scatter_dim=dim, **options)
        self.lengths = lengths

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(joined(self.first(x, lengths=self.lengths)), lengths=self.lengths)


def as_parts(group: dist.ProcessGroup, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a rank has of the parameters and gradients of a whole module, under the names of a parallel one."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    parts: dict[str, list[torch.Tensor]] = {}
    for name, t in found.items():
        kind, _, parameter = name.rpartition("first.")
        if kind:
            parts.setdefault(f"{kind}first.{parameter.partition('.')[2]}", []).append(t.chunk(world)[rank])
        else:
            parts[name] = [t.chunk(world, 1)[rank] if name.endswith("last.weight") else t]
    return {name: torch.cat(t) for name, t in parts.items()}


def step_wrong(group: dist.ProcessGroup, bias: bool, backend: str = "torch", **options: Any) -> list[str]:
    """What is wrong of two steps. `options`: of the layers; dim, and lengths of all ranks."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    torch.manual_seed(0)
    whole, wrong = Whole(bias), []
    parallel = Parallel(whole, group=group, **options)
    lengths, part = options.get("lengths"), nothing
    if options["sequence_parallel"]:
        part = _parts(options["dim"], rank, lengths or [2] * world)
    with computed_by(backend, group):
        for _ in range(2):
            shape = [3, 3, WIDTH]
            shape[options["dim"]] = sum(lengths or [2] * world)
            x = torch.randn(shape)
            wrong += errors(step(parallel, part(x)), as_parts(group, step(whole, x)), part)
    return wrong


def _parts(dim: int, rank: int, lengths: Sequence[int]) -> Part:
    return lambda t: t.split(list(lengths), dim)[rank]


def steps_wrong(group: dist.ProcessGroup) -> list[str]:
    """With and without sequence parallelism and biases, along both dimensions, in parts of other lengths."""
    uneven = [5, 0, 3, 1][: dist.get_world_size(group)]
    cases: list[dict[str, Any]] = [{"dim": 0}, {"dim": 1}, {"dim": 1, "lengths": uneven}]
    wrong = [e for case in cases for e in step_wrong(group, True, sequence_parallel=True, **case)]
    wrong += step_wrong(group, False, sequence_parallel=True, dim=0, plan="torch")
    whole = [(True, None), (False, "torch"), (True, "auto")]
    return wrong + [e for b, plan in whole for e in step_wrong(group, b, sequence_parallel=False, dim=0, plan=plan)]


def by_programs(group: dist.ProcessGroup, sequence_parallel: bool) -> list[str]:
    return step_wrong(group, True, "interpret", sequence_parallel=sequence_parallel, dim=0)


def is_changed_in_place(group: dist.ProcessGroup, sequence_parallel: bool) -> bool:
    """Whether a result may be changed in place, and gradients are those of one that is not."""
    layer = ColumnParallelLinear(WIDTH, 6, group=group, sequence_parallel=sequence_parallel)
    x = torch.randn(2, 3, WIDTH)
    found = []
    for in_place in (True, False):
        layer.zero_grad()
        F.relu(layer(x), inplace=in_place).square().sum().backward()
        found.append([p.grad.clone() for p in layer.parameters() if p.grad is not None])
    return len(found[0]) == 2 and all(map(torch.equal, *found))


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_results_may_be_changed_in_place(pool: Pool, sequence_parallel: bool) -> None:
    assert on_two(pool, is_changed_in_place, sequence_parallel) == [True] * 2


@pytest.mark.parametrize("groups", first_of([[(1, 2, 3)], GROUPS]), ids=["of three", "of all sizes"])
def test_layers_are_those_of_one_rank(pool: Pool, groups: list[tuple[int, ...]]) -> None:
    assert_right(pool, groups, steps_wrong)


@pytest.mark.verify
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_layers_by_programs(pool: Pool, sequence_parallel: bool) -> None:
    assert_right(pool, [(0, 1)], by_programs, sequence_parallel)


@pytest.mark.verify
def test_eight_ranks() -> None:
    pool = Pool(8)
    try:
        assert_right(pool, [tuple(range(8))], step_wrong_of_eight)
    finally:
        pool.close()


def step_wrong_of_eight(group: dist.ProcessGroup) -> list[str]:
    return [e for s in (True, False) for e in step_wrong(group, True, sequence_parallel=s, dim=0)]


def new_layers(group: dist.ProcessGroup) -> list[str]:
    """What differs between new layers and new ones of torch with the same seed, cut; and after a round trip by a
    state_dict, to meta tensors and back."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    wrong = []
    for cls, sizes, dim in ((ColumnParallelLinear, (6, 5 * world), 0), (RowParallelLinear, (6 * world, 5), 1)):
        torch.manual_seed(7)
        layer = cls(*sizes, group=group)
        torch.manual_seed(7)
        whole = nn.Linear(*sizes)
        own_bias = whole.bias.chunk(world)[rank] if dim == 0 else whole.bias
        if not torch.equal(layer.weight, whole.weight.chunk(world, dim)[rank]) or not torch.equal(layer.bias, own_bias):
            wrong.append(f"{layer} has other values")
        empty = cls(*sizes, group=mesh_of(group), device="meta", dtype=torch.float32)
        empty.load_state_dict(layer.state_dict(), assign=True)
        if list(layer.state_dict()) != ["weight", "bias"] or not torch.equal(empty.weight, layer.weight):
            wrong.append(f"{layer} does not come back")
        frozen = nn.Linear(*sizes, dtype=torch.bfloat16).requires_grad_(False)
        cut = cls.from_linear(frozen, group=group)
        if cut.weight.requires_grad or cut.weight.dtype != torch.bfloat16 or cut.weight.is_meta:
            wrong.append(f"{cut} is not as the layer it was cut from")
    return wrong


def test_new_layers_have_values_of_linear_layers(pool: Pool) -> None:
    assert_right(pool, [(2,), (1, 2, 3)], new_layers)


def aliases(group: dist.ProcessGroup) -> list[str]:
    """Results of one rank that share memory with what goes in."""
    x, found = torch.randn(3, 4), []
    for layer in (ColumnParallelLinear(4, 4, False, group=group), RowParallelLinear(4, 4, False, group=group)):
        for sequence_parallel in (True, False):
            layer = type(layer)(4, 4, False, sequence_parallel=sequence_parallel, group=group)
            y = layer(x)
            given = [t.untyped_storage().data_ptr() for t in (x, layer.weight)]
            found += [str(layer)] * (y.untyped_storage().data_ptr() in given)
    return found


def test_results_of_one_rank_alias_nothing(pool: Pool) -> None:
    assert_right(pool, [(2,)], aliases)


def opchecked(group: dist.ProcessGroup) -> list[str]:
    torch.library.opcheck(torch.ops.tilelink.sum_over_ranks.default, (torch.randn(3, 4), group.group_name))
    return []


def test_opcheck(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], opchecked)


def compiled(group: dist.ProcessGroup, sequence_parallel: bool, backend: str) -> list[str]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = Whole(True)
    parallel = Parallel(whole, group=group, sequence_parallel=sequence_parallel, dim=0)
    fast = torch.compile(parallel, backend=backend, fullgraph=True)
    x = torch.randn(4, WIDTH)
    world = dist.get_world_size(group)
    part = _parts(0, dist.get_rank(group), [4 // world] * world) if sequence_parallel else nothing
    return errors(step(fast, part(x)), as_parts(group, step(whole, x)), part)


@pytest.mark.parametrize(
    "group, backend", [((2,), "eager"), pytest.param((0, 1), "aot_eager", marks=pytest.mark.verify)]
)
def test_compiled_without_a_break(pool: Pool, group: tuple[int, ...], backend: str) -> None:
    for sequence_parallel in (True, False):
        assert_right(pool, [group], compiled, sequence_parallel, backend)


def inside_autocast(group: dist.ProcessGroup) -> list[str]:
    """Where the dtype of a result or gradient is another than that of a linear layer in autocast."""
    wrong = []
    for sequence_parallel in (True, False):
        torch.manual_seed(0)
        whole = Whole(True)
        parallel = Parallel(whole, group=group, sequence_parallel=sequence_parallel, dim=0)
        x, part = torch.randn(4, WIDTH), _parts(0, dist.get_rank(group), [2, 2]) if sequence_parallel else nothing
        found = step(parallel, part(x), autocast=True)
        dtypes = {n: t.dtype for n, t in found.items() if t.dtype != torch.float32}
        wrong += [] if dtypes == {"result": torch.bfloat16} else [str(dtypes)]
        wrong += errors(found, as_parts(group, step(whole, x)), part, limit=1e-2)
    return wrong


def test_autocast_holds_as_for_linear_layers(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], inside_autocast)


# ---- errors


def uneven_columns(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear(4, [4, 5], group=g)


def uneven_rows(g: dist.ProcessGroup) -> None:
    RowParallelLinear(5, 4, group=g)


def plan_where_nothing_is_gathered(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear(4, 4, plan="push", group=g)


def plan_of_another_operator(g: dist.ProcessGroup) -> None:
    RowParallelLinear(4, 4, sequence_parallel=True, plan="one_shot", group=g)


def other_widths(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear.from_linear([nn.Linear(4, 6), nn.Linear(5, 6)], group=g)


def biases_of_some(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear.from_linear([nn.Linear(4, 6), nn.Linear(4, 6, bias=False)], group=g)


def dtypes_of_some(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear.from_linear([nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False).half()], group=g)


def frozen_some(g: dist.ProcessGroup) -> None:
    frozen = nn.Linear(4, 6, bias=False).requires_grad_(False)
    ColumnParallelLinear.from_linear([frozen, nn.Linear(4, 6, bias=False)], group=g)


def no_layers(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear.from_linear([], group=g)


def lengths_where_tokens_are_whole(g: dist.ProcessGroup) -> None:
    RowParallelLinear(4, 4, group=g)(torch.zeros(3, 2), lengths=(1, 2))


def other_features(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear(4, 4, group=g)(torch.zeros(3, 5))


def one_dimension(g: dist.ProcessGroup) -> None:
    ColumnParallelLinear(4, 4, group=g)(torch.zeros(4))


def tokens_that_can_not_be_shared(g: dist.ProcessGroup) -> None:
    RowParallelLinear(4, 4, sequence_parallel=True, group=g)(torch.zeros(3, 2))


BAD = {
    uneven_columns: ("ShapeError", "out_features is 5, which 2 ranks can't share evenly"),
    uneven_rows: ("ShapeError", "in_features is 5, which 2 ranks can't share evenly"),
    plan_where_nothing_is_gathered: ("ArgumentError", "nothing is gathered where every rank has all of the input"),
    plan_of_another_operator: ("ScheduleError", "plan is 'one_shot'; plans of linear_reduce_scatter are"),
    other_widths: ("ArgumentError", "one width, and all a bias or none; these are Linear(in_features=4"),
    biases_of_some: ("ArgumentError", "one width, and all a bias or none; these are Linear(in_features=4"),
    dtypes_of_some: ("ArgumentError", "must have one dtype; these have weight float32; weight float16"),
    frozen_some: ("ArgumentError", "or all none; these have weight requires_grad=False; weight requires_grad=True"),
    no_layers: ("ArgumentError", "one width, and all a bias or none; these are none"),
    lengths_where_tokens_are_whole: ("ArgumentError", "lengths= needs sequence_parallel=True; without it, every rank"),
    other_features: ("ShapeError", "features; weight has shape (2, 4), it takes 4"),
    one_dimension: ("ShapeError", "at least two dimensions"),
    tokens_that_can_not_be_shared: ("ShapeError", "dimension 0 of x is 3, which 2 ranks can't share evenly"),
}


@pytest.mark.parametrize("bad", BAD, ids=lambda f: f.__name__)
def test_bad_layers(pool: Pool, bad: Callable[[dist.ProcessGroup], None]) -> None:
    bad_sites(pool, bad, *BAD[bad])


def other_features_on_one(g: dist.ProcessGroup) -> None:
    column, row = ColumnParallelLinear(4, 4, group=g), RowParallelLinear(4, 4, group=g)
    row(column(torch.zeros(3, 4 + dist.get_rank(g))))


def test_an_error_of_a_layer_that_sends_nothing_reaches_the_other_ranks(pool: Pool) -> None:
    (kind, said, _), (own, meant, _) = on_two(pool, raised, other_features_on_one)
    assert (kind, own) == ("RankFailedError", "ShapeError") and meant.split(": ")[-1] in said


def layers_that_cannot_be(group: dist.ProcessGroup) -> list[str]:
    column, row = (partial(c, group=group) for c in (ColumnParallelLinear, RowParallelLinear))
    of = partial(ColumnParallelLinear.from_linear, group=group)
    integer, takes = "it must be an integer", "operators take float32, float16, bfloat16"
    linears, one = "it takes an nn.Linear, or a list of them", "it takes one nn.Linear"
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: column(16, -4), f"ArgumentError: out_features=-4; {integer}, 0 or more"),
        (lambda: column(-16, 2), f"ArgumentError: in_features=-16; {integer}"),
        (lambda: column(16, [2, -2]), f"ArgumentError: out_features=-2; {integer}"),
        (lambda: column(16.0, 2), f"ArgumentError: in_features=16.0; {integer}"),
        (lambda: column("16", 2), f"ArgumentError: in_features='16'; {integer}"),
        (lambda: column(16, None), f"ArgumentError: out_features=None; {integer}"),
        (lambda: column(16, "2"), f"ArgumentError: out_features='2'; {integer}"),
        (lambda: column(16, True), f"ArgumentError: out_features=True; {integer}"),
        (lambda: column(16, []), "ArgumentError: out_features=[]: at least one is needed"),
        (lambda: row(-2, 4), f"ArgumentError: in_features=-2; {integer}"),
        (lambda: row(2, -4), f"ArgumentError: out_features=-4; {integer}"),
        (lambda: row(2, 4.0), f"ArgumentError: out_features=4.0; {integer}"),
        (lambda: row(2, [4]), f"ArgumentError: out_features=[4]; {integer}"),
        (lambda: row(2, 4, scatter_dim="a", sequence_parallel=True), f"ArgumentError: scatter_dim is 'a'; {integer}"),
        (lambda: column(2, 4, gather_dim=0.0), f"ArgumentError: gather_dim is 0.0; {integer}"),
        (lambda: column(16, 2, dtype=torch.float64), f"DtypeError: dtype is float64; {takes}"),
        (lambda: row(16, 2, dtype=torch.int32), f"DtypeError: dtype is int32; {takes}"),
        (lambda: column(16, 2, dtype="x"), f"DtypeError: dtype is 'x'; {takes}"),
        (lambda: of("x"), f"ArgumentError: from_linear is given a str; {linears}"),
        (lambda: of([nn.Linear(4, 4), 3]), f"ArgumentError: from_linear is given a int; {linears}"),
        (lambda: of(3), f"ArgumentError: from_linear is given a int; {linears}"),
        (lambda: of(torch.zeros(8, 4)), f"ArgumentError: from_linear is given a Tensor of shape (8, 4); {linears}"),
        (lambda: RowParallelLinear.from_linear(None), f"ArgumentError: from_linear is given a NoneType; {one}"),
        (lambda: RowParallelLinear.from_linear([column]), f"ArgumentError: from_linear is given a list; {one}"),
        (lambda: ColumnParallelLinear(16, 2, group="nope"), "ArgumentError: group is 'nope', no name of a group"),
    ]  # fmt: skip
    return [wrong for call, said in bad for wrong in unsaid(call, said)]


def test_layers_of_sizes_and_types_that_cannot_be(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], layers_that_cannot_be)


def sizes_of_numpy(group: dist.ProcessGroup) -> list[str]:
    layers = [cls(np.int64(4), np.int64(6), group=group) for cls in (ColumnParallelLinear, RowParallelLinear)]
    return [str(layer) for layer in layers if type(layer(torch.zeros(1, layer.weight.shape[1]))) is not torch.Tensor]


def test_sizes_may_be_integers_of_numpy(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], sizes_of_numpy)


def test_wrong_numbers_are_noticed() -> None:
    right = {"result": torch.ones(4), "gradient of x": torch.ones(4), "gradient of w": torch.ones(4)}
    assert errors(right, right, nothing) == []
    assert errors(right | {"gradient of w": torch.tensor([1.0, 1.0, 1.0, 1.001])}, right, nothing)
    assert errors(right | {"result": torch.full((4,), torch.nan)}, right, nothing)
    assert far(torch.ones(3), torch.ones(4)) == float("inf")
