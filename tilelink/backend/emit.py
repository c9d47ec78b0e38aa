"""Writes the body of a role as statements of a kernel, one statement of the tile program after the other.

The ways to reach memory are strategies (`tilelink.backend.reach`): near by stores, all ranks by multicast, far by puts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import sympy

from tilelink.backend import bulk, pipelining
from tilelink.backend.addresses import Addresses
from tilelink.backend.far import Far
from tilelink.backend.kernel import Body, Comment, Function, Kind, Source, Writer, call, grouped
from tilelink.backend.parameters import CONTROL, ONE_OF, PICKED, RANK, RUN, STAMPS, WORKERS, Names
from tilelink.backend.reach import All, Corner, InBulk, Near, Reach, Reached, home_of, loaded
from tilelink.backend.signals import words_of
from tilelink.backend.targets import Target
from tilelink.backend.waits import Waits, in_pieces
from tilelink.errors import LoweringError
from tilelink.frontend import ir
from tilelink.frontend.expressions import Expr, of_dim, symbol
from tilelink.frontend.ir import Range, Role, Signals, Statement, View
from tilelink.frontend.schedule import SMs
from tilelink.frontend.values import TRITON_DTYPES
from tilelink.frontend.views import Chosen
from tilelink.frontend.walk import NUMBER

UNROLLED = 2
"""A loop that adds up blocks, such as one from each rank, loads this many of them together."""


class RoleEmitter:
    """Writes one role. `before`: values that stay the same for all tiles; `body`: the loop body for a tile. `opening`:
    statements before that loop, where a tile may take several iterations (`waits.py`). `store`: the function that
    stores a block. `one_layout`: all blocks along a dimension can share one mask. `in_bulk`: the way to reach memory by
    the copy engine for tiles."""

    store = "tl.store"
    one_layout = True
    in_bulk: type[InBulk] = InBulk

    def __init__(
        self, names: Names, role: Role, target: Target, *, publishing: bool = False, timed: bool = False,
        later: Function | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(role.resource, SMs):
            raise LoweringError(f"{role.name} is not in the kernel", role.site)
        self.names, self.program, self.facts = names, names.program, names.facts
        self.role, self.target, self.publishing = role, target, publishing
        self.stages = role.resource.stages
        self.pipelined = False
        self.timed, self.later = timed, later
        self.accumulates = any(pipelining.main_loops(role, self.program))
        self.reads_peers_by_tma = bulk.reads_peers(role, self.program, self.facts)
        whole = next((r for r in self.program.in_kernel if r.name == role.name), role)
        self.stores_in_bulk = not publishing and bool(bulk.bulk_writes(whole, self.program, self.facts))
        self.fenced = bulk.fenced(whole, self.program, self.facts)
        self.unsettled = bulk.unsettled(whole, self.program, self.facts)
        self.addresses = Addresses(names, dict(role.walk.homes), one_layout=self.one_layout)
        self.text, self.local, self.made = self.addresses.text, self.addresses.local, self.addresses.made
        self.write = Writer()
        self.tokens: dict[str, Source] = {}
        self.holds: frozenset[sympy.Basic] = frozenset()  # the conditions of the branches around a statement
        self.opening: Body = []
        self.waits = Waits(self)
        self.near = Near(self)
        self.all = All(self) if target.multicast else None
        self.far = Far(self) if target.network else None
        self.bulk = self.in_bulk(self) if self.stores_in_bulk else None
        self.before, self.body = self._emitted()

    def _emitted(self) -> tuple[Body, Body]:
        walk, write, addresses = self.role.walk, self.write, self.addresses
        routed = self.program.routed
        uneven = [r for r in walk.ranges if r.part is not None and (r.dim in routed or r.dim not in self.facts.equal)]
        exists = self.text(walk.exists) if uneven and walk.exists != sympy.true else None
        pieces = in_pieces(self.role, self.program, self.facts, self.target)
        if pieces:
            self.opening, body = self.waits.tile_in_pieces(pieces)
        else:
            with write.inside([]) as body:
                self.statements(self.role.body)
        if self.timed:
            number = self.program.roles.index(self.role)
            self.record(f"tl.cast({self.local(NUMBER.name)}, tl.int64) + ({number} << 32)")
        coordinates = [(self.local(n), self.text(v)) for n, v in walk.coordinates]
        known = [n for n, _ in walk.coordinates]
        # bounds of a part are read as soon as its rank is known
        place = max((known.index(str(h)) + 1 for _, h in walk.homes if str(h) in known), default=0)
        for n, value in [*coordinates[:place], *addresses.bounds.items(), *coordinates[place:]]:
            write.set(n, value, Kind.FIXED)
        with write.branch(exists) if exists else ExitStack():
            for n, value in addresses.of_tile.items():
                write.set(n, value, Kind.FIXED)
            write.body += body
        if pieces and exists:
            with write.otherwise():
                write.set(self.local(NUMBER.name), WORKERS, operator="+=")
        self.stamp("TILE_ENDS")
        before = Writer()
        sizes = [(self.local(n), self.text(v)) for n, v in walk.sizes]
        for n, value in [*sizes, *addresses.hoisted.items()]:
            before.set(n, value, Kind.FIXED)
        return before.body, write.body

    def fills_slot(self) -> bool:
        """Whether the role writes to the slot, in the copy of any rank."""
        heap = self.addresses.heap
        return any(
            isinstance(s, ir.Notify) or (isinstance(s, ir.Write) and s.target.tensor in heap)
            for s in ir.walk(self.role.body)
        )

    def settles(self, s: ir.Wait) -> bool:
        """Whether stores of the copy engine have to be complete before a wait."""
        return s.name in self.unsettled.waits

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
            case ir.Compute():
                self.compute(s)
            case ir.Write():
                self.reach(s).bring(s)
            case ir.Notify() if not s.late:
                for one in (replace(s, views=(view,)) for view in s.views):
                    self.reach(one).notify(one)
            case ir.Owed():
                self.give_owed(self.write)
                self.write.set(self.owed, self.local(NUMBER.name))
            case ir.Wait():
                self.tokens[s.name] = self.waits.wait(s)
            case ir.For():
                outside, self.pipelined = self.pipelined, pipelining.pipelined(s, self.role, self.program)
                with self.loop(s):
                    self.statements(s.body)
                self.pipelined = outside
            case ir.If() | ir.DataIf():
                condition = self.text(s.condition) if isinstance(s, ir.If) else self.code(s, s.condition)
                around, said = self.holds, (s.condition,) if isinstance(s, ir.If) else ()
                with self.write.branch(condition):
                    self.holds = around.union(said)
                    self.statements(s.body)
                with self.write.otherwise():
                    self.holds = around.union(map(sympy.Not, said))
                    self.statements(s.orelse)
                self.holds = around

    @property
    def owed(self) -> str:
        """The variable with the number of the tile that still owes its late notifications, or -1."""
        return self.made("owed")

    def give_owed(self, write: Writer) -> None:
        """Writes the late notifications of the tile before, if there was one."""
        assert self.later is not None
        with write.branch(f"{self.owed} >= 0"):
            write.do(self.later.call(self.owed))

    def reach(self, s: Reached) -> Reach:
        """The way in which a statement reaches memory."""
        return next(way for way in (self.far, self.all, self.bulk, self.near) if way and way.takes(s))

    def loop(self, s: ir.For) -> AbstractContextManager[None]:
        """Opens a loop. A loop over the steps of a dot is pipelined in as many stages as the schedule says. One that
        waits has a single stage, because a pipelined loop reads ahead of its waits."""
        counter, bounds = self.local(s.name), (self.text(s.start), self.text(s.stop), s.step)
        if not pipelining.has_dot(s):
            if s.step == 1 and all(isinstance(b, ir.Compute) and _loads_own(b) for b in s.body):
                return self.write.loop(counter, *bounds, of="tl.range", loop_unroll_factor=UNROLLED)
            return self.write.loop(counter, *bounds)
        number = pipelining.stages(s, self.role, self.program, self.target, self.stages)
        return self.write.loop(counter, *bounds, of="tl.range", num_stages=number)

    def compute(self, s: ir.Compute) -> None:
        value = self.code(s, s.code)
        self.write.assign(tuple(self.variable(n) for n in s.targets), value)

    def variable(self, n: str) -> str:
        """The name of a variable of the tile function."""
        return self.made(n, "variable", n)

    def code(self, s: Statement, code: ir.Code) -> Source:
        """Triton source with its holes filled. Loads for the holes are written before it."""
        filled: list[Source] = []
        loads = Counter[str]()
        for h in code.holes:
            match h:
                case ir.Load(view=view):
                    filled.append(self.block(s, h, loads[view.tensor]))
                    loads[view.tensor] += 1
                case ir.Variable():
                    filled.append(self.variable(h.name))
                case ir.Called():
                    filled.append(self.names.function(h.name))
                case _:
                    filled.append(grouped(self.text(h)))
        return code.text.format(*filled)

    def block(self, s: Statement, load: ir.Load, number: int) -> Source:
        """Writes a load of a block, the `number`-th of its tensor in a statement, and returns its name."""
        if self.far:
            self.far.check_load(s, load.view)
        value = self.load(load.view, self.moved(load.where))
        return self.write.set(self.block_name(load.view, number), value, Kind.TEMPORARY)

    def block_name(self, view: View, number: int = 0) -> str:
        """The name of a loaded block. Blocks of several shapes have several names: Triton lets no name change its shape
        in a loop or a branch."""
        shape = tuple(r.extent for r in view.ranges)
        return self.made(f"{view.tensor}_block{number or ''}", "block", view.tensor, shape, number)

    def load(self, view: View, moved: Source | None = None) -> Source:
        described = self.pipelined and moved is None
        block = pipelining.block_of(view, self.program, self.facts) if described else None
        token = self.token(view)
        if view.home == ir.ALL_RANKS:
            return (self.all if self.all and self.all.reaches(view) else self.near).sum(view, token)
        if block is not None:
            return loaded(block, *self.described(block, view, token))
        self.pick(view)
        hoisted = not isinstance(view, Chosen) or self.is_of_tile(view.condition)
        at = self.addresses.block(view, token=token, moved=moved, hoisted=hoisted)
        narrow = self.dtype(view).startswith("float8")  # Triton makes no float8 of an integer
        other = ("0.0" if narrow else "0") if at.mask else None
        return call("tl.load", at.pointer, mask=at.mask, other=other)

    def pick(self, view: View) -> None:
        """Writes a load of the integers that pick the rows of a view, if any do."""
        for r, by in ((r, r.by) for r in view.ranges if r.by is not None):
            rows = call(PICKED, self.integers(by), self.count(r), repr(view.picking))
            self.write.set(self.addresses.picked(view), rows, Kind.TEMPORARY)

    def moved(self, where: View | None) -> Source | None:
        """Writes a vector that says which rows are moved, by integers, and returns its name; None if all are."""
        if where is None:
            return None
        moved = self.made(f"{where.tensor}_moved", "moved", where)
        return self.write.set(moved, f"{self.integers(where)} >= 0", Kind.TEMPORARY)

    def integers(self, of: View) -> Source:
        """A load of integers that pick rows, or say which rows are moved; -1 where there are no integers."""
        at = self.addresses.block(of, token=self.token(of))
        return call("tl.load", at.pointer, mask=at.mask, other="-1" if at.mask else None)

    def pick_one(self, r: Range, by: View) -> Source:
        """Writes the number of the one row that an integer picks: the coordinate `row` along the dimension."""
        row = self.local(of_dim(r.dim, "row").name)
        return self.write.set(row, call(PICKED, self.integer(by), self.count(r), "''"))

    def integer(self, of: View) -> Source:
        """A load of one integer."""
        return call("tl.load", self.addresses.block(of, token=self.token(of)).pointer)

    def count(self, r: Range) -> Source:
        """The number of rows that integers may pick from."""
        return self.addresses.count(r, {symbol(s.name) for s in ir.every(ir.For, self.role.body)})

    def described(self, block: pipelining.DescribedBlock, view: View, token: Source | None) -> tuple[Source, Corner]:
        """The descriptor that loads a view, and where the view begins in the tensor that it describes."""
        if isinstance(view, Chosen):
            return self.chosen(block, view, token)
        dims, corner = self.program.tensor(view.tensor).dims, self.addresses.corner(view, token)
        if block.ends is not None:
            k, end = view.index.index(block.ends), grouped(self.addresses.end(view, block.ends))
            corner[k] = f"{pipelining.ROOM} - {end} + {corner[k]}"
        uneven = [d in self.program.cut and d not in self.facts.equal for d in dims]  # tables have 64 bits
        corner = [f"tl.cast({c}, tl.int32)" if cast else c for c, cast in zip(corner, uneven, strict=True)]
        corner.append(corner.pop(dims.index(block.contiguous)))
        if block.ends is not None:
            corner = [str(pipelining.ROOM), f"tl.cast({end}, tl.int32)", *corner]
        blocks = self.names.blocks(block, of_peers=view.remote)
        if not view.remote:
            return blocks[0], corner
        return call(ONE_OF, f"({', '.join(blocks)},)", self.text(home_of(view))), corner

    def chosen(self, block: pipelining.DescribedBlock, view: Chosen, token: Source | None) -> tuple[Source, Corner]:
        """The same for a view in one of two places. What stays the same for a tile is chosen once a tile."""
        at_first = pipelining.block_of(view.first, self.program, self.facts)
        assert at_first is not None
        first, begins = self.described(at_first, view.first, None)
        other, others = self.described(block, view.other, token)
        condition = self.text(view.condition)
        descriptor = call(ONE_OF, f"({other}, {first},)", condition)
        if self.is_of_tile(view.condition):
            descriptor = self.addresses.per_tile(f"{view.first.tensor}_or_{view.tensor}", descriptor)
        corners = zip(begins, others, strict=True)
        return descriptor, [a if a == b else call("tl.where", condition, a, b) for a, b in corners]

    def is_of_tile(self, condition: sympy.Basic) -> bool:
        """Whether a condition stays the same for a tile."""
        return not condition.free_symbols & {symbol(s.name) for s in ir.every(ir.For, self.role.body)}

    def token(self, view: View) -> Source | None:
        """The token that a read of a view depends on: from its wait, or from its owner's entry."""
        if view.tensor not in self.program.published or not view.remote:
            return self.tokens.get(view.guard or "")
        tma = "True" if self.reads_peers_by_tma else None
        value = call("entered", CONTROL, self.text(home_of(view)), RUN, tma=tma)
        if pipelining.enters(view, self.role, self.program):
            return self.write.set(self.made(f"entered_{view.tensor}", "entered", view.tensor), value, Kind.TEMPORARY)
        made = len(self.addresses.bounds) + len(self.addresses.of_tile)
        return self.addresses.per_tile(f"entered_{made}", value)

    def value(self, s: ir.Store) -> Source:
        """Assigns a block that is stored more than once to a name of its statement, and returns the name."""
        return self.write.set(self.made("value", "value", s), self.code(s, s.value), Kind.TEMPORARY)

    def dtype(self, view: View) -> str:
        return TRITON_DTYPES[self.program.tensor(view.tensor).dtype]

    # ---- signals

    def signal(self, signals: Signals, home: Source, cell: Expr) -> Source:
        """The address of a signal in the heap of a rank."""
        at = self.names.of("signals", signals.tensor)
        base = self.addresses.peer(home, at, self.target.signal_dtype)
        if home == RANK:
            base = self.addresses.hoist(f"{signals.tensor}_signals_here", base)
        return base if cell == 0 else f"{base} + {words_of(self.text(cell), self.target)}"

    def stamp(self, what: str) -> None:
        """Records the time, if the kernel records times."""
        if self.timed:
            self.record(what)

    def record(self, what: Source) -> None:
        self.write.set(STAMPS, call("stamp", STAMPS, what, call("clock", CONTROL)))


def _loads_own(s: ir.Compute) -> bool:
    """Whether a statement loads, and only from memory of the own rank."""
    return bool(s.loads) and not any(load.view.remote for load in s.loads)
