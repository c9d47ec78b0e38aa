"""Writes the module of a program: a function for each role, and the kernels that call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tilelink.backend import parameters
from tilelink.backend.addresses import Addresses, arange
from tilelink.backend.emit import RoleEmitter
from tilelink.backend.facts import Facts
from tilelink.backend.kernel import Assign, Body, Function, Kind, Source, Writer, call, grouped, names_in, verify
from tilelink.backend.parameters import BEFORE, CONTROL, HEAPS, RANK, RUN, SLOT, STAMPS, WORKER, WORKERS, WORLD, Names
from tilelink.backend.publishing import publishing_roles
from tilelink.backend.reach import OTHER
from tilelink.backend.running import ROWS, TableWriter
from tilelink.backend.signals import words_of, write_expected
from tilelink.backend.targets import Target, shared
from tilelink.frontend import ir, walk
from tilelink.frontend.cells import CELL, cell_count, position
from tilelink.frontend.expressions import Expr, symbol
from tilelink.frontend.ir import Role, TileProgram
from tilelink.frontend.workload import TURN, first_tile, members, turns

DRAIN_BLOCK = 128
ALIVE = call("alive", CONTROL)
ENTERS = call("enter", HEAPS, CONTROL, RANK, RUN, WORLD)
LEAVES = call("leave", HEAPS, CONTROL, RANK, SLOT, RUN, WORLD)
NUMBER, ALL = call("tl.program_id", 0), call("tl.num_programs", 0)
"""The number of a worker in its kernel, and the number of all workers."""
_STABLE = ("at", "signals", "stage", "workers")
"""Kinds of parameters that Triton must not specialise a kernel for, whatever divides their values."""
_READ = {
    RUN: f"tl.load({CONTROL} + RUN)",
    BEFORE: f"tl.load({CONTROL} + SLOT_LEFT + {SLOT})",
}
"""The words of the control block that kernels read first: the run, and the progress that the slot's credit needs."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a lowered program, with its parameters in order."""

    name: str
    parameters: tuple[parameters.Parameter, ...]


Maybe = Kernel | None
Written = tuple[str, tuple[tuple[str, Any], ...], Kernel, Maybe, Maybe, Maybe, Maybe]
"""The source of a module, the user's Triton functions by their names in it, the persistent kernel, and the kernels that
make tables, publish, enter and leave."""


class Module:
    """Makes the functions of a module; a function comes before its callers. `language`: the first imports; `jit`: the
    decorator of functions; `emitter`: the class that writes a role."""

    language: tuple[str, ...] = ("import triton", "import triton.language as tl")
    jit = "triton.jit"
    emitter = RoleEmitter

    def __init__(self, program: TileProgram, facts: Facts, target: Target) -> None:
        self.program, self.facts, self.target = program, facts, target
        self.imported = dict(self.imports())
        self.names = Names(program, facts, chain(*self.imported.values()))
        self.functions: list[Function] = []
        self.credited: dict[str, bool] = {}  # of roles in turns that need a credit before the first turn: in bulk?
        self.stamps = (STAMPS,) if facts.timed else ()

    def written(self) -> Written:
        """Makes all functions and kernels of the module."""
        program = self.program
        roles = {r.name: self.role(r, self.names.role(r.name)) for r in program.in_kernel}
        ends = self.ends()
        main = self.main(roles, [] if program.awaited_by_engines else ends)
        tables = self.tables() if program.routes and not self.target.specialised else None
        publish = self.publish() if program.published else None
        enter = self.enter() if program.on_engine else None
        leave = self.leave(ends) if program.awaited_by_engines else None
        return self.text(), self.names.functions, main, tables, publish, enter, leave

    def text(self) -> str:
        """The source of the functions made so far. Raises LoweringError if one reads or assigns a name wrongly."""
        own = {*(f.name for f in self.functions), *(n for n, _ in self.names.functions)}
        for function in self.functions:
            verify(function, own.union(*self.imported.values()))
        return "\n\n\n".join(["\n".join(self.header()), *map(str, self.functions)]) + "\n"

    def imports(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the modules that the module may import from, with the names."""
        yield self.target.module, parameters.ALL_PRIMITIVES
        yield shared.__name__, parameters.SHARED

    def header(self) -> list[str]:
        """The head of the module, with one line for each import, since Triton's cache keys hold line numbers."""
        read = frozenset[str]().union(*(names_in(f.body) for f in self.functions))
        used = [(module, ", ".join(n for n in names if n in read)) for module, names in self.imported.items()]
        return [
            f'"""{self.program.name}, lowered by TileLink; {self.facts}."""',
            "",
            *self.language,
            *(f"from {module} import {names}" for module, names in used if names),
        ]

    def function(
        self, called: str, body: Body, first: tuple[str, ...] = (), changed: tuple[str, ...] = (STAMPS,)
    ) -> Function:
        """Makes a function that takes `first` and the parameters that its body reads. `changed`: those that it may
        assign."""
        read = names_in(body)
        known = [*parameters.WORKING, *(p.name for p in self.names.parameters)]
        taken = (*first, *(n for n in known if n in read and n not in first))
        self.functions.append(Function(called, taken, body, self.jit, frozenset(changed)))
        return self.functions[-1]

    def kernel(self, suffix: str, body: Body) -> Kernel:
        """Makes a kernel that takes the parameters that its body reads."""
        read = names_in(body)
        taken = tuple(p for p in self.names.parameters if p.name in read)
        stable = [p.name for p in taken if p.kind in _STABLE or p.name in ("rank", "slot")]
        made = Kernel(self.names.kernel(suffix), taken)
        decorator, parameters = f"{self.jit}(do_not_specialize={stable!r})", tuple(p.name for p in taken)
        self.functions.append(Function(made.name, parameters, body, decorator, frozenset([STAMPS])))
        return made

    def role(self, role: Role, called: str, *, publishing: bool = False) -> Function:
        """Makes a function that does all tiles of one worker."""
        later = self.later(role) if any(ir.every(ir.Owed, role.body)) else None
        timed = self.facts.timed and not publishing
        emitter = self.emitter(self.names, role, self.target, publishing=publishing, timed=timed, later=later)
        takes_turns = any(len(roles) > 1 and role in roles for roles in members(self.program.in_kernel))
        first, last = WORKER, emitter.text(role.walk.count)
        if takes_turns:
            first, last = (emitter.made(n, n, "of a turn") for n in ("first", "last"))
        write = Writer()
        if emitter.fills_slot() and takes_turns:
            self.credited[role.name] = emitter.stores_in_bulk
        elif emitter.fills_slot():
            write.body.append(credit(tma=emitter.stores_in_bulk))
        write.body += emitter.before
        if later:
            write.set(emitter.owed, "-1")
        number, goes_on = emitter.local(walk.NUMBER.name), f"{emitter.local(walk.NUMBER.name)} < {last}"
        if emitter.opening:
            write.set(number, first)
            write.body += emitter.opening
        over_tiles = write.loop(number, first, last, WORKERS)
        with write.block(f"while {goes_on}", goes_on) if emitter.opening else over_tiles:
            write.body += emitter.body
        if later:
            emitter.give_owed(write)
        if emitter.unsettled.behind:
            write.do(call("settle"))
        if timed:
            write.do(f"return {STAMPS}")
        given = (first, last) if takes_turns else (first,)
        return self.function(called, write.body, (*given, WORKERS))

    def later(self, role: Role) -> Function:
        """Makes a function that gives the late notifications of one tile, by the number of the tile."""

        def change(s: ir.Statement) -> ir.Body:
            if isinstance(s, ir.Notify) and s.late:
                return (replace(s, late=False),)
            return (s,) if any(s.blocks) else ()

        emitter = self.emitter(self.names, replace(role, body=ir.rewritten(role.body, change)), self.target)
        called = self.names.module.name(("later", role.name), f"{role.name}_notify")
        return self.function(called, [*emitter.before, *emitter.body], (emitter.local(walk.NUMBER.name),))

    def drain(self, signals: ir.Signals) -> Function:
        """Makes a function that waits for all notifications of a tensor on this rank, and then zeroes the signals."""
        addresses, target, write = Addresses(self.names), self.target, Writer()
        at = self.names.of("signals", signals.tensor)
        made, fixed = addresses.made, Kind.FIXED
        words = write.set(made("signals"), addresses.peer(RANK, at, target.signal_dtype), fixed)
        cells = write.set(made("cells"), addresses.text(cell_count(signals)), fixed)
        first = made("first")
        with write.loop(first, 0, cells, DRAIN_BLOCK):
            numbers = f"{first} + {arange(DRAIN_BLOCK)}"
            write.set(addresses.local(CELL.name), f"tl.minimum({numbers}, {cells} - 1)", fixed)
            here = write.set(made("here"), f"{numbers} < {cells}", fixed)
            known: dict[Expr, Expr] = {}
            for n, value in position(signals):
                write.set(addresses.local(n), addresses.text(value), fixed)
                known[symbol(n)] = symbol(n)
            start = f"tl.zeros([{DRAIN_BLOCK}], tl.int32)"
            expected = write_expected(write, addresses, signals, known, inside=False, start=start)
            pointers = f"{words} + {words_of(addresses.text(CELL), target)}"
            write.do(call("drain", CONTROL, pointers, expected, here, f'"{signals.scope}"'))
        return self.function(self.names.module.name(("drain", signals.tensor), f"drain_{signals.tensor}"), write.body)

    def enters(self, write: Writer) -> None:
        """Writes the entry into the run, which the first worker makes."""
        with write.branch(f"{WORKER} == 0"):
            write.do(ENTERS)

    def behind_a_branch(self, write: Writer) -> AbstractContextManager[None]:
        """Opens a branch that all workers take, where copy engines begin the run and all workers have the same roles.
        Without any branch before the roles, ptxas keeps addresses of descriptors in registers of threads: a step of
        `all_gather_matmul` takes 106 instructions, and 80 with the branch (compiled only, sm_90, Triton 3.7.1)."""
        return write.branch(f"{WORKER} < {ALL}") if self.program.on_engine else nullcontext()

    def ends(self) -> Body:
        """Statements of the last worker of a run: it drains all signals, and leaves."""
        return [Assign((), end) for end in (*(self.drain(s).call() for s in self.program.signals), LEAVES)]

    def main(self, roles: dict[str, Function], ends: Body) -> Kernel:
        """Makes the persistent kernel. `ends`: the statements of its last worker."""
        write, addresses = Writer(), Addresses(self.names)
        write.set(WORKER, NUMBER, Kind.FIXED)
        self.begin(write, RUN, BEFORE)
        if self.facts.timed:
            of_worker = self.names.of("records", parameters.TIMES)
            write.set(STAMPS, f"tl.cast({WORKER}, tl.int64) * {of_worker}", operator="+=")
        if not self.program.on_engine:
            self.enters(write)
        groups, first = members(self.program.in_kernel), list[Source]()
        for together in (g for g in groups if g[0].resource.count):
            here, workers = less(WORKER, first), self.names.of("workers", together[0].name)
            first.append(workers)
            with write.branch(f"{WORKER} < {' + '.join(first)}", "elif" if len(first) > 1 else "if"):
                self.tiles(write, addresses, together, roles, here, workers)
        with write.otherwise() if first else self.behind_a_branch(write):
            for together in (g for g in groups if not g[0].resource.count):
                self.tiles(write, addresses, together, roles, less(WORKER, first), less(ALL, first))
        if ends:
            with write.branch(call("last_out", CONTROL, ALL)):
                write.body += ends
        return self.kernel("", write.body)

    def begin(self, write: Writer, *reads: Source) -> None:
        """Writes the address of the control block, and loads of the words that a kernel reads of it first."""
        write.set(CONTROL, call("peer", HEAPS, RANK, 0, "tl.int64"), Kind.FIXED)
        for word in reads:
            write.set(word, _READ[word], Kind.FIXED)

    def tiles(
        self, write: Writer, addresses: Addresses, together: list[Role], functions: dict[str, Function],
        here: Source, workers: Source,
    ) -> None:  # fmt: skip
        """Writes the call of a role, or the calls of several roles that take turns (see `frontend/workload.py`), for
        worker `here` of `workers`."""
        if len(together) == 1:
            return write.assign(self.stamps, functions[together[0].name].call(here, workers))
        own = addresses.made("here")
        write.assign((own, WORKERS), ", ".join([here, workers]))
        if credited := [self.credited[role.name] for role in together if role.name in self.credited]:
            write.body.append(credit(tma=any(credited)))
        for role, begin, last in in_turns(write, addresses, together, own):
            write.assign(self.stamps, functions[role.name].call(begin, last, WORKERS))

    def tables(self, rows: int = ROWS) -> Kernel:
        """Makes a kernel of one worker that makes the running tables, `rows` rows at a time. If rows of tensors have no
        room, its tables have no rows."""
        called, write = self.names.module.name("segments", "make_segments"), Writer()
        segments = self.function(called, TableWriter(self.names, rows).segments(), (parameters.COUNTED,))
        self.begin(write, RUN)
        write.body += TableWriter(self.names, rows).all(segments)
        return self.kernel("_tables", write.body)

    def publish(self) -> Kernel:
        """Makes a kernel that copies inputs to the heap, once the peers have left the previous run of the slot."""
        write = Writer()
        write.set(WORKER, NUMBER, Kind.FIXED)
        self.begin(write, BEFORE)
        for role in publishing_roles(self.program):
            write.do(self.role(role, self.names.role(role.name), publishing=True).call(WORKER, ALL))
        return self.kernel("_publish", write.body)

    def enter(self) -> Kernel:
        """Makes a kernel of one worker that runs before the copies of engines. It takes the credit of all ranks, and
        enters the run. If engines read what peers publish, it waits until all ranks have entered."""
        program, write = self.program, Writer()
        self.begin(write, RUN)
        write.do(call("credit", CONTROL, _READ[BEFORE], WORLD))
        write.do(ENTERS)
        copies = (s for r in program.on_engine for s in ir.every(ir.Copy, r.body))
        if {s.source.tensor for s in copies if s.source.remote} & set(program.published):
            other = Addresses(self.names).local(OTHER.name)
            with write.loop(other, WORLD):
                write.do(call("entered", CONTROL, other, RUN))
        return self.kernel("_enter", write.body)

    def leave(self, ends: Body) -> Kernel:
        """Makes a kernel of one worker that ends the run after the copies of the engines, which read the slot until
        then. If the lane is poisoned, it tells nothing."""
        write = Writer()
        self.begin(write, RUN)
        with write.branch(ALIVE):
            write.body += ends
        return self.kernel("_leave", write.body)


def in_turns(
    write: Writer, addresses: Addresses, together: list[Role], own: Source
) -> Iterator[tuple[Role, Source, Source]]:
    """Writes a loop over the turns of roles. Yields each role in it, with the first tile of worker `own` and the end of
    the tiles of the turn: what is written then is done in each turn."""
    before = write.set(addresses.made("tiles_before"), "0")
    with write.loop(addresses.local(TURN.name), addresses.text(turns(together))):
        for k, role in enumerate(together):
            first, last = (addresses.made(f"{role.name}_{n}", n, role.name) for n in ("first", "last"))
            write.set(first, addresses.text(first_tile(together, k, TURN)))
            write.set(last, addresses.text(first_tile(together, k, TURN + 1)))
            yield role, f"{first} + ({own} + {WORKERS} - {before} % {WORKERS}) % {WORKERS}", last
            write.set(before, f"{last} - {first}", operator="+=")


def credit(*, tma: bool = False) -> Assign:
    """The first statement of a role that writes to the slot. `tma`: the copy engine for tiles writes for it."""
    return Assign((), call("credit", CONTROL, BEFORE, WORLD, tma="True" if tma else None))


def less(number: Source, first: list[Source]) -> Source:
    """An expression: a number less the sum of others."""
    return f"{number} - {grouped(' + '.join(first))}" if first else number
