"""A device that is none: kernels that are launched on it are interpreted, all ranks' together, when a host waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tilelink.backend.targets import CPU
from tilelink.runtime.cpu import DeadlockError, Execution, InterpretedKernel, interpreted
from tilelink.runtime.cpu.interpreter import suspended
from tilelink.runtime.cpu_lane import CpuLane
from tilelink.runtime.cuda.kernels import Kernel
from tilelink.runtime.cuda.virtual_world import VirtualWorld
from tilelink.runtime.layout import CONTROL_WORDS, place
from tilelink.runtime.poison import POISON, Reason, Report, entered
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.stuck import first_wait


@dataclass(frozen=True)
class StandInStream:
    """A stream; what is launched on it waits there."""

    cuda_stream: int


class StandIn:
    """A device of `sms` SMs, of which each holds `workers_per_sm` workers of any kernel. `loads`: kernels that were
    loaded; `launched`: what was launched, in order, as (stream, kernel, workers)."""

    def __init__(self, sms: int = 12, workers_per_sm: int = 1) -> None:
        self.place, self.target, self.sms = torch.device("cpu"), CPU, sms
        self.workers_per_sm = workers_per_sm
        self.loads: list[str] = []
        self.launched: list[tuple[int, str, int]] = []
        self.world: VirtualWorld | None = None
        self.graph: list[Any] | None = None
        self._waiting: list[_Launched] = []
        self._streams = 0
        self._thread = threading.local()
        self._outside = self.stream()

    # ---- as a world asks it

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=dtype) if dtype.is_floating_point else torch.empty(shape, dtype=dtype)

    def seen_by_host(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        with suspended():
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
        pass

    def capturing(self) -> bool:
        return self.graph is not None

    def write_signal(self, stream: StandInStream, address: int) -> None:
        raise NotImplementedError

    def synchronize(self, stream: StandInStream) -> None:
        """Interprets all that waits. Where the kernels are stuck, they have waited long enough: one gives up."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        assert self.world is not None
        lane = self.world.lane
        execution = Execution(self.world.world)

        def host(rank: int) -> None:
            for launched in waiting:
                if launched.arguments["rank"] == rank:
                    launched.interpret(execution, lane.layout, lane.heaps)

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
        launched = _Launched(code, workers, dict(zip(code.names, values, strict=True)))
        if self.graph is not None:
            self.graph.append(launched)
            return
        self.launched.append((stream, code.kernel.name, workers))
        self._waiting.append(launched)

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
class _Launched:
    code: _Code
    workers: int
    arguments: dict[str, Any]

    def interpret(self, execution: Execution, layout: Any, heaps: list[torch.Tensor]) -> None:
        prepared, rank = self.code.prepared, self.arguments["rank"]
        tensors = {t.name: self.arguments[t.name] for t in prepared.program.tensors if t.name in self.arguments}
        parameters = prepared.lowered.main_parameters + prepared.lowered.publish_parameters
        tables = {p.dim: self.arguments[p.name] for p in parameters if p.kind == "table" and p.name in self.arguments}
        run = SimpleNamespace(
            lane=SimpleNamespace(rank=rank), prepared=prepared, tensors=tensors, tables=tables,
            placement=place(prepared.program, prepared.sizes, layout), slot=self.arguments["slot"],
        )  # fmt: skip
        cpu = CpuLane(layout, heaps, prepared.events.sms)
        cpu.table = self.arguments["heaps"]
        name = self.code.kernel.name
        execution.launch(self.code.kernel, self.workers, self.arguments, cpu._regions(run), rank, name=name)


def virtual_world(world: int, device: StandIn, **options: Any) -> VirtualWorld:
    """A world on a stand-in."""
    options = {"heap_bytes": 1 << 20, "signal_bytes": 1 << 12, "enter_timeout": 2.0, "stuck_timeout": 1.0} | options
    made = VirtualWorld(world, device=device, **options)
    device.world = made
    return made
