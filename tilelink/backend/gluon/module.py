"""Writes the module of a program in its specialised form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import chain

from tilelink.backend import parameters
from tilelink.backend.addresses import Addresses
from tilelink.backend.gluon.emit import GluonEmitter
from tilelink.backend.gluon.partitions import Partition, Ring, partitions
from tilelink.backend.gluon.takes import has_main_loop, zeros_of
from tilelink.backend.kernel import Body, Function, Source, Writer, call
from tilelink.backend.module import ALIVE, ENTERS, LEAVES, Module, credit, in_turns
from tilelink.backend.parameters import WORKER, WORKERS, Names
from tilelink.frontend.ir import Role
from tilelink.frontend.walk import NUMBER
from tilelink.frontend.workload import members

RING_MODULE, CARRY, WGMMA, TCGEN05 = (f"tilelink.backend.gluon.{n}" for n in ("ring", "carry", "wgmma", "tcgen05"))
REGISTERS, IN_TURNS = 56, 168
"""Registers of a thread that loads or tells: fewer spill the addresses of a tile, or, where warps start anew in each
turn, what they are given. Other threads have the rest."""


class GluonModule(Module):
    """Makes the functions of a module in Gluon. Roles that don't multiply are lowered as in the portable form."""

    language = ("from triton.experimental import gluon", "from triton.experimental.gluon import language as tl")
    jit = "gluon.jit"
    emitter = GluonEmitter

    def imports(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for module, names in super().imports():
            own = parameters.OWN_WARPS if module == self.target.module else ()
            yield module, (*own, *(n for n in names if n not in parameters.OWN_WARPS))
        yield RING_MODULE, parameters.RING
        yield CARRY, ("carry",)
        registers, memory = (WGMMA, parameters.IN_REGISTERS), (TCGEN05, parameters.IN_TENSOR_MEMORY)
        yield memory if self.target.sum_columns else registers

    @cached_property
    def turn(self) -> tuple[str, ...]:
        """The names of the bounds of the tiles that a function does in a turn."""
        return tuple(self.names.module.name(("of a turn", n), f"turn_{n}") for n in ("first", "last"))

    def role(self, role: Role, called: str, *, publishing: bool = False) -> Function:
        """Makes a function that does all tiles of one worker, or those of a turn. Roles that multiply in turns have one
        function if they can have one ring."""
        if publishing or not has_main_loop(role):
            return super().role(role, called, publishing=publishing)
        together = next(roles for roles in members(self.program.in_kernel) if role in roles)
        if self.has_one_ring(together):
            known = self.names.module.known(("in turns", together[0].name))
            return next((f for f in self.functions if f.name == known), None) or self.with_one_ring(together)
        ring, parts = partitions(self.names, role, self.target, role)
        if len(together) == 1:
            made = [self.partition(part, f"{called}_{does}") for does, part in parts.items()]
            return self.starting([role], called, ring, made)
        if any(part.fills_slot() for part in parts.values()):
            self.credited[role.name] = ring.sent is not None
        made = [self.of_turn(part, f"{called}_{does}", goes_on=False) for does, part in parts.items()]
        return self.starting([role], called, ring, made, turn=self.turn)

    def has_one_ring(self, together: list[Role]) -> bool:
        """Whether roles take turns, and the blocks and sums of all have the same shapes."""
        if len(together) == 1:
            return False
        names = Names(self.program, self.facts, chain(*self.imported.values()))
        return len({Ring.of(names, role, self.target, role).shape for role in together}) == 1

    def with_one_ring(self, together: list[Role]) -> Function:
        """Makes a function for roles that multiply in turns. Their warps go on from role to role, with one ring."""
        first = together[0]
        called = self.names.module.name(("in turns", first.name), first.launched or first.name)
        each = {r.name: partitions(self.names, r, self.target, first) for r in together}
        ring, made = each[first.name][0], list[Function]()
        for does, part in each[first.name][1].items():
            tiles = {n: self.of_turn(parts[does], f"{self.names.role(n)}_{does}") for n, (_, parts) in each.items()}
            write = Writer()
            write.assign(part.state, ", ".join("0" for _ in part.state))
            for role, begin, last in in_turns(write, Addresses(self.names), together, WORKER):
                write.assign(part.state, tiles[role.name].call(begin, last, WORKERS, *part.state))
            name = self.names.module.name(("partition", called, does), f"{called}_{does}")
            made.append(self.function(name, write.body, (WORKER, WORKERS, *ring.shared)))
        return self.starting(together, called, ring, made)

    def of_turn(self, part: Partition, called: str, *, goes_on: bool = True) -> Function:
        """Makes a function that does the tiles of one turn for some warps of a worker. `goes_on`: it takes and returns
        what goes on from turn to turn."""
        return self.over_tiles(part, called, self.turn, self.turn, goes_on=goes_on)

    def partition(self, part: Partition, called: str) -> Function:
        """Makes a function that does all tiles of one worker for some of its warps."""
        return self.over_tiles(part, called, (WORKER,), (WORKER, part.text(part.role.walk.count)))

    def over_tiles(
        self, part: Partition, called: str, given: tuple[str, ...], bounds: tuple[Source, ...], *,
        goes_on: bool = False,
    ) -> Function:  # fmt: skip
        """Makes a function that does the tiles between two `bounds` for some warps of a worker. `given`: its first
        parameters."""
        write = Writer()
        write.body += part.before
        if not goes_on:
            part.begins(write)
        with write.loop(part.local(NUMBER.name), *bounds, WORKERS):
            part.takes(write)
            write.body += part.body
            part.gives(write)
        state = part.state if goes_on else ()
        if state:
            write.do(f"return {', '.join(state)}")
        name = self.names.module.name(("partition", called), called)
        return self.function(name, write.body, (*given, WORKERS, *state, *part.ring.shared), state)

    def tiles(
        self, write: Writer, addresses: Addresses, together: list[Role], functions: dict[str, Function],
        here: Source, workers: Source,
    ) -> None:  # fmt: skip
        one = together[:1] if has_main_loop(together[0]) and self.has_one_ring(together) else together
        super().tiles(write, addresses, one, functions, here, workers)

    def starting(
        self, roles: list[Role], called: str, ring: Ring, made: list[Function], turn: tuple[str, ...] = ()
    ) -> Function:
        """Makes a function that starts one function for each kind of warps; the first runs on the block's own. `turn`:
        the names of the bounds of its tiles, if it is called for each turn."""
        write = Writer()
        if not turn and any(self.emitter(self.names, role, self.target).fills_slot() for role in roles):
            write.body.append(credit(tma=ring.sent is not None))
        for view, b in ring.product.first.operands.items():
            described = self.names.of("blocks", b.tensor, b.contiguous, b.shape)
            write.set(ring.blocks[view], call("ring", described, str(b.matrix), ring.stages))
        if ring.sent is not None:
            sent = ring.sent.target
            alike = self.names.blocks(sent.block, of_peers=sent.view.remote)[0]
            write.set(ring.tile, call("tile_out", alike, str(sent.block.matrix)))
        for sums, dot in zip(ring.sums, ring.product.first.dots, strict=False):
            write.set(sums, call("accumulators", str(zeros_of(dot.zeros.code))))
        if turn or self.shares_workers(roles[0]):
            write.do(call("fence_async_shared"))
        for barriers, (number, arrivals) in ring.barriers.items():
            write.set(barriers, call("barriers", number, *((arrivals,) if arrivals > 1 else ())))
        warps = ", ".join(f"({f.name}, ({', '.join(f.parameters)}))" for f in made)
        others, registers = len(made) - 1, IN_TURNS if turn else REGISTERS
        write.do(call("tl.warp_specialize", f"[{warps}]", str([1] * others), str([registers] * others)))
        for barriers, (number, _) in ring.barriers.items():
            write.do(call("end", barriers, number))
        return self.function(called, write.body, (*(turn or (WORKER,)), WORKERS))

    def shares_workers(self, role: Role) -> bool:
        """Whether the workers of a role did another one before."""
        first = next((r for r in self.program.in_kernel if not r.resource.count), None)
        return not role.resource.count and role != first

    def enters(self, write: Writer) -> None:
        write.do(ENTERS)

    def behind_a_branch(self, write: Writer) -> AbstractContextManager[None]:
        """Writes `uniform` in place of a branch, which does not suffice in this form."""
        if self.program.on_engine:
            write.do(call("uniform"))
        return nullcontext()

    def ends(self) -> Body:
        """Statements of the last worker of a run: it drains all signals, and leaves unless the lane is poisoned."""
        write = Writer()
        for signals in self.program.signals:
            write.do(self.drain(signals).call())
        with write.branch(ALIVE):
            write.do(LEAVES)
        return write.body
