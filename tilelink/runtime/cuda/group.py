"""A rank on a CUDA device: a first call checks, compiles and loads; later calls like it take some microseconds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from triton.runtime import JITFunction

from tilelink.errors import CaptureError, Site, WorldError
from tilelink.frontend.kept import Kept, kept
from tilelink.frontend.routes import Integers
from tilelink.programs.given import Arrangement, Call, Place, arranged
from tilelink.programs.program import Program
from tilelink.runtime.arguments import check_overlap, reach
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.script import KernelStep, Script, Streams
from tilelink.runtime.group import Again, Group
from tilelink.runtime.lane import Report
from tilelink.runtime.launch import Record

KEPT_CALLS = 512
"""How many kinds of calls a rank keeps as scripts: the ones called last. It also keeps all that are in a graph."""


class CudaGroup(Group):
    """A rank of a lane on CUDA devices. Runs are launched on the current stream. If that is not the stream of the last
    run, it first waits for the runs that were launched."""

    lane: CudaLane
    repeats = True

    def __init__(self, lane: CudaLane, rank: int) -> None:
        Group.__init__(self, lane, rank)
        self.be_on_device()

    def be_on_device(self) -> None:
        """Makes what a rank has besides on a device: the word that tells its host of aborts, and its scripts."""
        lane, rank = self.lane, self.rank
        self.flag = lane.flags[rank] = lane.device.seen_by_host()
        self._flag = self.flag.numpy()
        self._known: Kept[Any, _Known] = Kept(KEPT_CALLS)  # by `_key`
        self._captured: dict[int, Script] = {}
        self._stream: Any = None
        self._engine: dict[int, Any] = {}

    # ---- calls

    def call(self, call: Call) -> Any:
        """As `Group.call`; the results are complete once the current stream is. Raises StuckError if an earlier run was
        aborted, and CaptureError."""
        if self._flag[0]:
            self.check()
        key, device = _key(call), self.lane.device
        known = None if key is None else self._known.get(key)
        script = None if known is None else known.script(call.slot, self.runs)
        if script is not None and not self.agreed(script):
            script = None
        capturing = device.capturing()
        if capturing and (why := self._not_captured(call.of_variant().program.name, script)):
            raise CaptureError(f"{call.program.name} is captured {why}", Site.of_user())
        if script is None or known is None:
            known, script = self._script(call, key)
        tensors = known.tensors(call)
        if script.given_results:
            check_overlap(script.given_results, tensors, known.reaches)
        for name, result in script.outputs.items():
            tensors[name] = result.allocated(device.empty)
        if capturing:  # a replay needs its tables and kernels for as long as there may be one
            self._captured[id(script)] = script
        self._do(script, tensors)
        self.remember_times(script.record.prepared, tensors)
        made = [tensors[n] for n in script.returned]
        return arranged(made[0] if len(made) == 1 else tuple(made), known.arrangement)

    def repeated(self, call: Call) -> Again | None:
        """As `Group.repeated`; the call must allocate its own results, or given ones that share no memory."""
        known = self._known.get(_key(call))
        if known is None or call.slot is not None or call.timed or any(s.outputs for s in known.scripts.values()):
            return None
        only_kernels = all(isinstance(step, KernelStep) for s in known.scripts.values() for step in s.steps)
        again = partial(self._again, known.scripts, known.slots)
        return Again(again, only_kernels, self.lane.device.allocates)

    def _again(self, scripts: Mapping[int, Script], slots: int, tensors: Mapping[str, torch.Tensor]) -> bool:
        if self._flag[0]:
            self.check()
        script = scripts.get(self.runs % slots)
        if script is None or not self.agreed(script) or self.lane.device.capturing():
            return False
        self._do(script, tensors)
        return True

    def _do(self, script: Script, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launches the next run of the rank."""
        number = self.runs
        self.runs = number + 1
        stream = self.in_order()
        self.remember(number, script.record)
        self.play(script, tensors, Streams(stream, self._engine))

    def prepare_call(self, call: Call) -> None:
        """Compiles and loads everything that a call like this needs, in every slot, and compares the call with the
        other ranks. Collective; launches nothing. Afterwards the call may be captured."""
        for slot in range(self.lane.layout.slots):
            self._script(call._replace(slot=slot), _key(call))

    def _script(self, call: Call, key: Any) -> tuple[_Known, Script]:
        """Makes a script for a call, which is checked, compared, compiled and loaded. It is kept by the key, if any."""
        run, site = self.make(call.of_variant()), Site.of_user()
        script = Script.of(self.lane, run, site)
        self._check_queues(script, site)
        for peer in script.peers:
            self._engine[peer] = self._engine.get(peer) or self.engine(peer)
        known = None if key is None else self._known.get(key)
        known = known or _Known.of(call)
        known.scripts[script.slot] = script
        if key is not None:
            gone = self._known.put(key, known)
            if gone and self._stream is not None:
                self.lane.device.synchronize(self._stream)  # kernels may still read memory of the dropped script
        return known, script

    def _check_queues(self, script: Script, site: Site) -> None:
        """Raises WorldError if a stream of the script would wait for work that stands before it on another stream."""
        device, name = self.lane.device, script.record.prepared.program.name
        if script.peers and not device.probed.allows("stream_signals"):
            raise WorldError(f"{name} uses the copy engine; {device.probed.why_not('stream_signals')}", site)
        needed, streams = self.queues(script)
        if device.queues < needed:
            raise WorldError(
                f"{name}: {streams} need {needed} queues, it has {device.queues}: set "
                "CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA is used",
                site,
            )

    def queues(self, script: Script) -> tuple[int, str]:
        """How many queues of the device a script needs, and for which streams."""
        if script.waits:
            return self.world + 2, f"streams of the run, the host and {self.world} ranks' copies on one device"
        return (2, "copies beside a kernel on one device") if script.peers else (1, "its kernels")

    def agreed(self, script: Script) -> bool:
        """Whether the ranks have agreed on a script, so that they need not compare calls by it."""
        return True

    def engine(self, peer: int) -> Any:
        """A stream for copies from and to a peer."""
        return self.lane.device.stream()

    def in_order(self) -> Any:
        """The current stream, after it was made to follow all runs that were launched on another. While a graph is
        captured, nothing is launched; `replay` then does the same for its stream."""
        device = self.lane.device
        stream = device.current()
        if stream == self._stream or device.capturing():
            return stream
        if self._stream is not None:
            device.follow(stream, self._stream)
        self._stream = stream
        return stream

    def play(self, script: Script, tensors: Mapping[str, torch.Tensor], streams: Streams) -> None:
        """Does the steps of the host for a run."""
        script.play(tensors, streams)

    def _not_captured(self, program: str, script: Script | None) -> str:
        """Why a call can't be captured, or "": because it has no script, or one whose order a graph might not keep."""
        if script is None:
            return (
                "with sizes, dtypes, strides or a slot that it was not called with before: compile and load it first, "
                f"by {program}.prepare(...) with arguments like these"
            )
        if script.waits:
            return (
                "in a schedule in which the copy engine waits for tiles of the kernel, which graphs can't have: take "
                "another schedule"
            )
        probed = self.lane.device.probed
        if script.peers and not probed.allows("engines_in_graphs"):
            return f"in a schedule with a copy engine; {probed.why_not('engines_in_graphs')}; or take another schedule"
        return ""

    # ---- the end of runs, and of a lane

    def synchronize(self) -> None:
        """Waits until everything this rank launched is done. Raises StuckError or NeverEnteredError, the same on every
        rank, if a run was aborted; then `reset` makes the lane usable again."""
        self.until_done()
        self.check()

    def until_done(self) -> None:
        """Waits until everything this rank launched has ended, completed or aborted."""
        for stream in {self.lane.device.current(), self._stream} - {None}:
            self.lane.device.synchronize(stream)

    def named(self, report: Report) -> Record | None:
        """The run that a report is about. Runs of a replayed graph have other numbers than when they were captured;
        then it is the latest run with a signal at the reported word."""
        for number in sorted(self.recent, key=lambda n: (n != report.run, -n)):
            record = self.recent[number]
            size = record.prepared.lowered.target.signal_bytes
            if any(at <= report.word < at + size * cells for _, at, cells in record.signals):
                label = f"{record.prepared.program.name} run {report.run}"
                return replace(record, number=report.run, label=label)
        return super().named(report)

    def raise_if_refused(self) -> None:
        """As `Group.raise_if_refused`; clears the flag for the host, unless the lane was poisoned meanwhile."""
        self.flag.zero_()
        if self.lane.report(self.rank) is not None:
            self.flag.fill_(1)
        super().raise_if_refused()

    @abstractmethod
    def check(self) -> None:
        """Raises the error that ended the lane, if one did."""


class _Known(NamedTuple):
    """What is known of calls like one. `names`: of the tensors that are given one by one, in the order of the values;
    `places`: where all tensors are, if some are given in a list. `arrangement`: of the results; `reaches`: how many
    bytes each tensor reaches. `scripts`: by slot."""

    names: tuple[str, ...]
    places: Mapping[str, Place]
    arrangement: Arrangement
    reaches: Mapping[str, int]
    scripts: dict[int, Script]

    @classmethod
    def of(cls, call: Call) -> _Known:
        """What is known before there is a script."""
        places, values = call.places(), call.values
        alone = list(places.values()) == [(k, None) for k in range(len(values))]
        reaches = {n: reach(t) for n, t in call.by_name().items() if t is not None}
        return cls(tuple(places) if alone else (), {} if alone else places, call.arrangement(), reaches, {})

    def script(self, slot: int | None, number: int) -> Script | None:
        """The script for the run with this number, in a slot, by default in turn; None if there is none yet."""
        return self.scripts.get(number % self.slots if slot is None else slot)

    @property
    def slots(self) -> int:
        """The number of slots that calls take in turn. There is a script."""
        return next(iter(self.scripts.values())).slots

    def tensors(self, call: Call) -> dict[str, Any]:
        """The tensors that a call gives, by name; None for one that is absent."""
        values = call.values
        if self.names:
            return dict(zip(self.names, values, strict=True))
        return {n: values[k] if member is None else values[k][member] for n, (k, member) in self.places.items()}


@kept()
def _outputs(program: Program) -> frozenset[str]:
    """The names of an ordinary program's results."""
    return frozenset(t.name for t in program.recorded().tensors if t.kind == "output")


def _key(call: Call) -> Any:
    """The key of a call: calls with equal keys are checked, compiled and loaded alike. None if a value is of another
    type than those of correct calls. Whether given results share memory must still be checked at each call."""
    parts = call.parts
    if parts is not None:
        if not isinstance(parts, Mapping) or not all(isinstance(said, Integers) for said in parts.values()):
            return None
        parts = tuple(parts.items())
    alike: list[Any] = []
    tracked = False
    for value in call.values:
        several = isinstance(value, list | tuple)
        if several:
            alike.append((type(value), len(value)))
        for t in value if several else (value,):
            if isinstance(t, torch.Tensor):
                alike += t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, t.is_neg()
                tracked = tracked or t.requires_grad
            elif t is None or isinstance(t, JITFunction):
                alike.append(t)
            else:
                return None
    if tracked and not torch.is_grad_enabled():  # then only results must not require a gradient
        program, tensors, named, *_ = call.of_variant()
        by_name = (*zip(program.parameters, tensors, strict=False), *named.items())
        tracked = any(v is not None and v.requires_grad for n, v in by_name if n in _outputs(program))
    return call.program, call.schedule, parts, tuple(call.named), tuple(alike), tracked, call.timed
