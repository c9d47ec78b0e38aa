"""The body of a role as Triton source: one statement of the tile program after the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import sympy

from tilelink.backend import descriptors
from tilelink.backend.addresses import Addresses
from tilelink.backend.facts import Facts, copied_chunks
from tilelink.backend.pipelining import enters, has_dot, pipelined, stages
from tilelink.backend.targets import Target
from tilelink.frontend.cells import cells_along, cells_in_part, cells_of, piece_place, times_notified
from tilelink.frontend.expressions import Expr, floor_div, symbol, with_values
from tilelink.frontend.ir import (
    ALL_RANKS,
    RANKS_DIM,
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
    TileProgram,
    View,
    Wait,
)
from tilelink.frontend.ir import walk as walk_statements
from tilelink.frontend.routes import EXPERT
from tilelink.frontend.schedule import SMs
from tilelink.frontend.signals import recipient
from tilelink.frontend.triton_calls import TRITON_DTYPES


class Writer:
    """Lines of source with indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")


def named(names: dict[str, str], name: str, source: str) -> str:
    """The name that stands for a source: `name`, with a number behind it where that stands for another one."""
    for k in count():
        own = f"{name}_{k}" if k else name
        if names.setdefault(own, source) == source:
            return own
    raise AssertionError


class RoleEmitter:
    """Writes one role: what does not change into `before`, the body of the loop over its tiles into `body`."""

    def __init__(
        self, program: TileProgram, role: Role, facts: Facts, target: Target, *, publishing: bool = False
    ) -> None:
        assert isinstance(role.resource, SMs), f"{role.name} is not in the kernel"
        self.program, self.role, self.facts, self.target, self.publishing = program, role, facts, target, publishing
        self.stages = role.resource.stages
        self.pipelined = False
        self.timed, self.number = facts.timed and not publishing, program.roles.index(role) if not publishing else 0
        self.accumulates = any(pipelined(s, role, program) for s in walk_statements(role.body))
        self.hoisted: dict[str, str] = {}
        self.tile_names: dict[str, str] = {}
        self.addresses = Addresses(program, facts, self.hoist, self.per_tile, dict(role.walk.homes))
        self.text = self.addresses.text
        self.write = Writer(2)
        self.tokens: dict[str, str] = {}

    def hoist(self, name: str, source: str) -> str:
        return named(self.hoisted, name, source)

    def per_tile(self, name: str, source: str) -> str:
        return named(self.tile_names, name, source)

    def emit(self) -> tuple[list[str], list[str]]:
        """(lines before the loop over tiles, lines inside it)."""
        walk = self.role.walk
        uneven = [
            r.dim for r in walk.ranges if r.part is not None and (r.segment or r.dim not in self.facts.equal)
        ]
        exists = self.text(walk.exists) if uneven and walk.exists != sympy.true else None
        if exists:
            self.write.depth += 1
        self.body(self.role.body)
        self.write.depth = 2
        self.stamp("TILE_ENDS")
        head = Writer(2)
        if self.timed:
            head(f"stamps = stamp(stamps, tl.cast(i, tl.int64) + ({self.number} << 32), clock(control))")
        coordinates = [(n, self.text(v)) for n, v in walk.coordinates]
        bounds = [n for n in self.tile_names if n.endswith(("_first", "_end"))]
        known = [n for n, _ in coordinates]
        place = max((known.index(str(h)) + 1 for _, h in walk.homes if str(h) in known), default=0)
        lines = coordinates[:place] + [(n, self.tile_names[n]) for n in bounds] + coordinates[place:]
        for name, value in lines:
            head(f"{name} = {value}")
        if exists:
            head(f"if {exists}:")
            head.depth += 1
        for name, value in self.tile_names.items():
            if name not in bounds:
                head(f"{name} = {value}")
        credit = ["credit(control, before, world)"] if self.fills_slot() else []
        sizes = [f"{name} = {self.text(value)}" for name, value in walk.sizes]
        return credit + sizes + [f"{n} = {s}" for n, s in self.hoisted.items()], head.lines + self.write.lines

    def fills_slot(self) -> bool:
        """Whether the role writes to the slot, its own rank's copy of it included."""
        return any(
            isinstance(s, Notify) or (isinstance(s, Copy | Store) and s.target.tensor in self.addresses.heap)
            for s in walk_statements(self.role.body)
        )

    # ---- statements

    def body(self, statements: tuple[Statement, ...]) -> None:
        commented = None
        for s in statements:
            if s.site.text and s.site != commented and not self.publishing:
                self.write(f"# {s.site.text}")
                commented = s.site
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Compute():
                self.write(self.code(s.code))
            case Store():
                self.store(s)
            case Copy():
                self.copy(s)
            case Wait():
                self.wait(s)
            case Notify():
                for view in s.views:
                    self.notify(view)
            case For():
                outside, self.pipelined = self.pipelined, pipelined(s, self.role, self.program)
                self.block(f"for {s.name} in {self.loop(s)}:", s.body)
                self.pipelined = outside
            case If():
                self.block(f"if {self.text(s.condition)}:", s.body)
                if s.orelse:
                    self.block("else:", s.orelse)
            case DataIf():
                self.block(f"if {self.code(s.condition)}:", s.body)
                if s.orelse:
                    self.block("else:", s.orelse)

    def loop(self, s: For) -> str:
        """The range of a loop; one over steps of a dot is pipelined in as many stages as the schedule says, unless it
        waits: a pipelined loop would read ahead of its waits."""
        bounds = f"{self.text(s.start)}, {self.text(s.stop)}, {s.step}"
        if not has_dot(s):
            return f"range({bounds})"
        return f"tl.range({bounds}, num_stages={stages(s, self.role, self.program, self.target, self.stages)})"

    def block(self, head: str, body: tuple[Statement, ...]) -> None:
        self.write(head)
        self.write.depth += 1
        if body:
            self.body(body)
        else:
            self.write("pass")
        self.write.depth -= 1

    def code(self, code: Code) -> str:
        """Triton source with its holes filled; the loads of it go before it."""
        filled: list[str] = []
        loads = Counter[str]()
        for h in code.holes:
            if isinstance(h, Load):
                name = f"{h.view.tensor}_block{loads[h.view.tensor] or ''}"
                loads[h.view.tensor] += 1
                self.write(f"{name} = {self.load(h.view)}")
                filled.append(name)
            else:
                filled.append(_group(self.text(h)))
        return code.text.format(*filled)

    def load(self, view: View) -> str:
        block = descriptors.block_of(view, self.program, self.facts) if self.pipelined else None
        if block is not None:
            corner = self.addresses.corner(view, self.token(view))
            return f"{descriptors.name(view.tensor, block)}.load([{', '.join(corner)}])"
        at = self.addresses.block(view, token=self.token(view))
        return f"tl.load({at.pointer}, mask={at.mask}, other=0)" if at.mask else f"tl.load({at.pointer})"

    def token(self, view: View) -> str | None:
        """What a read of the view has to depend on: its wait, or that its owner has entered the run."""
        if view.tensor not in self.program.published or not view.remote:
            return self.tokens.get(view.guard or "")
        assert isinstance(view.home, Expr)
        source = f"entered(control, {self.text(view.home)}, run)"
        if not enters(view, self.role, self.program):
            known = next((n for n, s in self.tile_names.items() if s == source), f"entered_{len(self.tile_names)}")
            return self.per_tile(known, source)
        name = f"entered_{view.tensor}"
        self.write(f"{name} = {source}")
        return name

    def on_homes(self, view: View) -> str | None:
        """The home of a view that is written to, if it may be a peer; opens a loop over the ranks for a view of all."""
        if view.home == ALL_RANKS:
            self.write("for other in range(world):")
            self.write.depth += 1
            return "other"
        return self.text(view.home) if view.remote else None

    def end_homes(self, view: View) -> None:
        if view.home == ALL_RANKS:
            self.write.depth -= 1

    def store(self, s: Store) -> None:
        value = self.code(s.value)
        dtype = TRITON_DTYPES[self.program.tensor(s.target.tensor).dtype]
        if s.target.home == ALL_RANKS:
            self.write(f"value = {value}")
            value = "value"
        self.put(s.target, f"{_group(value)}.to(tl.{dtype})")

    def put(self, view: View, block: str) -> None:
        """Stores a block to a view: of a rank, or of all of them, one after the other."""
        at = self.addresses.block(view, self.on_homes(view), hoisted=not self.accumulates)
        self.write(f"tl.store({at.pointer}, {block}{f', mask={at.mask}' if at.mask else ''})")
        self.end_homes(view)

    def copy(self, s: Copy) -> None:
        token = None if self.publishing else self.token(s.source)
        source, target, opened = s.source, s.target, 0
        for a, n in copied_chunks(s.source.ranges):
            own = f"{a.dim}_at"
            self.write(f"for {own} in range({self.text(a.start)}, {self.text(a.stop)}, {n}):")
            self.write.depth += 1
            opened += 1
            lo = symbol(own)
            chunk = Range(a.dim, lo, sympy.Min(lo + n, a.stop), n, a.part)
            source = _with_range(source, a, chunk)
            b = next(r for r in s.target.ranges if r.dim == a.dim or a.same_rows(r))
            target = _with_range(target, b, chunk if b.dim == a.dim else _shifted(chunk, a, b))
        here = self.addresses.block(source, token=token, published=not self.publishing)
        self.write(f"{s.source.tensor}_block = tl.load({here.pointer}{f', mask={here.mask}' if here.mask else ''})")
        self.put(target, f"{s.source.tensor}_block")
        self.write.depth -= opened

    # ---- signals

    def signal(self, signals: Signals, home: str, cell: Expr) -> str:
        """Where a signal lies in the heap of a rank."""
        base = f"peer(heaps, {home}, {signals.tensor}_signals, tl.{self.target.signal_dtype})"
        if home == "rank":
            base = self.hoist(f"{signals.tensor}_signals_here", base)
        return base if cell == 0 else f"{base} + {self.text(self.target.signal_words * cell)}"

    def notify(self, view: View) -> None:
        """Signals go to the ranks that wait: to the home, or to those for which a condition holds."""
        signals = self.program.signals_of(view.tensor)
        depth = self.write.depth
        self.on_homes(view)
        home = symbol("other") if view.home == ALL_RANKS else view.home
        to, condition = recipient(signals, view, home)
        if to is None:
            self.write("for waiter in range(world):")
            self.write.depth += 1
            if condition != sympy.true:
                self.write(f"if {self.text(condition)}:")
                self.write.depth += 1
        self.give(signals, symbol("waiter") if to is None else to, self.cell(signals, view, home))
        self.write.depth = depth

    def cell(self, signals: Signals, view: View, home: Expr) -> Expr:
        """The number of the signal of a view that a tile notifies."""
        cell: Expr = sympy.S.Zero
        for c, i in zip(signals.grid, signals.index(view, home), strict=True):
            cell = cell * cells_along(c) + cells_of(c, i)[0]
        return cell

    def give(self, signals: Signals, to: Expr, cell: Expr) -> None:
        """One notification of a rank."""
        self.write(f'notify({self.signal(signals, self.text(to), cell)}, "{signals.scope}")')

    def wait(self, s: Wait) -> None:
        """One poll where the views lie in one cell each; else a loop over the cells. All tokens are summed."""
        single = len(s.views) == 1
        for n, view in enumerate(s.views):
            name = s.name if single else f"{s.name}_{n}"
            self.wait_view(name, view)
        if not single:
            self.write(f"{s.name} = {' + '.join(f'{s.name}_{n}' for n in range(len(s.views)))}")
        self.tokens[s.name] = s.name

    def wait_view(self, name: str, view: View) -> None:
        signals = self.program.signals_of(view.tensor)
        cell: Expr = sympy.S.Zero
        known: dict[Expr, Expr] = {}
        loops: list[str] = []
        for k, (c, i) in enumerate(zip(signals.grid, signals.index(view), strict=True)):
            first, count = cells_of(c, i)
            if count != 1:
                counter = symbol(f"{c.dim}_cell")
                loops.append(f"for {counter} in range({self.text(first)}, {self.text(first + count)}):")
                first = counter
            known |= _place(c, k, i, first)
            cell = cell * cells_along(c) + first
        for number, head in enumerate(loops):
            if number == 0:
                self.write(f"{name} = 0")
            self.write(head)
            self.write.depth += 1
        expected = write_expected(self.write, self.addresses, signals, known, inside=not loops)
        where = self.signal(signals, "rank", cell)
        self.stamp("WAIT_BEGINS")
        self.write(f'{name} {"+=" if loops else "="} wait(control, {where}, {expected}, "{signals.scope}")')
        self.stamp("WAIT_ENDS")
        self.write.depth -= len(loops)

    def stamp(self, what: str) -> None:
        """Records the time, where times are recorded."""
        if self.timed:
            self.write(f"stamps = stamp(stamps, {what}, clock(control))")


def write_expected(
    write: Writer, addresses: Addresses, signals: Signals, known: dict[Expr, Expr], *, inside: bool, start: str = ""
) -> str:
    """Source of how often a cell is notified, in the names of `signals.position` replaced by `known`. Where that is a
    sum over ranks, a loop that makes it is written first, from `start` on (a block of zeros, for blocks of cells)."""
    terms, loops, values = [], [], frozenset(known.items())
    for n in signals.notifiers:
        times = addresses.text(with_values(times_notified(signals, n, inside=inside), values))
        condition = addresses.resolve(with_values(n.condition, values))
        if condition != sympy.true:
            times = f"tl.where({addresses.text(condition)}, {times}, 0)"
        if n.sums:
            loops.append((n.sums, times))
        else:
            terms.append(times)
    if not loops:
        return " + ".join(terms)
    write(f"expected = {' + '.join([start, *terms] if start else terms) or '0'}")
    for sums, times in loops:
        for variable, begin, end in sums:
            write(f"for {variable} in range({addresses.text(begin)}, {addresses.text(end)}):")
            write.depth += 1
        write(f"expected += {times}.to(tl.int32)")  # tables of parts are 64-bit, and a loop keeps its types
        write.depth -= len(sums)
    return "expected"


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


def _group(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


