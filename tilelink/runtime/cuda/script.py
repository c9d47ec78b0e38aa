"""What the host of a rank does for a run, to be done again: only the caller's tensors change from call to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import ScheduleError, Site
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.launch import Launch, Record, Run
from tilelink.runtime.layout import shape_on

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class KernelStep:
    """A kernel on the stream of the lane: values of all its parameters, and which of them are tensors of the caller, or
    descriptors of them."""

    launch: Callable[..., None]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    tensors: tuple[tuple[int, str], ...]
    described: tuple[tuple[int, str], ...]

    def play(self, tensors: Tensors, stream: Any) -> None:
        values = list(self.values)
        for at, name in self.tensors:
            values[at] = tensors[name]
        for at, name in self.described:
            values[at] = copy(values[at])
            values[at].base = tensors[name]
        self.launch(*values, stream=stream)


@dataclass(frozen=True)
class Script:
    """A run that was made once, in its slot. `outputs`: name, shape and dtype of the results that torch allocates;
    `returned`: what the call returns; `call`: what ranks have to agree on."""

    record: Record
    slot: int
    call: Mapping[str, Any]
    outputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    returned: tuple[str, ...]
    steps: tuple[KernelStep, ...]

    @classmethod
    def of(cls, lane: CudaLane, run: Run, given: frozenset[str], call: Mapping[str, Any], site: Site) -> Script:
        """The script of a run: its kernels are loaded, which may take a while. Raises ResidencyError, ScheduleError."""
        prepared, rank = run.prepared, run.lane.rank
        launches = [step for step in run.steps if isinstance(step, Launch)]
        if len(launches) < len(run.steps):
            raise ScheduleError(f"{prepared.program.name}: CUDA worlds have no streams for copy engines yet", site)
        outputs = prepared.program.outputs
        return cls(
            run.record(),
            run.slot,
            call,
            tuple(
                (t.name, shape_on(t, prepared.sizes, rank), getattr(torch, t.dtype))
                for t in outputs
                if t.name not in given
            ),
            tuple(t.name for t in outputs),
            tuple(_step(lane, run, launch, site) for launch in launches),
        )

    def play(self, tensors: dict[str, torch.Tensor], stream: Any) -> None:
        """Does it again, with other tensors of the caller."""
        for step in self.steps:
            step.play(tensors, stream)


def _step(lane: CudaLane, run: Run, launch: Launch, site: Site) -> KernelStep:
    kernel = lane.device.load(run.prepared, launch.kernel, launch.arguments)
    lane.loaded[launch.kernel] = kernel
    kernel.check_resident(launch.workers, lane.sms, site)
    lowered = run.prepared.lowered
    of = {p.name: p.of for p in (*lowered.main_parameters, *lowered.publish_parameters) if p.of in run.tensors}
    mine = [(at, name, value) for at, (name, value) in enumerate(launch.arguments.items()) if name in of]
    return KernelStep(
        kernel.launcher(launch.workers),
        tuple(launch.arguments),
        tuple(launch.arguments.values()),
        tuple((at, of[name]) for at, name, value in mine if isinstance(value, torch.Tensor)),
        tuple((at, of[name]) for at, name, value in mine if hasattr(value, "block_shape")),
    )
