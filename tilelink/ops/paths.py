"""Who computes an operator: plain torch, or our programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch

from tilelink.errors import ArgumentError
from tilelink.ops.collectives import Later, Members
from tilelink.plans.names import TORCH

BACKENDS = (TORCH, "interpret")


class Path(Protocol):
    """What operators are made of, on matrices; the modules `plain` and `programs` have these functions."""

    __name__: str

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor: ...

    def all_gather(self, members: Members, rows: torch.Tensor, lengths: Sequence[int]) -> Later: ...

    def gather_linear(
        self,
        members: Members,
        rows: torch.Tensor,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        lengths: Sequence[int],
        plan: str | None,
        keep: bool,
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]: ...

    def linear_scatter(
        self,
        members: Members,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lengths: Sequence[int],
        plan: str | None,
        dtype: torch.dtype,
        mean: bool = False,
    ) -> Later: ...

    def gather_linear_gradients(
        self,
        members: Members,
        grads: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        rows: torch.Tensor,
        lengths: Sequence[int],
        plan: str | None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]: ...

    def linear_scatter_gradients(
        self,
        members: Members,
        grad: torch.Tensor,
        weight: torch.Tensor,
        x: torch.Tensor,
        lengths: Sequence[int],
        plan: str | None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def linear_all_reduce(
        self,
        members: Members,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        plan: str | None,
        mean: bool,
    ) -> torch.Tensor: ...


def path_of(device: torch.device, plan: str | None = None) -> Path:
    """Our programs on CUDA devices, and on a CPU where TILELINK_BACKEND is "interpret"; else plain torch, which "torch"
    asks for on any device, as the plan of a call does. Raises ArgumentError."""
    wanted = os.environ.get("TILELINK_BACKEND") or ("interpret" if device.type == "cuda" else "torch")
    if wanted not in BACKENDS:
        raise ArgumentError(f"TILELINK_BACKEND is {wanted!r}; there are {', '.join(BACKENDS)}")
    if TORCH in (wanted, plan):
        from tilelink.ops import plain

        return plain
    from tilelink.ops import programs

    return programs
