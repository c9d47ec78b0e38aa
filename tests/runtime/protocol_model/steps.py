"""The rules as the steps of one rank, each of them atomic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from tests.runtime.protocol_model.kinds import USERS, Notify, Push, Read, Step, Store, Wait, peers_of
from tests.runtime.protocol_model.rules import Case, Rules, entered, left, payload

ENOUGH = 99
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
