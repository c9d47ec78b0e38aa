"""Splits a role that multiplies into functions for warps that run separate code over the same tiles.

Some warps wait and load. If sums are in registers, some multiply, finish and store, and some tell that a tile is
stored, while the others work on the next tile. If sums are in tensor memory, one warp issues the products. Others
finish, store and tell the sum of a tile while the next tile is multiplied. (Warps that only tell would be a fourth
function there. From four on, LLVM dispatches warps through a table, behind which ptxas no longer sees that a warp takes
one path. A step of the main loop then takes 79 to 106 instructions, and 45 to 48 with three functions. Compiled only.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from tilelink.backend import bulk, pipelining
from tilelink.backend.bulk import Bulk
from tilelink.backend.gluon.emit import GluonEmitter
from tilelink.backend.gluon.takes import SUMS, THREAD_SUMS, Dot, MainLoop, Product, product_of, zeros_of
from tilelink.backend.kernel import Source, Writer, call, converted
from tilelink.backend.module import ALIVE
from tilelink.backend.parameters import Names
from tilelink.backend.targets import Target
from tilelink.errors import FormError
from tilelink.frontend import ir
from tilelink.frontend.ir import Role, Statement
from tilelink.frontend.schedule import SMs
from tilelink.frontend.values import ITEM_SIZE

STORED_BYTES, OF_FEW, WIDE = 1, 2, 4
"""Bytes of shared memory for each element of a tile that is stored: Triton converts the layout of 16-bit elements, half
a tile at a time, but a whole tile if threads have fewer numbers than they have room for; `WIDE` times as many for
elements of 64 bits. (Seen in compiled code.)"""
LEAST_STAGES = 2
"""The fewest stages of a ring if sums are in registers: a stage is free when the next product is under way."""


@dataclass(frozen=True)
class Ring:
    """The names of what the warps of a role share: memory for the blocks of a step, `stages` of each, and barriers. The
    ring has the stages of the schedule, and one more if memory suffices: one is multiplied while the others are loaded.
    `bytes`: of all blocks of a step. `blocks`: the memory of each operand; `ready` and `free` are the barriers of its
    stages. `sums`: tensor memory for the sum of each dot, none if sums are in registers; `full` and `empty` are its
    barriers. `tells`: some of the warps only send and notify; `stored` and `told` are the barriers of the tile that is
    handed to them. `sent`: the store that the copy engine for tiles does, from shared memory `tile`, or None."""

    product: Product
    stages: int
    bytes: int
    blocks: dict[ir.View, str]
    ready: str
    free: str
    sums: tuple[str, ...]
    full: str
    empty: str
    stored: str
    told: str
    sent: Bulk | None
    tile: str
    tells: bool

    @classmethod
    def of(cls, names: Names, role: Role, target: Target, first: Role) -> Ring:
        """The ring of a role. It has the names of the ring of `first`, the first of roles that take turns."""
        assert isinstance(role.resource, SMs)
        program = names.program
        product = product_of(role, program, names.facts, target)
        size = sum(prod(b.shape) * ITEM_SIZE[program.tensor(b.tensor).dtype] for b in product.first.operands.values())
        done = [bulk.in_bulk(s, role, program, names.facts) for s in ir.every(ir.Store, role.body)]
        sent = done[0] if len(done) == 1 else None
        room = (target.shared_bytes or 0) - _beside_ring(role, product, sent, program, target)
        beside = replace(target, shared_bytes=room)
        stages = pipelining.stages(product.first.loop, role, program, beside, role.resource.stages + 1)
        if stages < LEAST_STAGES and not target.sum_columns:
            raise FormError(
                f"{program.name} has no specialised form: {role.name} multiplies blocks of {size} bytes a step, "
                f"and needs room for {LEAST_STAGES} steps, one behind the other; {target.name} has {room} bytes of "
                "shared memory beside the tile that is stored",
                product.site,
            )

        def named(what: str, number: int = 0, like: str = "") -> str:
            return names.module.name((what, number, first.name), like or what)

        ready, free, stored, told = map(named, ("ready", "free", "stored", "told"))
        full, empty = (named(n) if target.sum_columns else "" for n in ("full", "empty"))
        sums = tuple(named("sums", k) for k in range(len(product.first.dots))) if target.sum_columns else ()
        memory = [named("ring", k, f"{v.tensor}_ring") for k, v in enumerate(product.first.operands)]
        return cls(
            product=product, stages=stages, bytes=size, ready=ready, free=free, sums=sums, full=full, empty=empty,
            blocks={v: memory[k] for x in product.loops for k, v in enumerate(x.operands)},
            stored=stored, told=told, sent=sent, tile=named("laid_out") if sent else "",
            tells=not sums and (sent is not None or any(ir.every(ir.Notify, role.body))),
        )  # fmt: skip

    @property
    def barriers(self) -> dict[str, tuple[int, int]]:
        """The barriers by name: how many there are, and how many arrive at one until its phase ends. In tensor memory
        each product arrives at `free` when it is done."""
        made = {self.ready: (self.stages, 1), self.free: (self.stages, max(1, len(self.sums)))}
        if self.sums:
            made |= {self.full: (SUMS, 1), self.empty: (SUMS, 1)}
        return {**made, self.stored: (1, 1), self.told: (1, 1)} if self.tells else made

    @property
    def shape(self) -> tuple[object, ...]:
        """What roles that share a ring have in common: its stages and blocks, the sums, and the tile that is sent."""
        blocks = tuple(b.matrix for b in self.product.first.operands.values())
        sent = self.sent.target.block.matrix if self.sent else ()
        return self.stages, self.bytes, blocks, tuple(dot.shape for dot in self.product.first.dots), sent, self.tells

    @property
    def shared(self) -> tuple[str, ...]:
        """All memory and barriers, which the functions of the warps take first."""
        return (*dict.fromkeys(self.blocks.values()), *self.sums, *((self.tile,) if self.tile else ()), *self.barriers)


def _beside_ring(role: Role, product: Product, sent: Bulk | None, program: ir.TileProgram, target: Target) -> int:
    """Bytes of shared memory for the tile that is stored: where it is laid out to be sent, or where Triton converts its
    layout."""
    assert isinstance(role.resource, SMs)
    if sent is not None:
        return bulk.bulk_bytes(sent, program)
    m, n, _ = product.first.dots[0].shape
    few = m * n < THREAD_SUMS * role.resource.warps * target.warp_size
    wide = any(ITEM_SIZE[program.tensor(s.target.tensor).dtype] == 8 for s in ir.every(ir.Store, role.body))
    return m * n * (OF_FEW if few else STORED_BYTES) * (WIDE if wide else 1)


class Partition(GluonEmitter):
    """Writes the part of a role that some of its warps do: the statements `body`."""

    def __init__(self, names: Names, role: Role, target: Target, ring: Ring, body: ir.Body) -> None:
        self.ring = ring  # the constructor below already writes the role
        super().__init__(names, replace(role, body=body), target)

    @property
    def step(self) -> str:
        """The variable that counts the steps of main loops that these warps have done."""
        return self.made("step")

    @property
    def stage(self) -> str:
        """The stage of the ring for this step."""
        return self.made("stage")

    @property
    def phase(self) -> str:
        return self.made("phase")

    @property
    def tile_phase(self) -> str:
        return self.made("tile_phase")

    @property
    def tiles(self) -> str:
        """The variable that counts the tiles that these warps have done: the number of a sum in tensor memory."""
        return self.made("tiles")

    @property
    def totals(self) -> list[str]:
        """The names of the sums."""
        return [self.variable(dot.sum) for dot in self.ring.product.first.dots]

    def compute(self, s: ir.Compute) -> None:
        """A computed block that branches store is laid out before them, as it is stored. Otherwise each branch would
        convert sums, and the ptxas of Triton 3.8 would wait for each matrix instruction before it begins the next."""
        super().compute(s)
        branches = (i for i in self.role.body if isinstance(i, ir.If))
        stored = {h for i in branches for store in ir.every(ir.Store, (i,)) for h in store.value.holes}
        for name in (n for n in s.targets if ir.Variable(n) in stored):
            self.write.set(self.variable(name), call("as_stored", self.variable(name)))

    def factors(self, loop: MainLoop, dot: Dot) -> Iterator[Source]:
        """The operands of a dot of a main loop, in a stage of the ring."""
        for view, turned in dot.factors:
            lies = f"{self.ring.blocks[view]}.index({self.stage})"
            yield f"{lies}.permute((1, 0))" if loop.operands[view].turned != turned else lies

    def loop_of(self, s: ir.Compute) -> MainLoop | None:
        """The main loop in whose steps a statement stands."""
        return next((x for x in self.ring.product.loops if any(s is i for i in x.loop.body)), None)

    def begins_sum(self, s: ir.Compute) -> bool:
        """Whether a statement begins a sum."""
        return any(s is zeros for zeros in self.ring.product.zeros)

    def settles(self, s: ir.Wait) -> bool:
        """No wait settles: the warps that send a tile do."""
        return False

    def lays_out(self, s: ir.Store) -> None:
        """Writes a tile to shared memory, for the copy engine."""
        value = converted(self.code(s, s.value), self.dtype(s.target))
        self.write.do(call("lay_out", self.ring.tile, value))

    def sends(self) -> None:
        """Writes the store of the tile that is laid out."""
        assert self.bulk is not None and self.ring.sent is not None
        blocks, corner = self.bulk.described(self.ring.sent.target)
        self.write.do(call("send", self.ring.tile, blocks, f"[{', '.join(corner)}]"))
        if self.unsettled.waits or self.unsettled.behind:
            self.write.do(call("settle"))

    @property
    def state(self) -> tuple[str, ...]:
        """The variables that go on from tile to tile, 0 at first."""
        return (self.step,)

    def begins(self, write: Writer) -> None:
        """Writes the statements before the loop over tiles."""
        write.set(self.step, "0")

    def takes(self, write: Writer) -> None:
        """Writes the statements before a tile."""

    def gives(self, write: Writer) -> None:
        """Writes the statements behind a tile."""


class Loading(Partition):
    """Waits for the tile's signals, and loads blocks into stages of the ring when these are free."""

    def compute(self, s: ir.Compute) -> None:
        ring, loop = self.ring, self.loop_of(s)
        if loop is None or s is not loop.loop.body[0]:
            return
        claimed = call("claim", ring.ready, ring.free, self.step, ring.bytes, num_stages=ring.stages)
        self.write.set(self.stage, claimed)
        for view, block in loop.operands.items():
            blocks, corner = self.described(block, view, self.token(view))
            place = ring.blocks[view], ring.ready, self.stage
            self.write.do(call("fetch", blocks, f"[{', '.join(corner)}]", *place))
        self.write.set(self.step, "1", operator="+=")


class Multiplying(Partition):
    """Multiplies stages of the ring when they are ready, finishes the sum in registers, and stores it."""

    @property
    def state(self) -> tuple[str, ...]:
        return (self.stage, self.phase, *((self.tile_phase,) if self.ring.tells else ()))

    def begins(self, write: Writer) -> None:
        write.assign((self.stage, self.phase), "0, 0")
        if self.ring.tells:
            write.set(self.tile_phase, "0")

    def statement(self, s: Statement) -> None:
        if self.ring.sent is not None and isinstance(s, ir.Store):
            self.write.do(call("until_told", self.ring.told, self.tile_phase))
            self.lays_out(s)
            return
        super().statement(s)
        if s is self.ring.product.loops[-1].bare:
            for total in self.totals:
                self.write.set(total, call("multiplied", total))

    def compute(self, s: ir.Compute) -> None:
        ring, loop = self.ring, self.loop_of(s)
        if self.begins_sum(s):
            self.write.set(self.variable(s.targets[0]), call("sums", str(zeros_of(s.code))))
        if loop is None:
            if not self.begins_sum(s):
                super().compute(s)
            return
        if s is loop.loop.body[0]:
            self.write.do(call("until_ready", ring.ready, self.stage, self.phase))
        if dot := next((dot for dot in loop.dots if s is dot.made), None):
            total = self.variable(dot.sum)
            self.write.set(total, call("multiply", *self.factors(loop, dot), total))
        if s is loop.loop.body[-1]:
            self.write.do(call("give_back_stage", ring.free, self.stage))
            after = call("next_place", self.stage, self.phase, num_stages=ring.stages)
            self.write.assign((self.stage, self.phase), after)

    def gives(self, write: Writer) -> None:
        """Hands the tile over to the warps that tell."""
        if self.ring.tells:
            write.do(call("hand_over", self.ring.stored, self.ring.told, self.tile_phase))
            write.set(self.tile_phase, "1", operator="^=")


class Issuing(Partition):
    """Issues the products of stages of the ring when these are ready. Sums are in tensor memory."""

    @property
    def state(self) -> tuple[str, ...]:
        return self.step, self.tiles

    def begins(self, write: Writer) -> None:
        super().begins(write)
        write.set(self.tiles, "0")

    def compute(self, s: ir.Compute) -> None:
        ring, loop, adds = self.ring, self.loop_of(s), self.made("adds")
        for dot, sums in zip(ring.product.first.dots, ring.sums, strict=True):
            if s is dot.zeros:
                self.write.set(self.variable(dot.sum), call("emptied", sums, ring.empty, self.tiles))
                self.write.set(adds, "False")
        if loop is None:
            return
        if s is loop.loop.body[0]:
            self.write.assign((self.stage, self.phase), call("place", self.step, num_stages=ring.stages))
            self.write.do(call("until_ready", ring.ready, self.stage, self.phase))
        for dot in (dot for dot in loop.dots if s is dot.made):
            given = (*self.factors(loop, dot), self.variable(dot.sum), adds, ring.free, self.stage)
            self.write.do(call("multiply", *given))
        if s is loop.loop.body[-1]:
            self.write.set(adds, "True")
            self.write.set(self.step, "1", operator="+=")

    def gives(self, write: Writer) -> None:
        """Makes the tile's products arrive at the barrier `full` of their sum."""
        write.do(call("complete", self.ring.full, self.tiles))
        write.set(self.tiles, "1", operator="+=")


class Finishing(Partition):
    """Finishes the sums in tensor memory when they are full, stores them, and tells that they are stored."""

    @property
    def state(self) -> tuple[str, ...]:
        return (self.tiles,)

    def begins(self, write: Writer) -> None:
        write.set(self.tiles, "0")

    def statement(self, s: Statement) -> None:
        ring = self.ring
        if s is ring.product.loops[-1].bare:
            self.write.do(call("until_full", ring.full, self.tiles))
            made = None if ring.product.has_steps else self.has_a_step([x.bare for x in ring.product.loops])
            for total, sums in zip(self.totals, ring.sums, strict=True):
                value = call("of_tile", sums, self.tiles)
                self.write.set(total, call("or_zeros", value, made) if made else value)
            self.write.do(call("finished", ring.empty, self.tiles))
            self.write.set(self.tiles, "1", operator="+=")
        elif ring.sent is not None and isinstance(s, ir.Store):
            with self.write.branch(ALIVE):
                self.lays_out(s)
                self.sends()
        elif not any(s is i for i in (*ring.product.zeros, *(x.bare for x in ring.product.loops))):
            super().statement(s)


    def has_a_step(self, loops: Iterable[ir.For | ir.If]) -> str:
        """Writes whether a main loop of the tile has a step, and returns the variable that says so. Without a step, no
        product has written the sum."""
        found = self.write.set(self.made("has_step"), "False")

        def inside(s: Statement) -> None:
            match s:
                case ir.For(body=(ir.For() | ir.If() as inner,)):
                    with self.loop(s):
                        inside(inner)
                case ir.If(body=(inner,)):
                    with self.write.branch(self.text(s.condition)):
                        inside(inner)
                case ir.For():
                    self.write.set(found, f"({self.text(s.start)} < {self.text(s.stop)})", operator="|=")

        for loop in loops:
            inside(loop)
        return found


class Telling(Partition):
    """Gives the notifications of a tile when it is stored, or sends the tile and gives them. Other warps meanwhile work
    on the next tile."""

    @property
    def state(self) -> tuple[str, ...]:
        return (self.tile_phase,)

    def begins(self, write: Writer) -> None:
        write.set(self.tile_phase, "0")

    def takes(self, write: Writer) -> None:
        """Takes the tile over from the warps that store."""
        write.do(call("take_over", self.ring.stored, self.tile_phase))
        write.set(self.tile_phase, "1", operator="^=")

    def statement(self, s: Statement) -> None:
        if isinstance(s, ir.Store):
            with self.write.branch(ALIVE):
                self.sends()
        else:
            super().statement(s)

    def gives(self, write: Writer) -> None:
        write.do(call("give_back", self.ring.told))


def partitions(names: Names, role: Role, target: Target, first: Role) -> tuple[Ring, dict[str, Partition]]:
    """The ring that the warps of a role that multiplies share, and their parts, the block's own warps first. `first`:
    the first of the roles that take turns with it, which all share one ring."""
    ring = Ring.of(names, role, target, first)
    bare = {id(x.whole): x.bare for x in ring.product.loops}
    done = tuple(bare.get(id(s), s) for s in role.body if not isinstance(s, ir.Wait))
    loaded = tuple(s for s in role.body if isinstance(s, ir.Wait) or id(s) in bare)
    told = _only(role.body, lambda s: isinstance(s, ir.Notify) or (ring.sent is not None and isinstance(s, ir.Store)))
    parts: dict[str, tuple[type[Partition], ir.Body]] = {"load": (Loading, loaded)}
    if ring.sums:
        issued = (*ring.product.zeros, *(x.bare for x in ring.product.loops))
        parts = {"finish": (Finishing, done), "multiply": (Issuing, issued), **parts}
    else:
        stored = _only(done, lambda s: not isinstance(s, ir.Notify))
        parts = {"multiply": (Multiplying, stored), **parts, "tell": (Telling, told)}
    return ring, {does: part(names, role, target, ring, body) for does, (part, body) in parts.items() if body}


def _only(body: ir.Body, wanted: Callable[[Statement], bool]) -> ir.Body:
    """The wanted statements of a body, with the branches around them. Loops, and branches with loops, count as one
    statement."""
    found = list[Statement]()
    for s in body:
        if isinstance(s, ir.If) and not any(ir.every(ir.For, (s,))):
            blocks = [_only(block, wanted) for block in s.blocks]
            found += [s.around(*blocks)] if any(blocks) else []
        elif wanted(s):
            found.append(s)
    return tuple(found)
