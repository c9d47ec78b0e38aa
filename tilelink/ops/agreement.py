"""The ranks of a group compare their calls on the CPU first. If calls differ or one raises, all ranks raise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from tilelink.analysis.machine import machine, machine_of_device
from tilelink.errors import ArgumentError, RankFailedError, RankMismatchError, Site, TileLinkError
from tilelink.ops.checks import check_devices, named_tensors
from tilelink.ops.collectives import Members
from tilelink.ops.plain import Maybe, Plain, Tensors
from tilelink.ops.programs import path_of, reserved_on
from tilelink.runtime.agreement import gathered, mismatch

T = TypeVar("T")
MACHINE = "TILELINK_MACHINE"
"""The environment variable with the machine: a name of `tilelink machine list`, or the path of a description."""
_machines: WeakKeyDictionary[dist.ProcessGroup, list[dict[str, str]]] = WeakKeyDictionary()
"""Of groups that have agreed on a call on CUDA devices, what the ranks said of their machines."""


def agree(members: Members, device: torch.device, tell: Callable[[], Mapping[str, Any]]) -> None:
    """Returns when the ranks agree on what `tell()` returns for a call. Raises what `tell()` raises, RankFailedError if
    it raises on another rank, and RankMismatchError if calls differ.

    On a CPU each call is compared. On CUDA devices the first call of a group that programs compute is compared; every
    rank takes part in that. The lane of the group compares later calls that are new to it.
    """
    site, error = Site.of_user(), None
    try:
        told = dict(tell())
    except TileLinkError as e:
        error, told = type(e)(e.message, site), {"raised": f"{type(e).__name__}: {e.message}"}
    if device.type == "cpu":
        if not _same(members, told) or error is not None:
            _raise_difference(gathered(members.group, told), site, error)
    elif members.group not in _machines and _by_programs(device):
        calls = gathered(members.group, (told, _described(members, device)))
        _raise_difference([call for call, _ in calls], site, error)
        _machines[members.group] = [described for _, described in calls]
    elif error is not None:
        raise error from None


def raised_everywhere(group_name: str, made: Callable[[], T], of: str, *given: Any) -> T:
    """Returns `made()`; what that raises is raised as by `raise_everywhere`. `of`: the source of an error that is not
    TileLink's."""
    if torch.compiler.is_compiling():
        return made()
    try:
        return made()
    except TileLinkError as e:
        raise_everywhere(group_name, e, *given)
    except Exception as e:
        with suppress(ArgumentError):
            raise_everywhere(group_name, ArgumentError(f"{e} ({type(e).__name__} of {of})"), *given)
        raise


def raise_everywhere(group_name: str, error: TileLinkError, *given: Any) -> NoReturn:
    """Raises an error. The next call of every other rank of the group, which would wait for this one, raises
    RankFailedError. `given`: the tensors of the call, among other things."""

    def tell() -> dict[str, str]:
        raise error

    if not torch.compiler.is_compiling():
        device = next((t.device for t in given if isinstance(t, torch.Tensor)), torch.device("cpu"))
        with suppress(TileLinkError):
            agree(Members.named(group_name), device, tell)
    raise error


def agree_on_devices(group_name: str, x: torch.Tensor, weights: Tensors, biases: Maybe) -> None:
    """Raises on every rank where the tensors of this one are on several devices. Asked before torch picks what to run
    by their devices: with one on "meta", it would be the fake, which can't tell the other ranks."""
    if torch.compiler.is_compiling():
        return
    devices = {t.device for t in (x, *weights, *biases) if t is not None}
    if len(devices) > 1:

        def tell() -> Mapping[str, Any]:
            check_devices(x, named_tensors(x, weights, biases))
            return {}

        agree(Members.named(group_name), next((d for d in devices if d.type == "cpu"), x.device), tell)


def told_of_machine(members: Members, device: torch.device) -> dict[str, str]:
    """What the ranks have to agree on, for a plan to be chosen alike: the machine, its description, and how many SMs
    are left to others. Raises UnknownMachineError and MachineError."""
    name = machine_name(device)
    numbers = "" if name is None else repr(sorted(machine(name).numbers.items()))
    digest = hashlib.blake2b(numbers.encode(), digest_size=4).hexdigest()
    return {"machine": str(name), "description": digest, "reserved": str(reserved_on(members, device))}


def agreed_machine(members: Members, device: torch.device) -> str | None:
    """The machine for which a plan is chosen on all ranks. On CUDA devices that of the first call of the group; raises
    RankMismatchError, on every rank, where ranks take theirs for different ones."""
    known = _machines.get(members.group, [])
    for rank, theirs in enumerate(known):
        if theirs != (ours := known[members.rank]):
            if theirs["machine"] == ours["machine"] and theirs.get("reserved") != ours.get("reserved"):
                raise RankMismatchError(
                    f"rank {rank} leaves {theirs['reserved']} SMs to NCCL, rank {members.rank} {ours['reserved']}: to "
                    "choose the same plan, set NCCL_MAX_CTAS to one number on all ranks",
                    Site.of_user(),
                )
            different = f"{theirs['machine']}, the machine of rank {members.rank} is {ours['machine']}"
            raise RankMismatchError(
                f"the machine of rank {rank} is {different}: to choose the same plan, set {MACHINE} to one machine on "
                "all ranks",
                Site.of_user(),
            )
    return machine_name(device)


def machine_name(device: torch.device) -> str | None:
    """The machine of which `TILELINK_MACHINE` says that this is one, or whose description names the GPU. Raises
    UnknownMachineError and MachineError for machines that are not known."""
    said = os.environ.get(MACHINE)
    if said:
        machine(said)
        return said
    return machine_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _by_programs(device: torch.device) -> bool:
    try:
        return path_of(device) is not Plain
    except TileLinkError:  # which `tell` raises
        return True


def _described(members: Members, device: torch.device) -> dict[str, str]:
    """As `told_of_machine`; what is wrong with the machine matters where a plan is chosen for it."""
    try:
        return told_of_machine(members, device)
    except TileLinkError as e:
        return {"machine": e.message}


def _same(members: Members, told: Mapping[str, Any]) -> bool:
    """Whether all ranks tell the same; known to all of them."""
    digest = hashlib.blake2b(repr(told).encode(), digest_size=16).digest()
    word = torch.frombuffer(bytearray(digest), dtype=torch.int64)[None]
    return bool((members.all_gather(word, [1] * members.world)() == word).all())


def _raise_difference(told: Sequence[Mapping[str, Any]], site: Site, error: TileLinkError | None) -> None:
    """Raises the error of this rank, or that of another, or what is different between what the ranks told."""
    if error is not None:
        raise error from None
    for rank, theirs in enumerate(told):
        if "raised" in theirs:
            raise RankFailedError(f"rank {rank} raised {theirs['raised']}", site)
    if any(theirs != told[0] for theirs in told):
        uneven = "; for shards of different lengths, pass lengths= on every rank"
        uneven *= len({str(t.get("shapes")) for t in told}) > 1
        raise RankMismatchError((mismatch("this call", dict(enumerate(told))) or "") + uneven, site)
