"""Lowering turns a tile program into the source of a Triton module that a person can read beside the program.

The module has one persistent kernel. Its workers enter the run and do the tiles of their role; the worker that finishes
last ends the run (docs/protocol.md). Some programs need more kernels: one before all others makes the running tables,
where rows are routed; one publishes inputs that peers read to the heap; one enters the run before the copies of copy
engines begin; and one ends the run after these copies, where they wait for tiles. `tilelink.backend.host` has their
order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilelink.backend import parameters
from tilelink.backend.bulk import stored_by_threads
from tilelink.backend.choices import with_choices
from tilelink.backend.facts import Facts
from tilelink.backend.far import stage_bytes
from tilelink.backend.gluon.module import GluonModule
from tilelink.backend.gluon.takes import WARPS_OF_GROUP, taken
from tilelink.backend.module import Kernel, Module
from tilelink.backend.nvshmem import libraries
from tilelink.backend.targets import Target
from tilelink.errors import FormError, ScheduleError, Site
from tilelink.frontend.ir import TileProgram, walk
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.schedule import SMs
from tilelink.frontend.sizes import Sizes

ROWS_OF_TABLES = 2
"""Rows of tables that the kernel beside a specialised form makes at a time, with as many registers as that form has."""


@hashed_once
@dataclass(frozen=True)
class Lowered:
    """A lowered program: the source of its module, the user's Triton functions by their names in it, and its kernels. A
    kernel that the program does not need is None. `beside`: for a specialised form with tables, the kernel that makes
    them, lowered alone: it is in Triton's language, as in the portable form."""

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
    beside: Lowered | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the program, the persistent one last."""
        return (*(k for k in (self.tables, self.publish, self.enter, self.leave) if k is not None), self.main)

    @cached_property
    def parameters(self) -> tuple[parameters.Parameter, ...]:
        """The parameters of all kernels; some occur several times."""
        return tuple(p for kernel in self.kernels for p in kernel.parameters)

    @property
    def warps(self) -> int:
        """Warps of a worker. A kernel has one number of warps; the frontend makes sure that all roles agree on it."""
        return next((r.resource.warps for r in self.program.roles if isinstance(r.resource, SMs)), SMs.warps)

    @cached_property
    def stage_bytes(self) -> int:
        """Bytes on the heap that a worker has for a block on its way to another node."""
        return stage_bytes(self.program) if self.target.network else 0

    @property
    def options(self) -> dict[str, Any]:
        """The options with which Triton compiles the kernels. A loop is pipelined only where its source says so,
        because Triton carries loads past a wait in a loop that it pipelines. A worker may use all registers of its SM:
        an assembler that expects two workers on an SM spills. In the specialised form a group of warps comes on top,
        and Triton assigns registers in eights. Across nodes, NVSHMEM's bitcode is linked in. Raises NvshmemError."""
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

    def site_of(self, number: int) -> Site | None:
        """The user's line for a line of the module: the line in the last comment above it. The module has the lines of
        the tile functions as comments, in their order."""
        lines = map(str.strip, self.source.splitlines()[:number])
        above = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
        sites = dict.fromkeys(s.site for role in self.program.roles for s in walk(role.body))
        alike = [s for s in sites if above and s.text == above[-1]]
        return alike[min(above.count(above[-1]), len(alike)) - 1] if alike else None


def lower_as_taken(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    """Lowers a program for a target, in the portable form if the specialised form does not take it."""
    try:
        return lower(program, facts, target)
    except FormError:
        return lower(program, facts, target.unspecialised)


def sha256_everywhere(program: TileProgram, facts: Facts, target: Target) -> str:
    """The hash that all ranks compare. It leaves out the two things that may differ between ranks: how a rank loads its
    own tensors, and whether it runs the specialised form."""
    return lower(program, facts.on(False, bulk=False), target.unspecialised).sha256


def lower(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    """Lowers a program for a target, and for sizes with these facts. Raises FormError if the specialised form does not
    take the program, and ScheduleError for roles on the copy engine if the world spans nodes."""
    if target.network and program.on_engine:
        raise ScheduleError(
            f"{program.on_engine[0].name} is on the copy engine, which reaches the ranks of its own node only; the "
            "world has several nodes: give the role SMs",
            program.on_engine[0].site,
        )
    # Triton's compiler for AMD can't choose between an argument and a pointer to the heap.
    here = facts.on(target.descriptors, bulk=not target.network, by_numbers=target.backend == "hip")
    return _lowered(program, here, target)


def lower_at(program: TileProgram, sizes: Sizes, target: Target, *, timed: bool = False) -> Lowered:
    """Lowers a program for a target at these sizes, with all matrices as they are declared. Raises as `lower`."""
    return lower(program, Facts.of(program, sizes, timed=timed), target)


@kept(256)
def _lowered(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    program = with_choices(program)
    if target.specialised:
        program = taken(program, facts, target)
        made = Lowered(program, facts, target, *GluonModule(program, facts, target).written())
        if not program.routes:
            return made
        alone = Module(program, facts, target.unspecialised)
        tables = alone.tables(ROWS_OF_TABLES)
        beside = Lowered(program, facts, target.unspecialised, alone.text(), (), tables, None, None, None, None)
        return replace(made, tables=tables, beside=beside)
    program = stored_by_threads(program)
    return Lowered(program, facts, target, *Module(program, facts, target).written())
