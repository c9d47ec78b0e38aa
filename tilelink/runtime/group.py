"""What a rank sees of its world, and what every kind of world does alike in a call: the arguments are checked, the
program is prepared, a slot is picked, the ranks compare what they call, and then it is launched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tilelink.backend.parameters import STAMPS
from tilelink.errors import DtypeError, ScheduleError, Site
from tilelink.frontend.schedule import Schedule
from tilelink.programs.program import Program
from tilelink.runtime.arguments import Arguments, Parts, check_arguments, normal_parts
from tilelink.runtime.launch import Lane, Run
from tilelink.runtime.prepare import Prepared, same_call
from tilelink.runtime.timestamps import TimedRun


class Group(ABC):
    """A rank of a lane: `rank`, `world`, and the way to call programs. `runs`: how many it has launched; `timed`: what
    its workers recorded in the last run that was timed.

    A kind of world is a subclass with the five methods below; values of parameters and outputs come from
    `tilelink.runtime.launch.Run`.
    """

    lane: Lane
    runs: int = 0
    timed: TimedRun | None = None

    @property
    def rank(self) -> int:
        return self.lane.rank

    @property
    def world(self) -> int:
        return self.lane.world

    # ---- what a kind of world has to say

    @abstractmethod
    def prepare(self, program: Program, arguments: Arguments, schedule: Schedule | str | None) -> Prepared:
        """The program for this world and its target, made once for a schedule, dtypes and sizes."""

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an output."""

    @abstractmethod
    def compare(self, call: dict[str, Any], site: Site) -> None:
        """Compares a call with those of the other ranks, before anything is launched. Raises RankMismatchError."""

    @abstractmethod
    def launch(self, run: Run, site: Site) -> None:
        """Does what the host does for a run (`run.steps`): kernels on this rank's stream, copies on those of peers."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until everything this rank launched is done."""

    # ---- what is the same in all of them

    def call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> Any:
        """Launches a program on this rank; see `Program.__call__`. Options: tensors by name, `parts` (lengths of the
        shards of each rank, by dimension), `slot` (which copy of buffers and signals; by default they take turns),
        `timed` (whether workers record times; on all ranks or on none: see `timeline` of the kinds of worlds)."""
        site = Site.of_user()
        slot: int | None = options.pop("slot", None)
        arguments, prepared = self._checked(program, tensors, schedule, options, site)
        run = Run(self.lane, prepared, arguments, self._slot(prepared, slot, site), self.runs, self.allocate)
        self.compare(same_call(program, prepared, run.slot), site)
        self.runs += 1
        self.launch(run, site)
        self.remember_times(prepared, run.tensors)
        return run.outputs

    def remember_times(self, prepared: Prepared, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keeps what the workers of a timed run record."""
        if STAMPS in tensors:
            self.timed = TimedRun(prepared, self.rank, tensors[STAMPS])

    def prepare_call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> None:
        """Checks a call, and does what calls like it need once; launches nothing. Every rank does it."""
        options.pop("slot", None)
        self._checked(program, tensors, schedule, options, Site.of_user())

    def _checked(
        self,
        program: Program,
        tensors: tuple[Any, ...],
        schedule: Schedule | str | None,
        options: dict[str, Any],
        site: Site,
    ) -> tuple[Arguments, Prepared]:
        """The arguments of a call, and the program prepared for them."""
        parts: Parts | None = normal_parts(options.pop("parts", None))
        timed = bool(options.pop("timed", False))
        device = self.lane.device
        arguments = check_arguments(
            program, tensors, options, world=self.world, rank=self.rank, device=device, parts=parts, site=site
        )
        arguments = replace(arguments, timed=timed)
        try:
            prepared = self.prepare(program, arguments, schedule)
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
