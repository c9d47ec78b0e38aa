"""Styles that can't be: a clear error, with the user's line, before anything is sent or changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from tests.nn.feed_forward import Wrapped, feed_forward
from tests.nn.on_ranks import mesh_of
from tests.ops.groups import bad_sites
from tests.runtime.processes import Pool
from tilelink import nn as tnn

TOKENS = Shard(1)


def no_such_plan(g: dist.ProcessGroup) -> None:
    tnn.ColwiseParallel(input_layouts=TOKENS, plan="fastest")


def plan_of_another_operator(g: dist.ProcessGroup) -> None:
    tnn.RowwiseParallel(plan="ring")


def plan_where_nothing_is_gathered(g: dist.ProcessGroup) -> None:
    tnn.SharedColwiseParallel("gate", "up", plan="push")


def no_names(g: dist.ProcessGroup) -> None:
    tnn.SharedColwiseParallel(input_layouts=TOKENS)


def names_in_a_list(g: dist.ProcessGroup) -> None:
    tnn.SharedColwiseParallel(["gate", "up"], input_layouts=TOKENS)  # type: ignore[arg-type]


def applied(g: dist.ProcessGroup, style: ParallelStyle, module: nn.Module | None = None) -> None:
    parallelize_module(module or nn.Linear(8, 7), mesh_of(g), style)


def uneven_with_a_plan(g: dist.ProcessGroup) -> None:
    applied(g, tnn.ColwiseParallel(input_layouts=TOKENS, plan="push"))


def uneven_rows_with_a_plan(g: dist.ProcessGroup) -> None:
    applied(g, tnn.RowwiseParallel(plan="push"), nn.Linear(7, 8))


def embedding_with_a_plan(g: dist.ProcessGroup) -> None:
    applied(g, tnn.RowwiseParallel(output_layouts=TOKENS, plan="ring"), nn.Embedding(8, 8))


def partial_with_a_plan(g: dist.ProcessGroup) -> None:
    tnn.RowwiseParallel(output_layouts=Partial(), plan="push")


def no_such_linear(g: dist.ProcessGroup) -> None:
    applied(g, tnn.SharedColwiseParallel("gate", "down.bias"), feed_forward(g)[1])


def style_of_a_linear(g: dist.ProcessGroup) -> None:
    applied(g, tnn.SharedColwiseParallel("gate", "up"))


def no_such_argument(g: dist.ProcessGroup) -> None:
    applied(g, tnn.SharedColwiseParallel("gate", "up", argument="memory"), feed_forward(g)[1])


def spread_twice(g: dist.ProcessGroup) -> None:
    applied(g, tnn.ColwiseParallel(input_layouts=TOKENS), feed_forward(g)[0].get_submodule("gate"))


def two_dimensions(g: dist.ProcessGroup) -> None:
    mesh = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "tp"), _init_backend=False)
    parallelize_module(nn.Linear(8, 8), mesh, tnn.RowwiseParallel())


def another_input(g: dist.ProcessGroup) -> None:
    parallel, _ = feed_forward(g)
    x = torch.zeros(2, 3, 48)
    parallel.get_submodule("gate")(x)
    parallel.get_submodule("up")(x + 1)


def changed_input(g: dist.ProcessGroup) -> None:
    parallel, _ = feed_forward(g)
    x = torch.zeros(2, 3, 48)
    parallel.get_submodule("gate")(x)
    parallel.get_submodule("up")(x.add_(1))


def hooked(g: dist.ProcessGroup) -> None:
    parallel, _ = feed_forward(g)
    gate, x = parallel.get_submodule("gate"), torch.zeros(2, 3, 48, requires_grad=True)
    gate.register_full_backward_hook(lambda *_: None)
    gate(x)
    parallel.get_submodule("up")(x)


def parts_of_other_lengths(g: dist.ProcessGroup) -> None:
    module = nn.Linear(7, 8)
    applied(g, tnn.RowwiseParallel(), module)
    module(torch.zeros(2, 4 - dist.get_rank(g)))


def no_such_dimension(g: dist.ProcessGroup) -> None:
    module = nn.Linear(8, 8)
    applied(g, tnn.RowwiseParallel(output_layouts=Shard(3)), module)
    module(torch.zeros(2, 3, 4))


def float64_with_a_plan(g: dist.ProcessGroup) -> None:
    module = nn.Linear(8, 8).double()
    applied(g, tnn.ColwiseParallel(input_layouts=Shard(0), plan="pull"), module)
    module(torch.zeros(2, 8, dtype=torch.float64))


def replaced(g: dist.ProcessGroup) -> None:
    parallel, _ = feed_forward(g)
    parallel.up = nn.Linear(48, 96)
    parallel(torch.zeros(2, 3, 48))


def adapted(g: dist.ProcessGroup) -> None:
    parallel, _ = feed_forward(g)
    parallel.gate = Wrapped(parallel.get_submodule("gate"), True)
    parallel(torch.zeros(2, 3, 48))


def other_features(g: dist.ProcessGroup) -> None:
    module = nn.Linear(8, 8)
    applied(g, tnn.RowwiseParallel(output_layouts=Shard(0)), module)
    module(torch.zeros(2, 5))


def no_input(g: dist.ProcessGroup) -> None:
    feed_forward(g)[0].get_submodule("gate")(None)


def features_for_tokens(g: dist.ProcessGroup) -> None:
    module = nn.Linear(8, 8)
    applied(g, tnn.ColwiseParallel(input_layouts=Shard(1)), module)
    module(torch.zeros(3, 8))


def one_row_with_a_plan(g: dist.ProcessGroup) -> None:
    module = nn.Linear(8, 8)
    applied(g, tnn.RowwiseParallel(plan="push"), module)
    module(torch.zeros(4))


BAD = {
    no_such_plan: ("ScheduleError", "plans of all_gather_linear are push"),
    plan_of_another_operator: ("ScheduleError", "plans of linear_all_reduce are"),
    plan_where_nothing_is_gathered: ("ArgumentError", "plan is 'push': nothing is gathered"),
    partial_with_a_plan: ("ArgumentError", "plan is 'push': nothing is summed"),
    no_names: ("ArgumentError", "are named one by one, SharedColwiseParallel('gate', 'up'); given: ()"),
    names_in_a_list: ("ArgumentError", "given: (['gate', 'up'],)"),
    style_of_a_linear: ("ArgumentError", "'gate' is no linear of Linear, which has none"),
    uneven_with_a_plan: ("ShapeError", "out_features is 7, which 2 ranks can't share evenly"),
    uneven_rows_with_a_plan: ("ShapeError", "in_features is 7, which 2 ranks can't share evenly"),
    embedding_with_a_plan: ("ArgumentError", "plan is 'ring' for Embedding(8, 8): only"),
    no_such_linear: ("ArgumentError", "'down.bias' is no linear of FeedForward, which has gate, up, down"),
    no_such_argument: ("ArgumentError", "forward of FeedForward takes (x): there is no memory"),
    spread_twice: ("ArgumentError", "is spread already"),
    two_dimensions: ("ArgumentError", "2 dimensions ('dp', 'tp'); pass one of them, mesh['dp'] or mesh['tp']"),
    another_input: ("ArgumentError", "up is called with another tensor than gate"),
    hooked: ("ArgumentError", "(a backward hook on gate or up also makes another tensor: put the hook on the module)"),
    parts_of_other_lengths: ("ShapeError", "in_features is 7, which 2 ranks can't share evenly, and the input is no D"),
    no_such_dimension: ("ShapeError", "the layout is"),
    changed_input: ("ArgumentError", "up is called with a tensor that was changed since it was given to gate"),
    float64_with_a_plan: ("ArgumentError", "plan is 'pull': no program multiplies a DTensor of torch.float64"),
    replaced: ("ArgumentError", "up of FeedForward is a Linear now"),
    adapted: ("ArgumentError", "gate of FeedForward is a Wrapped now, and was spread as a Linear: replace linears"),
    other_features: ("ShapeError", "weight has shape (8, 4)"),
    no_input: ("ArgumentError", "input is None, not a tensor"),
    features_for_tokens: ("ShapeError", "input_layouts is S(1): an input of shape (3, 8) has its features there"),
    one_row_with_a_plan: ("ShapeError", "at least two dimensions"),
}


@pytest.mark.parametrize("bad", BAD, ids=lambda f: f.__name__)
def test_bad_styles(pool: Pool, bad: Callable[[dist.ProcessGroup], None]) -> None:
    bad_sites(pool, bad, *BAD[bad])
