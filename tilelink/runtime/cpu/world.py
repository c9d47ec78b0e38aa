"""N ranks in one process on the CPU: generated kernels under a deterministic, seeded scheduler.

world = CpuWorld(4)
outs = world.run(lambda group: all_gather_matmul(x[group.rank], weight[group.rank], schedule="push", group=group))
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tilelink.analysis.placement import ALIGNMENT
from tilelink.analysis.timeline import Timeline
from tilelink.analysis.unroll import DEFAULT_SMS
from tilelink.backend.targets import CPU, Target
from tilelink.emulator import Admission, DeadlockError, Execution, KernelError, Operation, PolicyWord, RaceError
from tilelink.emulator.execution import Races, Switch
from tilelink.emulator.interpreter import is_running
from tilelink.emulator.options import checked
from tilelink.errors import ArgumentError, RankMismatchError, Site, StuckError, WorldError, public, public_class
from tilelink.frontend.expressions import running
from tilelink.frontend.routes import counts_of
from tilelink.frontend.sizes import check_nodes, check_world
from tilelink.programs.given import Call
from tilelink.runtime.agreement import CallLog
from tilelink.runtime.cpu.lane import LANE, CpuLane
from tilelink.runtime.group import Group
from tilelink.runtime.launch import Record, Run
from tilelink.runtime.layout import CPU_HEAP, CPU_SIGNALS, HeapLayout, heap_in
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.stuck import explain, lines_of, told_of, with_tiles
from tilelink.runtime.timestamps import timeline_of

T = TypeVar("T")
LATE = replace(CPU.across_nodes(), module="tilelink.emulator.late_network")
"""The target of worlds on several nodes: transfers to other nodes are late, as over a network."""


@public_class
class CpuWorld:
    """A world of ranks on the CPU.

    `heap_bytes`: the symmetric heap of a rank, cut into `slots`, with `signal_bytes` for the signals of each. `sms`:
    SMs of a rank's device, hence workers of a kernel. `seed` and `policy` fix the schedule of `run`. `resident`: the
    most workers of a rank that are under way at a time; they begin in the order `admit`. `races`: True raises
    RaceError, "collect" only keeps races in `latest.races`, False does not look for them. `switch`: workers take turns
    at "atomics", or at every access to "memory", which is slower and keeps their logical times together. `observer`
    gets every operation. `target`: the target of kernels; the interpreter has to run its primitives. `per_node`: ranks
    of a node, all by default. Ranks of other nodes are reached as over a network: late, or at once if the target is
    `CPU.across_nodes()`, which traces need. `check`: programs that the check finds unsafe are refused.

    Raises WorldError, HeapError, ArgumentError.
    """

    def __init__(
        self,
        world: int,
        *,
        heap_bytes: int = CPU_HEAP,
        slots: int = 2,
        signal_bytes: int = CPU_SIGNALS,
        sms: int = DEFAULT_SMS,
        seed: int = 0,
        policy: PolicyWord = "random",
        resident: int | None = None,
        admit: Admission = "in order",
        races: Races = True,
        observer: Callable[[Operation], None] | None = None,
        switch: Switch = "atomics",
        target: Target = CPU,
        per_node: int | None = None,
        check: bool = True,
    ) -> None:
        check_world(world)
        check_nodes(world, per_node)
        self.world, self.sms, self.seed = world, sms, seed
        self.options = checked(
            seed=seed, policy=policy, resident=resident, admit=admit, races=races, switch=switch, observer=observer
        )
        self.layout = HeapLayout(world, heap_bytes, slots, signal_bytes)
        if target == CPU and per_node is not None and per_node < world:
            target = LATE
        heaps = [heap_in(torch.empty(heap_bytes + ALIGNMENT, dtype=torch.uint8)) for _ in range(world)]
        self.lane = CpuLane(self.layout, heaps, sms, target, per_node, check)
        for rank in range(world):
            self.lane.clear(rank)
        self.log = CallLog(world)
        self.groups = [CpuGroup(self.lane, r) for r in range(world)]
        self.latest: Execution | None = None
        """The execution of the latest run: its schedule, races and number of operations."""

    @public
    def run(self, function: Callable[[CpuGroup], T], *, seed: int | None = None) -> list[T]:
        """Runs `function(group)` and everything it launches on every rank, each with its own group handle; returns the
        results by rank. Raises what a rank raises, StuckError, and the errors of the execution (races, accesses out of
        bounds). After an error the world is as new, apart from results."""
        if is_running():
            raise WorldError(
                "a CpuWorld runs already in this process, which has one at a time: run this one before or after it",
                Site.of_user(),
            )
        if not callable(function):
            raise ArgumentError(
                f"CpuWorld.run({function!r}): it takes a function of a rank's group, run(lambda group: ...)",
                Site.of_user(),
            )
        self.latest = Execution(self.world, self.seed if seed is None else seed, **self.options)
        session = _Session(self.latest, self.log)
        for group in self.groups:
            group.session = session
        finished, gradients, site = False, torch.is_grad_enabled(), Site.of_user()

        def host(rank: int) -> T:
            group = self.groups[rank]
            with site.on_thread(), torch.set_grad_enabled(gradients), _OnStream(group), _Beside(group):
                return function(group)

        try:
            try:
                results = session.execution.run(host)
            finally:  # first of all, because other errors may follow from counts that differ
                session.compare_counts()
            for group in self.groups:
                group.raise_if_refused()
            finished = True
            return results
        except DeadlockError as e:
            lines = lines_of(e, session.known)
            raise StuckError(explain(e, session.known, [g.runs for g in self.groups]), lines=lines) from None
        except KernelError as e:
            raise told_of(e, session.known) from e.__cause__
        except RaceError as e:
            raise RaceError(with_tiles(e.races, session.known)) from None
        finally:
            for group in self.groups:
                group.session = None
                group.forget_tensors()
            if not finished:
                self.reset()

    def timeline(self) -> Timeline:
        """The timeline of the last run called with `timed=True`, by the order of its records. Raises WorldError."""
        return timeline_of([group.timed for group in self.groups])

    def reset(self) -> None:
        """Forgets all runs: control words and signals are zero again."""
        self.log = CallLog(self.world)
        for group in self.groups:
            self.lane.clear(group.rank)
            group.forget_runs()


@dataclass
class _Session:
    """The state that the ranks of a world share in `run`. `launched`: the records of launches, by rank and label;
    `keep`: the tensors of all runs, which may be under way until the end."""

    execution: Execution
    log: CallLog
    launched: dict[tuple[int, str], Record] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)

    @property
    def known(self) -> dict[tuple[int, str], Prepared]:
        """The programs that were launched, with the events that they had."""
        return {name: record.counted for name, record in self.launched.items()}

    def compare_counts(self) -> None:
        """Raises RankMismatchError if ranks had different counts for the route of a run. Counts are on the device, and
        nobody compares them before a run."""
        first: dict[str, tuple[int, Record]] = {}
        for (rank, _), record in sorted(self.launched.items(), key=lambda launched: launched[0]):
            other, known = first.setdefault(record.label, (rank, record))
            for route in record.prepared.program.routes:
                mine, theirs = (r.tables[running(counts_of(route))].view(-1, self.log.world) for r in (record, known))
                differing = (mine != theirs).nonzero().tolist()
                if differing and not any((n == -1).all() for n in (mine, theirs)):  # else one was not read yet
                    e, s = differing[0]
                    raise RankMismatchError(
                        f"{record.label}: {route.counts}[{e}, {s}] is {theirs[e, s]} on rank {other}, and {mine[e, s]} "
                        f"on rank {rank}: all ranks must be given the same counts",
                        Site.of_user(),
                    )


class CpuGroup(Group):
    """A rank of a `CpuWorld`. It holds no reference to the world, so a dropped world frees its memory at once."""

    lane: CpuLane

    def __init__(self, lane: CpuLane, rank: int) -> None:
        super().__init__(lane, rank)
        self.session: _Session | None = None
        self.forget_tensors()

    def forget_tensors(self) -> None:
        """Forgets the memory (its addresses) that runs under way read and write, because these runs are done."""
        self.read: set[int] = set()
        self.written: set[int] = set()

    def call(self, call: Call) -> Any:
        self._running(call.program.name)
        return super().call(call)

    def compare(self, call: dict[str, Any], site: Site) -> None:
        self._running("call").log.compare(self.runs, self.rank, call)

    def launch(self, run: Run) -> None:
        session = self._running("launch")
        session.keep.append((run.tensors, run.tables))
        record = run.record()
        for kernel in run.prepared.lowered.kernels:
            session.launched[self.rank, run.label_of(kernel)] = record
        if run.prepared.program.routes:
            self.remember(run.number, record)
        outputs = {t.name for t in run.prepared.program.outputs}
        for name, tensor in run.tensors.items():
            if tensor.numel():
                (self.written if name in outputs else self.read).add(_memory(tensor))
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            self.lane.launch(run, session.execution)

    def synchronize(self) -> None:
        self._running("synchronize").execution.synchronize(self.rank, LANE)
        self.forget_tensors()
        self.raise_if_refused()

    @property
    def execution(self) -> Execution:
        """The execution that runs this rank, for launches beside programs. Raises WorldError."""
        return self._running("execution").execution

    def _running(self, caller: str) -> _Session:
        """The session that runs this rank. Raises WorldError."""
        if self.session is None:
            where = "on a group of another world than the one that runs: take the group that the function is given"
            where = where if is_running() else "outside of CpuWorld.run, where no rank runs"
            raise WorldError(f"{caller} is called {where}", Site.of_user())
        return self.session


class _OnStream(TorchDispatchMode):
    """Makes torch's operations on tensors of a rank follow the rank's runs, as on the stream of a device: an operation
    waits if it reads memory that a run under way writes, or writes memory that one reads or writes. Views touch
    nothing. Accesses that bypass torch, such as by a pointer, are not seen."""

    def __init__(self, group: CpuGroup) -> None:
        super().__init__()
        self.group = group

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps `__torch_dispatch__`, which imports torch._dynamo at the first operation, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dispatch = _uncompiled() if "torch._dynamo" in sys.modules else _dispatch
        return dispatch(self.group, func, args, kwargs or {})


def _dispatch(group: CpuGroup, func: Any, args: Any, kwargs: Any) -> Any:
    if (group.read or group.written) and not func.is_view:
        changed = [
            args[n] if n < len(args) else kwargs.get(a.name)
            for n, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        if _touch(changed, group.read) or _touch((args, kwargs), group.written):
            group.synchronize()
    return func(*args, **kwargs)


@cache
def _uncompiled() -> Callable[..., Any]:
    """`_dispatch`, kept out of compiled code."""
    return torch.compiler.disable(_dispatch)


class _Beside(TorchFunctionMode):
    """Makes what torch does without an operation wait: copies of a result to Python for the runs that write it, and
    access to memory past torch (as an array, for a file, to move it) for the runs that read or write that memory."""

    READ: ClassVar = frozenset([torch.Tensor.tolist])
    SHARED: ClassVar = frozenset(
        [
            torch.Tensor.numpy,
            torch.Tensor.__array__,
            torch.Tensor.__dlpack__,
            torch.Tensor.untyped_storage,
            torch.Tensor.share_memory_,
        ]
    )

    def __init__(self, group: CpuGroup) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        group, shared = self.group, func in self.SHARED
        if (shared and _touch(args, group.read)) or ((shared or func in self.READ) and _touch(args, group.written)):
            group.synchronize()
        return func(*args, **kwargs or {})


def _touch(values: Any, memory: set[int]) -> bool:
    return any(isinstance(v, torch.Tensor) and _memory(v) in memory for v in tree_leaves(values))


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():  # nothing is read here
        return tensor.untyped_storage().data_ptr()
