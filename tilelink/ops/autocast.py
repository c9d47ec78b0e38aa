"""Mixed precision: inside `torch.autocast` operators take their tensors in its dtype, as nn.Linear does; what they do
with them is as outside of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

from tilelink.ops.checks import DTYPES

T = TypeVar("T", torch.Tensor, torch.Tensor | None)


def cast_for(x: torch.Tensor) -> Callable[[T], T]:
    """What brings a tensor into the dtype that holds here on the device of x, and leaves it as it is outside of
    `torch.autocast`. Gradients come back in the dtype of what was given."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return lambda tensor: tensor
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor: T) -> T:  # of other dtypes, which torch.autocast leaves alone, the operator says that it has none
        return tensor.to(dtype) if tensor is not None and tensor.dtype in DTYPES else tensor

    return cast


def no_autocast(x: torch.Tensor) -> AbstractContextManager[object]:
    """Inside, sums that are made in float32 stay so."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
