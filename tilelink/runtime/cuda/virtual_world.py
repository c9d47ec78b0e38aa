"""N ranks on one GPU in one process: each has its own heap, its own stream, and its share of the SMs.

    world = VirtualWorld(4)
    outs = world.run(lambda group: all_gather_matmul(x[group.rank], weight[group.rank], schedule="push", group=group))

What is right on several GPUs is right here, and the other way round, since kernels know no difference; times are not
those of several GPUs. The kernels of all ranks are resident together: a worker fits on an SM that is empty, all ranks
have no more workers at a time than there are SMs, and so, while one is missing, some SM is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from tilelink.analysis.timeline import Timeline
from tilelink.errors import NeverEnteredError, RankMismatchError, Site, StuckError, WorldError, public
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import check_rank, check_world
from tilelink.programs.program import Program
from tilelink.runtime.arguments import mismatch
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import CudaDevice, Device
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.hosts import Hosts
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.script import Script, Streams
from tilelink.runtime.layout import ALIGNMENT, HeapLayout
from tilelink.runtime.poison import Reason
from tilelink.runtime.process_group import CUDA_HEAP, CUDA_SIGNALS
from tilelink.runtime.stuck import of_report
from tilelink.runtime.timestamps import timeline_of

T = TypeVar("T")
DEFAULT_ENTER = 60.0
DEFAULT_STUCK = 5.0


class VirtualWorld:
    """A world of ranks on one GPU.

    `device`: which, by its number; the current one by default. `heap_bytes`, `slots`, `signal_bytes`: as in `CpuWorld`,
    of each rank. `reserved`: SMs that no rank uses; each rank has an equal share of the others. `enter_timeout`,
    `stuck_timeout`: seconds, see `Bounds`; here a rank has not come if its function ended without the call.

    Raises DeviceError where there is no GPU, WorldError, HeapError.
    """

    def __init__(
        self,
        world: int,
        *,
        device: int | Device | None = None,
        heap_bytes: int = CUDA_HEAP,
        slots: int = 2,
        signal_bytes: int = CUDA_SIGNALS,
        reserved: int = 0,
        enter_timeout: float = DEFAULT_ENTER,
        stuck_timeout: float = DEFAULT_STUCK,
    ) -> None:
        check_world(world)
        layout = HeapLayout(world, heap_bytes, slots, signal_bytes)
        bounds = Bounds(enter_timeout, stuck_timeout)
        self.device = CudaDevice(device) if device is None or isinstance(device, int) else device
        sms = (self.device.sms - reserved) // world
        if reserved < 0 or sms < 1:
            raise WorldError(
                f"{world} ranks on {self.device.sms} SMs, of which {reserved} are reserved: each needs at least one",
                Site.of_user(),
            )
        self.world, self.sms = world, sms
        self.lane = CudaLane(self.device, layout, [_heap(self.device, heap_bytes) for _ in range(world)], sms, bounds)
        self.groups = [VirtualGroup(self, r) for r in range(world)]
        self.hosts = Hosts(world, self._compare)
        self.calls: list[Mapping[str, Any]] = [{}] * world
        self.reset()

    @public
    def run(self, function: Callable[[VirtualGroup], T]) -> list[T]:
        """Runs `function(group)` for every rank, each on its own thread, one at a time, and with its rank's stream as
        the current one; waits for all that it launched; returns what it returned, by rank. Raises what a rank raises,
        RankMismatchError, StuckError and NeverEnteredError. After an error the world is as new, apart from results."""
        if self.hosts.running:
            raise WorldError("this world runs already", Site.of_user())
        outside = self.device.current()
        finished, gradients = False, torch.is_grad_enabled()

        def host(rank: int) -> T:
            group = self.groups[rank]
            with self.device.on(group.stream), torch.set_grad_enabled(gradients):
                self.device.follow(group.stream, outside)
                result = function(group)
            return result

        try:
            results = self.hosts.run(host)
            for group in self.groups:
                self.device.synchronize(group.stream)
            for group in self.groups:
                group.check()
            finished = True
            return results
        finally:
            if not finished:
                self.reset()

    def reset(self) -> None:
        """Forgets all runs: control words and signals are as in the beginning. Waits until all runs have ended, which
        bounded waits do."""
        for group in self.groups:
            self.device.synchronize(group.stream)
        for group in self.groups:
            self.lane.clear(group.rank, group.flag)
            group.runs = 0
            group.recent.clear()
        self.device.synchronize(self.device.current())

    def timeline(self) -> Timeline:
        """Of the last run that was called with `timed=True`, measured: microseconds of the device's timer. Ranks share
        the device: what one rank waits for another, they take from each other, too. Raises WorldError."""
        return timeline_of([group.timed for group in self.groups])

    def _compare(self, ranks: Sequence[int]) -> None:
        """Compares what ranks are about to launch."""
        known = self.calls[ranks[0]]
        if any(self.calls[r] is not known for r in ranks):
            number = self.groups[ranks[0]].runs - 1
            if difference := mismatch(f"call {number} of this group", {r: self.calls[r] for r in ranks}):
                raise RankMismatchError(difference, Site.of_user())


class VirtualGroup(CudaGroup):
    """A rank of a `VirtualWorld`."""

    def __init__(self, owner: VirtualWorld, rank: int) -> None:
        check_rank(rank, owner.world)
        super().__init__(owner.lane, rank)
        self.owner = owner
        self.stream = owner.device.stream()

    def call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> Any:
        if not self.owner.hosts.running:
            outside = f"{program.name} is called outside of VirtualWorld.run, where no rank runs"
            raise WorldError(outside, Site.of_user())
        return super().call(program, tensors, schedule, options)

    def agree(self, call: Mapping[str, Any], site: Site) -> None:
        """Nothing yet: calls are compared when all ranks have come to launch."""

    def play(self, script: Script, tensors: dict[str, torch.Tensor], streams: Streams) -> None:
        """Launches together with the other ranks; while a graph is captured, which runs nothing, at once."""
        if self.cuda.device.capturing():
            super().play(script, tensors, streams)
            return
        self.owner.calls[self.rank] = script.call
        self.owner.hosts.together(self.rank, partial(super().play, script, tensors, streams))

    def engine(self, peer: int) -> Any:
        """One stream for all peers. It needs a queue of its own on the device: behind the launches of a rank that waits
        for this one, its copies would never begin."""
        needed = 2 * (self.world + 1)
        if self.cuda.device.queues < needed:
            raise WorldError(
                f"{self.world} ranks that use the copy engine on one device need {needed} queues, it has "
                f"{self.cuda.device.queues}: set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA is used",
                Site.of_user(),
            )
        return next(iter(self._engine.values()), None) or self.cuda.device.stream()

    def check(self) -> None:
        report = self.cuda.report(self.rank)
        if report is None:
            return
        line, bounds = of_report(report, self.lane.layout, self.named(report)), self.cuda.bounds
        if report.reason == Reason.NEVER_ENTERED:
            head = f"a rank did not come within {bounds.enter:g} s; its function ended without the call:"
            raise NeverEnteredError(f"{head}\n  {line}", Site.of_user())
        raise StuckError(f"no rank can go on, nothing came for {bounds.stuck:g} s:\n  {line}", Site.of_user())

    def replay(self, graph: Any) -> None:
        """Replays a graph (`torch.cuda.CUDAGraph`) that was captured on this rank, together with the other ranks. What
        is asked of the graphs of a group is what is asked of its calls: all ranks replay the same."""
        self.owner.calls[self.rank] = {"call": "replay of a graph"}
        stream = self.in_order()

        def launch() -> None:
            with self.cuda.device.on(stream):
                graph.replay()

        self.owner.hosts.together(self.rank, launch)


def _heap(device: Device, heap_bytes: int) -> torch.Tensor:
    """A heap with an aligned base, NaN of every dtype, so that what nobody wrote shows."""
    memory = device.empty((heap_bytes + ALIGNMENT,), torch.uint8)
    skip = -memory.data_ptr() % ALIGNMENT
    return memory[skip : skip + heap_bytes].fill_(0xFF)
