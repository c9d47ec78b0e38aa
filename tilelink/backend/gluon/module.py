"""Writes the module of a program in its specialised form."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.backend.gluon.emit import ALIVE, GluonEmitter, Loading, Multiplying, Partition, Ring, Telling
from tilelink.backend.gluon.takes import multiplies
from tilelink.backend.kernel import Body, Function, Writer, call
from tilelink.backend.module import ENTERS, LEAVES, Module
from tilelink.backend.parameters import BEFORE, CONTROL, OWN_WARPS, RING, WORKER, WORKERS, WORLD
from tilelink.frontend import ir
from tilelink.frontend.ir import Role
from tilelink.frontend.walk import NUMBER

RING_MODULE = "tilelink.backend.gluon.ring"
REGISTERS = 56
"""Of a thread that loads or tells: with fewer, the addresses of a tile spill. Threads that multiply have the rest."""


class GluonModule(Module):
    """Makes the functions of a module in Gluon. Those that don't multiply are the same, in its language."""

    language = ("from triton.experimental import gluon", "from triton.experimental.gluon import language as tl")
    jit = "gluon.jit"
    emitter = GluonEmitter

    def imports(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for module, names in super().imports():
            yield module, (*names, *OWN_WARPS) if module == self.target.module else names
        yield RING_MODULE, RING

    def role(self, role: Role, called: str, *, publishing: bool = False) -> Function:
        if publishing or not multiplies(role):
            return super().role(role, called, publishing=publishing)
        return self.multiplying(role, called)

    def multiplying(self, role: Role, called: str) -> Function:
        """A function that gives each of three others its warps: the block's multiply, and others load and tell."""
        ring = Ring.of(self.names, role, self.target)
        loaded = tuple(s for s in role.body if isinstance(s, ir.Wait) or s is ring.product.whole)
        product = {id(ring.product.whole): ring.product.bare}
        stored = tuple(product.get(id(s), s) for s in role.body if not isinstance(s, ir.Wait | ir.Notify))
        told = tuple(s for s in role.body if isinstance(s, ir.Notify))
        parts: list[tuple[str, type[Partition], ir.Body]] = [
            ("multiply", Multiplying, stored), ("load", Loading, loaded), ("tell", Telling, told),
        ]  # fmt: skip
        made = [
            self.partition(part(self.names, role, self.target, ring, body), f"{called}_{does}")
            for does, part, body in parts if body
        ]  # fmt: skip
        write = Writer()
        if self.emitter(self.names, role, self.target).fills_slot():
            write.do(call("credit", CONTROL, BEFORE, WORLD))
        for memory, blocks in zip(ring.blocks, ring.product.operands, strict=True):
            b = blocks[1]
            write.set(memory, call("ring", self.names.of("blocks", b.tensor, b.contiguous, b.shape), ring.stages))
        numbers = {n: 1 if n in (ring.stored, ring.told) else ring.stages for n in ring.shared[len(ring.blocks) :]}
        for barriers, number in numbers.items():
            write.set(barriers, call("barriers", number))
        warps = ", ".join(f"({f.name}, ({', '.join(f.parameters)}))" for f in made)
        others = len(made) - 1
        write.do(call("tl.warp_specialize", f"[{warps}]", str([1] * others), str([REGISTERS] * others)))
        for barriers, number in numbers.items():
            write.do(call("end", barriers, number))
        return self.function(called, write.body, (WORKER, WORKERS))

    def partition(self, emitter: Partition, called: str) -> Function:
        """A function that does all tiles of one worker for some of its warps."""
        write = Writer()
        write.body += emitter.before
        emitter.begins(write)
        with write.loop(emitter.local(NUMBER.name), WORKER, emitter.text(emitter.role.walk.count), WORKERS):
            emitter.takes(write)
            write.body += emitter.body
            emitter.gives(write)
        name = self.names.module.name(("partition", called), called)
        return self.function(name, write.body, (WORKER, WORKERS, *emitter.ring.shared))

    def enters(self, write: Writer) -> None:
        write.do(ENTERS)

    def ends(self) -> Body:
        """What the last worker does: where a wait of the lane has ended in vain, it does not leave."""
        write = Writer()
        for signals in self.program.signals:
            write.do(self.drain(signals).call())
        with write.branch(ALIVE):
            write.do(LEAVES)
        return write.body
