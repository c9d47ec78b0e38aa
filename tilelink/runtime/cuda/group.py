"""A rank on a CUDA device: a first call checks, compiles and loads; calls like it then take some microseconds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilelink.errors import CaptureError, DeviceError, Site, WorldError
from tilelink.frontend.kept import Kept, kept
from tilelink.frontend.routes import Integers
from tilelink.frontend.schedule import Schedule
from tilelink.programs.program import Program
from tilelink.runtime.arguments import Arguments, check_overlap, normal_parts
from tilelink.runtime.cuda.kernels import alike
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.script import ForkStep, Script, Streams
from tilelink.runtime.group import Group
from tilelink.runtime.launch import Lane, Record, Run
from tilelink.runtime.poison import Report
from tilelink.runtime.prepare import Prepared

KEPT_CALLS = 512
"""So many kinds of calls are kept as scripts by a rank: those that were made last, and all that are in a graph."""
KEPT_RUNS = 64
"""So many of the last runs can be named in a report."""


@dataclass
class _Known:
    """Calls that are alike, in every slot that was used so far. `names`: of the tensors that are given by position;
    `results`: of the outputs among those that are given."""

    slots: int
    names: tuple[str, ...]
    results: tuple[str, ...]
    scripts: dict[int, Script] = field(default_factory=dict)


class CudaGroup(Group):
    """A rank of a lane on CUDA devices. Runs are launched on the current stream; where that is another one than before,
    it first waits for the runs that were launched."""

    def __init__(self, cuda: CudaLane, rank: int) -> None:
        self.cuda = cuda
        self.lane = Lane(
            rank, cuda.layout.world, cuda.layout, cuda.table, cuda.heaps[rank], cuda.multicast
        )
        self.flag = cuda.device.seen_by_host()
        self._flag = self.flag.numpy()
        self.recent: dict[int, Record] = {}
        self._known: Kept[Any, _Known] = Kept(KEPT_CALLS)
        self._captured: dict[int, Script] = {}
        self._call: Mapping[str, Any] = {}
        self._given: frozenset[str] = frozenset()
        self._made: Script | None = None
        self._stream: Any = None
        self._engine: dict[int, Any] = {}

    # ---- calls

    def call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> Any:
        """As `Group.call`; the results are complete once the current stream is. Raises StuckError where an earlier run
        ended in vain, and CaptureError."""
        if self._flag[0]:
            self.check()
        options = _normal(options)
        key = _key(program, tensors, schedule, options)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            slot = options.get("slot")
            script = known.scripts.get(self.runs % known.slots if slot is None else slot)
            if script is not None:
                if script.waits and self.cuda.device.capturing():  # a graph does not order waits behind launches
                    raise CaptureError(
                        f"{program.name} is captured in a schedule in which the copy engine waits for tiles of the "
                        "kernel, which graphs can't have: take another schedule",
                        Site.of_user(),
                    )
                return self._again(known, script, tensors, options)
        if self.cuda.device.capturing():
            raise CaptureError(
                f"{program.name} is captured with sizes, dtypes, strides or a slot that it was not called with before: "
                f"compile and load it first, by {program.name}.prepare(...) with arguments like these",
                Site.of_user(),
            )
        made = super().call(program, tensors, schedule, options)
        if key is not None and self._made is not None:
            self._remember(key, program, tensors, self._made)
        return made

    def prepare_call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> None:
        """Compiles and loads all that a call like this needs, in every slot, and compares it with the other ranks'.
        Collective; nothing is launched. Afterwards the call may be captured."""
        options = _normal(options)
        key = _key(program, tensors, schedule, options)
        self._preparing = True
        before = self.runs
        try:
            for slot in range(self.cuda.layout.slots):
                super().call(program, tensors, schedule, {**options, "slot": slot})
                if key is not None and self._made is not None:
                    self._remember(key, program, tensors, self._made)
        finally:
            self._preparing = False
            self.runs = before

    _preparing = False

    def _remember(self, key: Any, program: Program, tensors: tuple[Any, ...], script: Script) -> None:
        slots = min(script.record.prepared.program.slots, self.cuda.layout.slots)
        names = tuple(program.parameters)[: len(tensors)]
        results = tuple(n for n in script.returned if n in self._given)
        known = self._known.get(key) or _Known(slots, names, results)
        known.scripts[script.slot] = script
        self._made = None
        gone = self._known.put(key, known)
        if gone and self._stream is not None:
            self.cuda.device.synchronize(self._stream)  # kernels may still read memory of what goes

    def _again(self, known: _Known, script: Script, tensors: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call like one before."""
        named = {n: t for n, t in zip(known.names, tensors, strict=True) if t is not None}
        named |= {n: t for n, t in options.items() if isinstance(t, torch.Tensor)}
        if known.results:
            check_overlap(known.results, named, Site.of_user())
        for name, shape, dtype in script.outputs:
            named[name] = self.allocate(shape, dtype)
        number, self.runs = self.runs, self.runs + 1
        self._launch(script, number, named)
        self.remember_times(script.record.prepared, named)
        found = tuple(named[n] for n in script.returned)
        return found[0] if len(found) == 1 else found

    # ---- what a kind of world has to say

    def prepare(self, program: Program, arguments: Arguments, schedule: Schedule | str | None) -> Prepared:
        for name, tensor in arguments.tensors.items():
            if tensor.device != self.lane.device:
                raise DeviceError(f"{name} is on {tensor.device}; this rank is on {self.lane.device}", Site.of_user())
        self._given = frozenset(arguments.tensors)
        return self.cuda.prepare(program, arguments, schedule)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.cuda.device.empty(shape, dtype)

    def compare(self, call: dict[str, Any], site: Site) -> None:
        self._call = call
        self.agree(call, site)

    @abstractmethod
    def agree(self, call: Mapping[str, Any], site: Site) -> None:
        """Compares a call whose script is new to this rank with those of the others. Raises RankMismatchError. A script
        may be new to one rank alone, where its tensors lie otherwise than before; calls are new to all or to none."""

    def launch(self, run: Run, site: Site) -> None:
        self._made = Script.of(self.cuda, run, self._given, self._call, site)
        needed = self.world + 2
        if self._made.waits and self.cuda.device.queues < needed:
            raise WorldError(
                f"streams of the copy engine wait for tiles of {run.prepared.program.name}: with those of the run and "
                f"the host, {self.world} ranks need {needed} queues, lest one waits for what stands before it on "
                f"another; the device has {self.cuda.device.queues}: set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA is "
                "used",
                site,
            )
        for step in self._made.steps:
            if isinstance(step, ForkStep):
                for peer in step.peers:
                    self._engine[peer] = self._engine.get(peer) or self.engine(peer)
        if not self._preparing:
            self._launch(self._made, run.number, run.tensors)

    def engine(self, peer: int) -> Any:
        """A stream for copies from and to a peer."""
        return self.cuda.device.stream()

    def _launch(self, script: Script, number: int, tensors: dict[str, torch.Tensor]) -> None:
        """Launches a run on the current stream."""
        stream = self.in_order()
        self.recent[number] = script.record
        self.recent.pop(number - KEPT_RUNS, None)
        if self.cuda.device.capturing():  # a replay needs its tables and kernels for as long as there may be one
            self._captured[id(script)] = script
        self.play(script, tensors, Streams(stream, self._engine))

    def in_order(self) -> Any:
        """The current stream, which goes on after all runs that were launched on another. While a graph is captured
        nothing is launched: the stream that its replay stands on is asked then."""
        device = self.cuda.device
        stream = device.current()
        if device.capturing():
            return stream
        if self._stream is not None and stream != self._stream:
            device.follow(stream, self._stream)
        self._stream = stream
        return stream

    def play(self, script: Script, tensors: dict[str, torch.Tensor], streams: Streams) -> None:
        """Does what the host does for a run."""
        script.play(tensors, streams)

    # ---- the end of a run, and of a lane

    def synchronize(self) -> None:
        """Waits until everything this rank launched is done. Raises StuckError or NeverEnteredError where a run ended
        in vain, the same on every rank; then `reset` makes the lane usable again."""
        self.cuda.device.synchronize(self.cuda.device.current())
        if self._stream is not None:
            self.cuda.device.synchronize(self._stream)
        self.check()

    def named(self, report: Report) -> Record | None:
        """The run that a report is about. In a graph that is replayed runs have other numbers than when they were
        captured: then it is the last one whose signals lie there."""
        for number in sorted(self.recent, key=lambda n: (n != report.run, -n)):
            record = self.recent[number]
            size = record.prepared.lowered.target.signal_bytes
            if any(at <= report.word < at + size * cells for _, at, cells in record.signals):
                label = f"{record.prepared.program.name} run {report.run}"
                return replace(record, number=report.run, label=label)
        return self.recent.get(report.run)

    @abstractmethod
    def check(self) -> None:
        """Raises what ended the lane, if something did."""


@kept()
def _outputs(program: Program) -> tuple[frozenset[str], frozenset[int]]:
    """The names of a program's results, and where they stand among its parameters."""
    kinds = {t.name: t.kind for t in program.recorded().tensors}
    names = [n for n in program.parameters if kinds[n] == "output"]
    return frozenset(names), frozenset(k for k, n in enumerate(program.parameters) if n in names)


def _normal(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call, with parts that can be a key."""
    return {**options, "parts": normal_parts(options.get("parts"))}


def _key(program: Program, tensors: tuple[Any, ...], schedule: Any, options: dict[str, Any]) -> Any:
    """What calls have in common that are checked, compiled and loaded alike; None where something is no tensor, or
    parts are no integers. That results which are given share no memory with anything has to be seen each time."""
    named = [(n, v) for n, v in options.items() if n not in ("parts", "slot", "timed")]
    values = [*tensors, *(v for _, v in named)]
    if any(v is not None and not isinstance(v, torch.Tensor) for v in values):
        return None
    names, places = _outputs(program)
    given = [v for k, v in enumerate(tensors) if k in places] + [v for n, v in named if n in names]
    tracked = any(v is not None and v.requires_grad for v in (values if torch.is_grad_enabled() else given))
    parts = options.get("parts") or {}
    if not isinstance(parts, Mapping) or not all(isinstance(said, Integers) for said in parts.values()):
        return None
    timed = bool(options.get("timed"))
    return program, schedule, tuple(parts.items()), tuple(n for n, _ in named), alike(values), tracked, timed
