"""A model of a GPU for the probe: streams, queues, kernels that are resident or not, graphs. It can be made to lack
what the probe asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

FULL = 16
LIMIT_MS = 1500.0


@dataclass(eq=False)
class Operation:
    """`kind`: meet, count, copy, write, wait, or after (the operations before it on other streams)."""

    kind: str
    stream: int
    word: int = 0
    need: int = 1
    gives: int = 0
    workers: int = 0
    row: int = 0
    after: list[Operation] = field(default_factory=list)
    begun: bool = False
    done: bool = False


@dataclass
class CardModel:
    """`full` workers fill the device. `one_kernel`: at a time; `queues`: streams share so many;
    `writes`: streams write words while kernels wait; `waits`: they wait for words; `copies_need_room`; `serial_graphs`:
    the nodes of a graph run one after the other, as they were captured; `replay_blocks`: the first replay of a graph
    waits for an idle device; `loading_blocks`: so does the first use of a kernel."""

    one_kernel: bool = False
    queues: int = 32
    writes: bool = True
    waits: bool = True
    copies_need_room: bool = False
    serial_graphs: bool = False
    replay_blocks: bool = False
    loading_blocks: bool = False
    stack: str = "a model"
    full: int = FULL

    def __post_init__(self) -> None:
        self.words = [0] * 8
        self.rows: dict[int, tuple[int, float]] = {}
        self.work: list[Operation] = []
        self.captured: list[Operation] | None = None
        self.streams = 0

    # ---- as the probe asks it

    def stream(self) -> int:
        self.streams += 1
        return self.streams

    def clear(self) -> None:
        self.settle()
        self.words, self.rows = [0] * 8, {}

    def meet(self, stream: int, workers: int, *, row: int, word: int = 0, need: int = 1, gives: int = 0) -> None:
        self._enqueue(Operation("meet", stream, word, need, gives, workers, row))

    def count(self, stream: int, word: int) -> None:
        self._enqueue(Operation("count", stream, word, workers=1))

    def copy(self, stream: int) -> None:
        self._enqueue(Operation("copy", stream, workers=int(self.copies_need_room)))

    def write(self, stream: int, word: int) -> None:
        self._enqueue(Operation("write", stream, word))

    def wait(self, stream: int, word: int) -> None:
        self._enqueue(Operation("wait", stream, word))

    def follow(self, stream: int, before: int) -> None:
        known = self.work if self.captured is None else self.captured
        self._enqueue(Operation("after", stream, after=[o for o in known if o.stream == before]))

    def graph(self) -> list[Operation]:
        return []

    @contextmanager
    def capture(self, graph: list[Operation], stream: int) -> Iterator[None]:
        self.captured = graph
        yield
        self.captured = None

    def replay(self, graph: list[Operation], stream: int) -> None:
        if self.replay_blocks:
            self.settle()
        copies = {id(o): Operation(**{**vars(o), "begun": False, "done": False, "after": []}) for o in graph}
        for o in graph:
            copies[id(o)].after = [copies[id(b)] for b in o.after]
        made = list(copies.values())
        if self.serial_graphs:
            for before, o in pairwise(made):
                o.after = [*o.after, before]
        self.work += made

    def settle(self) -> None:
        while any(not o.done for o in self.work):
            if not self._step():
                self._give_up()
        self.work.clear()

    def value(self, word: int) -> int:
        while self._step():
            pass
        return self.words[word]

    def seen(self, row: int) -> tuple[int, float]:
        return self.rows[row]

    def _may_block(self, stream: int) -> None:
        if self.loading_blocks:
            self.settle()

    first_kernel_of_torch = rows_apart = _may_block

    def first_spilling_kernel(self) -> Callable[[int], None]:
        return partial(self._may_block)

    # ---- what it does

    def _enqueue(self, operation: Operation) -> None:
        (self.work if self.captured is None else self.captured).append(operation)

    def _step(self) -> bool:
        """Lets all operations go on that can; whether one did."""
        moved = False
        for at, o in enumerate(self.work):
            if o.done:
                continue
            if not o.begun and self._may_begin(at, o):
                o.begun = moved = True
                if o.kind == "meet":
                    self.words[o.word] += o.gives * o.workers
            if o.begun and self._ends(o):
                o.done = moved = True
        return moved

    def _may_begin(self, at: int, o: Operation) -> bool:
        earlier = self.work[:at]
        if any(not b.done for b in earlier if b.stream == o.stream) or any(not b.done for b in o.after):
            return False
        if any(not b.begun for b in earlier if b.stream % self.queues == o.stream % self.queues):
            return False  # what stands before it in its queue has not left it
        resident = sum(b.workers for b in self.work if b.begun and not b.done)
        return resident + o.workers <= self.full and not (self.one_kernel and resident and o.workers)

    def _ends(self, o: Operation) -> bool:
        if o.kind == "meet":
            if self.words[o.word] < o.need:
                return False
            self.rows[o.row] = (self.words[o.word], 0.01)
        elif o.kind == "wait" and self.waits:
            return self.words[o.word] >= 1
        elif o.kind == "count" or (o.kind == "write" and self.writes):
            self.words[o.word] += 1
        return True

    def _give_up(self) -> None:
        """The waits of the kernel that began first are over."""
        o = next(o for o in self.work if o.begun and not o.done and o.kind == "meet")
        self.rows[o.row], o.done = (self.words[o.word], LIMIT_MS), True
