"""Roles of the specialised form. One that multiplies is three functions, for warps that go their own ways over the same
tiles: some wait and load, some multiply and store, some tell that a tile is stored."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod

from tilelink.backend import pipelining
from tilelink.backend.emit import RoleEmitter
from tilelink.backend.gluon.takes import Product, product_of, zeros_of
from tilelink.backend.kernel import Source, Writer, call
from tilelink.backend.parameters import CONTROL, Names
from tilelink.backend.targets import Target
from tilelink.frontend import ir
from tilelink.frontend.ir import Role, Statement
from tilelink.frontend.schedule import SMs
from tilelink.frontend.values import ITEM_SIZE

ALIVE = call("alive", CONTROL)
STORED_BYTES = 1
"""Shared memory for an element of a tile that is stored: Triton lays 16 bits out anew, half of a tile at a time. (Seen
in compiled code.)"""


class GluonEmitter(RoleEmitter):
    """Writes a role in Gluon. Nothing is stored or notified where the lane is poisoned: there, waits are in vain. A
    bias lies along the sums of its tile, and what is stored does not, so each has a mask."""

    store = "store"
    one_layout = False

    def statement(self, s: Statement) -> None:
        if isinstance(s, ir.Write | ir.Notify):
            with self.write.branch(ALIVE):
                super().statement(s)
        else:
            super().statement(s)

    def loop(self, s: ir.For) -> AbstractContextManager[None]:
        """A loop as it stands: nothing pipelines it."""
        return self.write.loop(self.local(s.name), self.text(s.start), self.text(s.stop), s.step)


@dataclass(frozen=True)
class Ring:
    """What the warps of a role share, by name: memory for the blocks of both operands, `stages` of each, and barriers.
    That is the stages of the schedule, and one more if there is memory: it is multiplied while those are loaded.
    `tells`: whether some of the warps notify."""

    product: Product
    stages: int
    bytes: int
    blocks: tuple[str, ...]
    ready: str
    free: str
    stored: str
    told: str
    tells: bool

    @classmethod
    def of(cls, names: Names, role: Role, target: Target) -> Ring:
        assert isinstance(role.resource, SMs)
        program, module = names.program, names.module
        product = product_of(role, program, names.facts)
        sizes = [prod(b.shape) * ITEM_SIZE[program.tensor(b.tensor).dtype] for _, b in product.operands]
        ((m, n, _),), memory = product.dot.code.dots, target.shared_bytes or 0
        room = replace(target, shared_bytes=memory - m * n * STORED_BYTES)
        stages = pipelining.stages(product.loop, role, program, room, role.resource.stages + 1)
        rings = [module.name(("ring", role.name, k), f"{b.tensor}_ring") for k, (_, b) in enumerate(product.operands)]
        ready, free, stored, told = (module.name((n, role.name), n) for n in ("ready", "free", "stored", "told"))
        tells = any(ir.every(ir.Notify, role.body))
        return cls(product, stages, sum(sizes), tuple(rings), ready, free, stored, told, tells)

    @property
    def shared(self) -> tuple[str, ...]:
        """All of it: what the functions of the warps take first."""
        return (*self.blocks, self.ready, self.free, *((self.stored, self.told) if self.tells else ()))


class Partition(GluonEmitter):
    """Writes what some of the warps do of a role; `body` of it. In a tile of a loop over them, `first` and `last`."""

    def __init__(self, names: Names, role: Role, target: Target, ring: Ring, body: ir.Body) -> None:
        self.ring = ring
        super().__init__(names, replace(role, body=body), target)

    @property
    def step(self) -> str:
        """How many steps of main loops are behind these warps."""
        return self.made("step")

    @property
    def stage(self) -> str:
        """The stage of the ring for this step."""
        return self.made("stage")

    @property
    def tile_phase(self) -> str:
        return self.made("tile_phase")

    def begins(self, write: Writer) -> None:
        """What stands before the loop over tiles."""
        write.set(self.step, "0")

    def takes(self, write: Writer) -> None:
        """What stands before a tile."""

    def gives(self, write: Writer) -> None:
        """What stands behind a tile."""


class Loading(Partition):
    """Waits for the tile's signals, and loads blocks into stages of the ring as these become free."""

    def compute(self, s: ir.Compute) -> None:
        ring = self.ring
        claimed = call("claim", ring.ready, ring.free, self.step, ring.bytes, num_stages=ring.stages)
        self.write.set(self.stage, claimed)
        for (view, block), memory in zip(ring.product.operands, ring.blocks, strict=True):
            blocks, at = self.described(block, view, self.token(view))
            self.write.do(call("fetch", blocks, at, memory, ring.ready, self.stage))
        self.write.set(self.step, "1", operator="+=")


class Multiplying(Partition):
    """Multiplies the stages of the ring as these become ready, finishes the sum and stores it."""

    def begins(self, write: Writer) -> None:
        super().begins(write)
        if self.ring.tells:
            write.set(self.tile_phase, "0")

    def statement(self, s: Statement) -> None:
        super().statement(s)
        if s is self.ring.product.bare:
            total = self.variable(self.ring.product.sum)
            self.write.set(total, call("multiplied", total))

    def compute(self, s: ir.Compute) -> None:
        ring, total = self.ring, self.variable(self.ring.product.sum)
        if s.targets == (ring.product.sum,) and (shape := zeros_of(s.code)):
            self.write.set(total, call("sums", str(shape)))
        elif s is ring.product.dot:
            phase, factors = self.made("phase"), (self.factor(k) for k in range(len(ring.blocks)))
            self.write.assign((self.stage, phase), call("place", self.step, num_stages=ring.stages))
            self.write.set(total, call("multiply", *factors, total, ring.ready, ring.free, self.stage, phase))
            self.write.set(self.step, "1", operator="+=")
        else:
            super().compute(s)

    def factor(self, k: int) -> Source:
        """A block in a stage of the ring, as the dot has it."""
        lies = f"{self.ring.blocks[k]}.index({self.stage})"
        return f"{lies}.permute((1, 0))" if self.ring.product.operands[k][1].turned else lies

    def gives(self, write: Writer) -> None:
        """What stands behind a tile: it is handed over to those who tell."""
        if self.ring.tells:
            write.do(call("hand_over", self.ring.stored, self.ring.told, self.tile_phase))
            write.set(self.tile_phase, "1", operator="^=")


class Telling(Partition):
    """Gives the notifications of a tile when it is stored, while others are at the next one."""

    def begins(self, write: Writer) -> None:
        write.set(self.tile_phase, "0")

    def takes(self, write: Writer) -> None:
        """What stands before a tile: it is taken over from those who store."""
        write.do(call("take_over", self.ring.stored, self.tile_phase))
        write.set(self.tile_phase, "1", operator="^=")

    def gives(self, write: Writer) -> None:
        write.do(call("give_back", self.ring.told))
