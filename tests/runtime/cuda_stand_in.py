"""A device that is none: kernels that are launched on it are interpreted, all ranks' together, when a host waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tilelink.analysis.placement import ALIGNMENT
from tilelink.backend.targets import CPU
from tilelink.emulator import DeadlockError, Execution, InterpretedKernel, Region, engine, interpreted
from tilelink.emulator.accesses import Accesses
from tilelink.runtime.board import share
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cpu.lane import CpuLane
from tilelink.runtime.cuda.device import Kernel
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.probed import Probed
from tilelink.runtime.cuda.process_group import CudaProcessGroup
from tilelink.runtime.cuda.virtual_world import VirtualWorld
from tilelink.runtime.lane import POISON, Reason, Report, entered
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout, place
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.stuck import first_wait

HEAP, SIGNALS = 1 << 20, 1 << 12
"""Bytes of a heap, and of a slot's signals."""


@dataclass(frozen=True)
class StandInStream:
    """A stream; what is launched on it waits there."""

    cuda_stream: int


class StandIn:
    """A device of `sms` SMs, of which each holds `workers_per_sm` workers of any kernel. `loads`: kernels that were
    loaded; `launched`: what was launched, in order, as (stream, kernel, workers). `probed`: nobody has asked it."""

    def __init__(self, sms: int = 12, workers_per_sm: int = 1) -> None:
        self.place, self.target, self.sms = torch.device("cpu"), CPU, sms
        self.workers_per_sm, self.queues, self.probed = workers_per_sm, 32, Probed()
        self.loads: list[str] = []
        self.launched: list[tuple[int, str, int]] = []
        self.world: VirtualWorld | None = None
        self.graph: list[Any] | None = None
        self._waiting: list[_Work] = []
        self._streams = 0
        self._thread = threading.local()
        self._outside = self.stream()

    # ---- as a world asks it

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=dtype) if dtype.is_floating_point else torch.empty(shape, dtype=dtype)

    def allocates(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        return partial(self.empty, shape, dtype)

    def seen_by_host(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        code = _Code(self, prepared, interpreted(getattr(prepared.module, kernel)), tuple(arguments))
        self.loads.append(kernel)
        return Kernel(kernel, tuple(arguments), 64, 0, 1024, 4, self.workers_per_sm, code)

    def stream(self) -> StandInStream:
        self._streams += 1
        return StandInStream(self._streams)

    def current(self) -> StandInStream:
        return getattr(self._thread, "stream", self._outside)

    @contextmanager
    def on(self, stream: StandInStream) -> Iterator[None]:
        before, self._thread.stream = self.current(), stream
        yield
        self._thread.stream = before

    def follow(self, stream: StandInStream, before: StandInStream) -> None:
        self._enqueue(_Follow(stream.cuda_stream, before.cuda_stream))

    def capturing(self) -> bool:
        return self.graph is not None

    def copy(self, stream: StandInStream, source: torch.Tensor, target: torch.Tensor) -> None:
        self._enqueue(_Engine(stream.cuda_stream, partial(engine.copy, source, target), source))

    def write_signal(self, stream: StandInStream, address: int) -> None:
        self._enqueue(_Engine(stream.cuda_stream, partial(engine.signal, self._word(address), 1)))

    def wait_for_signal(self, stream: StandInStream, address: int, least: int) -> None:
        self._enqueue(_Engine(stream.cuda_stream, partial(engine.wait, self._word(address), least)))

    def fill(self, stream: StandInStream, words: torch.Tensor, value: int) -> None:
        for word in words:
            self._enqueue(_Engine(stream.cuda_stream, partial(engine.signal, word, value)))

    def _word(self, address: int) -> torch.Tensor:
        assert self.world is not None
        at = [(heap, address - heap.data_ptr()) for heap in self.world.lane.heaps]
        return next(heap[n : n + 4].view(torch.int32) for heap, n in at if 0 <= n < len(heap))

    def synchronize(self, stream: StandInStream) -> None:
        """Interprets all that waits. Where the kernels are stuck, they have waited long enough: one gives up."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        assert self.world is not None
        lane = self.world.lane
        execution = Execution(self.world.world)

        streams = {s.cuda_stream: g.rank for g in self.world.groups for s in (g.stream, *g._engine.values())}

        def host(rank: int) -> None:
            regions: list[Region] = []
            for work in waiting:
                if (work.arguments["rank"] if isinstance(work, _Launched) else streams.get(work.stream)) != rank:
                    continue
                if isinstance(work, _Launched):
                    regions = work.interpret(execution, lane)
                elif isinstance(work, _Engine):
                    mine = [*regions, *work.of_caller(rank, lane.heaps)]
                    execution.launch(work.work, 1, {}, mine, rank, work.stream, "copy engine", 1000 + work.stream)
                elif streams.get(work.before) == rank:
                    execution.follow(rank, work.stream, [work.before])

        try:
            execution.run(host)
        except DeadlockError as e:
            self._give_up(e)

    # ---- graphs

    @contextmanager
    def capture(self) -> Iterator[SimpleNamespace]:
        """What is launched is kept, for `replay()`."""
        kept: list[Any] = []
        self.graph = kept
        yield SimpleNamespace(replay=lambda: self._waiting.extend(kept))
        self.graph = None

    # ---- kernels

    def launch(self, code: _Code, workers: int, values: tuple[Any, ...], stream: int) -> None:
        if self.graph is None:
            self.launched.append((stream, code.kernel.name, workers))
        self._enqueue(_Launched(stream, code, workers, dict(zip(code.names, values, strict=True))))

    def _enqueue(self, work: _Work) -> None:
        (self._waiting if self.graph is None else self.graph).append(work)

    def _give_up(self, deadlock: DeadlockError) -> None:
        """As a kernel does, see docs/protocol.md."""
        assert self.world is not None
        lane = self.world.lane
        rank = min(s.rank for s in deadlock.stuck if s.waits)
        group = self.world.groups[rank]
        record = group.recent[group.runs - 1]
        runs = [g.runs for g in self.world.groups]
        late = next((r for r in range(self.world.world) if runs[r] < max(runs)), None)
        if late is None:
            mine = DeadlockError([s for s in deadlock.stuck if s.rank == rank], [], [])
            report = first_wait(mine, record, Reason.STUCK)
        else:
            word = CONTROL_WORDS + late
            progress = int(lane.heaps[rank].view(torch.int64)[word])
            report = Report(rank, record.number, 0, 8 * word, entered(record.number), progress, Reason.NEVER_ENTERED)
        for word, value in report.mailbox().items():
            lane.heaps[rank].view(torch.int64)[word] = value
        for peer, heap in enumerate(lane.heaps):
            heap.view(torch.int64)[POISON] = 1 + rank
            self.world.groups[peer].flag[0] = 1


class _Code:
    """What stands for compiled code: `code[workers, 1, 1](*values, stream=)` launches it."""

    def __init__(self, device: StandIn, prepared: Prepared, kernel: InterpretedKernel, names: tuple[str, ...]) -> None:
        self.device, self.prepared, self.kernel, self.names = device, prepared, kernel, names

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *values, stream: self.device.launch(self, grid[0], values, stream)


@dataclass(frozen=True, eq=False)
class _Follow:
    stream: int
    before: int


@dataclass(frozen=True, eq=False)
class _Engine:
    stream: int
    work: Callable[[Accesses], None]
    source: torch.Tensor | None = None

    def of_caller(self, rank: int, heaps: list[torch.Tensor]) -> list[Region]:
        """What it reads of the caller's memory: sources that lie on no heap."""
        read = self.source
        if read is None or not read.numel() or any(0 <= read.data_ptr() - h.data_ptr() < h.numel() for h in heaps):
            return []
        return [Region("source of a copy", rank, read, "data")]


@dataclass(frozen=True, eq=False)
class _Launched:
    stream: int
    code: _Code
    workers: int
    arguments: dict[str, Any]

    def interpret(self, execution: Execution, lane: Any) -> list[Region]:
        layout, heaps = lane.layout, lane.heaps
        prepared, rank = self.code.prepared, self.arguments["rank"]
        tensors = {t.name: self.arguments[t.name] for t in prepared.program.tensors if t.name in self.arguments}
        lowered = prepared.lowered
        parameters = lowered.parameters
        kinds = ("table", "running")
        tables = {p.name: self.arguments[p.name] for p in parameters if p.kind in kinds and p.name in self.arguments}
        run = SimpleNamespace(
            rank=rank, prepared=prepared, tensors=tensors, tables=tables,
            slot=self.arguments.get("slot", 0),
            placement=place(prepared.program, prepared.sizes, layout, lowered.target, prepared.stage_bytes),
        )  # fmt: skip
        cpu = CpuLane(layout, heaps, prepared.sms, lowered.target)
        cpu.tables[rank] = self.arguments["heaps"]
        regions = [*cpu._regions(run), Region("word that the host looks at", rank, lane.flags[rank], "control")]
        name = self.code.kernel.name
        execution.launch(self.code.kernel, self.workers, self.arguments, regions, rank, self.stream, name)
        return regions


_Work = _Launched | _Follow | _Engine


def virtual_world(world: int, device: StandIn, **options: Any) -> VirtualWorld:
    """A world on a stand-in."""
    options = {"heap_bytes": HEAP, "signal_bytes": SIGNALS, "enter_timeout": 2.0, "stuck_timeout": 1.0} | options
    made = VirtualWorld(world, device=device, **options)
    device.world = made
    return made


def rank_on(device: StandIn, members: dist.ProcessGroup, bounds: Bounds = Bounds(5.0, 1.0)) -> CudaProcessGroup:  # noqa: B008
    """A rank on a stand-in, with heaps in shared memory."""
    world, rank = dist.get_world_size(members), dist.get_rank(members)
    memories = [m[-m.data_ptr() % ALIGNMENT :][:HEAP] for m in share(members, HEAP + ALIGNMENT)]
    lane = CudaLane(device, HeapLayout(world, HEAP, 2, SIGNALS), memories, device.sms, bounds)  # type: ignore[arg-type]
    group = CudaProcessGroup(members, lane)
    group.stream = device.current()  # type: ignore[attr-defined]
    groups = [group if r == rank else SimpleNamespace(runs=0) for r in range(world)]
    device.world = SimpleNamespace(world=world, lane=group.lane, groups=groups)  # type: ignore[assignment]
    return group
