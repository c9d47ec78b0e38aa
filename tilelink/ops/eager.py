"""Calls of operators past torch's dispatcher, where it would do nothing but call the operator: it takes more of the
host's time than a call of a program, and several times as much if there are gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx
from torch.overrides import has_torch_function

from tilelink.errors import ArgumentError, Site
from tilelink.ops.repeated import Repeat, each, taking

if TYPE_CHECKING:
    from tilelink.ops.operator import Operator

PLAIN = (torch.Tensor, torch.nn.Parameter)
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_is_mapped = _functorch.is_legacy_batchedtensor  # by `is_grads_batched` of `torch.autograd.grad`


def only_called(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the dispatcher would only call the operator, with or without a gradient: nothing traces, transforms or
    profiles calls, no mode is active, and all tensors are plain ones with memory."""
    if torch.compiler.is_compiling() or is_watched(tensors):
        return False
    for t in tensors:
        if type(t) not in PLAIN or not (t.is_cuda or t.is_cpu):
            return False
        if t.is_neg() or t._is_zerotensor() or t.is_nested or _is_mapped(t):  # their memory has other values, or none
            return False
    return True


def is_watched(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether something sees, traces, transforms or profiles calls, which need not show in the tensors."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or _functorch.peek_interpreter_stack()
        or torch._C._get_tracing_state()
        or torch._C._autograd._profiler_enabled()
        or forward_ad._current_level >= 0
        or has_torch_function(tensors)
    )


def has_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call with these tensors has a gradient. Inside `__torch_dispatch__`, below autograd, it has none."""
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD)


def check_func_grad(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises ArgumentError if a transform of `torch.func` would differentiate the operator or layer called `name`.
    Torch does not differentiate functions with our kind of gradient there, and its own error does not name them."""
    if not torch.is_grad_enabled() or not _functorch.peek_interpreter_stack():
        return
    levels = {level.key() for level in _functorch.get_interpreter_stack()}
    if _functorch.TransformType.Grad in levels and any(map(_has_gradient_inside, tensors)):
        what = f"{name} can't be differentiated by torch.func (grad, vjp, jacrev)"
        raise ArgumentError(f"{what}: take gradients by torch.autograd.grad or .backward()", Site.of_user())


def _has_gradient_inside(t: torch.Tensor) -> bool:
    """Whether a tensor, or one that transforms have wrapped, has a gradient."""
    while not t.requires_grad and _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
    return t.requires_grad


class Differentiated(torch.autograd.Function):
    """An operator with its gradient, as the dispatcher makes it of `torch.library.register_autograd`. `call`: the
    operator; the values of all arguments; and a list, which gets the tuples and lists around the results, with a number
    for each. `tensors`: those among the values, also in lists. Returns the results one by one."""

    @staticmethod
    def forward(
        ctx: Any, call: tuple[Operator, list[Any], list[Any]], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        operator, values, nesting = call
        results = operator.computed(values, tensors)
        operator.setup(ctx, values, results)
        ctx.of = operator, *_nesting(values, results)
        nesting.append(ctx.of[1])
        found = list[torch.Tensor]()
        each(found.append, results)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        operator, nesting, are_tensors = ctx.of
        needs, left = ctx.needs_input_grad, iter(ctx.needs_input_grad[1:])
        ctx.needs_input_grad = tuple(each(lambda is_tensor: is_tensor and next(left), value) for value in are_tensors)
        try:
            results = each(grads.__getitem__, nesting)
            found = operator.backward(ctx, *(results if isinstance(results, tuple) else (results,)))
        finally:
            ctx.needs_input_grad = needs
        flat: list[Any] = [None]
        for of_argument, is_tensor in zip(found, are_tensors, strict=True):
            if isinstance(is_tensor, list | tuple):
                of_list = [None] * len(is_tensor) if of_argument is None else of_argument
                flat += [grad for grad, one in zip(of_list, is_tensor, strict=True) if one]
            elif is_tensor:
                flat.append(of_argument)
        return tuple(flat)


class Trained:
    """A call with a gradient that was made in full, to be repeated with other tensors. What the operator keeps for its
    backward must be tensors of the call, results, and values that follow from the other arguments. `repeat`: makes the
    call; `values`: of all arguments; `tensors`: those among them, also in lists; `results`: what the operator
    returned."""

    def __init__(
        self, operator: Operator, repeat: Repeat, values: Sequence[Any], tensors: Sequence[torch.Tensor], results: Any
    ) -> None:
        ctx, found = FunctionCtx(), list[torch.Tensor]()
        operator.setup(ctx, values, results)
        each(found.append, results)
        nesting, are_tensors = _nesting(values, results)
        number = {id(t): n for n, t in enumerate([*tensors, *found])}
        self.kept = vars(ctx) | {"of": (operator, nesting, are_tensors)}
        self.saved = taking(tuple(number[id(t)] for t in self.kept.pop("to_save")))
        self.flat = eval(f"lambda results: ({_flat(results, 'results')})")
        self.repeat, self.nested = repeat, taking(nesting)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns the results for these tensors, None for each result without elements; or None if nothing was done."""
        found = Repeated.apply(self, *tensors)
        return None if found is None else self.nested(found)


class Repeated(Differentiated):
    """A repeated call with its gradient."""

    @staticmethod
    def forward(ctx: Any, call: Trained, *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        results = call.repeat(tensors)
        if results is None:
            return None
        found = call.flat(results)
        vars(ctx).update(call.kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*call.saved([*tensors, *found]))
        return found


def _nesting(values: Sequence[Any], results: Any) -> tuple[Any, list[Any]]:
    """The tuples and lists around results, with a number for each; and for each value whether it is a tensor, also in
    lists."""
    numbers = count()
    around = each(lambda _: next(numbers), results)
    return around, [each(lambda value: isinstance(value, torch.Tensor), of) for of in values]


def _flat(results: Any, at: str) -> str:
    """Python's text for the results in what `at` names, one by one, with None for each that has no elements."""
    if isinstance(results, torch.Tensor):
        return f"{at}, " if results.numel() else "None, "
    return "".join(_flat(result, f"{at}[{k}]") for k, result in enumerate(results))
