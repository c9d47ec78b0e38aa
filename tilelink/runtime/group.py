"""The group that a rank sees, and the part of a call that is the same in all worlds: it checks the arguments, prepares
the program, picks a slot, compares the call with the other ranks, and launches it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch

from tilelink.backend.parameters import TIMES
from tilelink.backend.targets import portable
from tilelink.errors import CapacityError, DtypeError, ScheduleError, Site
from tilelink.programs.given import Call
from tilelink.runtime.arguments import Arguments, check_arguments
from tilelink.runtime.lane import Lane, Report
from tilelink.runtime.launch import Record, Run
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.timestamps import TimedRun

KEPT_RUNS = 64
"""The number of latest runs that a report can name."""


class Again(NamedTuple):
    """How to make a call again. `make`: with other tensors, by name, which lie as before; False if nothing was done,
    since the call has to be made in full. `by_address`: whether it takes only the addresses of tensors. `allocates`: a
    function that allocates a result of a shape and a dtype."""

    make: Callable[[Mapping[str, torch.Tensor]], bool]
    by_address: bool
    allocates: Callable[[tuple[int, ...], torch.dtype], Callable[[], torch.Tensor]]


class Group(ABC):
    """A rank of a lane, and the way to call programs. `runs`: how many it has launched; `recent`: the latest of them;
    `timed`: the records of its workers in the last timed run. `repeats`: whether calls can be `repeated`.

    A kind of world is a subclass with the three methods below, and a kind of `Lane`. A subclass that keeps its work for
    a call overrides `call` instead of `launch`. Values of parameters and outputs come from
    `tilelink.runtime.launch.Run`.
    """

    repeats: ClassVar[bool] = False

    def __init__(self, lane: Lane, rank: int) -> None:
        self.lane, self.rank, self.runs = lane, rank, 0
        self.recent: dict[int, Record] = {}
        self.timed: TimedRun | None = None

    @property
    def world(self) -> int:
        return self.lane.layout.world

    # ---- methods of each kind of world

    @abstractmethod
    def compare(self, call: dict[str, Any], site: Site) -> None:
        """Compares a call with the other ranks' calls, before anything is launched. Raises RankMismatchError."""

    def launch(self, run: Run) -> None:
        """Does the host's steps of a run (`run.plan`): kernels on this rank's stream, copies on streams of peers."""
        raise NotImplementedError

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until everything this rank launched is done."""

    # ---- the same in all kinds of worlds

    def call(self, call: Call) -> Any:
        """Launches a program on this rank, and returns its results; see `Program.__call__`."""
        run = self.make(call.of_variant())
        self.runs += 1
        self.launch(run)
        self.remember_times(run.prepared, run.tensors)
        return call.results(run.outputs)

    def prepare_call(self, call: Call) -> None:
        """Checks a call, and does the work that calls like it need once. Launches nothing. Every rank calls it."""
        self._checked(call.of_variant(), Site.of_user())

    def repeated(self, call: Call) -> Again | None:
        """A short way to make calls like this one, which was made, if there is one and the call gives all results."""
        return None

    def make(self, call: Call) -> Run:
        """Checks a call of an ordinary program, compares it with the other ranks' calls, and returns its run."""
        site = Site.of_user()
        arguments, prepared = self._checked(call, site)
        run = Run(self.lane, self.rank, prepared, arguments, self._slot(prepared, call.slot, site), self.runs)
        self.compare(run.same, site)
        return run

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an output."""
        return self.lane.allocate(shape, dtype)

    def remember(self, number: int, record: Record) -> None:
        """Keeps the record of a run for reports."""
        self.recent[number] = record
        self.recent.pop(number - KEPT_RUNS, None)

    def forget_runs(self) -> None:
        """Begins anew: no run was launched."""
        self.runs, self.timed = 0, None
        self.recent.clear()

    def named(self, report: Report) -> Record | None:
        """The run that a report is about, if this rank still knows it."""
        return self.recent.get(report.run)

    def raise_if_refused(self) -> None:
        """Raises CapacityError, once, if the rows of a run had no room."""
        word = self.lane.control(self.rank)[portable.REFUSED.value]
        if word:
            self.lane.words(self.rank)[portable.REFUSED.value] = 0
            # runs of a replayed graph have other numbers than when they were captured
            records = [r for r in (self.recent.get(word - 1), *reversed(self.recent.values())) if r is not None]
            said = next(filter(None, (r.refusal() for r in records)), f"rows of run {word - 1} had no room")
            raise CapacityError(said, Site.of_user())

    def remember_times(self, prepared: Prepared, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keeps the records of the workers of a timed run."""
        if TIMES in tensors:
            self.timed = TimedRun(prepared, self.rank, tensors[TIMES])

    def _checked(self, call: Call, site: Site) -> tuple[Arguments, Prepared]:
        """The checked arguments of a call, and the program prepared for them."""
        arguments = check_arguments(call, world=self.world, rank=self.rank, device=self.lane.place, site=site)
        try:
            prepared = self.lane.prepare(arguments)
        except DtypeError as e:  # its line is in a tile function, but the dtypes come from the call
            given = ", ".join(f"{n} is {d}" for n, d in arguments.dtypes.items())
            raise DtypeError(f"{given}: {e.message} ({e.site})", site) from None
        prepared.check_strides(arguments.tensors, site)
        return arguments, prepared

    def _slot(self, prepared: Prepared, slot: int | None, site: Site) -> int:
        have = self.lane.layout.slots
        if slot is None:
            return self.runs % min(prepared.program.slots, have)
        if not isinstance(slot, int) or isinstance(slot, bool) or not 0 <= slot < have:
            raise ScheduleError(f"slot {slot!r}: this world has {have}", site)
        return slot
