"""N ranks on one GPU in one process: each has its own heap, its own stream, and its share of the SMs.

    world = VirtualWorld(4)
    outs = world.run(lambda group: all_gather_matmul(x[group.rank], weight[group.rank], schedule="push", group=group))

Kernels are the same as on several GPUs. The device makes two differences. Its one L2 cache also shows other ranks
stores that lack a release at system scope. Times differ from times on several GPUs. The kernels of all ranks are
resident together: any worker fits on an empty SM, and all ranks together have no more workers than there are SMs. While
a worker is missing, some SM is therefore empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from tilelink.analysis.placement import ALIGNMENT
from tilelink.analysis.timeline import Timeline
from tilelink.emulator.scheduler import Scheduler, Task
from tilelink.errors import CaptureError, NeverEnteredError, Site, StuckError, WorldError, public, public_class
from tilelink.frontend.sizes import check_rank, check_world
from tilelink.programs.given import Call
from tilelink.runtime.agreement import CallLog
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import CudaDevice
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.probed import Probed
from tilelink.runtime.cuda.script import Script, Streams
from tilelink.runtime.lane import Reason
from tilelink.runtime.layout import CUDA_HEAP, CUDA_SIGNALS, HeapLayout, heap_in
from tilelink.runtime.stuck import of_report
from tilelink.runtime.timestamps import timeline_of

T = TypeVar("T")
DEFAULT_ENTER = 60.0
DEFAULT_STUCK = 5.0
STACK_BYTES = 16 << 20
"""The stack of a host's thread. Triton compiles there, and its compiler recurses."""
SERIALISING = {
    "compute-sanitizer": (
        "libsanitizer-collection.so", ("NV_SANITIZER_INJECTION_PORT_BASE", "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN")
    ),
    "Nsight Compute": (
        "libcuda-injection.so", ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "NV_NSIGHT_INJECTION_PORT_BASE")
    ),
}  # fmt: skip
"""Tools that run kernels one after the other: for each, the library that it loads into a process, and the variables
that it sets there. Sources: public projects and packages, for versions from 2020 to 2026. Libraries of launchers prove
nothing: both tools have one, and Nsight Systems may have one."""
MAPS = Path("/proc/self/maps")
"""The list of files that are mapped in this process."""
_LAUNCHED = 0
"""The key on which hosts are parked that wait for other hosts to launch."""


@public_class
class VirtualWorld:
    """A world of ranks on one GPU.

    `device`: the number of the GPU; the current one by default. `heap_bytes`, `slots`, `signal_bytes`, of each rank: as
    in `CpuWorld`. `reserved`: SMs that no rank uses; each rank has an equal share of the others. `enter_timeout`,
    `stuck_timeout`: seconds, see `Bounds`; here a rank never enters if its function ends without the call.

    Raises DeviceError without a GPU, WorldError, HeapError.
    """

    def __init__(
        self,
        world: int,
        *,
        device: int | CudaDevice | None = None,
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
        if world > 1 and (why := one_at_a_time(self.device.probed)):
            raise WorldError(f"{world} virtual ranks wait for each other, and {why}", Site.of_user())
        self.world, self.sms = world, sms
        heaps = [heap_in(self.device.empty((heap_bytes + ALIGNMENT,), torch.uint8)) for _ in range(world)]
        self.lane = CudaLane(self.device, layout, heaps, sms, bounds)
        self.groups = [VirtualGroup(self, r) for r in range(world)]
        self.hosts = Hosts(world)
        self.reset()

    @public
    def run(self, function: Callable[[VirtualGroup], T]) -> list[T]:
        """Runs `function(group)` for every rank, waits for everything it launched, and returns the results by rank.
        Each rank has its own thread and current stream; one runs at a time. Raises what a rank raises,
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
        """Forgets all runs: control words and signals are as in the beginning. First it waits until all runs have
        ended; their waits are bounded."""
        for group in self.groups:
            self.device.synchronize(group.stream)
        self.log = CallLog(self.world)
        for group in self.groups:
            self.lane.clear(group.rank)
            group.forget_runs()
        self.device.synchronize(self.device.current())

    def timeline(self) -> Timeline:
        """The timeline of the last run called with `timed=True`, measured in microseconds by the device's timer. Ranks
        share the device, so they also slow each other down. Raises WorldError."""
        return timeline_of([group.timed for group in self.groups])


def one_at_a_time(probed: Probed) -> str:
    """Why kernels of this process can't run together, or ""."""
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        return "CUDA_LAUNCH_BLOCKING is set: each launch waits for the kernel to end; unset it, or use one rank"
    if tool := next((tool for tool, traces in SERIALISING.items() if _is_here(*traces)), ""):
        return f"{tool} runs one kernel at a time; use it on a world of one rank"
    return "" if probed.allows("virtual_ranks") else probed.why_not("virtual_ranks")


def _is_here(library: str, variables: Sequence[str]) -> bool:
    """Whether a tool is in this process, according to its library or the variables that it sets."""
    named = " ".join(os.environ.get(name, "") for name in ("LD_PRELOAD", "CUDA_INJECTION64_PATH"))
    return library in named or any(v in os.environ for v in variables) or f"/{library}" in MAPS.read_text()


class Hosts:
    """Runs the host functions of `world` ranks in one process, without a race between them and without a deadlock.

    One host runs at a time, on its own thread, until it comes to a launch. There it waits for the others. When all have
    come, their launches are made in one go, in the order of their ranks. Nothing can then come between the launches of
    kernels that wait for each other: no operation of torch behind which a launch would queue, no kernel that CUDA loads
    late (which may wait until the device is idle), and no other thread with the interpreter's lock.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self._scheduler: Scheduler | None = None
        self._waiting: dict[int, Callable[[], None]] = {}

    def run(self, body: Callable[[int], T]) -> list[T]:
        """Runs `body(rank)` for every rank; returns the results by rank. Raises the first error of a body."""
        results: dict[int, T] = {}
        site = Site.of_user()

        def host(rank: int) -> None:
            with site.on_thread():
                results[rank] = body(rank)

        self._scheduler = Scheduler(policy="round_robin", on_stall=self._launch, stack_bytes=STACK_BYTES)
        self._waiting.clear()
        for rank in range(self.world):
            self._scheduler.spawn(partial(host, rank), rank, f"host of rank {rank}")
        try:
            self._scheduler.run()
        finally:
            self._scheduler = None
        return [results[rank] for rank in range(self.world)]

    @property
    def running(self) -> bool:
        return self._scheduler is not None

    def together(self, rank: int, launch: Callable[[], None]) -> None:
        """Returns once `launch` was called: when every rank has come here, or no other rank can come any more."""
        assert self._scheduler is not None, "outside of run"
        if self.world == 1:
            launch()
            return
        self._waiting[rank] = launch
        if len(self._waiting) == self.world:
            self._launch()
        else:
            self._scheduler.block((_LAUNCHED,))

    def _launch(self, parked: Sequence[Task] = ()) -> None:
        """Launches the waiting launches: of all ranks; or, if some rank has made fewer calls, when all hosts that are
        left are `parked`. The kernels of the other ranks then find out that this rank is missing."""
        assert self._scheduler is not None
        launches, self._waiting = self._waiting, {}
        for rank in sorted(launches):
            launches[rank]()
        self._scheduler.wake(_LAUNCHED, _LAUNCHED + 1)


class VirtualGroup(CudaGroup):
    """A rank of a `VirtualWorld`."""

    def __init__(self, owner: VirtualWorld, rank: int) -> None:
        check_rank(rank, owner.world)
        super().__init__(owner.lane, rank)
        self.owner = owner
        self.stream = owner.device.stream()

    def call(self, call: Call) -> Any:
        if not self.owner.hosts.running:
            outside = f"{call.program.name} is called outside of VirtualWorld.run, where no rank runs"
            raise WorldError(outside, Site.of_user())
        return super().call(call)

    def compare(self, call: dict[str, Any], site: Site) -> None:
        """Does nothing: calls are compared when ranks come to launch."""

    def play(self, script: Script, tensors: Mapping[str, torch.Tensor], streams: Streams) -> None:
        """Launches together with the other ranks, if there are any. While a graph is captured, it launches at once:
        nothing runs then."""
        if self.world == 1 or self.lane.device.capturing():
            super().play(script, tensors, streams)
        else:
            self._together(self.runs - 1, script.call, partial(super().play, script, tensors, streams))

    def queues(self, script: Script) -> tuple[int, str]:
        """As `CudaGroup.queues`. Copies, and maybe a second kernel, need their own queues: behind the launches of a
        rank that waits for this one, they would never begin."""
        if script.peers:
            return 2 * (self.world + 1), f"{self.world} ranks that use the copy engine on one device"
        if script.kernels > 1 and self.world > 1 and not self.lane.device.probed.allows("few_queues"):
            return self.world + 1, f"{self.world} ranks with {script.kernels} kernels each on one device"
        return super().queues(script)

    def engine(self, peer: int) -> Any:
        """One stream for all peers."""
        return next(iter(self._engine.values()), None) or self.lane.device.stream()

    def check(self) -> None:
        report = self.lane.report(self.rank)
        if report is None:
            self.raise_if_refused()
            return
        line, bounds = of_report(report, self.lane.layout, self.named(report)), self.lane.bounds
        if report.reason == Reason.NEVER_ENTERED:
            head = f"a rank did not come within {bounds.enter:g} s; its function ended without the call:"
            raise NeverEnteredError(f"{head}\n  {line}", Site.of_user())
        raise StuckError(f"no rank can go on, nothing came for {bounds.stuck:g} s:\n  {line}", Site.of_user())

    def replay(self, graph: Any) -> None:
        """Replays a graph (`torch.cuda.CUDAGraph`) that was captured on this rank, together with the other ranks. As
        with calls, all ranks of a group must replay the same graphs. Raises CaptureError."""
        probed = self.lane.device.probed
        if self.world > 1 and not probed.allows("graphs_together"):
            raise CaptureError(f"graphs of {self.world} ranks wait for each other; {probed.why_not('graphs_together')}")
        stream = self.in_order()

        def launch() -> None:
            with self.lane.device.on(stream):
                graph.replay()

        self._together(self.runs, {"call": "replay of a graph"}, launch)

    def _together(self, number: int, call: Mapping[str, Any], launch: Callable[[], None]) -> None:
        self.owner.log.compare(number, self.rank, call)
        self.owner.hosts.together(self.rank, launch)
