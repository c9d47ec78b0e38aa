"""One call of one rank: its outputs, its place in the slot, and a value for every parameter of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from tilelink.analysis.placement import Placement, shape_on
from tilelink.backend.descriptors import descriptor
from tilelink.backend.host import KernelLaunch, Place, Step
from tilelink.backend.module import Kernel
from tilelink.backend.parameters import TIMES, Parameter
from tilelink.frontend.expressions import parts_of, running
from tilelink.frontend.routes import Integers, Routing, counts_of
from tilelink.frontend.running import entries
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.lane import Lane
from tilelink.runtime.layout import place
from tilelink.runtime.prepare import Prepared, counted, same_call
from tilelink.runtime.timestamps import stamps_shape


@dataclass(frozen=True)
class Result:
    """A tensor that a run allocates, contiguous along a dimension."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    contiguous: int = -1

    def allocated(self, allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]) -> torch.Tensor:
        """The tensor, in memory that `allocate` gives for a shape and a dtype."""
        last = self.contiguous % len(self.shape)
        if last == len(self.shape) - 1:  # quickest first: most results
            return allocate(self.shape, self.dtype)
        lies = (*self.shape[:last], *self.shape[last + 1 :], self.shape[last])
        return allocate(lies, self.dtype).movedim(-1, last)


@dataclass(frozen=True)
class Record:
    """The data of a run that reports need. `signals`: for each tensor its name, the bytes from a heap's beginning to
    its cells, and their number. `tables`: memory of the running tables, by their names in the tile program."""

    number: int
    label: str
    prepared: Prepared
    signals: tuple[tuple[str, int, int], ...]
    tables: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def routings(self) -> tuple[Routing, ...]:
        """The counts of each route in this run, read back from the device, for reports about a past run."""
        world, made = self.prepared.sizes.world, []
        for route in self.prepared.program.routes:
            counts = self.tables[running(counts_of(route))].cpu().numpy().reshape(-1, world)
            made.append(Routing(Integers.of_array(counts)))
        return tuple(made)

    @property
    def counted(self) -> Prepared:
        """The program with the events of this run. Before the run, only the device knew its rows."""
        return counted(self.prepared, self.routings)

    def refusal(self) -> str:
        """Why the run left out its rows, "" if it did not."""
        parts, program = dict(self.prepared.sizes.parts), self.prepared.program
        each = zip(program.routes, self.routings, strict=True)
        for route, routing in each:
            rooms = {d: parts[d] for d in route.sides}
            if said := routing.without_room(route.counts, rooms, program.site.in_library):
                return f"{program.name}: {said}"
        return ""


class Run:
    """Run `number` of a lane, in a slot, on one rank. `made`: the results that the call does not give, allocated here.
    Raises HeapError if the slot is too small."""

    def __init__(
        self, lane: Lane, rank: int, prepared: Prepared, arguments: Arguments, slot: int, number: int
    ) -> None:
        self.lane, self.rank, self.prepared, self.slot, self.number = lane, rank, prepared, slot, number
        self.placement: Placement = place(
            prepared.program, prepared.sizes, lane.layout, prepared.lowered.target, prepared.stage_bytes
        )
        self.call, given = arguments.call, arguments.tensors
        self.made = {
            t.name: Result(shape_on(t, prepared.sizes, rank), getattr(torch, t.dtype), t.contiguous)
            for t in prepared.program.outputs
            if t.name not in given
        }
        if prepared.lowered.facts.timed:
            self.made[TIMES] = Result(stamps_shape(prepared.events), torch.int64)
        self.tensors = given | {name: made.allocated(lane.allocate) for name, made in self.made.items()}

    @cached_property
    def same(self) -> dict[str, Any]:
        """The values on which the ranks of a group have to agree."""
        return same_call(self.call, self.prepared, self.slot)

    @property
    def outputs(self) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The results that the call returns."""
        found = tuple(self.tensors[t.name] for t in self.prepared.program.outputs)
        return found[0] if len(found) == 1 else found

    @cached_property
    def tables(self) -> dict[str, torch.Tensor]:
        """The tables of the kernels on the lane's device, by their names in the tile program: where parts begin that
        have several lengths, and memory for running tables. Only the device knows the values of a running table."""
        prepared, place = self.prepared, self.lane.place
        launches = (s for s in self.plan if isinstance(s, KernelLaunch))
        of = {p.of: p.kind for step in launches for p in step.kernel.parameters}
        lengths = entries(prepared.program, prepared.sizes.values)
        made = {n: torch.full((lengths[n],), -1, dtype=torch.int32, device=place) for n in sorted(lengths) if n in of}
        known = prepared.sizes.values
        return made | {n: torch.from_numpy(known[n]).to(place) for n in sorted(of) if of[n] == "table"}

    def of(self, name: str, peer: int | None = None) -> torch.Tensor:
        """A tensor of a peer or of this rank, as kernels know it: the caller's tensor, or a tensor in the slot."""
        tensor, rank = self.prepared.program.tensor(name), self.rank if peer is None else peer
        if tensor not in self.prepared.program.on_heap:
            return self.tensors[name]
        dtype, sizes = getattr(torch, tensor.dtype), self.prepared.sizes
        longest = self.lane.memory(rank, self.data_at(name), shape_on(tensor, sizes, None), dtype)
        return longest[tuple(map(slice, shape_on(tensor, sizes, rank)))]

    @cached_property
    def plan(self) -> tuple[Step, ...]:
        """The steps of the host, in order; `arguments` gives the values for its kernels."""
        return self.prepared.plan(self.rank)

    def record(self) -> Record:
        """The data that is kept of the run."""
        at = tuple((name, self.signals_at(name), cells) for name, _, cells in self.placement.signals)
        return Record(self.number, self.label, self.prepared, at, self.tables)

    def data_at(self, tensor: str) -> int:
        """Where a tensor in the slot lies, in bytes from the beginning of a heap."""
        return self.lane.layout.data_at(self.slot) + self.placement.data_of(tensor)

    def signals_at(self, tensor: str) -> int:
        """Where the signals of a tensor lie, in bytes from the beginning of a heap."""
        return self.lane.layout.signals_at(self.slot) + self.placement.signals_of(tensor)

    @property
    def label(self) -> str:
        """The name of the persistent kernel in messages, and of the copy engine's copies beside it."""
        return self.label_of(self.prepared.lowered.main)

    def label_of(self, kernel: Kernel) -> str:
        """The name of a kernel in messages."""
        return f"{kernel.name} run {self.number}"

    def arguments(self, kernel: Kernel) -> dict[str, Any]:
        """The values of a kernel's parameters, by name."""
        return {p.name: self.value(p) for p in kernel.parameters}

    def part_of(self, place: Place) -> tuple[slice, ...]:
        """Where a region lies in the tensor of its rank."""
        tensor, sizes = self.prepared.program.tensor(place.tensor), self.prepared.sizes
        spans = list(place.box)
        if tensor.sharded is not None:
            first = int(sizes.values[parts_of(tensor.dims[tensor.sharded])][place.rank])
            spans[tensor.sharded] = spans[tensor.sharded][0] - first, spans[tensor.sharded][1] - first
        return tuple(slice(lo, hi) for lo, hi in spans)

    def value(self, parameter: Parameter) -> Any:
        """The value of a kernel's parameter in this run."""
        prepared = self.prepared
        match parameter.kind:
            case "tensor" | "stamps":
                return self.tensors[parameter.of]
            case "stride":
                dims = prepared.program.tensor(parameter.of).dims
                return self.tensors[parameter.of].stride(dims.index(parameter.dim))
            case "size":
                return prepared.sizes.values[parameter.of]
            case "table" | "running":
                return self.tables[parameter.of]
            case "at":
                return self.data_at(parameter.of)
            case "signals":
                return self.signals_at(parameter.of)
            case "records":
                return self.tensors[parameter.of].stride(0)
            case "stage":
                return self.lane.layout.data_at(self.slot) + self.placement.stage
            case "blocks":
                found, dims = self.of(parameter.of, parameter.peer), prepared.program.tensor(parameter.of).dims
                by_lines = found.movedim(dims.index(parameter.dim), -1)
                return descriptor(by_lines, parameter.block, prepared.lowered.target)
            case "workers":
                return prepared.allotment[parameter.of].workers
        assert parameter.kind == "run", parameter
        lane = self.lane
        known = {"heaps": lane.tables[self.rank], "rank": self.rank, "slot": self.slot, "world": lane.layout.world}
        return {**known, "multicast": lane.multicast}[parameter.name]
