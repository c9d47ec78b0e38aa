"""The plan "auto": which plan it stands for in a call, the same on every rank, from predictions alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tilelink.analysis.machine import machine, machine_of_device
from tilelink.errors import ArgumentError, MachineError, MachineMemoryError
from tilelink.plans import choose
from tilelink.plans.names import Plan, planned

MACHINE = "TILELINK_MACHINE"
"""The environment variable that names the machine: one of `tilelink machine list`, or the path of a description."""


class Asked(NamedTuple):
    """What a call needs a plan of: an operator (or its backward) with its sizes, as `choose` takes them."""

    operator: str
    M: int
    N: int | Sequence[int]
    K: int

    @property
    def empty(self) -> bool:
        """Whether one of its matrices is."""
        return not self.M * self.K * min(self.N if isinstance(self.N, Sequence) else [self.N])


def fastest(asked: Asked, world: int, name: str | None, dtype: torch.dtype) -> Plan | None:
    """The plan that is predicted to be the fastest on a machine, None for plain torch; the first where the machine is
    not known, too small, or described without products of this dtype, or the operator is not predicted. Nothing is
    timed.

    Predictions are those of the largest power of two of rows that a call has, and are kept: numbers of rows between two
    powers of two share a plan.
    """
    operator, M, N, K = asked
    if name is None:
        return planned(operator, None)
    rows, of_dtype = 1 << (M.bit_length() - 1), str(dtype).removeprefix("torch.")
    try:
        return choose(operator, M=rows, N=N, K=K, world=world, machine=name, dtype=of_dtype).by
    except (ArgumentError, MachineError, MachineMemoryError):
        return planned(operator, None)


def machine_name(device: torch.device) -> str | None:
    """The machine of which `TILELINK_MACHINE` says that this is one, or whose description names the GPU. Raises
    UnknownMachineError and MachineError for machines that are not known."""
    said = os.environ.get(MACHINE)
    if said:
        machine(said)
        return said
    return machine_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
