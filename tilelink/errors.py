"""Errors of TileLink: one class per kind, all with the place in the user's source they are about."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, TracebackType
from typing import ParamSpec, Self, TypeVar


def shown(file: str) -> str:
    """A file as reports name it: from the working directory where it is below it, else as it is."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the directory is there no more
        return file


@dataclass(frozen=True)
class Site:
    """A place in the user's source: file (its whole path), line (1-based) and the expression that stands there. Of what
    was typed `file` is that, and the line 0."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}" if self.line else self.file

    @classmethod
    def of_user(cls) -> Site:
        """The place in the user's code (or in our library of kernels) from which TileLink was called."""
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_ours(frame):
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
        return cls(file, line, linecache.getline(file, line).strip())


_PACKAGE = str(Path(__file__).parent) + os.sep
_KERNELS = _PACKAGE + "kernels" + os.sep
_WRAPPERS = (contextlib.__file__, dataclasses.__file__, functools.__file__)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is TileLink's machinery, or what it is called through: the standard library's wrappers, and torch
    for operators."""
    file = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if file == "<string>":  # made by dataclasses for a class of ours; else what the user typed
        return package == "tilelink"
    if package == "torch":
        return True
    return file in _WRAPPERS or (file.startswith(_PACKAGE) and not file.startswith(_KERNELS))


def similar(name: object, known: Iterable[str]) -> str:
    """What an error says behind the names that it lists: which of those was meant, if one is much like it."""
    by_letters = {n.lower(): n for n in known if n != name}
    close = get_close_matches(str(name).lower(), by_letters, 1)
    return f"; did you mean {by_letters[close[0]]}?" if close else ""


def listed(known: Iterable[str], name: object) -> str:
    """The names that are known, as an error lists them, and which of them was meant."""
    names = list(known)
    return ", ".join(names) + similar(name, names)


P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """A function that users call. The traceback of an error of ours that leaves it holds the user's frames alone; that
    of another error holds our frames only behind the user's last. Arguments that it does not take are an ArgumentError
    with the user's line."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TileLinkError as e:
            error: BaseException | None = e
            while error is not None:
                error.__traceback__ = _users(error.__traceback__)
                error = error.__cause__
            raise
        except Exception as e:
            if isinstance(e, TypeError) and e.__traceback__ is not None and e.__traceback__.tb_next is None:
                raise ArgumentError(str(e), Site.of_user()) from None
            e.__traceback__ = _users(e.__traceback__, and_ours_behind=True)
            raise

    return called


def _users(trace: TracebackType | None, and_ours_behind: bool = False) -> TracebackType | None:
    """A traceback without our frames, or without those before the user's last one."""
    if trace is None:
        return None
    rest = _users(trace.tb_next, and_ours_behind)
    if _is_ours(trace.tb_frame) and not (and_ours_behind and (rest is None or _is_ours(rest.tb_frame))):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


class TileLinkError(Exception):
    """Base of all errors of TileLink. `site` is the place in the user's source, where there is one, and `tile` the tile
    that would do it: its role, number and rank."""

    tile: tuple[str, int, int] | None = None

    def __init__(self, message: str, site: Site | None = None) -> None:
        self.message, self.site = message, site
        where = f"{site}: " if site else ""
        what = f"\n    {site.text}" if site and site.text else ""
        super().__init__(f"{where}{message}{what}")

    def because_of(self, what: str, site: Site) -> Self:
        """The same error, which names a second place that it is due to, unless that is its own."""
        if self.site is not None and (self.site.file, self.site.line) == (site.file, site.line):
            return self
        return type(self)(f"{self.message}; {what}: {site}", self.site)


class NotUnderstoodError(TileLinkError):
    """A construct that a tile function or a program can't contain."""


class UndefinedNameError(TileLinkError):
    """A name that is not defined where it is used."""


class ViewError(TileLinkError):
    """Memory is touched outside a view, or a view is used for what it can't do."""


class GuardError(ViewError):
    """A guarded view is read beyond what was waited for."""


class UnguardedReadError(TileLinkError):
    """A read of what other tiles wrote, without a wait."""


class WaitWithoutNotifyError(TileLinkError):
    """A wait for signals that no tile of the program gives."""


class NotifyWithoutStoreError(TileLinkError):
    """A notify of a view that the tile did not store or copy to."""


class SignalCountError(TileLinkError):
    """How often a signal is given in a run can't be derived, or differs from what was derived."""


class HomeError(TileLinkError):
    """A view that is stored, copied to or notified has more than one home."""


class DimensionError(TileLinkError):
    """Names or sizes of dimensions do not match."""


class DtypeError(TileLinkError):
    """A dtype that an operation does not take, or dtypes that do not go together."""


class RankError(TileLinkError):
    """A rank outside the world."""


class WorldError(TileLinkError):
    """A world that can't be: no ranks, or not the number that was promised."""


class TileSizeError(TileLinkError):
    """A tile that does not fit the tensor or the hardware."""


class DataBranchError(TileLinkError):
    """A branch on data around what has to be known before the run."""


class ScheduleError(TileLinkError):
    """A schedule that asks for what a role or the machine can't do."""


class FormError(TileLinkError):
    """A program that a form of kernels does not take."""


class RoleWithoutScheduleError(ScheduleError):
    """A role of the program that the schedule does not name."""


class ScheduleWithoutRoleError(ScheduleError):
    """A name in the schedule that is no role of the program."""


class ArgumentError(TileLinkError):
    """An argument of a call that is not what the program declares."""


class ShapeError(ArgumentError):
    """Sizes of arguments that do not agree with each other or with the declaration."""


class StrideError(ArgumentError):
    """A memory layout that can't be used."""


class DeviceError(ArgumentError):
    """A tensor on another device than its world."""


class HeapError(TileLinkError):
    """The symmetric heap is too small."""


class TargetError(TileLinkError):
    """A target that there is not, or that can't do what is asked of it."""


class FarAccessError(TileLinkError):
    """An access to the memory of another node that a network has no operation for."""


class NvshmemError(TileLinkError):
    """NVSHMEM is not installed, or not in a version that goes with the rest."""


class RankMismatchError(TileLinkError):
    """Ranks that call with different programs, schedules, shapes or dtypes."""


class RankDiedError(TileLinkError):
    """The process of a rank has ended while its peers wait for it."""


class RankFailedError(TileLinkError):
    """Another rank of the group raised an error in a run that this rank takes part in."""


class MachineError(TileLinkError):
    """A description of a machine with a number that is missing, has no source or can't be."""


class UnknownMachineError(MachineError):
    """A machine of which there is no description."""


class MachineMemoryError(TileLinkError):
    """Tensors of a rank that do not fit the memory of the machine."""


class ConfigError(TileLinkError):
    """A model's configuration that can't be read, or that can't be cut over the ranks."""


class StuckError(TileLinkError):
    """No rank can go on: a wait whose signals will never come. `lines`: the places in the source that wait."""

    def __init__(self, message: str, site: Site | None = None, lines: tuple[str, ...] = ()) -> None:
        self.lines = lines
        super().__init__(message, site)


class CapacityError(TileLinkError):
    """More rows are routed to a rank, or sent by it, than it has room for. The run moved none; the next call works."""


class NeverEnteredError(StuckError):
    """A rank waited too long for another one to come to a run."""


class BudgetError(TileLinkError):
    """A check that would take more time and memory than it may."""


class UnsafeProgramError(TileLinkError):
    """A program that `check` finds unsafe, before it is launched."""


class TileProgramError(TileLinkError):
    """A tile program that is not well formed: a fault of a pass of the frontend, not of the user's program."""


class KernelError(TileLinkError):
    """A kernel in which a name has no meaning, or two: a fault of the lowering, not of the program."""


class TraceMismatchError(TileLinkError):
    """A lowered kernel did something else than the unrolled program says."""


class SymmetricMemoryError(TileLinkError):
    """Memory that the ranks of a group reach in each other can't be had."""


class DriverError(TileLinkError):
    """A call of CUDA's driver failed, or there is no driver."""


class ResidencyError(ScheduleError):
    """Workers that wait for each other, and can't all be on the device at a time."""


class CaptureError(TileLinkError):
    """A call inside the capture of a CUDA graph that would have to compile or allocate: it was not prepared."""
