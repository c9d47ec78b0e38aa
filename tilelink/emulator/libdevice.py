"""`triton.language.extra.libdevice` on CPU ranks. Its functions are empty, and Triton's compiler takes those of the
target instead. Here, those for NVIDIA check what they are given, and torch computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
import triton.language as tl
import triton.runtime.interpreter as stock
from triton.language.extra import libdevice as empty
from triton.language.extra.cuda import libdevice as cuda

from tilelink.emulator.kernel_values import Handle, numpy_dtype

_SAME = (
    "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor fmod hypot "
    "lgamma log log10 log1p log2 pow rsqrt sin sinh sqrt tan tanh trunc"
)
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {name: getattr(torch, name) for name in _SAME.split()} | {
    "fabs": torch.abs,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "rint": torch.round,
    "powi": torch.pow,
    "exp10": lambda x: torch.pow(10.0, x),
    "normcdf": torch.special.ndtr,
}
"""torch's functions, by the name of a libdevice symbol without its prefix and dtype suffix."""


def create_extern_elementwise(
    self: Any, library: str, path: str, symbol: str, arguments: list[Any], of: Any, pure: bool
) -> Any:
    """A method for Triton's builder. Computes a function of libdevice in float64. Raises NotImplementedError."""
    name = symbol.removeprefix("__nv_")
    function = next((_FUNCTIONS[n] for n in (name, name[:-1]) if n in _FUNCTIONS), None)
    if function is None:
        known = ", ".join(_FUNCTIONS)
        raise NotImplementedError(f"CPU ranks do not compute {symbol} of libdevice; they compute {known}")
    values = function(*(torch.tensor(a.data).double() for a in arguments))
    return Handle(values.numpy().astype(numpy_dtype(of)), of.scalar)


def libdevice_names(function: FunctionType) -> dict[str, Any]:
    """What a function's names for libdevice, and for functions of it, mean on CPU ranks."""
    found = inspect.getclosurevars(function)
    names = {**found.globals, **found.nonlocals}
    both = (empty.__name__, cuda.__name__)
    modules = {n: _LIBDEVICE for n, v in names.items() if isinstance(v, ModuleType) and v.__name__ in both}
    members = {n: v.__name__ for n, v in names.items() if getattr(v, "__module__", "") in both}
    return modules | {n: getattr(_LIBDEVICE, member) for n, member in members.items()}


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        try:
            return function(*arguments, _semantic=stock.interpreter_semantic)
        except KeyError as e:  # Triton looks up dtypes in a table
            given = ", ".join(str(a.dtype) for a in arguments if isinstance(a, tl.tensor))
            raise TypeError(f"libdevice.{name} takes no {given}; convert blocks first: x.to(tl.float32)") from e

    return checked


_LIBDEVICE = SimpleNamespace(**{n: _checked(n, f) for n, f in vars(cuda).items() if tl.core.is_builtin(f)})
