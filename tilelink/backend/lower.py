"""Lowering: a tile program becomes the source of a Triton module that a person can read beside it.

One persistent kernel: its workers enter the run, do the tiles of their role, and the last one out ends the run
(docs/protocol.md). Where peers read an input, a second kernel publishes it to the heap first; where roles are on the
copy engine, a third enters the run before their copies begin; and where these wait for tiles, a fourth ends the run
after them (`tilelink.backend.host` says in what order).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy

from tilelink.backend.addresses import Addresses, arange
from tilelink.backend.emit import RoleEmitter, write_expected
from tilelink.backend.facts import COPY_CHUNK, Facts
from tilelink.backend.kernel import (
    ZERO,
    Body,
    Branch,
    Do,
    Function,
    Kind,
    Return,
    Source,
    Writer,
    call,
    count_to,
    joined,
    name,
    names_in,
    printed,
    source,
    verify,
)
from tilelink.backend.nvshmem import libraries
from tilelink.backend.parameters import (
    ALL_PRIMITIVES,
    BEFORE,
    CONTROL,
    HEAPS,
    RANK,
    RECORDS,
    ROUTING,
    RUN,
    SLOT,
    STAMPS,
    WORKER,
    WORKERS,
    WORKING,
    WORLD,
    Names,
    Parameter,
    counted,
)
from tilelink.backend.reach import stage_bytes
from tilelink.backend.targets import Target, records, routing
from tilelink.errors import ScheduleError, Site
from tilelink.frontend import expressions
from tilelink.frontend.cells import cell_count, position
from tilelink.frontend.expressions import Expr, symbol
from tilelink.frontend.ir import RANKS_DIM, Copy, For, Role, Signals, Statement, Tensor, TileProgram, View, walk
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.schedule import SMs
from tilelink.frontend.turns import members, tiles_in_turn, turns
from tilelink.frontend.walk import make_walk
from tilelink.language import Space

DRAIN_BLOCK = 128
END_OF_RUN = call("leave", HEAPS, CONTROL, RANK, SLOT, RUN, WORLD)
WORKERS_OF_ALL = call("tl.num_programs", 0)
_STABLE = ("at", "signals", "stage", "workers")
"""Parameters that a kernel is not specialised for, whatever their values divide."""
_RUN = call("tl.load", source("{} + {}", CONTROL, name("RUN")))
_BEFORE = call("tl.load", source("{} + {} + {}", CONTROL, name("SLOT_LEFT"), SLOT))


@dataclass(frozen=True)
class Kernel:
    """A kernel of a lowered program, with its parameters in order."""

    name: str
    parameters: tuple[Parameter, ...]


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
    publish: Kernel | None
    enter: Kernel | None
    leave: Kernel | None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those that there are, the persistent one last."""
        return (*(k for k in (self.publish, self.enter, self.leave) if k is not None), self.main)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
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
        think of two workers on one spill for it. Across nodes, NVSHMEM's bitcode is linked in. Raises NvshmemError."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": 1}
        if self.target.registers is not None:
            options["maxnreg"] = min(255, self.target.registers // (self.warps * self.target.warp_size))
        if linked := libraries(self.target):
            options["extern_libs"] = linked
        return options

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @cached_property
    def sha256_everywhere(self) -> str:
        """What all ranks agree on, of which each may load its own tensors in its own way."""
        return lower(self.program, replace(self.facts, described=frozenset()), self.target).sha256


@kept(256)
def lower(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    """The Triton source of a program, for a target and for sizes of which `facts` hold."""
    if target.network and program.on_engine:
        raise ScheduleError(
            f"{program.on_engine[0].name} is on the copy engine, which reaches the ranks of its own node only; the "
            "world has several: give it SMs",
            program.on_engine[0].site,
        )
    if not target.descriptors:
        facts = replace(facts, described=frozenset())
    return _Lowering(program, facts, target).module()


class _Lowering:
    """Makes the functions of a module, those that are called before those that call."""

    def __init__(self, program: TileProgram, facts: Facts, target: Target) -> None:
        self.program, self.facts, self.target = program, facts, target
        self.names = Names(program, facts)
        self.functions: list[Function] = []

    def module(self) -> Lowered:
        program = self.program
        roles = {r.name: self.role(r, self.names.role(r.name)) for r in program.in_kernel}
        drains = [self.drain(signals) for signals in program.signals]
        ends: Body = [*(Do(call(f.name, *map(name, f.parameters))) for f in drains), Do(END_OF_RUN)]
        main = self.main(roles, [] if program.awaited_by_engines else ends)
        publish = self.publish() if program.published else None
        enter = self.enter() if program.on_engine else None
        leave = self.leave(ends) if program.awaited_by_engines else None
        module = {f.name for f in self.functions} | {n for n, _ in self.names.functions}
        for function in self.functions:
            verify(function, module | {*ALL_PRIMITIVES, *RECORDS, *ROUTING})
        lines = [*self.header(), *(line for f in self.functions for line in ["", "", *printed(f)])]
        text = "\n".join(lines) + "\n"
        functions = self.names.functions
        return Lowered(program, self.facts, self.target, text, functions, main, publish, enter, leave)

    def header(self) -> list[str]:
        """Always as long, because Triton's cache keys hold line numbers."""
        read = frozenset[str]().union(*(names_in(f.body) for f in self.functions))
        used = [p for p in ALL_PRIMITIVES if p in read]
        return [
            f'"""{self.program.name}, lowered by TileLink; {self.facts}."""',
            "",
            "import triton",
            "import triton.language as tl",
            f"from {self.target.module} import {', '.join(used)}",
            *([f"from {records.__name__} import {', '.join(RECORDS)}"] if self.facts.timed else []),
            *([f"from {routing.__name__} import {', '.join(ROUTING)}"] if read & {*ROUTING} else []),
        ]

    def function(self, called: str, body: Body, first: tuple[str, ...] = ()) -> Function:
        """A function of the module, which takes `first` and the parameters that it reads."""
        read = names_in(body)
        known = [*WORKING, *(p.name for p in self.names.parameters)]
        taken = (*first, *(n for n in known if n in read and n not in first))
        self.functions.append(Function(called, taken, body, changed=frozenset([STAMPS])))
        return self.functions[-1]

    def kernel(self, suffix: str, body: Body) -> Kernel:
        """A kernel of these statements, which takes the parameters that they read."""
        read = names_in(body)
        taken = tuple(p for p in self.names.parameters if p.name in read)
        stable = [p.name for p in taken if p.kind in _STABLE or p.name in ("rank", "slot")]
        made = Kernel(self.names.kernel(suffix), taken)
        decorator, parameters = f"triton.jit(do_not_specialize={stable!r})", tuple(p.name for p in taken)
        self.functions.append(Function(made.name, parameters, body, decorator, frozenset([STAMPS])))
        return made

    def role(self, role: Role, called: str, *, publishing: bool = False) -> Function:
        """A function that does all tiles of one worker."""
        emitter = RoleEmitter(self.names, role, self.target, publishing=publishing)
        takes_turns = any(len(roles) > 1 and role in roles for roles in members(self.program.in_kernel))
        first, last = WORKER, emitter.text(role.walk.count)
        if takes_turns:
            first, last = (name(emitter.local(n, f"{n} of a turn")) for n in ("first", "last"))
        write = Writer()
        write.body += emitter.before
        with write.loop(emitter.local("i"), count_to(first, last, WORKERS)):
            write.body += emitter.body
        if emitter.timed:
            write.body.append(Return(name(STAMPS)))
        given = (first.text, last.text) if takes_turns else (first.text,)
        return self.function(called, write.body, (*given, WORKERS.text))

    def drain(self, signals: Signals) -> Function:
        """A function that waits for every notification of a tensor on this rank, and zeroes the signals."""
        addresses, target, write = Addresses(self.names), self.target, Writer()
        at = self.names.of("signals", signals.tensor)
        local, fixed = addresses.local, Kind.FIXED
        words = write.set(local("signals", "signals"), addresses.peer(RANK, at, target.signal_dtype), fixed)
        cells = write.set(local("cells", "cells"), addresses.text(cell_count(signals)), fixed)
        first = name(local("first", "first"))
        with write.loop(first.text, count_to(ZERO, cells, DRAIN_BLOCK)):
            numbers = source("{} + {}", first, arange(DRAIN_BLOCK))
            write.set(local("cell"), source("tl.minimum({}, {} - 1)", numbers, cells), fixed)
            here = write.set(local("here", "here"), source("{} < {}", numbers, cells), fixed)
            known: dict[Expr, Expr] = {}
            for n, value in position(signals):
                write.set(local(n), addresses.text(value), fixed)
                known[symbol(n)] = symbol(n)
            start = source("tl.zeros([{}], tl.int32)", DRAIN_BLOCK)
            expected = write_expected(write, addresses, signals, known, inside=False, start=start)
            pointers = source("{} + {}", words, addresses.text(target.signal_words * symbol("cell")))
            write.do(call("drain", CONTROL, pointers, expected, here, f'"{signals.scope}"'))
        return self.function(self.names.drain(signals.tensor), write.body)

    def main(self, roles: dict[str, Function], ends: Body) -> Kernel:
        """The persistent kernel. `ends`: what its last worker does."""
        write, addresses = Writer(), Addresses(self.names)
        write.set(WORKER.text, call("tl.program_id", 0), Kind.FIXED)
        self.begin(write, RUN, BEFORE)
        if self.facts.timed:
            of_worker = self.names.of("records", STAMPS)
            write.set(STAMPS, source("tl.cast({}, tl.int64) * {}", WORKER, of_worker), operator="+=")
        if not self.program.on_engine:
            with write.branch(source("{} == 0", WORKER)):
                write.do(call("enter", HEAPS, CONTROL, RANK, RUN, WORLD))

        def tiles(together: list[Role], first: list[Source], workers: Source) -> Body:
            inside = Writer()
            here = less(WORKER, first)
            if len(together) == 1:
                self.work(inside, roles[together[0].name], here, workers)
            else:
                self.take_turns(inside, addresses, together, roles, here, workers)
            return inside.body

        first: list[Source] = []
        ways = []
        groups = members(self.program.in_kernel)
        for together in (g for g in groups if counted(g[0])):
            workers = self.names.of("workers", together[0].name)
            body = tiles(together, first, workers)
            first.append(workers)
            ways.append((source("{} < {}", WORKER, joined(" + ", first)), body))
        rest = less(WORKERS_OF_ALL, first)
        sharing = [s for g in groups if not counted(g[0]) for s in tiles(g, first, rest)]
        write.body += [Branch(tuple(ways), sharing)] if ways else sharing
        if ends:
            with write.branch(call("last_out", CONTROL, WORKERS_OF_ALL)):
                write.body += ends
        return self.kernel("", write.body)

    def begin(self, write: Writer, *reads: Source) -> None:
        """The control block, and what a kernel reads of it first: the number of the run, the progress before it."""
        write.set(CONTROL.text, call("peer", HEAPS, RANK, 0, "tl.int64"), Kind.FIXED)
        for word in reads:
            write.set(word.text, {RUN: _RUN, BEFORE: _BEFORE}[word], Kind.FIXED)

    def work(self, write: Writer, role: Function, *first: Source) -> None:
        """A call of the function of a role, with its first arguments."""
        made = call(role.name, *first, *map(name, role.parameters[len(first) :]))
        if self.facts.timed:
            write.set(STAMPS, made)
        else:
            write.do(made)

    def take_turns(
        self, write: Writer, addresses: Addresses, together: list[Role], functions: dict[str, Function],
        here: Source, workers: Source,
    ) -> None:  # fmt: skip
        """The calls of roles that take turns, for worker `here` of `workers`; see `tilelink.frontend.turns`."""
        local = addresses.local
        own, turn, first = (name(local(n, f"{n}, in turns")) for n in ("here", "turn", "first"))
        write.assign((own.text, WORKERS.text), joined(", ", [here, workers]))
        counts = []
        for role in together:
            own_tiles = local(f"{role.name}_tiles", ("tiles", role.name))
            counts.append(write.set(own_tiles, addresses.text(tiles_in_turn(role)), Kind.FIXED))
        with write.loop(turn.text, count_to(addresses.text(turns(together)))):
            write.set(first.text, source("{} * ({})", turn, joined(" + ", counts)))
            for k, (role, tiles) in enumerate(zip(together, counts, strict=True)):
                if k:
                    write.set(first.text, counts[k - 1], operator="+=")
                number = source("({} + {} - {} % {}) % {}", own, WORKERS, first, WORKERS, WORKERS)
                begin = source("{} * {} + {}", turn, tiles, number)
                self.work(write, functions[role.name], begin, source("({} + 1) * {}", turn, tiles), WORKERS)

    def publish(self) -> Kernel:
        """A kernel that copies inputs to the heap, once the peers have left the previous run of the slot."""
        write = Writer()
        write.set(WORKER.text, call("tl.program_id", 0), Kind.FIXED)
        self.begin(write, BEFORE)
        for role in publishing_roles(self.program):
            made = self.role(role, self.names.role(role.name), publishing=True)
            write.do(call(made.name, WORKER, WORKERS_OF_ALL, *map(name, made.parameters[2:])))
        return self.kernel("_publish", write.body)

    def enter(self) -> Kernel:
        """A kernel of one worker after which the copy engine may go to work: it has the credit of all ranks, has told
        them that this one has entered the run, and where engines read what peers publish, these have entered, too."""
        program, write = self.program, Writer()
        self.begin(write, RUN)
        write.do(call("credit", CONTROL, _BEFORE, WORLD))
        write.do(call("enter", HEAPS, CONTROL, RANK, RUN, WORLD))
        copies = (s for r in program.on_engine for s in walk(r.body) if isinstance(s, Copy))
        if {s.source.tensor for s in copies if s.source.remote} & set(program.published):
            other = Addresses(self.names).local("other")
            with write.loop(other, count_to(WORLD)):
                write.do(call("entered", CONTROL, name(other), RUN))
        return self.kernel("_enter", write.body)

    def leave(self, ends: Body) -> Kernel:
        """A kernel of one worker that ends the run when the copy engine is done, too: until then what it reads lies in
        the slot. Where a wait of the lane has ended in vain nothing is told."""
        write = Writer()
        self.begin(write, RUN)
        with write.branch(source("{} == 0", call("tl.load", source("{} + {}", CONTROL, name("POISON"))))):
            write.body += ends
        return self.kernel("_leave", write.body)


def less(number: Source, first: list[Source]) -> Source:
    """A number less a sum, as short as it can be written."""
    template = "{} - ({})" if len(first) > 1 else "{} - {}"
    return source(template, number, joined(" + ", first)) if first else number


@kept()
def publishing_roles(program: TileProgram) -> tuple[Role, ...]:
    """The copies of this rank's parts of inputs to their places on the heap."""
    return tuple(_publishing_role(program, program.tensor(n)) for n in program.published)


def _publishing_role(program: TileProgram, tensor: Tensor) -> Role:
    """The copy of one input, as a role: a tile at a time, and of a dimension with an entry a rank all entries."""
    dims = tuple(d for d in tensor.dims if d != RANKS_DIM)
    space = Space(dims, None if tensor.sharded is None else tensor.dims[tensor.sharded], {})
    resource = SMs(tile=(1,) * (len(dims) - 2) + (COPY_CHUNK,) * min(len(dims), 2))
    own = frozenset({tensor.dims[tensor.sharded]}) if tensor.sharded is not None else frozenset()
    site = Site(program.site.file, program.site.line)
    found, _ = make_walk(f"publish_{tensor.name}", space, resource, own, site)
    ranges = iter(found.ranges)
    index = tuple(symbol(f"index_{k}") if d == RANKS_DIM else next(ranges) for k, d in enumerate(tensor.dims))
    view = View(tensor.name, index, expressions.RANK)
    body: Statement = Copy(site, view, view)
    for entry in (i for i in index if isinstance(i, Expr)):
        body = For(site, str(entry), sympy.S.Zero, expressions.WORLD, 1, (body,))
    return Role(f"publish_{tensor.name}", resource, found, (body,), site)


