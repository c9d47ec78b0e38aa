"""What a run does: the steps of one rank in programs of several kinds, small enough to take every interleaving."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain

USERS = frozenset({"input", "output"})  # these parts lie in memory of the user, all others in the run's slot


@dataclass(frozen=True)
class Store:
    """Store a part in the copy of ``home``."""

    home: int
    part: str


@dataclass(frozen=True)
class Notify:
    """Add 1 to a cell of ``home``."""

    home: int
    cell: str


@dataclass(frozen=True)
class Push:
    """Store a part in the copy of ``home`` and notify a cell there."""

    home: int
    part: str
    cell: str


@dataclass(frozen=True)
class Wait:
    """Wait until an own cell has received every notification of this run."""

    cell: str


@dataclass(frozen=True)
class Read:
    """Read a part in the copy of ``home``; this run must have written it."""

    home: int
    part: str


Step = Store | Notify | Push | Wait | Read


@dataclass(frozen=True)
class Program:
    """What one rank does in one run. One worker sends, then receives; of two workers each does one."""

    send: tuple[Step, ...] = ()
    receive: tuple[Step, ...] = ()
    engine: tuple[Store | Notify | Read | Wait, ...] = ()  # what a copy engine does, beside the kernel
    publish: tuple[str, ...] = ()  # own parts that peers read, written on the stream before the kernel
    use: tuple[str, ...] = ()  # own parts that are read on the stream after the kernel


Kind = Callable[[int, int], Program]  # from a rank and the number of ranks


def peers_of(rank: int, world: int) -> tuple[int, ...]:
    """All other ranks, the right neighbour first."""
    return tuple((rank + i) % world for i in range(1, world))


def _push_to(homes: Iterable[int], rank: int) -> tuple[Step, ...]:
    return tuple(Push(home, f"part {rank}", f"cell {rank}") for home in homes)


def _receive(rank: int, sources: Iterable[int]) -> tuple[Step, ...]:
    return tuple(chain.from_iterable((Wait(f"cell {s}"), Read(rank, f"part {s}")) for s in sources))


def gather(rank: int, world: int) -> Program:
    """Everybody pushes its part to everybody and waits for all parts."""
    peers = peers_of(rank, world)
    return Program(_push_to(peers, rank), _receive(rank, peers))


def causal(rank: int, world: int) -> Program:
    """Everybody pushes to everybody but waits for lower ranks only: some notifications have no waiter."""
    return Program(_push_to(peers_of(rank, world), rank), _receive(rank, range(rank)))


def decode(rank: int, world: int) -> Program:
    """Only rank 0 has rows; all others receive them."""
    return Program(_push_to(peers_of(0, world), 0)) if rank == 0 else Program((), _receive(rank, [0]))


def _scatter_to(owners: Iterable[int], rank: int, world: int) -> Program:
    send = tuple(Push(home, f"part {rank}", "cell 0") for home in owners)
    reads = tuple(Read(rank, f"part {source}") for source in range(world))
    return Program(send, (Wait("cell 0"), *reads) if rank in owners else ())


def scatter(rank: int, world: int) -> Program:
    """Everybody pushes a partial to everybody, itself included; one cell counts them all."""
    return _scatter_to(range(world), rank, world)


def rowless(rank: int, world: int) -> Program:
    """Scatter, but rank 0 owns no rows: nothing is sent to it and it waits for nothing."""
    return _scatter_to(range(1, world), rank, world)


def _pull(part: str, rank: int, world: int) -> Program:
    return Program((), tuple(Read(peer, part) for peer in peers_of(rank, world)), publish=(part,))


def pull(rank: int, world: int) -> Program:
    """Everybody publishes a part in the slot and reads those of its peers."""
    return _pull("part 0", rank, world)


def in_place(rank: int, world: int) -> Program:
    """Everybody reads its peers' inputs where the users have them."""
    return _pull("input", rank, world)


def partials(rank: int, world: int) -> Program:
    """Everybody stores a part at home and notifies its peers, which come and read it."""
    peers = peers_of(rank, world)
    send: tuple[Step, ...] = (Store(rank, "part 0"), *(Notify(peer, f"cell {rank}") for peer in peers))
    return Program(send, tuple(chain.from_iterable((Wait(f"cell {p}"), Read(p, "part 0")) for p in peers)))


def relay(rank: int, world: int) -> Program:
    """Rank 0 pushes to rank 1, which reads the part and lets the last rank read it there."""
    if rank == 0:
        return Program((Push(1, "part 0", "cell 0"),))
    onward = (Notify(world - 1, "cell 0"),) if rank == 1 else ()
    return Program((), (Wait("cell 0"), Read(1, "part 0"), *onward))


def output(rank: int, world: int) -> Program:
    """Everybody's output is written by its left neighbour and used when the run is over."""
    return Program((Push((rank + 1) % world, "output", "cell 0"),), use=("output",))


def engine_push(rank: int, world: int) -> Program:
    """A copy engine of everybody brings what its user has to everybody."""
    peers = peers_of(rank, world)
    copies = ((Read(rank, "input"), Store(p, f"part {rank}"), Notify(p, f"cell {rank}")) for p in peers)
    return Program((), _receive(rank, peers), tuple(chain.from_iterable(copies)), publish=("input",))


def engine_pull(rank: int, world: int) -> Program:
    """Everybody publishes a part, and a copy engine of everybody fetches those of its peers."""
    peers = peers_of(rank, world)
    copies = ((Read(p, "part 0"), Store(rank, f"copy {p}"), Notify(rank, f"cell {p}")) for p in peers)
    receive = chain.from_iterable((Wait(f"cell {p}"), Read(rank, f"copy {p}")) for p in peers)
    return Program((), tuple(receive), tuple(chain.from_iterable(copies)), publish=("part 0",))


def engine_send(rank: int, world: int) -> Program:
    """A copy engine of everybody brings what its kernel has made to everybody."""
    peers = peers_of(rank, world)
    copies = ((Read(rank, "part 0"), Store(p, f"copy {rank}"), Notify(p, f"cell {rank + 1}")) for p in peers)
    receive = chain.from_iterable((Wait(f"cell {p + 1}"), Read(rank, f"copy {p}")) for p in peers)
    made = Store(rank, "part 0"), Notify(rank, "cell 0")
    return Program(made, tuple(receive), (Wait("cell 0"), *chain.from_iterable(copies)))


def late(rank: int, world: int) -> Program:
    """Forbidden: everybody's part is written by its left neighbour and read when the run is over."""
    return Program((Push((rank + 1) % world, "part 0", "cell 0"),), use=("part 0",))


def given(rank: int, world: int) -> Program:
    """Forbidden: the engine waits for a cell that a peer gives, too."""
    program = engine_send(rank, world)
    return replace(program, send=(*program.send, Notify((rank + 1) % world, "cell 0")))


def untold(rank: int, world: int) -> Program:
    """Forbidden: everybody's output is written by its left neighbour, which notifies nobody."""
    return Program((Store((rank + 1) % world, "output"),), use=("output",))


KINDS: tuple[Kind, ...] = (gather, causal, decode, scatter, rowless, pull, partials, output, in_place)
ENGINES: tuple[Kind, ...] = (engine_push, engine_pull, engine_send)
