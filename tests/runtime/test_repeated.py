"""Calls of operators that are repeated: from the tensors to the launch, without the operator's code between."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import tilelink.ops as ops
from bench.check import relative_rms
from tests.ops.on_ranks import noted
from tests.parameters import first_of
from tests.runtime.cuda_stand_in import StandIn
from tilelink.errors import ArgumentError, ShapeError
from tilelink.ops import known, of_all_ranks, programs, rows_of_experts, shortcuts
from tilelink.ops.linear_operator import LinearOperator
from tilelink.runtime.cuda.process_group import CudaProcessGroup

SHORT = {
    "one weight": lambda x, a, b, bias: ops.all_gather_linear(x, a),
    "several weights": lambda x, a, b, bias: ops.all_gather_linear(x, [a, b], [bias, None]),
    "gathered": lambda x, a, b, bias: ops.all_gather_linear(x, a, bias, return_gathered=True),
    "of dimension 1": lambda x, a, b, bias: ops.all_gather_linear(x[None], a, gather_dim=1, lengths=[12]),
    "scattered": lambda x, a, b, bias: ops.linear_reduce_scatter(x, a, bias),
    "reduced": lambda x, a, b, bias: ops.linear_all_reduce(x.view(3, 4, 16), a, bias),
}
"""Calls that only call a program, by name."""
LONG = {
    "mean": lambda x, a, b, bias: ops.linear_reduce_scatter(x, a, bias, reduce_op="avg"),
    "of a batch": lambda x, a, b, bias: ops.all_gather_linear(x.view(2, 6, 16), a, gather_dim=1),
    "torch": lambda x, a, b, bias: ops.linear_all_reduce(x, a, plan="torch"),
}
"""Calls that also compute by torch."""


@pytest.fixture
def device(on_stand_in: tuple[CudaProcessGroup, StandIn], monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in on which the operators of the group of one rank run."""
    group, device = on_stand_in
    monkeypatch.setenv("TILELINK_BACKEND", "interpret")
    monkeypatch.setitem(programs._lanes, group.members, {"cpu": group})
    yield device


def operands(seed: int) -> tuple[torch.Tensor, ...]:
    numbers = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=numbers) for shape in ((12, 16), (8, 16), (8, 16), (8,)))


def flat(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [t for value in found for t in flat(value)]


def calls() -> list[known.Known]:
    """What is known of all calls."""
    assert dist.group.WORLD is not None
    return known.known_calls(dist.group.WORLD).values()


def assert_right(device: StandIn, call: Callable[..., Any], number: int) -> None:
    """Makes calls with other tensors each, two of them before anything is waited for, and checks their results."""
    for seed in range(0, number, 2):
        given = [operands(seed), operands(seed + 1)]
        found = [call(*tensors) for tensors in given]
        device.synchronize(device.current())
        for tensors, results in zip(given, found, strict=True):
            with torch.no_grad():
                wanted = flat(call_in_torch(call, tensors))
            assert [t.shape for t in flat(results)] == [t.shape for t in wanted]
            for result, right in zip(flat(results), wanted, strict=True):
                assert relative_rms([result], [right]) < 1e-5
                assert result._base is None, "a view"


def call_in_torch(call: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> Any:
    """The results by plain torch, in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILELINK_BACKEND", "torch")
        return call(*tensors)


def noted_calls(device: StandIn, call: Callable[..., Any], number: int) -> int:
    """How often operators' code ran programs in such calls, which are right."""
    with noted() as ran:
        assert_right(device, call, number)
    return len(ran)


@pytest.mark.parametrize("name", SHORT)
def test_calls_are_repeated(device: StandIn, name: str) -> None:
    assert noted_calls(device, SHORT[name], 6) == 2


def test_without_guards_of_torch(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator then looks at the tensors itself."""
    monkeypatch.setattr(shortcuts, "_guards", None)
    assert noted_calls(device, SHORT["one weight"], 6) == 2


@pytest.mark.parametrize("name", LONG)
def test_calls_that_compute_by_torch_are_not(device: StandIn, name: str) -> None:
    assert noted_calls(device, LONG[name], 6) == (0 if name == "torch" else 6)
    assert all(call.repeat is None for call in calls())


def test_calls_that_launch_other_kernels_are_not(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch does not see these kernels."""
    launched = list[str]()
    monkeypatch.setattr(of_all_ranks.Route, "on_gpu", lambda self, path: True)
    for kernel in (rows_of_experts._lay_out, rows_of_experts._count, rows_of_experts._meet):
        monkeypatch.setattr(kernel, "run", lambda *given, of=kernel, **options: launched.append(of.__name__))
    for plan in (None, "once"):
        for _ in range(4):
            ops.moe_routing(torch.zeros(3, 2, dtype=torch.int32), experts=2, plan=plan)
    assert launched == 4 * ["_lay_out"] + 4 * ["_lay_out", "_count", "_lay_out", "_meet"]
    assert all(call.repeat is None for call in calls())


def test_tensors_in_one_memory(device: StandIn) -> None:
    """Each view is taken of the tensor that the operator was given, wherever this lies now."""

    def call(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> Any:
        parts = [x, a] if bias[0] > 0 else [a, x]
        memory = torch.cat([torch.zeros(4 * int(bias[1] > 0)), *(t.flatten() for t in parts)])
        second = memory[-parts[1].numel() :].view(parts[1].shape)
        first = memory[: -parts[1].numel()][-parts[0].numel() :].view(parts[0].shape)
        return ops.all_gather_linear(*((first, second) if parts[0] is x else (second, first)))

    assert noted_calls(device, call, 12) == 2


def test_one_tensor_twice(device: StandIn) -> None:
    """Nobody can tell of which a view was taken, if that is seen first; otherwise they are told apart by place."""
    twice: Any = lambda x, a, b, bias: ops.all_gather_linear(x, [a, a], [bias, None])  # noqa: E731
    assert noted_calls(device, twice, 4) == 4
    known._known.clear()
    assert noted_calls(device, SHORT["several weights"], 4) == 2
    assert noted_calls(device, twice, 4) == 0


def test_other_calls_in_between(device: StandIn) -> None:
    """A repeated call is a call: it takes its turn with the slots, and can be refused, captured and prepared."""
    group: Any = programs._lanes[dist.group.WORLD]["cpu"]  # type: ignore[index]

    def call(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> Any:
        return ops.all_gather_linear(x, a), ops.linear_all_reduce(x, b)

    assert noted_calls(device, call, 2) == 4
    assert group.runs == 4
    with pytest.raises(ShapeError, match="features"):
        call(torch.ones(12, 8), *operands(0)[1:])
    assert noted_calls(device, call, 4) == 0
    x, a, b, bias = operands(3)
    ops.prepare(call, x, a, b, bias)
    assert group.runs == 12, "a call that is prepared runs nothing"
    with device.capture() as graph:
        found = call(x, a, b, bias)
    group.replay(graph)
    group.synchronize()
    assert relative_rms([found[0]], [x @ a.T]) < 1e-5
    group.reset()
    assert_right(device, call, 4)


def test_wrong_arguments_after_right_ones(device: StandIn) -> None:
    """Values that compare equal, but are of another type, and values that can't be hashed are refused as ever."""
    assert noted_calls(device, SHORT["one weight"], 4) == 2
    x, a, *_ = operands(0)
    for wrong in ({"gather_dim": False}, {"return_gathered": 0}, {"plan": {}}, {"gather_dim": [0]}, {"biases": {}}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            ops.all_gather_linear(x, a, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="x is"):
        ops.all_gather_linear({}, a)  # type: ignore[arg-type]


@pytest.fixture
def in_full(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose calls were made in full, by name."""
    made, checked = list[str](), LinearOperator._checked_call

    def noting(self: LinearOperator, *given: Any) -> Any:
        made.append(self.call.name)
        return checked(self, *given)

    monkeypatch.setattr(LinearOperator, "_checked_call", noting)
    return made


@pytest.mark.parametrize("name", ["one weight", "gathered", "scattered", "reduced"])
def test_calls_take_a_shortcut(device: StandIn, in_full: list[str], name: str) -> None:
    call = SHORT[name]
    assert_right(device, call, 4)
    made = [call(*operands(seed)) for seed in range(3)]
    known_before = len(in_full)
    found = [call(*operands(seed)) for seed in range(3)]
    assert len(in_full) == known_before
    device.synchronize(device.current())
    for one, other in zip(flat(made), flat(found), strict=True):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


def test_calls_that_are_not_quite_like_one_that_is_repeated(device: StandIn, in_full: list[str]) -> None:
    """Each is made in full once, and right, again and again."""
    x, a, b, bias = operands(1)
    more = bias + 1
    for _ in range(4):
        ops.all_gather_linear(x, [a, b], [bias, more])
    later = torch.empty(x.numel() + 1)[1:].view_as(x).copy_(x)
    assert later.data_ptr() % known.ALIGNED
    weights: Any = namedtuple("Weights", "a b")(a, b)
    others: list[Callable[[], Any]] = [
        lambda: ops.all_gather_linear(later, [a, b], [bias, more]),
        lambda: ops.all_gather_linear(x.T.contiguous().T, [a, b], [bias, more]),
        lambda: ops.all_gather_linear(x, (a, b), [bias, more]),  # type: ignore[arg-type]
        lambda: ops.all_gather_linear(x, weights, [bias, more]),
        lambda: ops.all_gather_linear(x, [a, b], [None, bias]),
        lambda: ops.all_gather_linear(x, [a, b], (bias, more)),  # type: ignore[arg-type]
        lambda: ops.all_gather_linear(x, [a, b], [bias, more], plan="pull"),
        lambda: ops.all_gather_linear(x.half(), [a.half(), b.half()], [bias.half(), more.half()]),
    ]
    for other in others:
        in_full.clear()
        found = [other() for _ in range(4)]
        assert in_full
        device.synchronize(device.current())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILELINK_BACKEND", "torch")
            wanted = other()
        for one, right in ((one, right) for results in found for one, right in zip(results, wanted, strict=True)):
            assert one.dtype == right.dtype and relative_rms([one], [right]) < (1e-5 if one.dtype == x.dtype else 1e-3)
    ops.all_gather_linear(x, [a, b], [bias, more])
    in_full.clear()
    ops.all_gather_linear(x, [a, b], [bias, more])
    assert not in_full


def test_layers_of_several_shapes_keep_their_shortcuts(device: StandIn, in_full: list[str]) -> None:
    x, a, b, _ = operands(4)
    layers = a, torch.cat([a, b]), a[:, :4].contiguous().half()
    for _ in range(4):
        in_full.clear()
        for weight in layers:
            ops.all_gather_linear(x[:, : weight.shape[1]].to(weight.dtype).contiguous(), weight)
    assert not in_full
    device.synchronize(device.current())


def test_weights_that_are_trained_after_an_evaluation(device: StandIn, in_full: list[str]) -> None:
    """Calls without gradients and with them take the same shortcut, one after the other."""
    x, a, *_ = operands(3)
    a.requires_grad_()
    for _ in range(2):
        in_full.clear()
        with torch.no_grad():
            for _ in range(5):
                found = ops.all_gather_linear(x, a)
        assert len(in_full) < 5 and found.grad_fn is None
        in_full.clear()
        assert ops.all_gather_linear(x, a).grad_fn is not None and not in_full
    device.synchronize(device.current())


@pytest.mark.parametrize("name", ["one weight", "scattered", "reduced"])
def test_calls_with_gradients_take_a_shortcut(
    device: StandIn, in_full: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their results and gradients are those of plain torch, and nothing of one call is seen in another. Nothing is
    looked up or checked again."""
    looked_up = list[str]()

    def gradients(seed: int) -> list[torch.Tensor]:
        given = [t.requires_grad_() for t in operands(seed)]
        results = flat(SHORT[name](*given))
        device.synchronize(device.current())
        found = torch.autograd.grad([r.square().sum() for r in results], given, allow_unused=True)
        device.synchronize(device.current())
        return [*[r.detach() for r in results], *[g for g in found if g is not None]]

    for seed in range(4):
        gradients(seed)
    in_full.clear()
    with monkeypatch.context() as patch:
        patch.setattr(LinearOperator, "computed", lambda self, *given: looked_up.append(self.call.name))
        found = [gradients(seed) for seed in range(3)]
    assert not in_full and not looked_up
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILELINK_BACKEND", "torch")
        wanted = [gradients(seed) for seed in range(3)]
    for ours, right in zip(found, wanted, strict=True):
        assert len(ours) == len(right) > 1 and relative_rms(ours, right) < 1e-5


def test_what_autograd_watches(device: StandIn, in_full: list[str]) -> None:
    """Hooks see what a repeated call saves, and errors are those of a call that is made in full."""
    x, a, *_ = operands(4)
    a.requires_grad_()
    for _ in range(4):
        ops.all_gather_linear(x, a, return_gathered=True)
    in_full.clear()
    packed = list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        gathered, _ = ops.all_gather_linear(x, a, return_gathered=True)
    assert len(packed) == 2 and packed[0].data_ptr() == gathered.data_ptr() and packed[1] is a
    _, y = ops.all_gather_linear(x, a, return_gathered=True)
    (grad,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    with pytest.raises(ArgumentError, match="no second derivative"):
        grad.sum().backward()
    y = ops.all_gather_linear(x, a, return_gathered=True)[1]
    torch.autograd.grad(y.sum(), a)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), a)
    y = ops.all_gather_linear(x, a, return_gathered=True)[1]
    with torch.no_grad():
        a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), a)
    assert not in_full
    device.synchronize(device.current())


def test_gradients_of_calls_that_are_captured(device: StandIn, in_full: list[str]) -> None:
    """A call that can't be repeated is made in full, with its gradient."""
    group: Any = programs._lanes[dist.group.WORLD]["cpu"]  # type: ignore[index]
    x, a, *_ = operands(5)
    a.requires_grad_()
    for _ in range(4):
        ops.linear_all_reduce(x, a)
    in_full.clear()
    with device.capture() as graph:
        y = ops.linear_all_reduce(x, a)
    assert in_full
    group.replay(graph)
    group.synchronize()
    assert relative_rms([y.detach()], [(x @ a.T).detach()]) < 1e-5
    (found,) = torch.autograd.grad(y.sum(), a)
    assert relative_rms([found], [x.sum(0).expand(8, 16)]) < 1e-5


def test_only_gradients_that_are_needed_are_computed(device: StandIn) -> None:
    """Without a trained bias, nothing adds up the gradient of the result."""
    x, a, _, bias = operands(6)
    x.requires_grad_(), a.requires_grad_()
    for given in (None, bias):
        for _ in range(4):
            y = ops.all_gather_linear(x, a, given)
        grads = torch.ones_like(y)
        with Mode() as mode:
            torch.autograd.grad(y, [x, a], grads)
        assert not any("sum" in name for name in mode.seen)
    device.synchronize(device.current())


def test_another_group_of_the_same_processes(device: StandIn) -> None:
    """Calls of one group say nothing of those of another."""
    call: Any = lambda x, a, b, bias, **of: ops.linear_reduce_scatter(x, a, bias, **of)  # noqa: E731
    assert noted_calls(device, call, 4) == 2
    other = dist.new_group([0])
    x, a, b, bias = operands(2)
    with noted() as ran:
        found = call(x, a, b, bias, group=other)
    assert ran and relative_rms([found], [x @ a.T + bias]) < 1e-5


def test_what_torch_watches(device: StandIn) -> None:
    """Whatever has to see the operator sees it, also once calls are repeated."""
    call, name = SHORT["one weight"], "tilelink::all_gather_linear"
    assert_right(device, call, 4)
    x, a, b, bias = operands(5)
    with Mode() as mode:
        call(x, a, b, bias)
    assert mode.seen[0] == name
    with Seeing() as mode:
        call(x, a, b, bias)
    assert mode.seen[0] == name
    with torch.profiler.profile() as profile:
        call(x, a, b, bias)
    assert name in {event.name for event in profile.events()}
    a.requires_grad_()
    assert call(x, a, b, bias).grad_fn is not None
    with torch.no_grad():
        assert call(x, a, b, bias).grad_fn is None
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(call(x, a, b, bias)) is FakeTensor
    with pytest.raises(RuntimeError, match="Batching rule"):
        torch.vmap(lambda x: call(x, a, b, bias))(torch.ones(2, 12, 16))
    assert call(x.to("meta"), a.detach().to("meta"), b, bias).device.type == "meta"
    device.synchronize(device.current())


class Mode(TorchDispatchMode):
    """A mode in which torch's dispatcher calls operators. `seen`: the names of what was called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class Seeing(Mode):
    """One like torch's own for debugging, whose presence guards of tensors do not tell."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class Wrapper(torch.Tensor):
    """A tensor around another one, of which every operation is `computed`, below autograd."""

    computed: Callable[[], torch.Tensor]

    @classmethod
    def around(cls, tensor: torch.Tensor, computed: Callable[[], torch.Tensor]) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, tensor.shape)
        made.computed = computed
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return args[0].computed()


@pytest.mark.parametrize("lengths", first_of([[torch.tensor(12)], torch.tensor([12]), (12,)], 2))
def test_integers_given_as_tensors(device: StandIn, lengths: Any) -> None:
    """A tensor of lengths, or of a dimension, is no tensor of the operator: it has neither a number nor a gradient."""
    for operator in (ops.all_gather_linear, ops.linear_reduce_scatter):
        call: Any = lambda x, a, b, bias, of=operator: of(x, a, bias, lengths=lengths)  # noqa: E731
        assert noted_calls(device, call, 6) == 2
        x, a, _, bias = operands(6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILELINK_BACKEND", "torch")
            operator(x, a.requires_grad_(), bias, lengths=lengths).sum().backward()
        assert a.grad is not None and torch.allclose(a.grad, x.sum(0).expand(8, 16), atol=1e-5)
    at: Any = torch.tensor(0)
    assert noted_calls(device, lambda x, a, b, bias: ops.all_gather_linear(x, a, gather_dim=at), 6) == 2


def test_tensors_whose_memory_has_other_values(device: StandIn) -> None:
    """The dispatcher makes tensors of negated views, and of zeros without memory."""
    x, a, *_ = operands(8)
    for call in (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce):
        for given in (torch.complex(x, x).conj().imag, torch._efficientzerotensor(12, 16), x):
            found = call(given, a)
            device.synchronize(device.current())
            assert torch.allclose(found, given @ a.T, atol=1e-4)


@pytest.mark.usefixtures("alone")
def test_gradients_of_several_at_once() -> None:
    x, a, *_ = operands(9)
    grads = torch.randn(3, 12, 8)
    y = ops.linear_reduce_scatter(x, a.requires_grad_())
    (found,) = torch.autograd.grad(y, a, grads, is_grads_batched=True)
    assert torch.allclose(found, grads.mT @ x, atol=1e-4)
    with pytest.raises(RuntimeError, match="Batching rule"):
        torch.autograd.grad(ops.all_gather_linear(x, a), a, grads, is_grads_batched=True)


@pytest.mark.usefixtures("alone")
def test_nested_tensors_are_refused_by_torch() -> None:
    x, a, *_ = operands(9)
    with pytest.warns(UserWarning, match="prototype"):
        nested = torch.nested.nested_tensor([x, x])
    with pytest.raises(NotImplementedError, match="tilelink::linear_all_reduce"):
        ops.linear_all_reduce(nested, a)


@pytest.mark.usefixtures("alone")
def test_no_gradient_below_autograd() -> None:
    x, a, *_ = operands(10)
    a.requires_grad_()
    for call in (ops.all_gather_linear, ops.linear_reduce_scatter, ops.linear_all_reduce):
        found = torch.sin(Wrapper.around(x, lambda call=call: call(x, a)))  # type: ignore[misc]
        assert found.grad_fn is None and not found.requires_grad


@pytest.mark.usefixtures("alone")
def test_modes_of_two_threads() -> None:
    """The end of a mode in one thread leaves the mode of another one, which still sees operators."""
    x, a, *_ = operands(11)
    begun, other_ended, mode = Event(), Event(), Mode()

    def other() -> None:
        with mode:
            begun.set()
            other_ended.wait(60)
            ops.linear_all_reduce(x, a)

    thread = Thread(target=other)
    with Mode():
        thread.start()
        assert begun.wait(60)
    other_ended.set()
    thread.join()
    assert "tilelink::linear_all_reduce" in mode.seen


def test_no_lane_is_made_for_calls_without_programs(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_BACKEND", "interpret")
    x, a, *_ = operands(12)
    a.requires_grad_()
    for _ in range(3):
        _, y = ops.all_gather_linear(x, a, plan="torch", return_gathered=True)
        y.sum().backward()  # the gathered x is kept, so nothing is sent
    assert alone not in programs._lanes


@pytest.mark.parametrize("name", SHORT | LONG)
@pytest.mark.parametrize("trained", [(0,), (1, 3), (0, 1, 2, 3)])
@pytest.mark.usefixtures("alone")
def test_gradients_with_and_without_the_dispatcher(name: str, trained: tuple[int, ...]) -> None:
    """The same bits, whether torch's dispatcher makes the gradient or not."""

    def gradients() -> list[Any]:
        tensors = [t.requires_grad_(k in trained) for k, t in enumerate(operands(7))]
        results = flat((SHORT | LONG)[name](*tensors))
        of = [r for r in results if r.requires_grad]
        found = torch.autograd.grad(of, [tensors[k] for k in trained], [torch.sin(r) for r in of], allow_unused=True)
        return [*results, *found]

    mine = gradients()
    with Mode():
        theirs = gradients()
    for a, b in zip(mine, theirs, strict=True):
        assert a is b is None or torch.equal(a, b)
