"""Prepares a program once for a schedule, dtypes and sizes, before the first launch: it is bound, lowered and loaded.
If the structure of the program does not show that a run is safe, the program is unrolled (which checks regions, ranks
and signal counts) and checked, unless TILELINK_CHECK=0 is set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

import torch

from tilelink.analysis.check import Report, check_events, check_results, why_not_structural
from tilelink.analysis.events import Events
from tilelink.analysis.lanes import Refusal
from tilelink.analysis.placement import shape_on
from tilelink.analysis.unroll import BUDGET, check_budget, estimated, unroll, unrolled
from tilelink.backend.cache import load
from tilelink.backend.facts import LONGEST_CHUNK, Facts
from tilelink.backend.host import Step, host_plan
from tilelink.backend.lower import Lowered, lower_as_taken, sha256_everywhere
from tilelink.backend.publishing import publishing_roles
from tilelink.backend.targets import Target
from tilelink.errors import ArgumentError, Site, StrideError, UnsafeProgramError
from tilelink.frontend.expressions import RANK
from tilelink.frontend.ir import For, Range, Role, TileProgram, View, Write, every, walk
from tilelink.frontend.kept import kept
from tilelink.frontend.passes.publish import publish_sources
from tilelink.frontend.routes import Routing
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.workload import Allotment, allot, kernel_workers
from tilelink.programs.given import Call
from tilelink.runtime.arguments import Arguments

KEPT_PROGRAMS = 128
"""The number of prepared programs that a lane keeps: the ones called last. One of 8192 rows on 8 ranks takes 4 MB if
its events were asked for."""
FARTHEST = 2**31 - 1
"""The most elements from the corner of a block to its end; kernels count them in 32 bits."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program, ready to be launched at given sizes."""

    program: TileProgram
    sizes: Sizes
    sms: int
    allotment: dict[str, Allotment]
    lowered: Lowered
    module: ModuleType
    plans: dict[int, tuple[Step, ...]] = field(default_factory=dict)

    @cached_property
    def workers(self) -> int:
        """Workers of the persistent kernel on each rank."""
        return kernel_workers(self.program, self.allotment)

    @cached_property
    def events(self) -> Events:
        """The events of every worker of every rank, unrolled on demand. Raises the errors of unrolling."""
        events, refused = self._unrolled
        if refused:
            raise refused[0].error
        return events

    @cached_property
    def _unrolled(self) -> tuple[Events, list[Refusal]]:
        return unrolled(self.program, self.sizes, sms=self.sms)

    @cached_property
    def every_engine(self) -> Events | None:
        """Events with all roles on copy engines of all ranks, if unrolling them may refuse a tile, so that every rank
        refuses it alike; None if the structure shows that it does not."""
        if why_not_structural(self.program, self.sizes):
            return self.events
        if engines_are_structural(self.program):
            return None
        return unroll(self.program, self.sizes, sms=self.sms, roles=self.program.on_engine)

    @cached_property
    def report(self) -> Report:
        """The findings of the check."""
        return check_events(*self._unrolled)

    @property
    def stage_bytes(self) -> int:
        """Bytes on the heap for the blocks that workers send to other nodes from registers."""
        return self.workers * self.lowered.stage_bytes

    def plan(self, rank: int) -> tuple[Step, ...]:
        """The steps of a rank's host for a run."""

        def events() -> Events:
            every = self.every_engine
            if every is None:
                return unroll(self.program, self.sizes, sms=self.sms, roles=self.program.on_engine, ranks=[rank])
            return every

        if rank not in self.plans:
            self.plans[rank] = host_plan(self.lowered, self.sizes, self.sms, self.workers, events, rank)
        return self.plans[rank]

    def check_strides(self, tensors: Mapping[str, torch.Tensor], site: Site) -> None:
        """Raises StrideError if a block would reach farther than its kernel can count."""
        for name, block in blocks_of_callers(self.program):
            if name in tensors:
                strides = tensors[name].stride()
                reach = sum((n - 1) * s for n, s in zip(block, strides, strict=True))
                if reach > FARTHEST:
                    remedy = f"use a smaller tile, or a copy of {name} that is contiguous"
                    raise _too_far(f"{name} has strides {strides}", block, reach, remedy, site)


@kept(8)
def counted(prepared: Prepared, routings: tuple[Routing, ...]) -> Prepared:
    """A prepared program for routings: it knows how many rows of each route go where."""
    sizes = prepared.sizes.counted(prepared.program.routes, routings)
    return replace(prepared, sizes=sizes, plans={}) if routings else prepared


@kept()
def engines_are_structural(program: TileProgram) -> bool:
    """Whether no tile on a copy engine can have two peers or share its signal with another tile, at any sizes. The
    structure must show that a run is safe: a tile copies from or to its own rank, and a cell of signals is one tile."""

    def one_peer(role: Role) -> bool:
        return len({v.home for v in role.touched} - {RANK}) <= 1 and not any(every(For, role.body))

    names = {role.name for role in program.on_engine}
    given = ((n, signals) for signals in program.signals for n in signals.notifiers if n.role in names)
    a_tile_a_cell = all(n.tiles == tuple(c.size for c in signals.grid) for n, signals in given)
    return a_tile_a_cell and all(map(one_peer, program.on_engine))


Block = tuple[int, ...]
"""The shape of a block: its elements along each dimension of its tensor."""


@kept()
def blocks_of_callers(program: TileProgram) -> frozenset[tuple[str, Block]]:
    """The tensors of a caller, with the shapes of the blocks in which kernels touch them."""
    own = {t.name for t in program.tensors} - {t.name for t in program.on_heap}
    published = _blocks(publishing_roles(program), set(program.published))
    return frozenset((v.tensor, block) for v, block in [*_blocks(program.in_kernel, own), *published])


def check_reach(program: TileProgram, sizes: Sizes) -> None:
    """Raises StrideError if a block on the heap would reach farther than its kernel can count, at these sizes."""
    roles = (*program.in_kernel, *publishing_roles(program))
    for view, block in _blocks(roles, {t.name for t in program.on_heap}):
        shape = shape_on(program.tensor(view.tensor), sizes, None)
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        counted = [s for s, i, n in zip(strides, view.index, shape, strict=True) if isinstance(i, Range) and n > 1]
        block = tuple(min(n, max(1, size)) for n, size in zip(block, shape, strict=True))
        reach = max(sum((n - 1) * s for n, s in zip(block, strides, strict=True)), *counted, 0)
        if reach > FARTHEST:
            lies = f"{view.tensor} has the shape {shape} on the symmetric heap"
            raise _too_far(lies, block, reach, "use a smaller tile, or smaller sizes", Site.of_user())


def _blocks(roles: Iterable[Role], names: Set[str]) -> Iterator[tuple[View, Block]]:
    """The views of these tensors that roles load, store or copy, with the shapes of their blocks."""
    for s in (s for role in roles for s in walk(role.body)):
        for view in (*s.read, *((s.target,) if isinstance(s, Write) else ())):
            if view.tensor in names:
                yield view, tuple((i.extent or LONGEST_CHUNK) if isinstance(i, Range) else 1 for i in view.index)


def _too_far(lies: str, block: Block, reach: int, remedy: str, site: Site) -> StrideError:
    blocks = f"blocks of {' x '.join(map(str, block))} reach {reach} elements far"
    return StrideError(f"{lies}: {blocks}, {FARTHEST} is the most; {remedy}", site)


def prepare(
    arguments: Arguments, world: int, sms: int, target: Target, per_node: int | None = None, check: bool = True
) -> Prepared:
    """The prepared program for a call, on nodes of `per_node` ranks (all ranks by default), for a target with `sms` SMs
    a device. A schedule taken by its name (or by default) is fitted to the sizes and the target; a `Schedule` object is
    used unchanged. Raises StrideError, the errors of the frontend and of unrolling; with `check`, also
    UnsafeProgramError, BudgetError and the errors of `check_results`."""
    call, schedule = arguments.call, arguments.call.schedule
    if not isinstance(schedule, Schedule):
        schedule = call.program.fit(
            schedule, world=world, dtypes=arguments.dtypes, absent=arguments.absent, target=target,
            sizes=arguments.sizes,
        )  # fmt: skip
    program = call.program.bind(schedule, arguments.dtypes, arguments.absent)
    budget = None
    if check and os.environ.get("TILELINK_CHECK") != "0":
        check_results(program)
        budget = _budget()
    sizes = Sizes.of(program, world, arguments.sizes, per_node, counted=not program.routes)
    if target.network:
        program = publish_sources(program)
    check_reach(program, sizes)
    because = why_not_structural(program, sizes)
    if program.routes and because:
        why = f"and the structure does not show that it is safe wherever they go: {because}"
        raise UnsafeProgramError(f"only the device knows how many rows of {program.name} go where, {why}", program.site)
    if because and budget is not None:
        check_budget(program, sizes, because, sms=sms, budget=budget)
    allotment = allot(program, sizes, sms)
    made = lower_as_taken(program, Facts.of(program, sizes, arguments.lying, timed=call.timed), target)
    prepared = Prepared(program, sizes, sms, allotment, made, load(made))
    if because and budget is not None:
        prepared.report.raise_if_unsafe()
    elif program.on_engine or (because and estimated(program, sizes, sms=sms) <= BUDGET):
        _ = prepared.every_engine  # unrolling raises its errors now, not at a launch
    return prepared


def _budget() -> int:
    """The most events that a check before a call may unroll. Raises ArgumentError."""
    said = os.environ.get("TILELINK_CHECK_BUDGET", str(BUDGET))
    if not said.isdecimal():
        raise ArgumentError(
            f"TILELINK_CHECK_BUDGET={said!r}; it must be a number of events, such as {BUDGET}", Site.of_user()
        )
    return int(said)


def same_call(call: Call, prepared: Prepared, slot: int) -> dict[str, Any]:
    """The values of a call on which the ranks of a group have to agree."""
    return {
        "program": f"{call.program.name} of {call.program.file}",
        "sizes": dict(prepared.sizes.dims) | prepared.sizes.said,
        **_same_program(prepared.program),
        "workers": dict(prepared.allotment),
        "slot": slot,
        "kernel": sha256_everywhere(prepared.program, prepared.lowered.facts, prepared.lowered.target)[:16],
    }


@kept()
def _same_program(program: TileProgram) -> dict[str, Any]:
    """The values of a tile program on which ranks have to agree."""
    return {
        "dtypes": {t.name: t.dtype for t in program.tensors},
        "schedule": {r.name: str(r.resource) for r in program.roles},
        "functions": {n: f.src for n, f in program.functions},
    }
