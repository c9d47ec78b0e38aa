"""Calls of operators past torch's dispatcher, where it would do nothing but call the operator: it takes more of the
host's time than a call of a program, and several times as much if there are gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from tilelink.errors import ArgumentError, Site

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
