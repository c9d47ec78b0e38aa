"""The plan "auto": which plan it stands for in a call, the same on every rank, from predictions alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from tilelink.analysis.machine import Machine, machine, machine_of_device
from tilelink.errors import MachineError, MachineMemoryError, RankMismatchError, Site
from tilelink.ops.collectives import Members
from tilelink.ops.paths import path_of
from tilelink.plans import AUTO, TORCH, choose
from tilelink.runtime.shared import gathered

MACHINE = "TILELINK_MACHINE"
"""The environment variable that names the machine: one of `tilelink machine list`, or the path of a description."""

_compared: WeakKeyDictionary[dist.ProcessGroup, str] = WeakKeyDictionary()


def settled(
    operator: str, plan: str | None, members: Members, like: torch.Tensor, M: int, N: int | Sequence[int], K: int
) -> str | None:
    """The plan of a call: the one that is asked for, or the one that is predicted to be the fastest where that is
    "auto"; None, which stands for the first, where the machine is not known. Nothing is timed.

    Predictions are those of the largest power of two of rows that a call has, and are kept: numbers of rows between two
    powers of two share a plan. The ranks choose alike, since they know the same: the machine, whose description they
    compare once on CUDA devices (on a CPU each call is compared), and the sizes. Raises UnknownMachineError and
    MachineError for what `TILELINK_MACHINE` says, RankMismatchError.
    """
    if plan != AUTO:
        return plan
    if path_of(like.device).__name__ == "tilelink.ops.plain":
        return TORCH
    name = machine_name(like.device)
    if like.device.type != "cpu":
        _compare(members, name)
    if name is None or not M * K * min(N if isinstance(N, Sequence) else [N]):
        return None
    rows, dtype = 1 << (M.bit_length() - 1), str(like.dtype).removeprefix("torch.")
    try:
        return choose(operator, M=rows, N=N, K=K, world=members.world, machine=name, dtype=dtype).plan
    except (MachineError, MachineMemoryError):  # too small a machine, or one without products of this dtype
        return None


def machine_name(device: torch.device) -> str | None:
    """The machine of which `TILELINK_MACHINE` says that this is one, or whose description names the GPU. Raises
    UnknownMachineError and MachineError for what there is not."""
    said = os.environ.get(MACHINE)
    if said:
        machine(said)
        return said
    return machine_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _compare(members: Members, name: str | None) -> None:
    """Raises RankMismatchError where the ranks take their machine for different ones. Collective, once for a group and
    a machine."""
    if _compared.get(members.group) == str(name):
        return
    mine = str(name), None if name is None else _numbers(machine(name))
    for rank, theirs in enumerate(gathered(members.group, mine)):
        if theirs != mine:
            raise RankMismatchError(
                f"rank {rank} takes its machine for {theirs[0]}, rank {members.rank} for {name}, so that they can't "
                f"choose alike: set {MACHINE} to one on all ranks",
                Site.of_user(),
            )
    _compared[members.group] = str(name)


def _numbers(found: Machine) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(found.numbers.items()))
