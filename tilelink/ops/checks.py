"""Checks of operator calls on a rank, before any communication and also while torch traces. Inside `torch.autocast`,
operators take their tensors in its dtype, as nn.Linear does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any, SupportsIndex, TypeVar

import torch
from torch.distributed.tensor import DTensor

from tilelink.errors import ArgumentError, DeviceError, DtypeError, ShapeError, Site, listed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
REDUCE_OPS = ("sum", "avg")
OF_TENSORS = ("torch.Tensor", "Tensors", "torch.Tensor | None", "Maybe")
"""Annotations of arguments for which a tensor may be given."""
T = TypeVar("T", torch.Tensor, torch.Tensor | None)


def in_autocast(x: torch.Tensor) -> bool:
    """Whether `torch.autocast` is enabled for the device of x."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)  # torch raises for "meta", which has none


def cast_for(x: torch.Tensor) -> Callable[[T], T]:
    """Returns a function that casts a tensor to the autocast dtype of x's device; outside of `torch.autocast` it
    returns the tensor unchanged. Gradients have the dtype of the given tensor."""
    if not in_autocast(x):
        return lambda tensor: tensor
    dtype = torch.get_autocast_dtype(x.device.type)

    def cast(tensor: T) -> T:  # torch.autocast leaves other dtypes alone, and the operator refuses them
        return tensor.to(dtype) if tensor is not None and tensor.dtype in DTYPES else tensor

    return cast


def no_autocast(x: torch.Tensor) -> AbstractContextManager[object]:
    """Returns a context without autocast, in which sums in float32 stay in float32."""
    return torch.autocast(x.device.type, enabled=False) if in_autocast(x) else nullcontext()


def check_dim(x: torch.Tensor, dim: int, name: str) -> int:
    """Returns the dimension, counted from 0. Raises ShapeError if x has no such dimension."""
    if x.dim() < 2:
        raise ShapeError(f"x has shape {tuple(x.shape)}: it needs at least two dimensions, the last for features")
    if not -x.dim() <= dim < x.dim():
        raise ShapeError(f"{name}={dim} is no dimension of x, whose shape is {tuple(x.shape)}")
    return dim % x.dim()


def check_experts(
    gate_up: Sequence[int], down: Sequence[int], names: tuple[str, str] = ("gate_up", "down"), width: int | None = None
) -> None:
    """Checks the shapes of the weights of experts; `width`: that of x, where it is known. Raises ShapeError."""
    gate_up, down = tuple(gate_up), tuple(down)
    fit = len(gate_up) == 3 and not gate_up[1] % 2 and down == (gate_up[0], gate_up[2], gate_up[1] // 2)
    if not fit or width not in (None, gate_up[2]):
        as_x = "" if width is None else f" with width = {width}, as x has it"
        must = f"they must be (experts, 2 * hidden, width) and (experts, width, hidden){as_x}"
        raise ShapeError(f"{names[0]} has shape {gate_up}, {names[1]} {down}; {must}", Site.of_user())


def check_activation(activation: object) -> None:
    """Raises ArgumentError for an activation of experts that can't be called."""
    if not callable(activation):
        raise ArgumentError(f"activation={activation!r}; it must be a function of rows (n, 2 * hidden)", Site.of_user())


def check_one_dtype(x: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> None:
    """Raises DtypeError if weights, by name, do not have the dtype of x."""
    for name, weight in weights.items():
        if weight.dtype != x.dtype:
            said = f"{name} is {short(weight.dtype)}, x {short(x.dtype)}; all must have one dtype"
            raise DtypeError(said, Site.of_user())


def check_weights(
    x: torch.Tensor, features: int, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> None:
    """Checks weights (N, K) and biases (N,) against x, whose rows have K `features`. Raises ArgumentError, ShapeError,
    DtypeError, DeviceError."""
    if not weights:
        raise ArgumentError("no weights: at least one is needed")
    if len(biases) != len(weights):
        raise ArgumentError(f"{len(biases)} biases for {len(weights)} weights: one for each, or None")
    named = named_tensors(x, weights, biases)
    check_devices(x, named)
    for name, t in named.items():
        if t.layout != torch.strided:
            raise ArgumentError(f"{name} has layout {t.layout}; only strided tensors can be used")
    check_one_dtype(x, named)
    check_dtype(x.dtype)
    for (name, weight), (of_bias, bias) in zip(
        numbered("weight", weights).items(), numbered("bias", biases).items(), strict=True
    ):
        if weight.dim() != 2:
            raise ShapeError(f"{name} has shape {tuple(weight.shape)}: it must be (N, K), as in nn.Linear")
        if weight.shape[1] != features:
            after = "" if features == x.shape[-1] else " after the gather"
            raise ShapeError(
                f"x has shape {tuple(x.shape)}, {features} features{after}; {name} has shape {tuple(weight.shape)}, it "
                f"takes {weight.shape[1]}"
            )
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            must = f"for {name} it must be ({weight.shape[0]},)"
            raise ShapeError(f"{of_bias} has shape {tuple(bias.shape)}; {must}")


def check_tensor(name: str, value: Any) -> None:
    """Checks that a value is a tensor. Raises ArgumentError."""
    if not isinstance(value, torch.Tensor):
        hint = ": its tensors are .weight and .bias" if isinstance(value, torch.nn.Linear) else ""
        what = "None" if value is None else f"a {type(value).__name__}"
        raise ArgumentError(f"{name} is {what}, not a tensor{hint}", Site.of_user())


def check_part(name: str, value: Any) -> None:
    """Checks that a value is a tensor of the rank, as operators take it: no DTensor. Raises ArgumentError."""
    check_tensor(name, value)
    if isinstance(value, DTensor):
        what = f"{name} is a DTensor of shape {tuple(value.shape)}"
        raise ArgumentError(f"{what}: operators take the rank's part, {name}.to_local()", Site.of_user())


def check_type(name: str, value: Any, kind: str) -> None:
    """Checks that an argument of an operator has the type `kind`, an annotation. One tensor may stand for several.
    Raises ArgumentError."""
    if type(value) is torch.Tensor and kind in OF_TENSORS:  # quickest first
        return
    if value is None and (kind.endswith("| None") or kind == "Maybe"):
        return
    match kind:
        case "torch.Tensor" | "torch.Tensor | None":
            check_part(name, value)
        case "Tensors" | "Maybe":
            for t in value if isinstance(value, list | tuple) else [value]:
                if t is not None or kind == "Tensors":
                    check_part(name, t)
        case _:
            words, fits = _OPTIONS[kind.removesuffix(" | None")]
            if not fits(value):
                raise ArgumentError(f"{name} is {value!r}; it must be {words}", Site.of_user())


def _is_integer(value: Any) -> bool:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, SupportsIndex)):
        return False
    return abs(operator.index(value)) < 1 << 63


def _are_integers(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and all(map(_is_integer, value))


_OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an integer", _is_integer),
    "Sequence[int]": ("a sequence of integers", _are_integers),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a string", lambda value: isinstance(value, str)),
}


def check_sizes(**given: Any) -> None:
    """Checks that each value is an integer, 0 or more. Raises ArgumentError."""
    for name, size in given.items():
        if isinstance(size, bool) or not isinstance(size, Integral | torch.SymInt) or size < 0:
            raise ArgumentError(f"{name}={size!r}; it must be an integer, 0 or more", Site.of_user())


def check_devices(x: torch.Tensor, named: Mapping[str, torch.Tensor], name_of_x: str = "x") -> None:
    """Checks that all tensors are on the device of x. Raises DeviceError."""
    for name, t in named.items():
        if t.device != x.device:
            raise DeviceError(f"{name} is on {t.device}, {name_of_x} on {x.device}")


def check_reduce_op(reduce_op: str) -> None:
    if reduce_op not in REDUCE_OPS:
        raise ArgumentError(f"reduce_op is {reduce_op!r}; it must be one of {listed(REDUCE_OPS, reduce_op)}")


def check_lengths(lengths: Sequence[int], world: int) -> None:
    """Checks that `lengths` has one length per rank. Raises ShapeError."""
    if len(lengths) != world or any(n < 0 for n in lengths):
        raise ShapeError(f"lengths are {tuple(lengths)}: {world} are needed, one a rank")


def parts_of(total: int, world: int, lengths: Sequence[int] | None, what: str) -> list[int]:
    """Returns the length of each rank's part of `total` scattered elements, equal by default. Raises ShapeError."""
    if lengths is None:
        if total % world:
            raise ShapeError(f"{what} is {total}, which {world} ranks can't share evenly: pass lengths= on every rank")
        return [total // world] * world
    check_lengths(lengths, world)
    if sum(lengths) != total:
        raise ShapeError(f"lengths are {tuple(lengths)}, {sum(lengths)} in all; {what} is {total}")
    return list(lengths)


def named_tensors(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a linear operator, by the names that errors use."""
    given = {"x": x, **numbered("weight", weights), **numbered("bias", biases)}
    return {name: t for name, t in given.items() if t is not None}


def numbered(name: str, values: Sequence[T]) -> dict[str, T]:
    """Returns values by the names that errors use: "weight" if there is one, else "weight 0", "weight 1"."""
    return {name: values[0]} if len(values) == 1 else {f"{name} {i}": v for i, v in enumerate(values)}


def check_integers(name: str, given: torch.Tensor, shape: str) -> None:
    """Checks a matrix of integers. Raises DtypeError, ShapeError."""
    if given.dtype.is_floating_point or given.dtype == torch.bool:
        raise DtypeError(f"{name} is {short(given.dtype)}; it must be integers {shape}", Site.of_user())
    if given.dim() != 2:
        raise ShapeError(f"{name} has shape {tuple(given.shape)}; it must be integers {shape}", Site.of_user())


def check_dtype(dtype: Any, name: str = "x") -> None:
    """Raises DtypeError for a dtype that operators do not take."""
    if dtype not in DTYPES:
        given = short(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise DtypeError(f"{name} is {given}; operators take {', '.join(map(short, DTYPES))}", Site.of_user())


def check_own_dtype(dtype: Any) -> None:
    """Checks the dtype of a layer's parameters; None is torch's default. Raises DtypeError."""
    check_dtype(torch.get_default_dtype() if dtype is None else dtype, "dtype")


def short(dtype: torch.dtype) -> str:
    """Returns the name of a dtype in errors and predictions: "float32"."""
    return str(dtype).removeprefix("torch.")
