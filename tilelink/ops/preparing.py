"""All that calls of an operator need once, done before: afterwards they can be captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilelink.ops.paths import path_of
from tilelink.ops.plain import Plain


def prepare(operator: Callable[..., Any], x: torch.Tensor, *tensors: Any, **options: Any) -> None:
    """Does all that calls like `operator(x, *tensors, **options)` need once, and launches no program: the lane of the
    group is made, programs are checked and compiled, symmetric memory is laid out; for the backward too, where tensors
    require gradients. Collective. What an operator leaves to torch does run: copies, products without a collective,
    collectives where a matrix is empty or the gathered x has a gradient, on a CPU the comparison of calls. Where plain
    torch computes it all, there is nothing to do.

    `operator`: a function of `tilelink.ops`, or a module in which layers of `tilelink.nn` are; all else in it runs, on
    what results hold by chance, and `.grad` of its parameters stays as it is. Values do not matter; shapes, strides,
    dtypes and devices do. Raises what the call raises.
    """
    if path_of(x.device) is Plain:
        return
    from tilelink.ops.programs import preparing

    given = [_copied(t) for t in (x, *tensors)]
    with preparing():
        found = _tensors([operator(*given, **options)])
        parameters = operator.parameters() if isinstance(operator, torch.nn.Module) else ()
        wanted = [t for t in (*_tensors(given), *parameters) if t.requires_grad]
        found = [y for y in found if y.requires_grad]
        if wanted and found:
            zeros = [torch.zeros_like(y) for y in found]
            torch.autograd.grad(found, wanted, zeros, allow_unused=True)


def _copied(value: Any) -> Any:
    """A tensor, or those of a list, as leaves of a graph of their own; in the same memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return [_copied(v) for v in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors in nested sequences and mappings."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, Mapping):
            found += _tensors(list(value.values()))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found += _tensors(value)
    return found
