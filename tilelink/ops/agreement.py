"""The ranks of a group compare their calls on the CPU first. If calls differ or one raises, all ranks raise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from tilelink.analysis.machine import machine, machine_of_device
from tilelink.errors import NeverEnteredError, RankFailedError, RankMismatchError, Site, TileLinkError
from tilelink.ops.checks import check_devices, named_tensors
from tilelink.ops.collectives import Members
from tilelink.ops.known import MACHINE
from tilelink.ops.plain import Maybe, Plain, Tensors
from tilelink.ops.programs import path_of, reserved_on
from tilelink.runtime.agreement import gathered, mismatch

T = TypeVar("T")
RAISED = "raised"
"""What ranks tell of a call in which they raised an error, in the place of its arguments."""
_machines: WeakKeyDictionary[dist.ProcessGroup, list[dict[str, str]]] = WeakKeyDictionary()
"""For each group that has agreed on a call on CUDA devices: `told_of_machine` of each rank."""


def agree(members: Members, device: torch.device, tell: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns `tell()`, which describes the call, if it is alike on all ranks. Raises what `tell()` raises,
    RankFailedError if it raises on another rank, RankMismatchError if calls differ, and NeverEnteredError if another
    rank makes no call of an operator.

    On a CPU each call is compared. On CUDA devices all ranks compare the first call of a group that programs compute.
    The lane of the group compares later calls that are new to it.
    """
    error, told = None, dict[str, Any]()
    try:
        told |= tell()
    except TileLinkError as e:
        error, told = e.placed(), {RAISED: _described_error(e)}
    if device.type == "cpu":
        with _compared(told):
            calls = gathered(members.group, told) if not _same(members, told) or RAISED in told else []
        if calls:
            _raise_difference(calls, error)
    elif members.group not in _machines and _by_programs(device):
        with _compared(told):
            calls = gathered(members.group, (told, _described(members, device)))
        _raise_difference([call for call, _ in calls], error)
        _machines[members.group] = [described for _, described in calls]
    elif error is not None:
        raise error from None
    return told


def agree_again(group_name: str, x: torch.Tensor, told: Mapping[str, Any]) -> None:
    """As `agree`, for a call like one on which the ranks agreed: on CUDA devices there is nothing left to compare."""
    if not x.is_cuda:
        agree(Members.named(group_name), x.device, lambda: told)


def raised_everywhere(group_name: str, made: Callable[[], T], of: str, *given: Any) -> T:
    """Returns `made()`. If `made` raises, the error is raised as by `raise_everywhere`. `of`: what `made` computes, for
    what the other ranks say of an error that is not TileLink's. `given`: as in `raise_everywhere`."""
    if torch.compiler.is_compiling():
        return made()
    try:
        return made()
    except TileLinkError as e:
        raise_everywhere(group_name, e, *given)
    except Exception as e:
        _tell(group_name, f"{type(e).__name__} in {of}: {e}", given)
        raise


def raise_everywhere(group_name: str, error: TileLinkError, *given: Any) -> NoReturn:
    """Raises `error`. On every other rank of the group, the next call raises RankFailedError instead of waiting for
    this rank. `given`: arguments of the call; the first tensor among them says the device."""

    if not torch.compiler.is_compiling():
        _tell(group_name, _described_error(error), given)
    raise error


def _tell(group_name: str, raised: str, given: Iterable[Any]) -> None:
    """Tells the other ranks, in their next call, what this rank `raised`."""
    device = next((t.device for t in given if isinstance(t, torch.Tensor)), torch.device("cpu"))
    with suppress(TileLinkError):
        agree(Members.named(group_name), device, lambda: {RAISED: raised})


def _described_error(error: TileLinkError) -> str:
    return f"{type(error).__name__}: {error.message}"


@contextmanager
def _compared(told: Mapping[str, Any]) -> Iterator[None]:
    """Names the call if the ranks can't compare it: torch raises RuntimeError if a rank is absent or has died, or if
    it makes another collective."""
    try:
        yield
    except RuntimeError as e:
        what = f"{told.get('operator', 'this call')}: another rank did not make this call"
        why = "it came too late, has ended, or used the group for something else"
        raise NeverEnteredError(f"{what}; {why}", Site.of_user()) from e


def agree_on_devices(group_name: str, x: torch.Tensor, weights: Tensors, biases: Maybe) -> None:
    """Raises on every rank if the tensors of this rank are on several devices. Called before torch picks what to run
    by device: with one tensor on "meta" it would run the fake, which can't tell the other ranks."""
    if torch.compiler.is_compiling():
        return
    devices = {t.device for t in (x, *weights, *biases) if t is not None}
    if len(devices) > 1:

        def tell() -> Mapping[str, Any]:
            check_devices(x, named_tensors(x, weights, biases))
            return {}

        agree(Members.named(group_name), next((d for d in devices if d.type == "cpu"), x.device), tell)


def told_of_machine(members: Members, device: torch.device) -> dict[str, str]:
    """Returns what all ranks must have alike to choose the same plan: the machine, a digest of its description, and
    how many SMs are left to others. Raises UnknownMachineError and MachineError."""
    name = machine_name(device)
    numbers = "" if name is None else repr(sorted(machine(name).numbers.items()))
    digest = hashlib.blake2b(numbers.encode(), digest_size=4).hexdigest()
    return {"machine": str(name), "description": digest, "reserved": str(reserved_on(members, device))}


def agreed_machine(members: Members, device: torch.device) -> str | None:
    """Returns the name of the machine for which all ranks choose a plan. On CUDA devices, raises RankMismatchError on
    every rank if the ranks named different machines in the group's first call."""
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
    """Returns the machine that `TILELINK_MACHINE` names, else the machine whose description names the GPU. Raises
    UnknownMachineError and MachineError for unknown machines."""
    said = os.environ.get(MACHINE)
    if said:
        machine(said)
        return said
    return machine_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _by_programs(device: torch.device) -> bool:
    try:
        return path_of(device) is not Plain
    except TileLinkError:  # `tell` raises it
        return True


def _described(members: Members, device: torch.device) -> dict[str, str]:
    """As `told_of_machine`. An error stands in place of the machine: it matters only if a plan is chosen for it."""
    try:
        return told_of_machine(members, device)
    except TileLinkError as e:
        return {"machine": e.message}


def _same(members: Members, told: Mapping[str, Any]) -> bool:
    """Whether all ranks tell the same. All ranks get the same answer."""
    if members.world == 1:
        return True
    digest = hashlib.blake2b(repr(told).encode(), digest_size=16).digest()
    word = torch.frombuffer(bytearray(digest), dtype=torch.int64)[None]
    return bool((members.all_gather(word, [1] * members.world)() == word).all())


def _raise_difference(told: Sequence[Mapping[str, Any]], error: TileLinkError | None) -> None:
    """Raises the error of this rank, the error of another rank, or an error with the difference between the ranks."""
    if error is not None:
        raise error from None
    site = Site.of_user()
    for rank, theirs in enumerate(told):
        if RAISED in theirs:
            raise RankFailedError(f"rank {rank} raised {theirs[RAISED]}", site)
    if any(theirs != told[0] for theirs in told):
        said = _of_other_lengths(told) or mismatch("this call", dict(enumerate(told))) or ""
        raise RankMismatchError(said, site)


def _of_other_lengths(told: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong if ranks differ in `lengths` alone; "" if they differ in something else."""
    lengths = [t.get("shapes", {}).get("lengths") for t in told]
    if None in lengths or any({**t, "shapes": t["shapes"] | {"lengths": lengths[0]}} != told[0] for t in told):
        return ""
    other = next(rank for rank, of in enumerate(lengths) if of != lengths[0])
    if any(len(set(of)) > 1 for of in lengths):
        said = f"rank {other} has lengths {lengths[other]}, rank 0 {lengths[0]}"
        return f"{said}; pass the same lengths= on every rank, the length of each rank's x"
    along, every = told[0]["gather_dim"], tuple(of[rank] for rank, of in enumerate(lengths))
    said = f"x has {every[other]} along dimension {along} on rank {other}, and {every[0]} on rank 0"
    return f"{said}; pass lengths={every} on every rank, or a DTensor to a parallel style"
