"""The run protocol as a model small enough to take every interleaving of its steps.

Read from the top: the numbers by which ranks speak of runs, what a run may do, the rules, the rules as the
steps of one rank, the enumeration, the lanes, the broken rules. ``docs/protocol.md`` explains them and draws
the conclusions; this file, run as a script, prints the tables of that page.

Steps are atomic and memory is sequentially consistent. The payload of a store is the number of the run that
stores, so a read that gets another run's data is seen; so are two accesses that nothing orders. All words are
zero at first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations, groupby, product
from typing import NamedTuple

# ---- The numbers.


def entered(run: int) -> int:
    """What a rank's progress says once it has entered a run."""
    return 2 * run + 1


def left(run: int) -> int:
    """What a rank's progress says once it has left a run."""
    return 2 * run + 2


def payload(run: int) -> int:
    """What a store of a run writes; never what memory holds at first."""
    return run + 1


# ---- What a run does.

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
ENOUGH = 99


# ---- The rules.


@dataclass(frozen=True)
class Rules:
    """The protocol. Each field is a rule that can be broken alone."""

    # Who must have left the slot's previous run before a store or notification there: "everyone"? Or fewer:
    # "everyone, for a peer's copy"; "everyone, for what peers read" and else the home; "home"; "nobody".
    credit: str = "everyone"
    # Does a publication in the slot wait until every peer has left the slot's previous run?
    publish_waits: bool = True
    # Is what a peer published, or its user owns, touched only after that peer has entered the run?
    enter_waits: bool = True
    # Does the stream wait, after a run that read the user's input in place, until every peer has left it?
    hold: bool = True
    push: tuple[str, ...] = ("store", "notify")
    # What comes, on the stream, before a copy engine begins?
    fork: tuple[str, ...] = ("credit", "enter", "entries")
    # Does what comes next on the stream come after the engine's copies?
    join: bool = True
    # Does a rank whose engine waits for tiles leave only when the copies are done?
    leave_waits: bool = True
    # Are the cells that it waits for let go "after the work" of the kernel, or "before the work"?
    let_go: str = "after the work"
    # Does a worker draw its ticket "after the work", or "before the work"?
    ticket: str = "after the work"
    # Which ticket's worker leaves for its rank, the "last" or the "first"?
    leaver: str = "last"
    leave: tuple[str, ...] = ("drain", "zero", "advance", "tell")
    # What advances; in one step, since no other worker of the rank is there to see it.
    advance: tuple[str, ...] = ("ticket", "slot_left", "run")


PROTOCOL = Rules()


@dataclass(frozen=True)
class Case:
    """A lane: the runs that every rank launches in this order, each with the slot that the host picked."""

    world: int
    runs: tuple[tuple[Kind, int], ...]
    workers: int = 1

    def __str__(self) -> str:
        kinds = ", ".join(kind.__name__ for kind, _ in self.runs)
        return f"{kinds}; {self.world} ranks" + (" of 2 workers" if self.workers == 2 else "")


# ---- The rules as the steps of one rank.

Words = tuple[int, ...]
Ready = Callable[[Words], bool]


class Action(NamedTuple):
    """One atomic step: once ``ready``, it sets words, reads one that must hold ``expects``, or only waits."""

    rank: int
    worker: int
    run: int
    text: str
    ready: Ready | None
    sets: tuple[tuple[int, Callable[[Words], int]], ...] = ()
    access: tuple[str, int] | None = None  # load, store or atomic, and the word: what a race is made of
    expects: int | None = None

    def __str__(self) -> str:
        worker = "'" if self.worker else ""
        return f"{self.rank}{worker}.{self.run} {self.text}"


class Memory(dict[tuple[str | int, ...], int]):
    """The words of all ranks, numbered as they are first named. Parts and cells of one name share a word."""

    def __missing__(self, name: tuple[str | int, ...]) -> int:
        self[name] = len(self)
        return self[name]


class Turn:
    """One run on one rank."""

    def __init__(self, case: Case, rules: Rules, memory: Memory, rank: int, number: int) -> None:
        kind, slot = case.runs[number]
        programs = [kind(r, case.world) for r in range(case.world)]
        self.rules, self.memory, self.rank, self.number, self.slot = rules, memory, rank, number, slot
        self.program, self.peers, self.crowd = programs[rank], peers_of(rank, case.world), case.workers == 2
        steps = [(r, step) for r, p in enumerate(programs) for step in p.send + p.receive + p.engine]
        told = Notify | Push if "notify" in rules.push else Notify
        self.due = Counter(  # the notifications that this rank will receive in this run, by cell
            self._cell(rank, step.cell) for _, step in steps if isinstance(step, told) and step.home == rank
        )
        self.published = {(r, part) for r, program in enumerate(programs) for part in program.publish}
        self.visited = {step.part for r, step in steps if isinstance(step, Read) and step.home != r}
        self.awaited = [self._cell(rank, step.cell) for step in self.program.engine if isinstance(step, Wait)]
        self.run, self.ticket = memory["run", rank], memory["ticket", rank]
        self.slot_left = memory["slot_left", rank, slot]
        self.launched, self.ended = memory["launched", rank], memory["ended", rank]
        self.forked, self.copied = memory["forked", rank], memory["copied", rank]

    # The threads of a rank. Which worker draws the last ticket makes no difference to any word, so what the
    # last one does stands in the thread of worker 0. A lone worker is its kernel, and draws no ticket.

    def stream_and_worker_0(self) -> Iterator[Action]:
        """Publish, enter, work, leave; then what the stream does with memory of the user."""
        yield from self.publish()
        yield from self.fork()
        if self.crowd:
            yield self._do("launch", None, (self.launched, lambda words: self.number + 1))
        if not self.program.engine:
            yield from self.enter()
        if self.rules.let_go == "before the work":
            yield from self.let_go()
        yield from self.work(self.program.send + (() if self.crowd else self.program.receive))
        if not self.awaited:
            yield from self.leave()
        if self.crowd:
            yield self._do("end", lambda words: words[self.ended] > self.number)
        if self.awaited:
            if self.rules.let_go == "after the work":
                yield from self.let_go()
            if self.rules.leave_waits:
                yield self._do("join", lambda words: words[self.copied] > self.number)
            yield from self.leave()
        if self.program.engine and self.rules.join:
            yield self._do("join", lambda words: words[self.copied] > self.number)
        yield from self.use()

    def worker_1(self) -> Iterator[Action]:
        """Start with the kernel, work, end."""
        yield self._do("start", lambda words: words[self.launched] > self.number)
        yield from self.work(self.program.receive)
        yield self._do("end", None, (self.ended, lambda words: self.number + 1))

    def engine(self) -> Iterator[Action]:
        """Copy, in order; a notification is a write of 1."""
        if not self.program.engine:
            return
        yield self._do("begin", lambda words: words[self.forked] > self.number)
        for step in self.program.engine:
            match step:
                case Wait(cell):
                    yield from self.wait(cell)
                case Read(home, part):
                    yield self._read(home, part)
                case Store(home, part):
                    yield self._write("store", home, part)
                case Notify(home, cell):
                    word = self._cell(home, cell)
                    yield self._do(f"notify {cell} of {home}", None, (word, lambda words: 1), access=("atomic", word))
        yield self._do("copied", None, (self.copied, lambda words: self.number + 1))

    # The rules, in the order in which a run meets them.

    def publish(self) -> Iterator[Action]:
        """Write the parts that peers read. In the slot that takes a credit; the user writes when he likes."""
        for part in self.program.publish:
            if self.rules.publish_waits and part not in USERS:
                yield from self._await_left(self.peers)
            yield self._write("publish", self.rank, part)

    def enter(self) -> Iterator[Action]:
        """Tell every peer that this rank has entered."""
        for peer in self.peers:
            yield self._tell("enter", peer, lambda words: entered(words[self.run]))

    def fork(self) -> Iterator[Action]:
        """Let the engine begin, once it may write anywhere and what it reads is there."""
        if not self.program.engine:
            return
        for what in self.rules.fork:
            match what:
                case "credit":
                    yield from self._await_left(self.peers)
                case "enter":
                    yield from self.enter()
                case "entries":
                    reads = {step.home for step in self.program.engine if isinstance(step, Read)}
                    for home in sorted(h for h in reads if any(h == r for r, _ in self.published)):
                        yield from self.await_enter(home)
        yield self._do("fork", None, (self.forked, lambda words: self.number + 1))

    def work(self, steps: Iterable[Step]) -> Iterator[Action]:
        """Do a worker's steps and draw its ticket."""
        if self.crowd and self.rules.ticket == "before the work":
            yield self.draw()
        credits: set[int] = set()
        for step in steps:
            match step:
                case Store(home, part):
                    yield from self.credit(home, part, credits)
                    yield from self.store(home, part)
                case Notify(home, cell):
                    yield from self.credit(home, None, credits)
                    yield from self.notify(home, cell)
                case Push(home, part, cell):
                    yield from self.credit(home, part, credits)
                    for half in self.rules.push:
                        yield from self.store(home, part) if half == "store" else self.notify(home, cell)
                case Wait(cell):
                    yield from self.wait(cell)
                case Read(home, part):
                    yield from self.read(home, part)
        if self.crowd and self.rules.ticket == "after the work" and not self.awaited:
            yield self.draw()

    def credit(self, home: int, part: str | None, credits: set[int]) -> Iterator[Action]:
        """Wait, before a store or notification, until those who may still use the slot have left it."""
        everyone, owner = set(self.peers), {home} - {self.rank}
        asked = {
            "everyone": everyone,
            "everyone, for a peer's copy": everyone if owner else set(),
            "everyone, for what peers read": everyone if part in self.visited else owner,
            "home": owner,
            "nobody": set(),
        }[self.rules.credit]
        yield from self._await_left(sorted(asked - credits))
        credits |= asked

    def store(self, home: int, part: str) -> Iterator[Action]:
        """Write a part; if the user owns it, once its home has entered."""
        if part in USERS:
            yield from self.await_enter(home)
        yield self._write("store", home, part)

    def notify(self, home: int, cell: str) -> Iterator[Action]:
        """Count one more in a cell."""
        word = self._cell(home, cell)
        more = (word, lambda words: words[word] + 1)
        yield self._do(f"notify {cell} of {home}", None, more, access=("atomic", word))

    def wait(self, cell: str) -> Iterator[Action]:
        """Wait for the cell's full count."""
        yield self._await_due(f"wait for {cell}", self._cell(self.rank, cell))

    def read(self, home: int, part: str) -> Iterator[Action]:
        """Read a part; if its home published it, once that has entered."""
        if (home, part) in self.published:
            yield from self.await_enter(home)
        yield self._read(home, part)

    def await_enter(self, home: int) -> Iterator[Action]:
        """Wait until a peer has entered this run."""
        if self.rules.enter_waits and home != self.rank:
            yield self._await_progress("entry", home, lambda words: entered(words[self.run]))

    def draw(self) -> Action:
        """Draw a ticket."""
        return self._do("draw", None, (self.ticket, lambda words: words[self.ticket] + 1))

    def leave(self) -> Iterator[Action]:
        """What the worker with the last ticket does."""
        if self.crowd and not self.awaited:
            drawn = {"first": 1, "last": 2}[self.rules.leaver]
            yield self._do(f"{self.rules.leaver} ticket", lambda words: words[self.ticket] >= drawn)
        for what in self.rules.leave:
            match what:
                case "drain":
                    for word in self.due:
                        yield self._await_due("drain", word)
                case "zero":
                    for word in self.due:
                        yield self._do("zero", None, (word, lambda words: 0), access=("store", word))
                case "advance":
                    news = {
                        "ticket": (self.ticket, lambda words: 0),
                        "slot_left": (self.slot_left, lambda words: left(self.number)),
                        "run": (self.run, lambda words: self.number + 1),
                    }
                    yield self._do("advance", None, *(news[name] for name in self.rules.advance))
                case "tell":
                    for peer in self.peers:
                        yield self._tell("leave", peer, lambda words: left(self.number))

    def let_go(self) -> Iterator[Action]:
        """What an engine waits for is over when the kernel is."""
        for word in self.awaited:
            yield self._do("let go", None, (word, lambda words: ENOUGH), access=("atomic", word))

    def use(self) -> Iterator[Action]:
        """Hold the stream while peers read the user's input; what then follows on it may read the outputs."""
        if self.rules.hold and any(part in USERS & self.visited for part in self.program.publish):
            for peer in self.peers:
                yield self._await_progress("exit", peer, lambda words: left(self.number))
        for part in self.program.use:
            yield from self.read(self.rank, part)

    # What the rules are made of.

    def _part(self, home: int, part: str) -> int:
        if part in USERS:
            return self.memory[part, home]
        # A credit that depends on the part needs two zones, lest a part of the other sort lie there still.
        zoned = self.rules.credit == "everyone, for what peers read"
        return self.memory["outbox" if zoned and part in self.visited else "slot", part, home, self.slot]

    def _cell(self, home: int, cell: str) -> int:
        return self.memory[cell, home, self.slot]

    def _do(
        self,
        text: str,
        ready: Ready | None = None,
        *sets: tuple[int, Callable[[Words], int]],
        access: tuple[str, int] | None = None,
        expects: int | None = None,
    ) -> Action:
        return Action(self.rank, 0, self.number, text, ready, sets, access, expects)

    def _write(self, text: str, home: int, part: str) -> Action:
        word = self._part(home, part)
        value = (word, lambda words: payload(self.number))
        return self._do(f"{text} {part} of {home}", None, value, access=("store", word))

    def _read(self, home: int, part: str) -> Action:
        access = "load", self._part(home, part)
        return self._do(f"read {part} of {home}", access=access, expects=payload(self.number))

    def _tell(self, text: str, peer: int, value: Callable[[Words], int]) -> Action:
        return self._do(f"{text} at {peer}", None, (self.memory["progress", peer, self.rank], value))

    def _await_progress(self, text: str, peer: int, least: Callable[[Words], int]) -> Action:
        word = self.memory["progress", self.rank, peer]
        return self._do(f"{text} of {peer}", lambda words: words[word] >= least(words))

    def _await_left(self, peers: Iterable[int]) -> Iterator[Action]:
        for peer in peers:
            yield self._await_progress("credit", peer, lambda words: words[self.slot_left])

    def _await_due(self, text: str, word: int) -> Action:
        return self._do(text, lambda words: words[word] >= self.due[word], access=("atomic", word))


def threads_of(case: Case, rules: Rules) -> tuple[list[list[Action]], Words]:
    """The steps of every thread, in order, rank by rank; and the words before the first step."""
    memory = Memory()
    threads: list[list[Action]] = []
    for rank in range(case.world):
        turns = [Turn(case, rules, memory, rank, number) for number in range(len(case.runs))]
        threads.append(list(chain.from_iterable(turn.stream_and_worker_0() for turn in turns)))
        if case.workers == 2:
            steps = chain.from_iterable(turn.worker_1() for turn in turns)
            threads.append([step._replace(worker=1) for step in steps])
        if copies := list(chain.from_iterable(turn.engine() for turn in turns)):
            threads.append([step._replace(worker=2) for step in copies])
    return threads, (0,) * len(memory)


# ---- The enumeration.


@dataclass(frozen=True)
class Verdict:
    """What was found, after how many states; if not safe, why; if wrong or deadlock, a shortest way there."""

    outcome: str  # safe, wrong, deadlock, race
    states: int
    reason: str = ""
    trace: tuple[Action, ...] = ()

    def story(self) -> str:
        """The trace: how far one worker goes, then how far the next, and what comes of it."""
        chapters = [list(steps)[-1] for _, steps in groupby(self.trace, key=lambda a: (a.rank, a.worker))]
        return f"{' → '.join(map(str, chapters))}: {self.reason}"


def _race(a: Action, b: Action) -> bool:
    """Whether two steps that may both come next touch one word in a way that needs an order."""
    if a.access is None or b.access is None or a.access[1] != b.access[1]:
        return False
    return a.access[0] != b.access[0] or a.access[0] == "store"


State = tuple[tuple[int, ...], Words]  # how far each thread is, and what the words hold


@cache
def explore(case: Case, rules: Rules = PROTOCOL) -> Verdict:
    """Take every interleaving of all threads, breadth first, up to the first wrong read or deadlock."""
    threads, words = threads_of(case, rules)
    start: State = ((0,) * len(threads), words)
    came: dict[State, tuple[State, Action] | None] = {start: None}  # from which state, by which step
    queue = deque([start])
    race = ""

    def found(outcome: str, reason: str, state: State, *last: Action) -> Verdict:
        trace = [*last]
        while step := came[state]:
            state, action = step
            trace.append(action)
        return Verdict(outcome, len(came), reason, tuple(reversed(trace)))

    while queue:
        state = queue.popleft()
        places, words = state
        heads = [(t, threads[t][place]) for t, place in enumerate(places) if place < len(threads[t])]
        able = [(t, action) for t, action in heads if action.ready is None or action.ready(words)]
        if heads and not able:
            return found("deadlock", f"stuck before {', '.join(str(action) for _, action in heads)}", state)
        for t, action in able:
            if action.expects is not None and action.access and words[action.access[1]] != action.expects:
                run = words[action.access[1]] - payload(0)
                return found("wrong", f"sees {'nothing' if run < 0 else f'run {run}'}", state, action)
            after = words
            for word, value in action.sets:
                after = (*after[:word], value(words), *after[word + 1 :])
            successor = ((*places[:t], places[t] + 1, *places[t + 1 :]), after)
            if successor not in came:
                came[successor] = (state, action)
                queue.append(successor)
        touching = [action for _, action in heads if action.access]  # able or not: a wait looks all the time
        for a, b in combinations(touching, 2):
            if _race(a, b):
                race = f"{a} with {b}"
    return Verdict("race" if race else "safe", len(came), race)


# ---- The lanes.


def lane(*kinds: Kind, world: int, slots: Iterable[int] = (), workers: int = 1) -> Case:
    """A lane of these kinds of runs, in slot 0 unless told."""
    return Case(world, tuple(zip(kinds, tuple(slots) or (0,) * len(kinds), strict=True)), workers)


@dataclass(frozen=True)
class Family:
    """Lanes that are enumerated together."""

    name: str
    cases: tuple[Case, ...]

    def row(self, rules: Rules = PROTOCOL) -> str:
        """What was found, as a row of a table."""
        verdicts = [explore(case, rules) for case in self.cases]
        states = [verdict.states for verdict in verdicts]
        safe = sum(verdict.outcome == "safe" for verdict in verdicts)
        return f"| {self.name} | {len(verdicts)} | {safe} | {sum(states):,} | {max(states):,} |"


PICKS = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1))  # of two slots for three runs, up to the slots' names

PAIRS = tuple(lane(*kinds, world=3) for kinds in product((*KINDS, relay), repeat=2))
TWO = tuple(lane(*kinds, world=2) for kinds in product((*KINDS, *ENGINES), repeat=2) if set(kinds) & set(ENGINES))
MIXED = ((pull, rowless, gather), (partials, decode, causal))

FAMILIES = (
    Family("every 2 kinds, 1 slot, 3 ranks", PAIRS),
    Family(
        "every 3 kinds but relay, every pick of 2 slots, 2 ranks",
        tuple(lane(*kinds, world=2, slots=p) for kinds in product(KINDS, repeat=3) for p in PICKS),
    ),
    Family(
        "every 2 kinds but relay, 1 slot, 2 ranks of 2 workers",
        tuple(lane(*kinds, world=2, workers=2) for kinds in product(KINDS, repeat=2)),
    ),
    Family(
        "decode, rowless or pull twice, 1 slot, 3 ranks of 2 workers",
        tuple(lane(kind, kind, world=3, workers=2) for kind in (decode, rowless, pull)),
    ),
    Family(
        "any kind 4 times, 1 slot, 3 ranks",
        tuple(lane(kind, kind, kind, kind, world=3) for kind in (*KINDS, relay)),
    ),
    Family(
        "any kind but relay 6 times, slots 0 1 0 captured and played twice, 2 ranks",
        tuple(lane(*[kind] * 6, world=2, slots=(0, 1, 0) * 2) for kind in KINDS),
    ),
    Family(
        "pull, rowless, gather or partials, decode, causal, every pick of 2 slots, 3 ranks",
        tuple(lane(*kinds, world=3, slots=p) for kinds in MIXED for p in PICKS),
    ),
    Family("every 2 kinds but relay of which one has engines, 1 slot, 2 ranks", TWO),
    Family(
        "engines 3 times, every pick of 2 slots, 2 ranks",
        tuple(lane(*kinds, world=2, slots=p) for kinds in product(ENGINES, repeat=3) for p in PICKS),
    ),
    Family("an engine that waits, 1 slot, 2 ranks of 2 workers", (lane(engine_send, engine_send, world=2, workers=2),)),
    Family("engines, 1 slot, 3 ranks", tuple(lane(kind, world=3) for kind in ENGINES)),
    Family(
        "any kind but relay 3 times, 1 slot, a world of 1",
        tuple(lane(kind, kind, kind, world=1) for kind in KINDS),
    ),
)


# ---- The broken rules.


@dataclass(frozen=True)
class Mutant:
    """A broken rule, or a forbidden program, and a lane in which that is seen."""

    name: str
    rules: Rules
    case: Case
    outcome: str

    def row(self) -> str:
        """What was found, as a row of a table."""
        verdict = explore(self.case, self.rules)
        return f"| {self.name} | {self.case} | {verdict.outcome}, {len(verdict.trace)} | {verdict.story()} |"


HOME = Rules(credit="home")

MUTANTS = (
    Mutant("no credit", Rules(credit="nobody"), lane(decode, decode, world=2), "wrong"),
    Mutant("credit of the home alone", HOME, lane(pull, scatter, world=2), "wrong"),
    Mutant("credit of the home alone", HOME, lane(partials, partials, world=2), "wrong"),
    Mutant("credit of the home alone", HOME, lane(relay, relay, world=3), "wrong"),
    Mutant("credit of the home alone", HOME, lane(pull, gather, world=3), "wrong"),
    Mutant(
        "no credit for the own copy",
        Rules(credit="everyone, for a peer's copy"),
        lane(partials, partials, world=2),
        "wrong",
    ),
    Mutant("publish without waiting", Rules(publish_waits=False), lane(pull, pull, world=2), "wrong"),
    Mutant("pull without awaiting entry", Rules(enter_waits=False), lane(pull, world=2), "wrong"),
    Mutant("output without awaiting entry", Rules(enter_waits=False), lane(output, output, world=2), "wrong"),
    Mutant("no hold", Rules(hold=False), lane(in_place, in_place, world=2), "wrong"),
    Mutant("notify before store", Rules(push=("notify", "store")), lane(decode, world=2), "wrong"),
    Mutant(
        "ticket before the work",
        Rules(ticket="before the work"),
        lane(decode, decode, world=2, workers=2),
        "wrong",
    ),
    Mutant("first ticket leaves", Rules(leaver="first"), lane(decode, decode, world=2, workers=2), "wrong"),
    Mutant("no drain", Rules(leave=("zero", "advance", "tell")), lane(causal, gather, world=2), "wrong"),
    Mutant("no zeroing", Rules(leave=("drain", "advance", "tell")), lane(decode, decode, world=2), "wrong"),
    Mutant(
        "tell before draining",
        Rules(leave=("tell", "drain", "zero", "advance")),
        lane(causal, gather, world=2),
        "deadlock",
    ),
    Mutant(
        "tell before zeroing",
        Rules(leave=("drain", "tell", "zero", "advance")),
        lane(decode, decode, world=2),
        "deadlock",
    ),
    Mutant(
        "ticket kept",
        Rules(advance=("slot_left", "run")),
        lane(decode, decode, world=2, workers=2),
        "deadlock",
    ),
    Mutant("slot_left kept", Rules(advance=("ticket", "run")), lane(decode, decode, world=2), "wrong"),
    Mutant("run kept", Rules(advance=("ticket", "slot_left")), lane(pull, pull, world=2), "wrong"),
    Mutant("engine without credit", Rules(fork=("enter", "entries")), lane(engine_push, engine_push, world=2), "wrong"),
    Mutant("engine without entries", Rules(fork=("credit", "enter")), lane(engine_pull, world=2), "wrong"),
    Mutant("engine not joined", Rules(join=False), lane(engine_push, engine_push, world=2), "wrong"),
    Mutant("let go before the kernel is done", Rules(let_go="before the work"), lane(engine_send, world=2), "wrong"),
    Mutant("leave before the engine is done", Rules(leave_waits=False), lane(engine_send, world=2), "deadlock"),
    Mutant("forbidden: the slot read after the run", PROTOCOL, lane(late, late, world=2), "wrong"),
    Mutant("forbidden: a peer gives what an engine waits for", PROTOCOL, lane(given, given, world=2), "wrong"),
    Mutant("forbidden: a store without notification", PROTOCOL, lane(untold, world=2), "wrong"),
)

# Credits that ask fewer ranks, in the lanes of two runs.
WEAKER = (
    Family("home", PAIRS),
    Family("everyone, for what peers read", PAIRS),
)


if __name__ == "__main__":
    for family in FAMILIES:
        print(family.row())
    for family in WEAKER:
        print(family.row(Rules(credit=family.name)))
    for mutant in MUTANTS:
        print(mutant.row())
