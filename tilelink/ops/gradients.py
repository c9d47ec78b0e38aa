"""Gradients of operators that are called past torch's dispatcher (`eager.py`), and of calls that repeat one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import FunctionCtx

from tilelink.ops.repeated import Repeat, each, taking

if TYPE_CHECKING:
    from tilelink.ops.operator import Operator


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


class RepeatWithGradient:
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
        """Returns the results for these tensors; a result without elements is None. Returns None alone if nothing was
        done."""
        found = RepeatedFunction.apply(self, *tensors)
        return None if found is None else self.nested(found)


class RepeatedFunction(Differentiated):
    """A repeated call with its gradient."""

    @staticmethod
    def forward(ctx: Any, call: RepeatWithGradient, *tensors: torch.Tensor) -> Any:  # type: ignore[override]
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
