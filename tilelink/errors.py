"""Errors of TileLink: one class per kind, each with the place in the user's source."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import dataclasses
import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, TracebackType
from typing import ParamSpec, Self, TypeVar


def shown(file: str) -> str:
    """A file's name in reports: relative to the working directory if it is below it."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the directory was deleted
        return file


def function_text(function: Callable[..., object]) -> str:
    """A function as errors name it, alike on every rank: its name, and where it is written."""
    code = getattr(function, "__code__", None)
    name: str = getattr(function, "__name__", type(function).__name__)
    return name if code is None else f"{name} ({shown(code.co_filename)}:{code.co_firstlineno})"


@dataclass(frozen=True)
class Site:
    """A place in the user's source: `file` (full path), `line` (1-based) and `text`, the source line. For typed text,
    `file` is the text and `line` is 0."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}" if self.line else self.file

    @property
    def quoted(self) -> str:
        """The place with its source line, as reports show it."""
        return f"{self}: {self.text}" if self.text else str(self)

    @property
    def in_library(self) -> bool:
        """Whether it is in our library of kernels."""
        return self.file.startswith(_KERNELS)

    @classmethod
    def at(cls, file: str, line: int) -> Site:
        """A line of a file, with its text."""
        return cls(file, line, linecache.getline(file, line).strip())

    @classmethod
    def of_user(cls) -> Site:
        """The place in the user's code, or in our library of kernels, that called TileLink."""
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_ours(frame):
            frame = frame.f_back
        started = _started.get() if frame.f_code.co_filename == concurrent.futures.thread.__file__ else None
        return started or cls.at(frame.f_code.co_filename, frame.f_lineno)

    @contextlib.contextmanager
    def on_thread(self) -> Iterator[None]:
        """Inside, which is on a thread of our own, this is the user's place for calls without a line of the user's."""
        token = _started.set(self)
        try:
            yield
        finally:
            _started.reset(token)


_started: ContextVar[Site | None] = ContextVar("started", default=None)
"""The user's place that started the present thread, if TileLink made it."""


_PACKAGE = str(Path(__file__).parent) + os.sep
_KERNELS = _PACKAGE + "kernels" + os.sep
_WRAPPERS = (contextlib.__file__, dataclasses.__file__, functools.__file__)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to TileLink, or to code through which it is called: wrappers of the standard library, or
    torch for operators."""
    file = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if file == "<string>":  # made by dataclasses for a class of ours; else what the user typed
        return package == "tilelink"
    if package == "torch":
        return True
    return file in _WRAPPERS or (file.startswith(_PACKAGE) and not file.startswith(_KERNELS))


CLOSE = 0.7
"""How similar a suggestion is to what was written, between 0 and 1: one letter of four may be wrong."""


def similar(name: object, known: Iterable[str]) -> str:
    """The end of an error that lists names: a suggestion if one name is similar, else ""."""
    by_letters = {n.lower(): n for n in known if n != name}
    close = get_close_matches(str(name).lower(), by_letters, 1, cutoff=CLOSE)
    return f"; did you mean {by_letters[close[0]]}?" if close else ""


def listed(known: Iterable[str], name: object) -> str:
    """The known names, as an error lists them, with a suggestion."""
    names = list(known)
    return ", ".join(names) + similar(name, names)


def counted(number: int, word: str, words: str = "") -> str:
    """A number of things, as a text says it: "1 tile", "2 tiles". `words`: the plural if it is not `word` + "s"."""
    return f"{number} {word if number == 1 else words or f'{word}s'}"


P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that users call. The traceback of a TileLink error then has only the user's frames. The
    traceback of another error has our frames only after the user's last frame. Wrong arguments become an ArgumentError
    with the user's line."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            try:
                return function(*args, **kwargs)
            except TypeError as e:
                if e.__traceback__ is not None and e.__traceback__.tb_next is None:
                    raise ArgumentError(_misfit(function, str(e), kwargs), Site.of_user()) from None
                raise
        except TileLinkError as e:
            error: BaseException | None = e
            while error is not None:
                error.__traceback__ = _users(error.__traceback__)
                error = error.__cause__
            raise
        except Exception as e:
            e.__traceback__ = _users(e.__traceback__, and_ours_behind=True)
            raise

    return called


def _misfit(function: Callable[..., object], said: str, given: Iterable[str]) -> str:
    """Why arguments do not fit a function: what Python says, without the function's name (the user may call it by
    another), and a suggestion for names that are no parameters."""
    known = list(inspect.signature(function).parameters)
    said = re.sub(r"^[\w.<>]+\(\) ", "", said)
    missing = [n for n in known if f"'{n}'" in said]
    for name in (n for n in given if n not in known):
        if f"'{name}'" in said:
            said += similar(name, known)
        elif meant := similar(name, missing):
            said += f"; {name}= is given{meant}"
    return said


C = TypeVar("C", bound=type)


def public_class(cls: C) -> C:
    """Decorates a class that users make objects of: its constructor, and its `forward` if it is a module, are
    `public`."""
    for name in {"__init__", "forward"} & vars(cls).keys():
        setattr(cls, name, public(vars(cls)[name]))
    return cls


def _users(trace: TracebackType | None, and_ours_behind: bool = False) -> TracebackType | None:
    """A traceback without our frames, or only without those before the user's last frame."""
    if trace is None:
        return None
    rest = _users(trace.tb_next, and_ours_behind)
    if _is_ours(trace.tb_frame) and not (and_ours_behind and (rest is None or _is_ours(rest.tb_frame))):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


class TileLinkError(Exception):
    """Base of all errors of TileLink. `site`: the place in the user's source, if there is one. `tile`: the tile that
    makes the mistake (its role, number and rank), if there is one."""

    tile: tuple[str, int, int] | None = None

    def __init__(self, message: str, site: Site | None = None) -> None:
        self.message, self.site = message, site
        where = f"{site}: " if site else ""
        what = f"\n    {site.text}" if site and site.text else ""
        super().__init__(f"{where}{message}{what}")

    def placed(self) -> Self:
        """The same error at the user's line, if it has no place yet."""
        return self if self.site is not None else type(self)(self.message, Site.of_user())

    def because_of(self, what: str, site: Site) -> Self:
        """The same error with a second place that contributes, unless that is the error's own place."""
        if self.site is not None and (self.site.file, self.site.line) == (site.file, site.line):
            return self
        return type(self)(f"{self.message}; {what}: {site}", self.site)


class NotUnderstoodError(TileLinkError):
    """A construct that a tile function or a program can't contain."""


class UndefinedNameError(TileLinkError):
    """A name that is not defined where it is used."""


class ChangedValueError(TileLinkError):
    """A value outside of a tile function that has changed since it was read for a kernel."""


class ViewError(TileLinkError):
    """Memory access outside a view, or a use that the view does not allow."""


class GuardError(ViewError):
    """A read of a guarded view beyond the region that was waited for."""


class RowIndexError(ViewError):
    """An integer that picks a row, and is not the number of a row."""


class UnguardedReadError(TileLinkError):
    """A read of data of other tiles, without a wait."""


class WaitWithoutNotifyError(TileLinkError):
    """A wait for signals that no tile of the program notifies."""


class NotifyWithoutStoreError(TileLinkError):
    """A notify of a view that the tile did not store or copy to."""


class SignalCountError(TileLinkError):
    """The number of notifications of a signal can't be derived, or differs from the derived one."""


class HomeError(TileLinkError):
    """A view that is stored, copied to or notified has more than one home."""


class DimensionError(TileLinkError):
    """Names or sizes of dimensions do not match."""


class DtypeError(TileLinkError):
    """A dtype that an operation does not take, or dtypes that can't be combined."""


class IntegerError(TileLinkError):
    """An integer that a kernel can't compute at these sizes: it may leave 32 bits, or its divisor may be 0."""


class RankError(TileLinkError):
    """A rank outside the world."""


class WorldError(TileLinkError):
    """A world without ranks, or with another number of ranks than promised."""


class TileSizeError(TileLinkError):
    """A tile that does not fit the tensor or the hardware."""


class DataBranchError(TileLinkError):
    """A branch on data around a value that must be known before the run."""


class ScheduleError(TileLinkError):
    """A schedule that asks for something that a role or the machine can't do."""


class FormError(TileLinkError):
    """A program that a form of kernels does not support."""


class RoleWithoutScheduleError(ScheduleError):
    """A role of the program that the schedule does not name."""


class ScheduleWithoutRoleError(ScheduleError):
    """A name in the schedule that is not a role of the program."""


class ArgumentError(TileLinkError):
    """An argument of a call that does not fit the program's declaration."""


class ShapeError(ArgumentError):
    """Sizes of arguments that do not agree with each other or with the declaration."""


class StrideError(ArgumentError):
    """A memory layout that can't be used."""


class DeviceError(ArgumentError):
    """A tensor on another device than its world."""


class HeapError(TileLinkError):
    """The symmetric heap is too small."""


class TargetError(TileLinkError):
    """Unknown target, or a target without the requested feature."""


class FarAccessError(TileLinkError):
    """An access to the memory of another node that a network has no operation for."""


class NvshmemError(TileLinkError):
    """NVSHMEM is not installed, or its version does not fit the other packages."""


class RankMismatchError(TileLinkError):
    """Ranks that call with different programs, schedules, shapes or dtypes."""


class RankDiedError(TileLinkError):
    """The process of a rank ended while its peers wait for it."""


class RankFailedError(TileLinkError):
    """Another rank of the group raised an error in a run that this rank takes part in."""


class MachineError(TileLinkError):
    """A description of a machine with a number that is missing, has no source, or is impossible."""


class UnknownMachineError(MachineError):
    """A machine without a description."""


class MachineMemoryError(TileLinkError):
    """Tensors of a rank that do not fit the memory of the machine."""


class ConfigError(TileLinkError):
    """A model's configuration that can't be read, or can't be split over the ranks."""


class StuckError(TileLinkError):
    """No rank can continue: a wait whose signals never come. `lines`: the source lines that wait."""

    def __init__(self, message: str, site: Site | None = None, lines: tuple[str, ...] = ()) -> None:
        self.lines = lines
        super().__init__(message, site)


class CapacityError(TileLinkError):
    """More rows are routed to a rank, or sent by it, than it has room for. The run moved none; the next call works."""


class NeverEnteredError(StuckError):
    """Another rank did not enter a run, or did not make a call of an operator."""


class BudgetError(TileLinkError):
    """A check that needs more time and memory than its budget."""


class UnsafeProgramError(TileLinkError):
    """A program that `check` finds unsafe; it is not launched."""


class TileProgramError(TileLinkError):
    """A malformed tile program: a bug in a pass of the frontend, not in the user's program."""


class LoweringError(TileLinkError):
    """A kernel in which a name has no meaning, or two: a bug in the lowering, not in the user's program."""


class TraceMismatchError(TileLinkError):
    """A lowered kernel made memory operations that differ from the unrolled program."""


class SymmetricMemoryError(TileLinkError):
    """The ranks of a group can't get memory that they all can access."""


class DriverError(TileLinkError):
    """A call of CUDA's driver failed, or there is no driver."""


class ResidencyError(ScheduleError):
    """Workers that wait for each other, but do not fit on the device at the same time."""


class CaptureError(TileLinkError):
    """A call, captured in a CUDA graph, that would have to compile or allocate because it was not prepared."""
