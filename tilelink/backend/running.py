"""The kernel that makes the running tables of a program, before everything else of a run.

It is one worker, which adds up many ranks and many steps at a time. If a row ends beyond the room that its rank has,
all rows of the run are left out: the tables then say that no rank has any, and the host raises CapacityError.
"""

from __future__ import annotations

from tilelink.backend.addresses import Addresses
from tilelink.backend.kernel import Body, Function, Source, Writer, call
from tilelink.backend.parameters import CONTROL, COUNTED, REFUSE, RUN, Names
from tilelink.frontend.expressions import WORLD, first_of, running, symbol
from tilelink.frontend.routes import MAX_ROWS, counts_of, segments_of_rank
from tilelink.frontend.running import segment_tables, tile_tables
from tilelink.frontend.tables import ENTRY, ROW, Table
from tilelink.language import RouteWord

ROWS, STEPS, COUNTS = 8, 256, 1024
"""Rows and steps that are added up at a time, and counts that are read at a time."""
TOO_MANY = "too_many"


class TableWriter:
    """Writes the statements that make the tables of a program, `rows` rows at a time."""

    def __init__(self, names: Names, rows: int) -> None:
        self.names, self.program, self.rows = names, names.program, rows
        self.write, self.addresses = Writer(), Addresses(names)

    def segments(self) -> Body:
        """The body of a function that reads the counts, and makes the tables of segments, with each count multiplied by
        `counted`. It returns more than 0 if a row ends beyond the room for it, or if a count is invalid."""
        write = self.write
        write.set(TOO_MANY, "tl.cast(0, tl.int32)")
        for route in self.program.routes:
            self._counts(route)
        write.do("tl.debug_barrier()")
        for route, table in segment_tables(self.program):
            self._table(table, route)
        write.do("tl.debug_barrier()")
        write.do(f"return {TOO_MANY}")
        return write.body

    def all(self, segments: Function) -> Body:
        """The body that makes all tables. `segments`: the function with the body of `segments()`."""
        write = self.write
        with write.branch(f"{segments.call('1')} > 0"):
            write.do(call(REFUSE, CONTROL, RUN))
            write.do("tl.debug_barrier()")
            write.do(segments.call("0"))
        for table in tile_tables(self.program):
            self._table(table)
        return write.body

    def _counts(self, route: RouteWord) -> None:
        """Writes the copy of the caller's counts into a table."""
        write, text = self.write, self.addresses.text
        given, table = self.names.of("tensor", route.counts), self.addresses.local(running(counts_of(route)))
        strides = [self.names.of("stride", route.counts, d) for d in self.program.tensor(route.counts).dims]
        number, first = text(segments_of_rank(route) * WORLD), self.addresses.made("first")
        k, here, count = (self.addresses.made(n) for n in ("k", "here", "count"))
        with write.loop(first, 0, number, COUNTS):
            write.set(k, f"{first} + tl.arange(0, {COUNTS})")
            write.set(here, f"{k} < {number}")
            at = f"{given} + ({k} // {text(WORLD)}) * {strides[0]} + ({k} % {text(WORLD)}) * {strides[1]}"
            write.set(count, call("tl.load", at, mask=here, other="0"))
            write.set(TOO_MANY, f"tl.sum((({count} < 0) | ({count} > {MAX_ROWS})).to(tl.int32))", operator="+=")
            write.do(call("tl.store", f"{table} + {k}", f"{count}.to(tl.int32)", mask=here))

    def _table(self, table: Table, route: RouteWord | None = None) -> None:
        """Writes one table. `route`: the route whose rows it adds up, to compare them with their room."""
        write, addresses, text = self.write, self.addresses, self.addresses.text
        memory, steps, world = self.addresses.local(table.key), text(table.steps), text(WORLD)
        row, step = addresses.local(ROW.name), addresses.local(ENTRY.name)
        names = ("first_row", "first_step", "there", "here", "length", "end")
        first_row, first_step, there, here, length, end = map(addresses.made, names)
        with write.loop(first_row, 0, world, self.rows):
            rows = f"{first_row} + tl.arange(0, {self.rows})[:, None]"
            write.set(row, f"tl.minimum({rows}, {world} - 1)")
            write.set(there, f"{rows} < {world}")
            write.set(end, f"tl.zeros([{self.rows}, 1], tl.int64) + {text(table.first)}")
            with write.loop(first_step, 0, steps, STEPS):
                numbers = f"{first_step} + tl.arange(0, {STEPS})[None, :]"
                write.set(step, f"tl.minimum({numbers}, {steps} - 1)")
                write.set(here, f"{there} & ({numbers} < {steps})")
                value = f"tl.cast({text(table.step)}, tl.int64)" + (f" * {COUNTED}" if route else "")
                write.set(length, call("tl.where", here, value, "0"))
                begins = f"{end} + tl.cumsum({length}, 1) - {length}"
                self._store(memory, f"{row} * ({steps} + 1) + {step}", begins, here)
                write.set(end, f"tl.sum({length}, 1)[:, None]", operator="+=")
            self._store(memory, f"{row} * ({steps} + 1) + {steps}", end, there)
            if route is not None:
                room = text(first_of(symbol(str(table.name)), ROW + 1))
                write.set(TOO_MANY, f"tl.sum(({there} & ({end} > {room})).to(tl.int32))", operator="+=")

    def _store(self, memory: Source, at: Source, value: Source, mask: Source) -> None:
        self.write.do(call("tl.store", f"{memory} + {at}", f"({value}).to(tl.int32)", mask=mask))
