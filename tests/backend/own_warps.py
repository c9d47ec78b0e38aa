"""A machine of one worker, on which the functions of a role in the specialised form run as they are written.

The emitted source and `gluon/ring.py`, `carry.py`, `wgmma.py` and `tcgen05.py` are executed as Python; below them stand
barriers with phases, an engine that loads blocks in any order, and reads and then writes those that it stores, and
matrix instructions that read their operands at some time after they were issued, one after the other. The warps of a
function are one thread here: what they do to each other is not seen. A seed decides who goes on, at each step, and who
only goes on where nobody else can.
"""

from __future__ import annotations

import ast
import inspect
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.verification.mutants.tools import Edit
from tilelink.backend.gluon import takes
from tilelink.backend.gluon.module import CARRY, RING_MODULE, TCGEN05, WGMMA
from tilelink.backend.lower import Lowered
from tilelink.backend.pipelining import ROOM

ITEM = 2
"""Bytes of an element of bfloat16; numbers here are whole, and exact in any type."""


SLOW = (None, "loads", "products", "reads", "writes", 0, 1, 2)
"""Who is slow: nobody, an engine, or the warps of a function."""


class HandedWrongly(Exception):
    """Warps wait for each other, or an engine still works where nobody waits for it any more."""


class Ended(Exception):
    """A thread ends because another one has failed."""


@dataclass
class Barrier:
    """An mbarrier at which `count` arrive a phase."""

    count: int = 1
    phase: int = 0
    arrived: int = 0
    bytes: int = 0

    def init(self, count: int) -> None:
        self.count = count

    def arrive(self, count: int = 1, bytes: int = 0) -> None:
        self.arrived, self.bytes = self.arrived + count, self.bytes + bytes
        if self.arrived == self.count and self.bytes == 0:
            self.phase, self.arrived = self.phase ^ 1, 0


@dataclass
class Block:
    """Memory, or a block of numbers. It is NaN until something is written."""

    numbers: Any
    layout: None = None

    def index(self, k: int) -> Any:
        part = self.numbers[k]
        return part if isinstance(part, Barrier) else Block(part)

    def permute(self, order: tuple[int, ...]) -> Block:
        return Block(self.numbers.transpose(order))

    def load(self, layout: object) -> Block:
        return Block(self.numbers.copy())

    def store(self, value: Block) -> None:
        self.numbers[...] = value.numbers

    def reshape(self, shape: tuple[int, ...]) -> Block:
        return Block(self.numbers.reshape(shape))

    def to(self, dtype: object) -> Block:
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.numbers.shape)


@dataclass(frozen=True)
class Described:
    """A descriptor of a matrix, or of several, which loads and stores blocks of a shape."""

    matrix: np.ndarray
    shape: tuple[int, ...]
    dtype: None = None
    layout: None = None

    @property
    def block_type(self) -> Described:
        return self


@dataclass(frozen=True)
class Ending(Described):
    """A descriptor of a matrix whose blocks of lines end before it does (`pipelining.ROOM`)."""


@dataclass(frozen=True)
class Table:
    """A place, or places, in a table of integers."""

    numbers: np.ndarray
    at: Any = 0

    def __add__(self, more: Any) -> Table:
        return Table(self.numbers, self.at + more)

    def load(self) -> Any:
        return self.numbers[self.at]


@dataclass(frozen=True)
class Address:
    """Elements of the memory of a rank, or words of its signals."""

    rank: int
    where: str
    at: Any = 0

    def __add__(self, more: Any) -> Address:
        return Address(self.rank, self.where, self.at + more)


@dataclass
class Actor:
    """A thread of the machine. `ready`: whether it can go on."""

    thread: threading.Thread
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] = lambda: True
    done: bool = False


class Machine:
    """`stored` is told what is stored, with addresses and a mask; `notified` which signal is given. `memory`: what
    threads load from."""

    def __init__(
        self, seed: int, stored: Callable[[Address, Any, Any], None], notified: Callable[[Address], None],
        memory: dict[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self.memory = memory or {}
        self.random = random.Random(seed)
        self.loads: list[Callable[[], None]] = []
        self.products: deque[Callable[[], None]] = deque()
        self.reads: deque[Callable[[], None]] = deque()
        self.writes: list[Callable[[], None]] = []
        self.actors: list[Actor] = []
        self.awaited: set[tuple[int, int]] = set()
        self.here, self.failed, self.main = threading.local(), [], threading.Semaphore(0)
        self.slow = SLOW[seed % len(SLOW)]
        self.stored, self.notified = stored, notified

    def run(self, role: Callable[..., None], given: dict[str, Any], *, specialised: bool = True) -> None:
        """A role with its parameters by name. `specialised`: it gives others its warps."""
        values = tuple(given[n] for n in inspect.signature(role).parameters)
        if specialised:
            role(*values)
        else:
            self.warp_specialize([(role, values)])
        if self.loads or self.products or self.reads:
            raise HandedWrongly("an engine is not done")
        for write in self.writes:
            write()

    def warp_specialize(self, functions: list[tuple[Callable[..., None], tuple[Any, ...]]], *_: object) -> None:
        for function, arguments in functions:
            actor = Actor(threading.Thread(target=self.thread, args=(len(self.actors), function, arguments)))
            actor.thread.daemon = True
            self.actors.append(actor)
            actor.thread.start()
        try:
            while not all(a.done for a in self.actors):
                self.go_on()
        finally:
            self.failed.append(Ended())
            for actor in (a for a in self.actors if not a.done):
                actor.turn.release()
            for actor in self.actors:
                actor.thread.join()

    def thread(self, number: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.here.actor = actor = self.actors[number]
        actor.turn.acquire()
        try:
            if not self.failed:
                function(*arguments)
        except Exception as error:
            self.failed.append(error)
        actor.done = True
        self.main.release()

    def go_on(self) -> None:
        """One step, of a thread or of an engine."""
        steps: list[tuple[object, Callable[[], None]]] = []
        steps += [(k, lambda a=a: self.give(a)) for k, a in enumerate(self.actors) if not a.done and a.ready()]
        steps += [("loads", lambda k=k: self.loads.pop(k)()) for k in range(len(self.loads))]
        steps += [("products", lambda: self.products.popleft()())] if self.products else []
        steps += [("reads", lambda: self.reads.popleft()())] if self.reads else []
        steps += [("writes", lambda k=k: self.writes.pop(k)()) for k in range(len(self.writes))]
        if not steps:
            raise HandedWrongly("all wait")
        quick = [s for s in steps if s[0] != self.slow]
        self.random.choice(quick or steps)[1]()
        if self.failed:
            raise self.failed[0]

    def give(self, actor: Actor) -> None:
        actor.turn.release()
        self.main.acquire()

    def until(self, ready: Callable[[], bool] = lambda: True) -> None:
        """A step of this thread ends; it goes on where something is true."""
        actor = getattr(self.here, "actor", None)
        if actor is None:
            return
        actor.ready = ready
        self.main.release()
        actor.turn.acquire()
        if self.failed:
            raise Ended

    # ---- what the functions find

    def names(self) -> dict[str, Any]:
        def jit(function: Any = None, **_: object) -> Any:
            return jit if function is None else function

        tl = SimpleNamespace(
            constexpr=lambda value: value, static_range=range, cast=lambda value, _: value, num_warps=lambda: 4,
            arange=np.arange, minimum=np.minimum, maximum=np.maximum, load=self.loaded,
            warp_specialize=self.warp_specialize,
            allocate_shared_memory=self.allocate, zeros=lambda shape, *_: Block(np.zeros(shape)),
            inline_asm_elementwise=lambda *_, **__: 0, NVMMADistributedLayout=lambda *_: None,
            where=lambda condition, a, b: a if condition else Block(np.full(a.shape, b)) if isinstance(a, Block) else b,
            NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *_: None),
            int64="int64", int32=None, uint32=None, float32=None, bfloat16=None,
        )  # fmt: skip
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None, init=Barrier.init, invalidate=lambda barrier: None,
            wait=lambda barrier, phase: self.until(lambda: barrier.phase != phase),
            arrive=lambda barrier, count=1: (self.until(), barrier.arrive(count)),
            expect=lambda barrier, size: (self.until(), barrier.arrive(bytes=size)),
        )  # fmt: skip
        return {
            "gluon": SimpleNamespace(jit=jit), "triton": SimpleNamespace(constexpr_function=jit),
            "tl": tl, "takes": takes, "mbarrier": mbarrier,
            "tma": SimpleNamespace(async_load=self.load, async_store=self.store, store_wait=self.store_wait),
            "debug_barrier": lambda: None, "fence_async_shared": lambda: None, "one_of": lambda all, k: all[k],
            "warpgroup_mma": self.warpgroup_mma, "warpgroup_mma_wait": self.warpgroup_mma_wait,
            "blackwell": SimpleNamespace(get_tmem_reg_layout=lambda *_: None), "tcgen05_mma": self.tcgen05_mma,
            "TensorMemoryLayout": lambda *_, **__: None, "tcgen05_commit": self.tcgen05_commit,
            "allocate_tensor_memory": self.allocate,
            "peer": lambda heaps, rank, where, dtype: Address(rank, where), "alive": lambda control: True,
            "store": lambda at, value, mask=True: (self.until(), self.stored(at, value.numbers, mask)),
            "notify": self.notify, "wait": lambda *_, **__: 0, "credit": lambda *_, **__: None,
            "segment_of": segment_of, "wait_all": self.wait_all,
            **dict.fromkeys(("as_stored", "laid", "loose", "reuse"), lambda block: block),
        }  # fmt: skip

    def loaded(self, at: Table | Address, mask: Any = True, other: Any = None) -> Any:
        """What a thread, or threads, load. Where the mask does not hold, a block is NaN."""
        if isinstance(at, Table):
            return at.load()
        self.until()
        here = np.broadcast_to(mask, at.at.shape)
        return Block(np.where(here, self.memory[at.where].reshape(-1)[np.where(here, at.at, 0)], np.nan))

    def allocate(self, dtype: object, shape: list[int], layout: object) -> Block:
        if dtype == "int64":
            return Block([Barrier() for _ in range(shape[0])])
        return Block(np.full(shape, np.nan))

    def load(self, blocks: Described, at: list[int], barrier: Barrier, into: Block) -> None:
        """Begins a load. What lies outside is zero."""
        self.until()

        def loads() -> None:
            part = blocks.matrix[_lines(at, blocks.shape) if isinstance(blocks, Ending) else _region(at, blocks.shape)]
            part = part.reshape((*[1] * (len(blocks.shape) - part.ndim), *part.shape))
            into.numbers[...] = 0
            into.numbers[tuple(map(slice, part.shape))] = part
            barrier.bytes -= prod(blocks.shape) * ITEM
            barrier.arrive(0)

        self.loads.append(loads)

    def store(self, blocks: Described, at: Any, block: Block) -> None:
        """Begins a store: it reads the block, and writes it later. What lies outside is left out."""
        self.until()

        def reads() -> None:
            part = blocks.matrix[_region(at, blocks.shape)]
            numbers = block.numbers[tuple(map(slice, part.shape))].copy()
            self.writes.append(lambda: part.__setitem__(..., numbers))

        self.reads.append(reads)

    def store_wait(self, pending: int) -> None:
        """Until all stores but the last ones have read what they store. (One thread begins all of them.)"""
        self.until(lambda: len(self.reads) <= pending)

    def wait_all(self, control: object, words: Address, expected: Any, scope: str, tma: bool = False) -> int:
        """The signals that are waited for, and the least of each."""
        self.awaited |= {*zip(words.at.tolist(), np.broadcast_to(expected, words.at.shape).tolist(), strict=True)}
        return 0

    def notify(self, at: Address, scope: str, bulk: bool = False) -> None:
        self.until(lambda: not bulk or not (self.reads or self.writes))
        self.notified(at)

    def warpgroup_mma(self, left: Block, right: Block, acc: Block, is_async: bool) -> Block:
        self.until()
        self.products.append(lambda: acc.numbers.__iadd__(left.numbers @ right.numbers))
        return acc

    def warpgroup_mma_wait(self, pending: int, deps: list[Block]) -> Block:
        self.until(lambda: len(self.products) <= pending)
        return deps[0]

    def tcgen05_mma(self, left: Block, right: Block, acc: Block, use_acc: bool, mbarriers: Any = ()) -> None:
        self.until()

        def multiplies() -> None:
            acc.numbers[...] = left.numbers @ right.numbers + (acc.numbers if use_acc else 0)
            for barrier in mbarriers:
                barrier.arrive()

        self.products.append(multiplies)

    def tcgen05_commit(self, barrier: Barrier) -> None:
        self.until()
        self.products.append(barrier.arrive)


def segment_of(begins: Table, value: int, first: int, count: int) -> int:
    """The same as of `targets/shared.py`."""
    steps = [k for k in range(count) if (begins + first + k).load() <= value]
    return steps[-1] if steps else 0


def _lines(at: Any, shape: tuple[int, ...]) -> tuple[slice, slice]:
    """The part of a matrix that a descriptor of blocks that end early loads."""
    room, end, first, column = at
    assert room == ROOM
    first += end - ROOM
    return slice(first, min(end, first + shape[-2])), slice(column, column + shape[-1])


def _region(at: Any, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i, i + n) for i, n in zip(at, shape, strict=True))


def functions(machine: Machine, lowered: Lowered, edit: Edit = lambda source: source) -> dict[str, Any]:
    """The functions of a lowered program, on a machine. `edit`: of one of the modules, or of the program."""
    names = machine.names()
    modules = (RING_MODULE, CARRY, TCGEN05 if lowered.target.sum_columns else WGMMA)
    texts = [Path(str(import_module(m).__file__)).read_text() for m in modules]
    for text in _edited([*texts, lowered.source], edit):
        tree = ast.parse(text)
        tree.body = [s for s in tree.body if not isinstance(s, ast.Import | ast.ImportFrom)]
        exec(compile(tree, "own warps", "exec"), names)
    return names


def _edited(texts: list[str], edit: Edit) -> Iterator[str]:
    """The texts, those edited in which there is something to edit."""
    done = 0
    for text in texts:
        try:
            edited, done = edit(text), done + 1
        except (ValueError, AssertionError):
            edited = text
        yield edited
    assert done, "nothing is edited"
