"""What the processes of a pool do in tests of operators; the functions here run on every rank."""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import tilelink.nn as nn
import tilelink.ops as ops
from tests.ops import sharded
from tests.ops.sharded import GATHER, Call
from tests.runtime.processes import members
from tilelink.errors import ArgumentError, NeverEnteredError, TileLinkError
from tilelink.ops import collectives
from tilelink.ops.programs import Programs
from tilelink.plans.names import TORCH, plans
from tilelink.programs.program import Program

LANE = {"heap_bytes": 1 << 20, "signal_bytes": 16 << 10, "sms": 20}
"""Options of a lane that is made quickly."""


def on_groups(groups: Sequence[tuple[int, ...]], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(group, *arguments)` on the members of each group; all ranks of the pool make the groups."""
    made = [members(*ranks) for ranks in groups]
    mine = dist.get_rank()
    return [function(g, *arguments) for g, ranks in zip(made, groups, strict=True) if mine in ranks]


@contextmanager
def computed_by(backend: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Inside, operators run on the CPU as TILELINK_BACKEND says."""
    os.environ["TILELINK_BACKEND"] = backend
    try:
        if backend == "interpret" and group not in _with_lane:
            ops.lane(group, **LANE)
            _with_lane.add(group)
        yield
    finally:
        del os.environ["TILELINK_BACKEND"]


_with_lane: set[dist.ProcessGroup] = set()


def unsaid(call: Callable[[], object], said: str) -> list[str]:
    """What is wrong with the error of a bad call, which begins with these words: nothing, if all is well."""
    try:
        call()
    except TileLinkError as e:
        text = f"{type(e).__name__}: {e.message}"
        return [] if text.startswith(said) else [text]
    return [f"nothing is said: {said}"]


def made(group: dist.ProcessGroup, call: Call, plan: str | None = None) -> dict[str, torch.Tensor]:
    """Results and gradients of a call on this rank."""
    return call.on(dist.get_rank(group), dist.get_world_size(group), group, plan)


Calls = Sequence[Call] | Callable[[int], Sequence[Call]]


def wrong(group: dist.ProcessGroup, calls: Calls, backend: str, plan: str | None = None) -> list[str]:
    """What is wrong of calls (or of those for the group's world)."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    with computed_by(backend, group):
        return [
            e
            for call in (calls(world) if callable(calls) else calls)
            for e in call.errors(made(group, call, plan), rank, world)
        ]


def twice(group: dist.ProcessGroup, calls: Sequence[Call], backend: str) -> tuple[bool, list[torch.Tensor]]:
    """Whether two calls give the same bits; and the results of the first that all ranks share."""
    with computed_by(backend, group):
        first, second = ([made(group, c) for c in calls] for _ in range(2))
    same = all(torch.equal(a[k], b[k]) for a, b in zip(first, second, strict=True) for k in a)
    shared = [y for found in first for k, y in found.items() if k in ("gathered", "out")]
    return same, [y for y, c in zip(shared, calls, strict=True) if c.operator != "linear_reduce_scatter"]


def by_old_names(group: dist.ProcessGroup, calls: Calls) -> list[str]:
    """As `wrong`, with the names that torch 2.11 has for collectives."""
    now = collectives.all_gather, collectives.reduce_scatter
    collectives.all_gather, collectives.reduce_scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
    try:
        return wrong(group, calls, "torch")
    finally:
        collectives.all_gather, collectives.reduce_scatter = now


def in_several_groups(calls: Sequence[Call]) -> list[str]:
    """Calls in turns on groups that overlap: pairs, then everybody."""
    rank = dist.get_rank()
    pairs = [members(0, 1), members(2, 3)]
    groups = [pairs[rank // 2], members(0, 1, 2, 3)]
    return [e for call in calls for g in groups for e in wrong(g, [call], "torch") + wrong(g, [call], "interpret")]


def raised(group: dist.ProcessGroup, function: Callable[[dist.ProcessGroup], Any]) -> tuple[str, str, Any]:
    """The error that a bad call raises here: its class, its text, its site; then a good call has to be right."""
    found = ("nothing", "", None)
    try:
        function(group)
    except TileLinkError as e:
        found = (type(e).__name__, e.message, e.site)
    assert not wrong(group, [Call("linear_all_reduce", (3, 4))], "torch")
    return found


def prepared(group: dist.ProcessGroup) -> tuple[int, int, list[str]]:
    """How many programs `prepare` launches, how many a call with its gradients has to prepare after it, and what is
    wrong of that."""
    call = Call("linear_reduce_scatter", (6, 16), (20,), bias=True, seed=7)
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    given = call.operands(world)[rank]
    tensors = [t.requires_grad_() for t in (given["x"], given["weights"][0], given["biases"][0])]
    with computed_by("interpret", group):
        runs = ops.lane(group).runs
        ops.prepare(ops.linear_reduce_scatter, *tensors, group=group)
        launched, before = ops.lane(group).runs - runs, len(ops.lane(group).lane.prepared)
        found = made(group, call)
        return launched, len(ops.lane(group).lane.prepared) - before, call.errors(found, rank, world)


@contextmanager
def noted() -> Iterator[list[tuple[Program, dict[str, Any]]]]:
    """What operators run inside: programs with their options."""
    run, runs = Programs._run, list[tuple[Program, dict[str, Any]]]()

    def also_noted(path: Programs, program: Program, *arguments: Any, **options: Any) -> None:
        runs.append((program, options))
        run(path, program, *arguments, **options)

    Programs._run = also_noted  # type: ignore[method-assign]
    try:
        yield runs
    finally:
        Programs._run = run  # type: ignore[method-assign]


def sent_in(group: dist.ProcessGroup, calls: Sequence[Call]) -> tuple[set[torch.dtype], list[str]]:
    """The dtypes of what programs make from partial sums, which travel in the same; and what is wrong of the calls."""
    with noted() as runs:
        errors = wrong(group, calls, "interpret")
    return {options["out"].dtype for _, options in runs if isinstance(options.get("out"), torch.Tensor)}, errors


def programs_of_what_is_kept(group: dist.ProcessGroup) -> tuple[list[str], list[str]]:
    """The programs that a call launches which keeps the gathered x, and its gradient; and what is wrong of the call."""
    call = Call("all_gather_linear", (10, 16), (20, 8), dim=0, bias=True, keep=True)
    given = call.operands(dist.get_world_size(group))[dist.get_rank(group)]
    tensors = [given["x"].requires_grad_(), *(w.requires_grad_() for w in given["weights"])]
    with computed_by("interpret", group), noted() as runs:
        _, outs = ops.all_gather_linear(tensors[0], tensors[1:], return_gathered=True, group=group)
        torch.autograd.grad([y.sum() for y in outs], tensors)
    return [program.name for program, _ in runs], wrong(group, [call], "interpret")


def inside_autocast(group: dist.ProcessGroup, backend: str) -> list[str]:
    """What is wrong of calls inside torch.autocast, whose tensors are of two dtypes."""
    x = torch.randn(6, 16, requires_grad=True)
    weight, bias = torch.randn(20, 16, requires_grad=True), torch.randn(20)
    errors = []
    for operator in (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce):
        with computed_by(backend, group):
            with torch.autocast("cpu", torch.bfloat16):
                out = operator(x.half(), weight, bias, group=group)
            right = operator(*(t.detach().bfloat16() for t in (x.half(), weight, bias)), group=group)
            found = torch.autograd.grad(out.float().sum(), (x, weight))
        if out.dtype != torch.bfloat16 or not torch.equal(out, right):
            errors.append(f"{operator.__name__}: {out.dtype}")
        errors += [f"{operator.__name__}: gradient of {g.dtype}" for g in found if g.dtype != torch.float32]
    return errors


def wrong_by_plans(group: dist.ProcessGroup, number: int, seed: int) -> list[str]:
    """What is wrong of random calls by programs, each by a plan that is drawn, too."""
    dice, errors = random.Random(seed), []
    for call in sharded.calls(dist.get_world_size(group), number, seed):
        last = call.operator == GATHER and call.dim in (-1, len(call.shape) - 1)
        fits = [p for p in plans(call.operator) if p != "split" or not call.shape[-1] % 4]
        plan = dice.choice([None, TORCH] if last else [None, TORCH, *fits])
        errors += [f"{plan}: {e}" for e in wrong(group, [call], "interpret", plan)]
    return errors


def planned(group: dist.ProcessGroup, calls: Sequence[Call], by: Sequence[str]) -> list[str]:
    """The first program that each call by a plan runs, and its schedule; and what is wrong of it."""
    found = []
    for call, plan in zip(calls, by, strict=True):
        with noted() as runs:
            errors = wrong(group, [call], "interpret", plan)
        program, options = runs[0]
        found.append(" ".join([program.name, str(options.get("schedule")), *errors]))
    return found


def prepared_to_keep(group: dist.ProcessGroup) -> tuple[int, int, list[str]]:
    """As `prepared`, of a call that returns the gathered x, too: its gradient goes by a collective of torch."""
    call = Call("all_gather_linear", (6, 16), (28,), keep=True, seed=8)
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    given = call.operands(world)[rank]
    tensors = given["x"].requires_grad_(), given["weights"][0].requires_grad_()
    with computed_by("interpret", group):
        runs = ops.lane(group).runs
        ops.prepare(ops.all_gather_linear, *tensors, return_gathered=True, group=group)
        launched, before = ops.lane(group).runs - runs, len(ops.lane(group).lane.prepared)
        found = made(group, call)
        return launched, len(ops.lane(group).lane.prepared) - before, call.errors(found, rank, world)


# ---- operators as torch sees them


def mlp(group: dist.ProcessGroup, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A feed-forward layer with sequence parallelism, then an all-reduce."""
    gate, up, down = weights
    a, b = ops.all_gather_linear(x, [gate, up], gather_dim=1, group=group)
    y = ops.linear_reduce_scatter(torch.nn.functional.silu(a) * b, down, scatter_dim=1, group=group)
    return y + ops.linear_all_reduce(y, down @ up, group=group)


def new_counter(backend: str = "aot_eager") -> Any:
    """Returns a backend of torch.compile that counts what it compiles. Torch forgets what it compiled before."""
    from torch._dynamo.testing import CompileCounterWithBackend  # takes long

    torch._dynamo.reset()
    return CompileCounterWithBackend(backend)


def compiled(group: dist.ProcessGroup, backend: str, tokens: Sequence[int], by: str) -> tuple[int, list[float]]:
    """How often a function is compiled for these numbers of tokens; how far from eager results and gradients are."""
    counter = new_counter(backend)
    function = torch.compile(partial(mlp, group), backend=counter, fullgraph=True)
    numbers = torch.Generator().manual_seed(dist.get_rank(group))
    weights = [torch.randn(s, generator=numbers).requires_grad_() for s in ((10, 8), (10, 8), (8, 10))]
    far = []
    for n in tokens:
        x = torch.randn(2, n, 8, generator=numbers).requires_grad_()
        torch._dynamo.mark_dynamic(x, 1)
        found = []
        for f, backend in ((function, by), (partial(mlp, group), "torch")):
            with computed_by(backend, group):
                y = f(x, *weights)
                found.append([y.detach(), *torch.autograd.grad((y * y).sum(), [x, *weights])])
        far += [float((a - b).norm() / b.norm()) for a, b in zip(*found, strict=True)]
    return counter.frame_count, far


def compiled_alone(group: dist.ProcessGroup) -> bool:
    """Whether Inductor leaves an operator as it is, in a graph without a break."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        return ops.linear_all_reduce(x, weight, group=group)

    torch._dynamo.reset()
    x, weight = torch.randn(3, 8), torch.randn(6, 8)
    return torch.equal(torch.compile(layer, backend="inductor", fullgraph=True)(x), layer(x))


def second_gradients(group: dist.ProcessGroup) -> list[str]:
    """What comes of gradients of gradients, by operator and by layers: of the weight, of x, which torch may compute
    without the terms of an operator, and in a backward."""
    column, row = nn.ColumnParallelLinear(4, 6, group=group), nn.RowParallelLinear(6, 4, group=group)

    def layers(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return row(column(x @ weight.T @ weight).tanh())  # type: ignore[no-any-return]

    found = []
    for function in (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce, layers):
        for again in (
            lambda grad, x, weight: torch.autograd.grad(grad.square().sum(), weight),
            lambda grad, x, weight: torch.autograd.grad(grad.square().sum(), x),
            lambda grad, x, weight: grad.square().sum().backward(),
        ):
            x, weight = torch.randn(4, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
            (grad,) = torch.autograd.grad(function(x, weight, group=group).square().sum(), x, create_graph=True)
            try:
                again(grad, x, weight)
                found.append("computed")
            except ArgumentError as e:
                found.append(str(e))
    return found


def changed_in_place(group: dist.ProcessGroup) -> list[bool]:
    """Whether the gradient is right where a result is changed in place, by operator."""
    right = []
    for operator in (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce):
        x, weight = torch.randn(4, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
        (changed,) = torch.autograd.grad(operator(x, weight, group=group).relu_().sum(), weight)
        (anew,) = torch.autograd.grad(operator(x, weight, group=group).relu().sum(), weight)
        right.append(torch.equal(changed, anew))
    return right


def tangents(group: dist.ProcessGroup) -> list[str]:
    """What comes of forward-mode differentiation, by operator."""
    found = []
    for operator in (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce):
        x, weight = torch.randn(4, 4), torch.randn(6, 4)
        try:
            torch.func.jvp(lambda x, call=operator, weight=weight: call(x, weight, group=group), (x,), (x,))
            found.append("computed")
        except ArgumentError as e:
            found.append(str(e))
    return found


def differentiated_by_func(group: dist.ProcessGroup) -> list[str]:
    """What comes of `torch.func.grad`, by operator, by a layer, and where a batch is inside of the gradient."""
    column, weight, found = nn.ColumnParallelLinear(4, 6, bias=False, group=group), torch.randn(6, 4), []
    operators = [partial(f, group=group) for f in (ops.all_gather_linear, ops.linear_reduce_scatter)]
    calls: list[Callable[[torch.Tensor], Any]] = [lambda x, call=call: call(x, weight) for call in operators]
    calls += [column, torch.func.vmap(calls[0])]
    for call, shape in zip(calls, [(4, 4)] * 3 + [(2, 4, 4)], strict=True):
        try:
            torch.func.grad(lambda x, call=call: call(x).sum())(torch.randn(shape))
            found.append("computed")
        except ArgumentError as e:
            found.append(str(e))
    return found


def checkpointed(group: dist.ProcessGroup) -> list[str]:
    """Gradients that an activation checkpoint changes, of operators and layers, with and without a graph of them."""
    column, row = nn.ColumnParallelLinear(4, 6, group=group), nn.RowParallelLinear(6, 4, group=group)
    scattered = nn.RowParallelLinear(6, 4, sequence_parallel=True, group=group)

    def layers(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return row(column(x @ weight.T @ weight)) + torch.cat([scattered(column(x))] * dist.get_world_size(group))

    kept = partial(ops.all_gather_linear, return_gathered=True, group=group)
    operators = (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce)
    functions: list[Callable[..., Any]] = [*(partial(f, group=group) for f in operators), layers]
    functions.append(lambda x, weight: torch.cat([t.flatten() for t in kept(x, weight)]))
    x, weight = torch.randn(4, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    return [f"{n}, {graph}" for n, f in enumerate(functions) for graph in (False, True)
            if not unchanged_by_checkpoint(f, [x, weight], graph)]  # fmt: skip


def unchanged_by_checkpoint(function: Callable[..., Any], leaves: Sequence[torch.Tensor], graph: bool) -> bool:
    """Whether an activation checkpoint leaves the gradients of leaves. `graph`: whether a graph of them is made."""
    outs = function(*leaves), checkpoint(function, *leaves, use_reentrant=False)
    right, found = (torch.autograd.grad(y.square().sum(), leaves, create_graph=graph) for y in outs)
    return all(torch.equal(a, b) for a, b in zip(right, found, strict=True))


def without_the_other() -> str:
    """What a rank raises in a call that another rank does not make, and what caused it. All ranks of the pool."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    if dist.get_rank() != 0:
        return ""
    try:
        ops.linear_all_reduce(torch.ones(2, 4), torch.ones(6, 4), group=group)
    except NeverEnteredError as e:
        return f"{e} from {type(e.__cause__).__name__}"
    return "nothing"


def memory_of_results(group: dist.ProcessGroup) -> list[str]:
    """Results that do not lie in memory as the page says, or share it with what goes in."""
    wrong, world = [], dist.get_world_size(group)
    x, weight = torch.randn(2, 3 * world, 4), torch.randn(5, 4)
    for dim in (0, 1, -1):
        wide = torch.randn(5, 4 * world) if dim == -1 else weight
        full, y = ops.all_gather_linear(x, wide, gather_dim=dim, group=group, return_gathered=True)
        first = {"gathered": full, "result": y} if dim != -1 else {}
        wrong += [f"{n} along {dim}" for n, t in first.items() if not t.movedim(dim, 0).is_contiguous()]
        given = {t.untyped_storage().data_ptr() for t in (x, wide)}
        wrong += [f"{dim} aliases" for t in (full, y) if t.untyped_storage().data_ptr() in given]
    summed = [ops.linear_reduce_scatter(x, weight, scatter_dim=1, group=group)]
    summed.append(ops.linear_all_reduce(x, weight, group=group))
    given = {t.untyped_storage().data_ptr() for t in (x, weight)}
    return wrong + [str(t.stride()) for t in summed if not t.is_contiguous() or t.untyped_storage().data_ptr() in given]


def lengths_in_all_forms(group: dist.ProcessGroup) -> list[bool]:
    """Whether lengths as a list, a tuple and an array give the same."""
    forms: list[Any] = [[3, 2], (3, 2), np.array([3, 2])]
    x, weight = torch.ones(3 - dist.get_rank(group), 4), torch.ones(6, 4)
    found = [ops.all_gather_linear(x, weight, lengths=n, group=group) for n in forms]
    found += [ops.linear_reduce_scatter(torch.ones(5, 4), weight, lengths=n, group=group) for n in forms]
    return [torch.equal(y, found[3 * (k // 3)]) for k, y in enumerate(found)]


def lane_twice(group: dist.ProcessGroup) -> str:
    """What is said of options for a lane that a group has already."""
    with computed_by("interpret", group):
        assert ops.lane(group) is ops.lane(group)
        try:
            ops.lane(group, sms=3)
        except TileLinkError as e:
            return e.message
    return "nothing"


def tells_whether_a_group_ends(pipe: Connection) -> None:
    """Sends whether a group of this process alone is gone when it was destroyed, after a call with its gradient."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    weight = torch.ones(4, 4, requires_grad=True)
    ops.all_gather_linear(torch.ones(2, 4), weight).sum().backward()
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    pipe.send(group() is None)


def opchecked(group: dist.ProcessGroup, which: Sequence[str]) -> None:
    """Asks torch whether operators are what they say."""
    world, rank, name = dist.get_world_size(group), dist.get_rank(group), group.group_name
    uneven = [2 + r for r in range(world)]
    op = torch.ops.tilelink
    numbers = torch.Generator().manual_seed(rank)

    def numbers_of(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers)

    def leaf(*shape: int) -> torch.Tensor:
        return numbers_of(*shape).requires_grad_()

    cases = {
        "gather": (
            op.all_gather_linear, (leaf(2, 3, 4), [leaf(5, 4), leaf(6, 4)], [leaf(5), leaf(6)], 1, name, None, True)
        ),
        "gather, frozen": (op.all_gather_linear, (numbers_of(3, 4), [leaf(5, 4)], [None], 0, name, None, False)),
        "gather, last": (op.all_gather_linear, (leaf(3, 4), [leaf(5, 4 * world)], [None], 1, name, None, False)),
        "gather, uneven": (
            op.all_gather_linear_uneven, (leaf(2 + rank, 4), [leaf(5, 4)], [None], 0, uneven, name, None, False)
        ),
        "scatter": (op.linear_reduce_scatter, (leaf(2, 3 * world, 4), leaf(5, 4), leaf(5), 1, "avg", name, None)),
        "scatter, last": (op.linear_reduce_scatter, (leaf(2, 3, 4), leaf(2 * world, 4), None, 2, "sum", name, None)),
        "scatter, uneven": (
            op.linear_reduce_scatter_uneven, (leaf(sum(uneven), 4), leaf(5, 4), leaf(5), 0, uneven, "sum", name, None)
        ),
        "gather, backward": (
            op.all_gather_linear_backward,
            ([numbers_of(2, 3 * world, 5)], None, numbers_of(2, 3, 4), [numbers_of(5, 4)], 1, [3] * world, name, False,
             [True, True], None),
        ),
        "scatter, backward": (
            op.linear_reduce_scatter_backward,
            (numbers_of(2, 3, 5), numbers_of(2, 3 * world, 4), numbers_of(5, 4), 1, [3] * world, name, [True, True],
             None),
        ),
        "reduce": (op.linear_all_reduce, (leaf(2, 3, 4), leaf(5, 4), leaf(5), "sum", name, None)),
    }  # fmt: skip
    for case in which or cases:
        operator, arguments = cases[case]
        torch.library.opcheck(operator.default, arguments)
