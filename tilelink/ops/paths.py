"""Who computes an operator: plain torch, or our programs."""

from __future__ import annotations

import os

import torch

from tilelink.errors import ArgumentError, listed
from tilelink.ops.plain import Plain
from tilelink.plans.names import TORCH

BACKENDS = (TORCH, "interpret")


def path_of(device: torch.device, plan: str | None = None) -> type[Plain]:
    """`Programs` on CUDA devices, and on a CPU where TILELINK_BACKEND is "interpret"; else plain torch, which "torch"
    asks for on any device, as the plan of a call does. Raises ArgumentError."""
    wanted = os.environ.get("TILELINK_BACKEND") or ("interpret" if device.type == "cuda" else "torch")
    if wanted not in BACKENDS:
        raise ArgumentError(f"TILELINK_BACKEND is {wanted!r}; there are {listed(BACKENDS, wanted)}")
    if TORCH in (wanted, plan):
        return Plain
    from tilelink.ops.programs import Programs

    return Programs
