"""What a rank sees of its world, and what every kind of world does alike in a call: the arguments are checked, the
program is prepared, a slot is picked, the ranks compare what they call, and then it is launched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

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
"""So many of the last runs can be named in a report."""


class Group(ABC):
    """A rank of a lane, and the way to call programs. `runs`: how many it has launched; `recent`: the last of them;
    `timed`: what its workers recorded in the last run that was timed.

    A kind of world is a subclass with the three methods below (one that keeps what it made for a call has a `call` of
    its own in place of `launch`), and a kind of `Lane`; values of parameters and outputs come from
    `tilelink.runtime.launch.Run`.
    """

    def __init__(self, lane: Lane, rank: int) -> None:
        self.lane, self.rank, self.runs = lane, rank, 0
        self.recent: dict[int, Record] = {}
        self.timed: TimedRun | None = None

    @property
    def world(self) -> int:
        return self.lane.layout.world

    # ---- what a kind of world has to say

    @abstractmethod
    def compare(self, call: dict[str, Any], site: Site) -> None:
        """Compares a call with those of the other ranks, before anything is launched. Raises RankMismatchError."""

    def launch(self, run: Run) -> None:
        """Does what the host does for a run (`run.plan`): kernels on this rank's stream, copies on those of peers."""
        raise NotImplementedError

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until everything this rank launched is done."""

    # ---- what is the same in all of them

    def call(self, call: Call) -> Any:
        """Launches a program on this rank; see `Program.__call__`."""
        run = self.make(call)
        self.runs += 1
        self.launch(run)
        self.remember_times(run.prepared, run.tensors)
        return run.outputs

    def prepare_call(self, call: Call) -> None:
        """Checks a call, and does what calls like it need once; launches nothing. Every rank does it."""
        self._checked(call, Site.of_user())

    def make(self, call: Call) -> Run:
        """The run of a call that is checked, and compared with those of the other ranks."""
        site = Site.of_user()
        arguments, prepared = self._checked(call, site)
        run = Run(self.lane, self.rank, prepared, arguments, self._slot(prepared, call.slot, site), self.runs)
        self.compare(run.same, site)
        return run

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an output."""
        return self.lane.allocate(shape, dtype)

    def remember(self, number: int, record: Record) -> None:
        """Keeps what reports need of a run."""
        self.recent[number] = record
        self.recent.pop(number - KEPT_RUNS, None)

    def named(self, report: Report) -> Record | None:
        """The run that a report is about, if this rank still knows it."""
        return self.recent.get(report.run)

    def raise_if_refused(self) -> None:
        """Raises CapacityError where the rows of a run had no room, once."""
        word = self.lane.control(self.rank)[portable.REFUSED.value]
        if word:
            self.lane.words(self.rank)[portable.REFUSED.value] = 0
            # runs of a replayed graph have other numbers than when they were captured
            records = [r for r in (self.recent.get(word - 1), *reversed(self.recent.values())) if r is not None]
            said = next(filter(None, (r.refusal() for r in records)), f"rows of run {word - 1} had no room")
            raise CapacityError(said, Site.of_user())

    def remember_times(self, prepared: Prepared, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keeps what the workers of a timed run record."""
        if TIMES in tensors:
            self.timed = TimedRun(prepared, self.rank, tensors[TIMES])

    def _checked(self, call: Call, site: Site) -> tuple[Arguments, Prepared]:
        """The arguments of a call, and the program prepared for them."""
        arguments = check_arguments(call, world=self.world, rank=self.rank, device=self.lane.place, site=site)
        try:
            prepared = self.lane.prepare(arguments)
        except DtypeError as e:  # the line is that of a tile function; what has the dtypes stands in the call
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
