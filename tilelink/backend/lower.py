"""Lowering: a tile program becomes the source of a Triton module that a person can read beside it.

One persistent kernel: its workers enter the run, do the tiles of their role, and the last one out ends the run
(docs/protocol.md). Where rows are routed, a kernel before it makes the
running tables; where peers read an input, another publishes it to the heap first; where roles are on the
copy engine, a third enters the run before their copies begin; and where these wait for tiles, a fourth ends the run
after them (`tilelink.backend.host` says in what order).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilelink.backend import parameters
from tilelink.backend.bulk import stored_by_threads
from tilelink.backend.facts import Facts
from tilelink.backend.far import stage_bytes
from tilelink.backend.gluon.module import GluonModule
from tilelink.backend.gluon.takes import WARPS_OF_GROUP, taken
from tilelink.backend.module import Kernel, Module
from tilelink.backend.nvshmem import libraries
from tilelink.backend.targets import Target
from tilelink.errors import FormError, ScheduleError
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.schedule import SMs


@hashed_once
@dataclass(frozen=True)
class Lowered:
    """A lowered program: the source of its module, the user's Triton functions by their names in it, and the kernels in
    it. None: the program needs no such kernel."""

    program: TileProgram
    facts: Facts
    target: Target
    source: str
    functions: tuple[tuple[str, Any], ...]
    main: Kernel
    tables: Kernel | None
    publish: Kernel | None
    enter: Kernel | None
    leave: Kernel | None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those that there are, the persistent one last."""
        return (*(k for k in (self.tables, self.publish, self.enter, self.leave) if k is not None), self.main)

    @cached_property
    def parameters(self) -> tuple[parameters.Parameter, ...]:
        """Those of all kernels, some several times."""
        return tuple(p for kernel in self.kernels for p in kernel.parameters)

    @property
    def warps(self) -> int:
        """Warps of a worker: one kernel, so the same for all roles (the frontend sees to that)."""
        return next((r.resource.warps for r in self.program.roles if isinstance(r.resource, SMs)), SMs.warps)

    @cached_property
    def stage_bytes(self) -> int:
        """Memory of a worker, on the heap, for a block on its way to another node."""
        return stage_bytes(self.program) if self.target.network else 0

    @property
    def options(self) -> dict[str, Any]:
        """How Triton has to compile the kernels. Loops are pipelined only where their source says so, since Triton
        carries loads past a wait in a loop that it pipelines. A worker has all registers of its SM: assemblers that
        think of two workers on one spill for it. Where warps are specialised, a group of them comes on top, and Triton
        deals registers out, eight at a time. Across nodes, NVSHMEM's bitcode is linked in. Raises NvshmemError."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": 1}
        if self.target.registers is not None:
            warps = self.warps + (WARPS_OF_GROUP if self.target.specialised else 0)
            most = min(255, self.target.registers // (warps * self.target.warp_size))
            options["maxnreg"] = most // 8 * 8 if self.target.specialised else most
        if linked := libraries(self.target):
            options["extern_libs"] = linked
        return options

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


def lower_as_taken(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    """A program for a target: where that is specialised and takes no such program, in the portable form."""
    try:
        return lower(program, facts, target)
    except FormError:
        return lower(program, facts, target.unspecialised)


def sha256_everywhere(program: TileProgram, facts: Facts, target: Target) -> str:
    """What all ranks agree on, of which each may load its own tensors in its own way, and have the form that takes
    these."""
    return lower(program, facts.undescribed, target.unspecialised).sha256


def lower(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    """The Triton source of a program, for a target and for sizes of which `facts` hold. Raises FormError where the
    target is specialised, and the program can't be."""
    if target.network and program.on_engine:
        raise ScheduleError(
            f"{program.on_engine[0].name} is on the copy engine, which reaches the ranks of its own node only; the "
            "world has several: give it SMs",
            program.on_engine[0].site,
        )
    return _lowered(program, facts.on(target.descriptors, bulk=not target.network), target)


@kept(256)
def _lowered(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    if target.specialised:
        program = taken(program, facts, target)
        return Lowered(program, facts, target, *GluonModule(program, facts, target).written())
    program = stored_by_threads(program)
    return Lowered(program, facts, target, *Module(program, facts, target).written())
