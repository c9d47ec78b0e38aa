"""The body of a role as statements of a kernel: one statement of the tile program after the other.

How memory is reached is a strategy (`tilelink.backend.reach`): near, by stores; all, by multicast; far, by puts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import sympy

from tilelink.backend import descriptors
from tilelink.backend.addresses import Addresses
from tilelink.backend.facts import copied_chunks
from tilelink.backend.kernel import (
    ZERO,
    Body,
    Comment,
    Kind,
    Source,
    Writer,
    call,
    converted,
    count_to,
    joined,
    loaded,
    name,
    source,
    stored,
)
from tilelink.backend.parameters import BEFORE, CONTROL, HEAPS, RANK, RUN, STAMPS, WORLD, Names
from tilelink.backend.pipelining import enters, has_dot, pipelined, stages
from tilelink.backend.reach import All, Far, home_of
from tilelink.backend.targets import Target
from tilelink.errors import KernelError
from tilelink.frontend.cells import cells_along, cells_in_part, cells_of, piece_place, times_notified
from tilelink.frontend.expressions import Expr, floor_div, symbol, with_values
from tilelink.frontend.ir import (
    ALL_RANKS,
    RANKS_DIM,
    Called,
    Cell,
    Code,
    Compute,
    Copy,
    DataIf,
    For,
    If,
    Load,
    Notify,
    Range,
    Role,
    Signals,
    Statement,
    Store,
    Variable,
    View,
    Wait,
)
from tilelink.frontend.ir import walk as walk_statements
from tilelink.frontend.routes import EXPERT
from tilelink.frontend.schedule import SMs
from tilelink.frontend.signals import recipient
from tilelink.frontend.triton_calls import TRITON_DTYPES


class RoleEmitter:
    """Writes one role: what does not change into `before`, the body of the loop over its tiles into `body`."""

    def __init__(self, names: Names, role: Role, target: Target, *, publishing: bool = False) -> None:
        if not isinstance(role.resource, SMs):
            raise KernelError(f"{role.name} is not in the kernel", role.site)
        self.names, self.program, self.facts = names, names.program, names.facts
        self.role, self.target, self.publishing = role, target, publishing
        self.stages = role.resource.stages
        self.pipelined, self.only_near = False, False
        self.timed = self.facts.timed and not publishing
        self.accumulates = any(pipelined(s, role, self.program) for s in walk_statements(role.body))
        self.addresses = Addresses(names, dict(role.walk.homes))
        self.text, self.local = self.addresses.text, self.addresses.local
        self.write = Writer()
        self.tokens: dict[str, Source] = {}
        self.all = All(self) if target.multicast else None
        self.far = Far(self) if target.network else None
        self.before, self.body = self._emitted()

    def _emitted(self) -> tuple[Body, Body]:
        walk, write, addresses = self.role.walk, self.write, self.addresses
        uneven = [
            r.dim for r in walk.ranges if r.part is not None and (r.segment or r.dim not in self.facts.equal)
        ]
        exists = self.text(walk.exists) if uneven and walk.exists != sympy.true else None
        with write.inside([]):
            self.statements(self.role.body)
            body = write.body
        if self.timed:
            number = self.program.roles.index(self.role)
            self.record(source("tl.cast({}, tl.int64) + ({} << 32)", name(self.local("i")), number))
        coordinates = [(self.local(n), self.text(v)) for n, v in walk.coordinates]
        known = [n for n, _ in walk.coordinates]
        place = max((known.index(str(h)) + 1 for _, h in walk.homes if str(h) in known), default=0)
        for n, value in [*coordinates[:place], *addresses.bounds.items(), *coordinates[place:]]:
            write.set(n, value, Kind.FIXED)
        with write.branch(exists) if exists else ExitStack():
            for n, value in addresses.of_tile.items():
                write.set(n, value, Kind.FIXED)
            write.body += body
        self.stamp("TILE_ENDS")
        before = Writer()
        if self.fills_slot():
            before.do(call("credit", CONTROL, BEFORE, WORLD))
        sizes = [(self.local(n), self.text(v)) for n, v in walk.sizes]
        for n, value in [*sizes, *addresses.hoisted.items()]:
            before.set(n, value, Kind.FIXED)
        return before.body, write.body

    def fills_slot(self) -> bool:
        """Whether the role writes to the slot, its own rank's copy of it included."""
        return any(
            isinstance(s, Notify) or (isinstance(s, Copy | Store) and s.target.tensor in self.addresses.heap)
            for s in walk_statements(self.role.body)
        )

    # ---- statements

    def statements(self, statements: tuple[Statement, ...]) -> None:
        commented = None
        for s in self.far.with_puts(statements) if self.far else statements:
            if s.site.text and s.site != commented and not self.publishing:
                self.write.body.append(Comment(s.site.text))
                commented = s.site
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Compute():
                self.compute(s)
            case Store():
                (self.far if self.far and self.far.may_be(s.target.home) else self).store(s)
            case Copy():
                (self.far if self.far and self.far.copies(s) else self).copy(s)
            case Wait():
                self.wait(s)
            case Notify():
                for view in s.views:
                    if self.far:
                        self.far.order(view)
                    self.notify(view)
            case For():
                outside, self.pipelined = self.pipelined, pipelined(s, self.role, self.program)
                with self.write.loop(self.local(s.name), self.loop(s)):
                    self.statements(s.body)
                self.pipelined = outside
            case If() | DataIf():
                condition = self.text(s.condition) if isinstance(s, If) else self.code(s, s.condition)
                with self.write.branch(condition):
                    self.statements(s.body)
                with self.write.otherwise():
                    self.statements(s.orelse)

    def loop(self, s: For) -> Source:
        """The range of a loop; one over steps of a dot is pipelined in as many stages as the schedule says, unless it
        waits: a pipelined loop would read ahead of its waits."""
        bounds = self.text(s.start), self.text(s.stop), s.step
        if not has_dot(s):
            return count_to(*bounds)
        number = stages(s, self.role, self.program, self.target, self.stages)
        return call("tl.range", *bounds, num_stages=number)

    def compute(self, s: Compute) -> None:
        value = self.code(s, s.code)
        if s.targets:
            self.write.assign(tuple(self.variable(n) for n in s.targets), value)
        else:
            self.write.do(value)

    def variable(self, n: str) -> str:
        """What a variable of the tile function is called."""
        return self.local(n, ("variable", n))

    def code(self, s: Statement, code: Code) -> Source:
        """Triton source with its holes filled; the loads of it go before it."""
        filled: list[Source] = []
        loads = Counter[str]()
        for h in code.holes:
            match h:
                case Load(view=view):
                    filled.append(self.block(s, view, loads[view.tensor]))
                    loads[view.tensor] += 1
                case Variable():
                    filled.append(name(self.variable(h.name)))
                case Called():
                    filled.append(name(self.names.function(h.name)))
                case _:
                    filled.append(self.text(h).grouped)
        return source(code.text, *filled)

    def block(self, s: Statement, view: View, number: int) -> Source:
        """A load of a block, one of those of its tensor in a statement; its name."""
        if self.far:
            self.far.check_load(s, view)
        value = self.load(view)
        return self.write.set(self.block_name(view, number), value, Kind.TEMPORARY)

    def block_name(self, view: View, number: int = 0) -> str:
        return self.local(f"{view.tensor}_block{number or ''}", ("block", view.tensor, number))

    def load(self, view: View) -> Source:
        block = descriptors.block_of(view, self.program, self.facts) if self.pipelined else None
        token = self.token(view)
        if block is not None:
            described = self.names.of("blocks", view.tensor, block=block)
            return source("{}.load([{}])", described, joined(", ", self.addresses.corner(view, token)))
        at = self.addresses.block(view, token=token)
        narrow = self.dtype(view).startswith("float8")  # Triton makes none of an integer
        return loaded(at.pointer, at.mask, other="0.0" if narrow else "0")

    def token(self, view: View) -> Source | None:
        """What a read of the view has to depend on: its wait, or that its owner has entered the run."""
        if view.tensor not in self.program.published or not view.remote:
            return self.tokens.get(view.guard or "")
        value = call("entered", CONTROL, self.text(home_of(view)), RUN)
        if enters(view, self.role, self.program):
            return self.write.set(self.local(f"entered_{view.tensor}", ("entered", view.tensor)), value, Kind.TEMPORARY)
        made = len(self.addresses.bounds) + len(self.addresses.of_tile)
        return self.addresses.per_tile(f"entered_{made}", value)

    @contextmanager
    def homes(self, view: View) -> Iterator[Source | None]:
        """The home of a view that is written to, None for the own rank; in a loop over the ranks for a view of all."""
        if view.home != ALL_RANKS:
            yield self.text(home_of(view)) if view.remote else None
            return
        other = self.local("other")
        with self.write.loop(other, count_to(WORLD)), ExitStack() as near:
            if self.only_near:
                near.enter_context(self.write.branch(source("not {}", call("is_far", HEAPS, name(other)))))
            yield name(other)

    def store(self, s: Store) -> None:
        value = self.code(s, s.value)
        if s.target.home == ALL_RANKS:
            value = self.value(value)
        self.put(s.target, converted(value, self.dtype(s.target)))

    def value(self, value: Source) -> Source:
        """The name of a block that is stored more than once."""
        return self.write.set(self.local("value", "a block to store"), value, Kind.TEMPORARY)

    def dtype(self, view: View) -> str:
        return TRITON_DTYPES[self.program.tensor(view.tensor).dtype]

    def put(self, view: View, block: Source) -> None:
        """Stores a block to a view: of a rank, or of all of them, at once or one after the other."""
        if self.all and self.all.takes(view):
            return self.all.put(view, block)
        with self.homes(view) as home:
            at = self.addresses.block(view, home, hoisted=not self.accumulates)
            self.write.do(stored(at.pointer, block, at.mask))

    def copy(self, s: Copy) -> None:
        token = None if self.publishing else self.token(s.source)
        source, target = s.source, s.target
        with ExitStack() as opened:
            for a, n in copied_chunks(s.source.ranges):
                own = f"{a.dim}_at"
                bounds = count_to(self.text(a.start), self.text(a.stop), n)
                opened.enter_context(self.write.loop(self.local(own), bounds))
                lo = symbol(own)
                chunk = Range(a.dim, lo, sympy.Min(lo + n, a.stop), n, a.part)
                source = _with_range(source, a, chunk)
                b = next(r for r in s.target.ranges if r.dim == a.dim or a.same_rows(r))
                target = _with_range(target, b, chunk if b.dim == a.dim else _shifted(chunk, a, b))
            here = self.addresses.block(source, token=token, published=not self.publishing)
            block = self.write.set(self.block_name(source), loaded(here.pointer, here.mask), Kind.TEMPORARY)
            self.put(target, block)

    # ---- signals

    def signal(self, signals: Signals, home: Source, cell: Expr) -> Source:
        """Where a signal lies in the heap of a rank."""
        at = self.names.of("signals", signals.tensor)
        base = self.addresses.peer(home, at, self.target.signal_dtype)
        if home == RANK:
            base = self.addresses.hoist(f"{signals.tensor}_signals_here", base)
        return base if cell == 0 else source("{} + {}", base, self.text(self.target.signal_words * cell))

    def notify(self, view: View) -> None:
        """Signals go to the ranks that wait: to the home, or to those for which a condition holds."""
        if self.all and self.all.takes(view):
            return self.all.notify(view)
        signals, home = self.program.signals_of(view.tensor), home_of(view)
        with self.homes(view), ExitStack() as opened:
            to, condition = recipient(signals, view, home)
            if to is None:
                to = symbol("waiter")
                opened.enter_context(self.write.loop(self.local("waiter"), count_to(WORLD)))
                if condition != sympy.true:
                    opened.enter_context(self.write.branch(self.text(condition)))
            self.give(signals, to, self.cell(signals, view, home))

    def cell(self, signals: Signals, view: View, home: Expr) -> Expr:
        """The number of the signal of a view that a tile notifies."""
        cell: Expr = sympy.S.Zero
        for c, i in zip(signals.grid, signals.index(view, home), strict=True):
            cell = cell * cells_along(c) + cells_of(c, i)[0]
        return cell

    def give(self, signals: Signals, to: Expr, cell: Expr) -> None:
        """One notification of a rank."""

        def near() -> None:
            self.write.do(call("notify", self.signal(signals, self.text(to), cell), f'"{signals.scope}"'))

        if self.far and not self.only_near and self.far.may_be(to):
            self.far.give(signals, to, cell, near)
        else:
            near()

    def wait(self, s: Wait) -> None:
        """One poll where the views lie in one cell each; else a loop over the cells. All tokens are summed."""
        if len(s.views) == 1:
            self.tokens[s.name] = self.wait_view(s.name, s.views[0])
            return
        each = [self.wait_view(f"{s.name}_{n}", view) for n, view in enumerate(s.views)]
        self.tokens[s.name] = self.write.set(self.local(s.name), joined(" + ", each), Kind.FIXED)

    def wait_view(self, guard: str, view: View) -> Source:
        token = self.local(guard, ("token", guard))
        signals = self.program.signals_of(view.tensor)
        cell: Expr = sympy.S.Zero
        known: dict[Expr, Expr] = {}
        loops: list[tuple[str, Source]] = []
        for k, (c, i) in enumerate(zip(signals.grid, signals.index(view), strict=True)):
            first, count = cells_of(c, i)
            if count != 1:
                counter = symbol(f"{c.dim}_cell")
                loops.append((self.local(str(counter)), count_to(self.text(first), self.text(first + count))))
                first = counter
            known |= _place(c, k, i, first)
            cell = cell * cells_along(c) + first
        if loops:
            self.write.set(token, ZERO)
        with ExitStack() as opened:
            for counter_name, over in loops:
                opened.enter_context(self.write.loop(counter_name, over))
            expected = write_expected(self.write, self.addresses, signals, known, inside=not loops)
            where = self.signal(signals, RANK, cell)
            self.stamp("WAIT_BEGINS")
            waited = call("wait", CONTROL, where, expected, f'"{signals.scope}"')
            self.write.set(token, waited, *((Kind.VARIABLE, "+=") if loops else (Kind.FIXED, "=")))
            self.stamp("WAIT_ENDS")
        return name(token)

    def stamp(self, what: str) -> None:
        """Records the time, where times are recorded."""
        if self.timed:
            self.record(name(what))

    def record(self, what: Source) -> None:
        self.write.set(STAMPS, call("stamp", name(STAMPS), what, call("clock", CONTROL)))


def write_expected(
    write: Writer,
    addresses: Addresses,
    signals: Signals,
    known: dict[Expr, Expr],
    *,
    inside: bool,
    start: Source | None = None,
) -> Source:
    """How often a cell is notified, in the names of `signals.position` replaced by `known`. Where that is a sum over
    ranks, a loop that makes it is written first, from `start` on (a block of zeros, for blocks of cells)."""
    terms, loops, values = [], [], frozenset(known.items())
    for n in signals.notifiers:
        times = addresses.text(with_values(times_notified(signals, n, inside=inside), values))
        condition = addresses.resolve(with_values(n.condition, values))
        if condition != sympy.true:
            times = call("tl.where", addresses.text(condition), times, 0)
        if n.sums:
            loops.append((n.sums, times))
        else:
            terms.append(times)
    if not loops:
        return joined(" + ", terms)
    first = [start, *terms] if start else terms
    expected = write.set(addresses.local("expected"), joined(" + ", first) if first else ZERO)
    for sums, times in loops:
        with ExitStack() as opened:
            for variable, begin, end in sums:
                over = count_to(addresses.text(begin), addresses.text(end))
                opened.enter_context(write.loop(addresses.local(variable), over))
            # tables of parts are 64-bit, and a loop keeps its types
            write.set(expected.text, source("{}.to(tl.int32)", times), operator="+=")
    return expected


def _place(c: Cell, k: int, i: Range | Expr, at: Expr) -> dict[Expr, Expr]:
    """What `part_D`, `cell_D` and `index_k` are for the cell number `at` along a dimension."""
    if c.dim == RANKS_DIM:
        return {symbol(f"index_{k}"): at}
    if c.route:
        return _place_of_rows(c, i, at)
    if not c.cut or c.local:
        return {symbol(f"cell_{c.dim}"): at}
    inside = cells_in_part(c)
    part = i.part if isinstance(i, Range) and i.part is not None else floor_div(at, inside)
    return {symbol(f"part_{c.dim}"): part, symbol(f"cell_{c.dim}"): at - part * inside}


def _place_of_rows(c: Cell, i: Range | Expr, at: Expr) -> dict[Expr, Expr]:
    """The same for the cells of the rows of a route."""
    inside = cells_in_part(c)
    piece = floor_div(at, inside)
    if isinstance(i, Range) and i.segment and (i.segment.source is not None or c.pieces == EXPERT):
        piece = cells_of(replace(c, size=None), i)[0]
    place = {symbol(n): value for n, value in piece_place(c, piece)}
    return {**place, symbol(f"cell_{c.dim}"): at - piece * inside}


def _with_range(view: View, old: Range, new: Range) -> View:
    return replace(view, index=tuple(new if i == old else i for i in view.index))


def _shifted(chunk: Range, a: Range, b: Range) -> Range:
    """What is a chunk of the rows `a` of a route on its other side, of the rows `b`."""
    lo = chunk.start - a.start + b.start
    return Range(b.dim, lo, sympy.Min(lo + (chunk.extent or 0), b.stop), chunk.extent, b.part)
