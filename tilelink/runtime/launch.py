"""One call of one rank: its outputs, its place in the slot, and a value for every parameter of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tilelink.backend.lower import Parameter
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.layout import HeapLayout, Placement, place, shape_on
from tilelink.runtime.prepare import Prepared


@dataclass(frozen=True)
class Lane:
    """What a rank knows of the memory of its lane: who it is, how every heap is laid out, and `heaps`, the addresses
    of all heaps as kernels take them (int64, one a rank)."""

    rank: int
    world: int
    layout: HeapLayout
    heaps: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.heaps.device


@dataclass(frozen=True)
class Launch:
    """A kernel to be launched: its name in the module, what messages call it, its workers, its arguments by name."""

    kernel: str
    label: str
    workers: int
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What reports need of a run. `signals`: by tensor, bytes from a heap's beginning to its cells, their number."""

    number: int
    label: str
    prepared: Prepared
    signals: tuple[tuple[str, int, int], ...]


class Run:
    """Run `number` of a lane, in a slot, on one rank. `allocate(shape, dtype)` makes the outputs that are not given.
    Raises HeapError where the slot is too small."""

    def __init__(
        self,
        lane: Lane,
        prepared: Prepared,
        arguments: Arguments,
        slot: int,
        number: int,
        allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
    ) -> None:
        self.lane, self.prepared, self.slot, self.number = lane, prepared, slot, number
        self.placement: Placement = place(
            prepared.program, prepared.sizes, lane.layout, prepared.lowered.target, prepared.stage_bytes
        )
        self.tensors = dict(arguments.tensors)
        for tensor in prepared.program.outputs:
            if tensor.name not in self.tensors:
                shape = shape_on(tensor, prepared.sizes, lane.rank)
                self.tensors[tensor.name] = allocate(shape, getattr(torch, tensor.dtype))

    @property
    def outputs(self) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What the call returns."""
        found = tuple(self.tensors[t.name] for t in self.prepared.program.outputs)
        return found[0] if len(found) == 1 else found

    @cached_property
    def tables(self) -> dict[str, torch.Tensor]:
        """Where the parts of each dimension begin that is cut into parts of several lengths, on the lane's device."""
        prepared = self.prepared
        dims = {p.dim for launch in self._parameters() for p in launch if p.kind == "table"}
        return {d: torch.from_numpy(prepared.sizes.values[f"{d}_parts"]).to(self.lane.device) for d in sorted(dims)}

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels of the run, in the order of the stream."""
        lowered = self.prepared.lowered
        main = self._launch(lowered.main, lowered.main_parameters, self.prepared.grid)
        if lowered.publish is None:
            return (main,)
        return self._launch(lowered.publish, lowered.publish_parameters, self.prepared.publishers), main

    def record(self) -> Record:
        """What is kept of the run."""
        at = tuple((name, self.signals_at(name), cells) for name, _, cells in self.placement.signals)
        return Record(self.number, self.launches[-1].label, self.prepared, at)

    def signals_at(self, tensor: str) -> int:
        """Where the signals of a tensor lie, in bytes from the beginning of a heap."""
        return self.lane.layout.signals_at(self.slot) + self.placement.signals_of(tensor)

    def _parameters(self) -> tuple[tuple[Parameter, ...], ...]:
        return self.prepared.lowered.publish_parameters, self.prepared.lowered.main_parameters

    def _launch(self, kernel: str, parameters: tuple[Parameter, ...], workers: int) -> Launch:
        values = {p.name: self.value(p) for p in parameters}
        return Launch(kernel, f"{kernel} run {self.number}", workers, values)

    def value(self, parameter: Parameter) -> Any:
        """The value of a kernel's parameter in this run."""
        prepared, layout = self.prepared, self.lane.layout
        match parameter.kind:
            case "tensor":
                return self.tensors[parameter.of]
            case "stride":
                dims = prepared.program.tensor(parameter.of).dims
                return self.tensors[parameter.of].stride(dims.index(parameter.dim))
            case "size":
                return prepared.sizes.values[parameter.name]
            case "table":
                return self.tables[parameter.dim]
            case "at":
                return layout.data_at(self.slot) + self.placement.data_of(parameter.of)
            case "signals":
                return self.signals_at(parameter.of)
            case "stage":
                return layout.data_at(self.slot) + self.placement.stage
            case "workers":
                return prepared.allotment[parameter.of].workers
        assert parameter.kind == "run", parameter
        lane = self.lane
        return {"heaps": lane.heaps, "rank": lane.rank, "slot": self.slot, "world": lane.world}[parameter.name]
