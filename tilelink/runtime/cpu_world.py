"""N ranks in one process on the CPU: generated kernels under a deterministic, seeded scheduler.

    world = CpuWorld(4)
    outs = world.run(lambda group: all_gather_matmul(x[group.rank], weight[group.rank], schedule="push", group=group))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from tilelink.backend.lower import Parameter
from tilelink.backend.targets import CPU, Target
from tilelink.errors import ScheduleError, Site, StuckError, WorldError
from tilelink.frontend.ir import Tensor
from tilelink.frontend.program import Program
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import Sizes, check_rank, check_world
from tilelink.runtime.arguments import Arguments, CallLog, Parts, check_arguments
from tilelink.runtime.cpu import DeadlockError, Execution, InterpretedKernel, Operation, Region, interpreted
from tilelink.runtime.cpu.interpreter import suspended
from tilelink.runtime.cpu.memory import Kind
from tilelink.runtime.layout import ALIGNMENT, CONTROL_WORDS, HeapLayout, place, shape_on
from tilelink.runtime.prepare import Prepared, prepare, same_call
from tilelink.runtime.stuck import explain

T = TypeVar("T")
DEFAULT_HEAP = 64 << 20
DEFAULT_SIGNALS = 256 << 10
DEFAULT_SMS = 132


@dataclass(frozen=True, eq=False)
class Ready:
    """A prepared program with its kernels as the interpreter runs them."""

    prepared: Prepared
    kernels: dict[str, InterpretedKernel]

    @classmethod
    def of(cls, prepared: Prepared) -> Ready:
        names = [n for n in (prepared.lowered.main, prepared.lowered.publish) if n]
        return cls(prepared, {n: interpreted(getattr(prepared.module, n)) for n in names})


class CpuWorld:
    """A world of ranks on the CPU.

    `heap_bytes`: the symmetric heap of a rank, cut into `slots`, with `signal_bytes` for the signals of each. `sms`:
    SMs of a rank's device, hence workers of a kernel. `seed` fixes the schedule of `run`. `resident`: at most so many
    workers of a rank at a time. `races`: look for data races. `switch`: workers take turns at "atomics", or at every
    access to "memory", which is slower and keeps their logical times together. `observer` gets every operation.
    `target`: what kernels are lowered for; its primitives have to be those that the interpreter runs.

    Raises WorldError, HeapError.
    """

    def __init__(
        self,
        world: int,
        *,
        heap_bytes: int = DEFAULT_HEAP,
        slots: int = 2,
        signal_bytes: int = DEFAULT_SIGNALS,
        sms: int = DEFAULT_SMS,
        seed: int = 0,
        resident: int | None = None,
        races: bool | Literal["collect"] = True,
        observer: Callable[[Operation], None] | None = None,
        switch: Literal["atomics", "memory"] = "atomics",
        target: Target = CPU,
    ) -> None:
        check_world(world)
        if resident is not None and resident < 1:
            raise WorldError(f"resident={resident}: at least 1 worker of a rank", Site.of_user())
        self.world, self.sms, self.seed, self.target = world, sms, seed, target
        self.resident, self.races, self.observer, self.switch = resident, races, observer, switch
        self.layout = HeapLayout(world, heap_bytes, slots, signal_bytes)
        self.heaps = [_heap(heap_bytes, self.layout) for _ in range(world)]
        self.table = torch.tensor([h.data_ptr() for h in self.heaps], dtype=torch.int64)
        self.log = CallLog(world)
        self.groups = [Group(self, r) for r in range(world)]
        self.launched: dict[str, Prepared] = {}
        self._ready: dict[Any, Ready] = {}
        self.execution: Execution | None = None

    def run(self, function: Callable[[Group], T], *, seed: int | None = None) -> list[T]:
        """Runs `function(group)` on every rank, each with its own group handle, and all that it launches; returns what
        it returned, by rank. Raises what a rank raises, StuckError, and what the execution finds (races, accesses out
        of bounds). After an error the world is as new, apart from results."""
        self.execution = Execution(
            self.world,
            self.seed if seed is None else seed,
            resident=self.resident,
            races=self.races,
            observer=self.observer,
            switch=self.switch,
        )
        finished = False
        try:
            results = self.execution.run(lambda rank: function(self.groups[rank]))
            finished = True
            return results
        except DeadlockError as e:
            raise StuckError(explain(e, self.launched)) from e
        finally:
            self.execution = None
            self.launched.clear()
            for group in self.groups:
                group.keep.clear()
            if not finished:
                self.reset()

    def reset(self) -> None:
        """Forgets all runs: control words and signals are zero again."""
        for heap in self.heaps:
            _clear(heap, self.layout)
        self.log = CallLog(self.world)
        for group in self.groups:
            group.calls = 0

    def ready(self, program: Program, arguments: Arguments, schedule: Schedule | str | None) -> Ready:
        """The program with its kernels, made once for a schedule, dtypes and sizes."""
        dtypes, sizes = tuple(arguments.dtypes.items()), tuple(arguments.sizes.items())
        key = program, schedule, dtypes, sizes, arguments.absent
        if key not in self._ready:
            with suspended():
                self._ready[key] = Ready.of(prepare(program, arguments, schedule, self.world, self.sms, self.target))
        return self._ready[key]

    def region(
        self, name: str, rank: int, at: int, shape: tuple[int, ...], dtype: torch.dtype, kind: Kind = "data"
    ) -> Region:
        """A part of a rank's heap."""
        size = torch.Size(shape).numel() * dtype.itemsize
        return Region(name, rank, self.heaps[rank][at : at + size].view(dtype).view(shape), kind)

    def shard(self, tensor: Tensor, sizes: Sizes, rank: int, at: int) -> Region:
        """A rank's tensor on its heap, which all ranks lay out for the longest part: a shorter one is the beginning."""
        shape = shape_on(tensor, sizes, None)
        whole = self.region(tensor.name, rank, at, shape, getattr(torch, tensor.dtype))
        if tensor.sharded is None:
            return whole
        length = shape_on(tensor, sizes, rank)[tensor.sharded]
        return Region(tensor.name, rank, whole.tensor.narrow(tensor.sharded, 0, length))


class Group:
    """What a rank sees of its world: `rank`, `world`, and the way to call programs."""

    def __init__(self, owner: CpuWorld, rank: int) -> None:
        check_rank(rank, owner.world)
        self.owner, self.rank, self.world = owner, rank, owner.world
        self.calls = 0
        self.keep: list[Any] = []

    def synchronize(self) -> None:
        """Waits until everything this rank launched is done."""
        self.execution("synchronize").synchronize(self.rank)

    def execution(self, caller: str) -> Execution:
        """The execution that runs this rank. Raises WorldError."""
        if self.owner.execution is None:
            raise WorldError(f"{caller} is called outside of CpuWorld.run, where no rank runs", Site.of_user())
        return self.owner.execution

    def call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> Any:
        """Launches a program on this rank; see `Program.__call__`. Options: tensors by name, `parts` (lengths of the
        shards of each rank, by dimension), `slot` (which copy of buffers and signals; by default they take turns)."""
        site = Site.of_user()
        execution = self.execution(program.name)
        parts: Parts | None = options.pop("parts", None)
        slot: int | None = options.pop("slot", None)
        device = torch.device("cpu")
        arguments = check_arguments(
            program, tensors, options, world=self.world, rank=self.rank, device=device, parts=parts, site=site
        )
        ready = self.owner.ready(program, arguments, schedule)
        ready.prepared.check_strides(arguments.tensors, site)
        run = _Run(self, ready, arguments, self._slot(ready.prepared, slot, site))
        self.owner.log.compare(self.calls, self.rank, same_call(program, ready.prepared, run.slot), site)
        self.calls += 1
        return run.launch(execution)

    def _slot(self, prepared: Prepared, slot: int | None, site: Site) -> int:
        have = self.owner.layout.slots
        usable = prepared.program.slots
        if slot is None:
            return self.calls % min(usable, have)
        if not isinstance(slot, int) or isinstance(slot, bool) or not 0 <= slot < have:
            raise ScheduleError(f"slot {slot!r}: this world has {have}", site)
        return slot


class _Run:
    """One call of a rank: regions, parameters, launches."""

    def __init__(self, group: Group, ready: Ready, arguments: Arguments, slot: int) -> None:
        self.group, self.ready, self.prepared, self.slot = group, ready, ready.prepared, slot
        prepared = ready.prepared
        self.owner = group.owner
        self.placement = place(prepared.program, prepared.sizes, self.owner.layout)
        self.tensors = dict(arguments.tensors)
        for tensor in prepared.program.outputs:
            if tensor.name not in self.tensors:
                shape = shape_on(tensor, prepared.sizes, group.rank)
                self.tensors[tensor.name] = _poisoned(shape, getattr(torch, tensor.dtype))

    def launch(self, execution: Execution) -> Any:
        """Launches the kernels of the run; returns the outputs, complete once the rank's stream is."""
        names = [f"{d}_parts" for d, _ in self.prepared.sizes.parts]
        tables = {n: torch.from_numpy(self.prepared.sizes.values[n]) for n in names}
        values = self._values(tables)
        regions = self._regions(tables)
        number = self.group.calls - 1
        self.group.keep.append((self.tensors, tables))
        for name, parameters, grid in self._kernels():
            label = f"{name} run {number}"
            self.owner.launched[label] = self.prepared
            given = {p.name: values[p.name] for p in parameters}
            execution.launch(self.ready.kernels[name], grid, given, regions, self.group.rank, name=label)
        outputs = [self.tensors[t.name] for t in self.prepared.program.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _kernels(self) -> list[tuple[str, tuple[Parameter, ...], int]]:
        """Name, parameters and workers of each kernel of the run, in the order of the stream."""
        lowered = self.prepared.lowered
        main = (lowered.main, lowered.main_parameters, self.prepared.grid)
        if lowered.publish is None:
            return [main]
        return [(lowered.publish, lowered.publish_parameters, self.prepared.publishers), main]

    def _values(self, tables: dict[str, torch.Tensor]) -> dict[str, Any]:
        layout, program = self.owner.layout, self.prepared.program
        values: dict[str, Any] = {**self.prepared.scalars(), **self.tensors, **tables}
        values |= {"heaps": self.owner.table, "rank": self.group.rank, "slot": self.slot, "world": self.group.world}
        for t in program.tensors:
            if t.name in self.tensors:
                strides = self.tensors[t.name].stride()
                values |= {f"{t.name}_stride_{d}": s for d, s in zip(t.dims, strides, strict=True)}
        values |= {f"{n}_at": layout.data_at(self.slot) + at for n, at in self.placement.data}
        values |= {f"{n}_signals": layout.signals_at(self.slot) + at for n, at, _ in self.placement.signals}
        return values

    def _regions(self, tables: dict[str, torch.Tensor]) -> list[Region]:
        """All that this run may touch: its own tensors, and its place in the heaps of all ranks."""
        owner, layout, rank = self.owner, self.owner.layout, self.group.rank
        regions = [Region(n, rank, t) for n, t in self.tensors.items() if t.numel()]
        regions += [Region(n, rank, t, "control") for n, t in tables.items()]
        regions.append(Region("heaps", rank, owner.table, "control"))
        for peer in range(owner.world):
            regions.append(owner.region("control", peer, 0, (CONTROL_WORDS + owner.world,), torch.int64, "control"))
            for name, at in self.placement.data:
                tensor = self.prepared.program.tensor(name)
                if 0 not in shape_on(tensor, self.prepared.sizes, peer):
                    regions.append(owner.shard(tensor, self.prepared.sizes, peer, at + layout.data_at(self.slot)))
            for name, at, cells in self.placement.signals:
                if cells:
                    at += layout.signals_at(self.slot)
                    regions.append(owner.region(f"signals of {name}", peer, at, (cells,), torch.int32, "signal"))
        return regions


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An output in which it shows what nobody wrote."""
    return torch.full(shape, torch.nan, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


def _heap(heap_bytes: int, layout: HeapLayout) -> torch.Tensor:
    """A heap with an aligned base. Data is NaN of every dtype, so that what nobody wrote shows."""
    memory = torch.empty(heap_bytes + ALIGNMENT, dtype=torch.uint8)
    skip = -memory.data_ptr() % ALIGNMENT
    heap = memory[skip : skip + heap_bytes]
    heap.fill_(0xFF)
    _clear(heap, layout)
    return heap


def _clear(heap: torch.Tensor, layout: HeapLayout) -> None:
    heap[: layout.control_bytes] = 0
    for slot in range(layout.slots):
        heap[layout.signals_at(slot) : layout.data_at(slot)] = 0
