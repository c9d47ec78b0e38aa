"""The meaning of a program, without TileLink: its file is run as plain Python on numpy, with words of our own for `tk`
and `tl`.

A tile runs until it has to wait; then it is put back, and begins anew later, when what it did and read before is played
from its log. A wait is over when each element of its view was notified as often as a run notifies it, which a dry run
of all tiles counts: what tiles notify depends on ranks and coordinates alone.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np


class Faulty(Exception):
    """The program has no meaning: it reads what nobody wrote, reaches outside, or gets stuck."""


class NotReady(Exception):
    """A tile has to wait."""


@dataclass(frozen=True)
class Dim:
    """A dimension, and the lengths of its parts if it is cut over the ranks."""

    name: str
    size: int
    parts: tuple[int, ...] | None = None

    def pieces(self) -> list[tuple[int, int]]:
        """Where its parts begin and end; the whole, if it is not cut."""
        ends = list(itertools.accumulate(self.parts or (self.size,)))
        return list(zip([0, *ends], ends, strict=False))

    def home(self, at: int) -> int:
        return next(r for r, (begin, end) in enumerate(self.pieces()) if begin <= at < end)


@dataclass(frozen=True)
class Range:
    """[start, stop) along a dimension, as a block of `extent` elements."""

    dim: Dim
    start: int
    stop: int
    extent: int | None = None

    def __len__(self) -> int:
        assert self.extent is not None, "a range without a block"
        return self.extent


@dataclass(frozen=True)
class Axis:
    """A dimension of a tensor."""

    dim: Dim
    machine: Machine
    cut: bool

    @property
    def size(self) -> int:
        return self.dim.size

    def __len__(self) -> int:
        return self.machine.whole[self.dim.name]


class Block(np.ndarray[Any, Any]):
    """A value in registers: never changed in place."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)

    def __iadd__(self, other: Any) -> Any:
        return self + other

    def __isub__(self, other: Any) -> Any:
        return self - other

    def __imul__(self, other: Any) -> Any:
        return self * other


def block(values: Any) -> Any:
    return np.asarray(values).view(Block)


class Tensor:
    """A tensor: memory of each rank, or of all ranks as one where it is sharded."""

    def __init__(
        self, machine: Machine, dims: Sequence[Dim], sharded: int | None, dtype: Any, buffers: int | None = None
    ) -> None:
        self.machine, self.dims, self.sharded, self.dtype, self.buffers = machine, list(dims), sharded, dtype, buffers
        self.copies = 1 if sharded is not None else machine.world
        self.shape = [d.size for d in dims]
        memory = [buffers or self.shape[0], *self.shape[1:]]
        self.memory = np.full([self.copies, *memory], -77, dtype)
        self.written = np.zeros([self.copies, *memory], bool)
        self.signals = {kind: np.zeros([2, self.copies, *self.shape], int) for kind in ("notified", "released")}
        machine.tensors.append(self)

    def fill(self, ranks: Sequence[Any]) -> None:
        """The arguments of a call."""
        if self.sharded is not None:
            ranks = [np.concatenate([np.asarray(r) for r in ranks], self.sharded)]
        self.memory = np.stack([np.asarray(r) for r in ranks])
        self.written = np.ones(self.memory.shape, bool)

    def __getitem__(self, entries: Any) -> View:
        index: list[Any] = []
        for e in entries if isinstance(entries, tuple) else (entries,):
            index += e.ranges if isinstance(e, Tile) else [e]
        index += [slice(None)] * (len(self.dims) - len(index))
        found = [whole(d) if isinstance(i, slice | Axis) else i for d, i in zip(self.dims, index, strict=True)]
        return View(self, tuple(found), None if self.sharded is not None else (self.machine.rank,))

    def __getattr__(self, name: str) -> Any:
        named = [d for d in self.dims if d.name != "ranks"]
        by_name = {d.name: d for d in named}
        dim = {"rows": named[0], "cols": named[-1], **by_name}.get(name)
        if dim is None:
            raise AttributeError(name)
        return Axis(dim, self.machine, self.sharded is not None and self.dims[self.sharded] == dim)

    def result(self) -> list[Any]:
        """What each rank has of it. Raises Faulty where that was not written."""
        if not self.written.all():
            raise Faulty("an output that is not written")
        if self.sharded is None:
            return list(self.memory)
        ends = [end for _, end in self.dims[self.sharded].pieces()]
        return np.split(self.memory[0], ends[:-1], self.sharded)


def whole(dim: Dim) -> Range:
    return Range(dim, 0, dim.size)


@dataclass(frozen=True)
class View:
    """A region of a tensor, in the memory of `ranks`."""

    tensor: Tensor
    index: tuple[Range | int, ...]
    ranks: tuple[int, ...] | None

    def at(self, where: Any) -> View:
        world = self.tensor.machine.world
        ranks = tuple(range(world)) if where is RANKS else (int(where),)
        if not all(0 <= r < world for r in ranks):
            raise Faulty(f"rank {where} of {world}")
        return replace(self, ranks=ranks)

    @property
    def home(self) -> int:
        if self.ranks is not None:
            return self.ranks[0]
        cut = self.index[self.tensor.sharded or 0]
        assert isinstance(cut, Range)
        return cut.dim.home(cut.start)

    def __getitem__(self, entries: Any) -> View:
        given: list[Any] = []
        for e in entries if isinstance(entries, tuple) else (entries,):
            given += e.ranges if isinstance(e, Tile) else [e]
        index, places = list(self.index), [k for k, i in enumerate(self.index) if isinstance(i, Range)]
        for k, e in zip(places, given, strict=False):
            index[k] = index[k] if isinstance(e, slice | Axis) else e
        return replace(self, index=tuple(index))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The shape of the block that it is in registers."""
        of = self.tensor.machine.whole
        return tuple(of[i.dim.name] if i.extent is None else i.extent for i in self.index if isinstance(i, Range))

    def place(self, rank: int, *, folded: bool, back: int = 0) -> tuple[Any, ...]:
        """Where it lies in memory, or among the signals of its entries; `back`: so many entries before."""
        place: list[Any] = [rank]
        for k, i in enumerate(self.index):
            n = self.tensor.shape[k]
            if isinstance(i, Range):
                if not 0 <= i.start <= i.stop <= n:
                    raise Faulty(f"{i.dim.name}[{i.start}:{i.stop}] of {n}")
                place.append(slice(i.start, i.stop))
                continue
            e = int(i) - (back if k == 0 else 0)
            if not 0 <= e < n:
                raise Faulty(f"entry {e} of {n}")
            place.append(e % self.tensor.buffers if folded and k == 0 and self.tensor.buffers else e)
        return tuple(place)

    def places(self, *, folded: bool, back: int = 0) -> list[tuple[Any, ...]]:
        return [self.place(r, folded=folded, back=back) for r in self.ranks or (0,)]

    def read(self) -> Any:
        (place,) = self.places(folded=True)
        if not self.tensor.written[place].all():
            raise Faulty("a read of what nobody wrote")
        return self.tensor.memory[place].copy()

    def write(self, values: Any) -> None:
        for place in self.places(folded=True):
            self.tensor.memory[place] = values
            self.tensor.written[place] = True

    def load(self) -> Any:
        def now() -> Any:
            made, values = np.zeros(self.blocks, self.tensor.dtype), np.asarray(self.read())
            made[tuple(slice(n) for n in values.shape)] = values
            return made

        return block(self.tensor.machine.do(now, lambda: np.zeros(self.blocks, self.tensor.dtype)))

    def store(self, values: Any) -> View:
        made = np.broadcast_to(np.asarray(values), self.blocks)
        lengths = [i.stop - i.start for i in self.index if isinstance(i, Range)]
        part = made[tuple(slice(max(0, n)) for n in lengths)]
        self.tensor.machine.do(lambda: self.write(part))
        return self


@dataclass
class Tile:
    """What a tile function is called for: ranges, and who is where."""

    ranges: list[Range]
    axes: dict[str, int]

    def __getattr__(self, name: str) -> Any:
        found = {r.dim.name: r for r in self.ranges} | self.axes
        return {"rows": self.ranges[0], "cols": self.ranges[-1], **found}[name]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(r) for r in self.ranges)


class Ranks:
    """`tk.ranks`: an axis, a dimension, and a loop."""

    machine: Machine

    def __call__(self) -> range:
        return range(self.machine.world)


RANKS = Ranks()


@dataclass(frozen=True)
class Declared:
    """The dimensions of a parameter, and along which it is cut over the ranks."""

    dims: tuple[Any, ...]
    axis: int | None


@dataclass(frozen=True)
class Each:
    """A list of parameters."""

    of: Declared


@dataclass(frozen=True)
class Spec:
    """A tile space, or the resource of a role: what was said."""

    given: tuple[Any, ...]
    named: Mapping[str, Any]


def said(*given: Any, **named: Any) -> Spec:
    return Spec(given, named)


@dataclass
class TileFunction:
    """A tile function; launched, it leaves its tiles with the machine."""

    function: Callable[..., None]
    machine: Machine
    name: str

    def named(self, name: str) -> TileFunction:
        return replace(self, name=name)

    def __getitem__(self, space: Spec) -> Callable[..., None]:
        member = self.machine.member
        return lambda *args: self.machine.launches.append((self, space, args, member))


@dataclass
class Work:
    """A tile on a rank, and what it did and read so far."""

    run: Callable[[], None]
    rank: int
    step: int | None
    whole: Mapping[str, int]
    log: list[Any] = field(default_factory=list)


class Machine:
    """All ranks of a run."""

    def __init__(self, world: int, dims: Mapping[str, Dim]) -> None:
        self.world, self.dims = world, {**dims, "ranks": Dim("ranks", world)}
        self.tensors: list[Tensor] = []
        self.launches: list[Any] = []
        self.member: int | None = None
        self.rank = 0
        self.step: int | None = None
        self.whole: Mapping[str, int] = {}
        self.dry = False
        self.log: list[Any] = []
        self.position = 0
        RANKS.machine = self

    # ---- words of tile functions

    def do(self, now: Callable[[], Any], dry: Callable[[], Any] = lambda: None) -> Any:
        """An operation on memory or signals: once, however often its tile begins anew."""
        if self.dry:
            return dry()
        if self.position == len(self.log):
            self.log.append(now())
        self.position += 1
        return self.log[self.position - 1]

    def signal(self, view: View, kind: str) -> None:
        def add(which: int) -> None:
            for place in view.places(folded=False):
                view.tensor.signals[kind][which][place] += 1

        self.do(lambda: add(1), lambda: add(0))

    def awaited(self, view: View, kind: str, back: int = 0) -> None:
        def look() -> None:
            (place,) = view.places(folded=False, back=back)
            wanted, given = view.tensor.signals[kind]
            if (given[place] < wanted[place]).any():
                raise NotReady

        self.do(look)

    def wait(self, *views: View) -> Any:
        for v in views:
            self.awaited(v, "notified")
        return views if len(views) > 1 else views[0]

    def notify(self, *views: View) -> None:
        for v in views:
            self.signal(v, "notified")

    def claim(self, view: View) -> View:
        buffers = view.tensor.buffers or 0
        entry = view.index[0]
        assert isinstance(entry, int)
        if entry >= buffers:
            self.awaited(view, "released", buffers)
        return view

    def release(self, view: View) -> None:
        self.signal(view, "released")

    def copy(self, source: View, target: View) -> View:
        self.do(lambda: target.write(source.read()))
        return target

    def steps(self, along: Axis | Range, *, stop: int | None = None) -> Iterator[Range]:
        assert self.step is not None
        pieces = along.dim.pieces() if isinstance(along, Axis) else [(along.start, along.stop)]
        for begin, end in pieces:
            end = end if stop is None else min(end, stop)
            for lo in range(begin, end, self.step):
                yield Range(along.dim, lo, min(lo + self.step, end), self.step)

    # ---- words of programs

    def each(self, *lists: Any) -> Iterator[Any]:
        before = self.member
        for k, members in enumerate(zip(*lists, strict=True)):
            self.member = k if before is None else before
            yield members if len(lists) > 1 else members[0]
        self.member = before

    def dim(self, name: Any) -> Dim:
        name = "ranks" if name is RANKS else name
        return self.dims[name] if name in self.dims else self.dims[f"{name}[{self.member or 0}]"]

    def buffer(self, dims: Sequence[Any], axis: int | None, dtype: Any, buffers: int | None = None) -> Tensor:
        dtype = self.tensors[0].dtype if dtype is None else dtype.dtype if isinstance(dtype, Tensor) else dtype
        return Tensor(self, [self.dim(d) for d in dims], axis, dtype, buffers)

    def words(self) -> SimpleNamespace:
        """What stands for `tk`."""
        return SimpleNamespace(
            tile=lambda f: TileFunction(f, self, f.__name__), program=lambda f: f, ranks=RANKS, order=lambda f: f,
            Local=lambda *dims: Declared(dims, None), Sharded=lambda *dims, axis=0: Declared(dims, axis), Each=Each,
            Function=None, tiles=said, SMs=said,
            CopyEngine=said, Epilogue=said, Schedule=lambda **roles: roles, ring=None, own_rank_first=None,
            next_rank_first=None, grouped=said, rank=lambda: self.rank, world=lambda: self.world, steps=self.steps,
            wait=self.wait, notify=self.notify, claim=self.claim, release=self.release, copy=self.copy, each=self.each,
            local=lambda *dims, dtype=None, buffers=None: self.buffer(dims, None, dtype, buffers),
            sharded=lambda *dims, axis=0, dtype=None: self.buffer(dims, axis, dtype),
        )  # fmt: skip

    # ---- a run

    def tiles(self, launch: Any, schedule: Mapping[str, Any]) -> Iterator[Work]:
        """The tiles of a launch, each on the rank that executes it."""
        function, space, args, member = launch
        resource = schedule.get(f"{function.name}[{member}]", schedule.get(function.name))
        if len(resource.given) == 1 and isinstance(resource.given[0], str):  # in the epilogue of another role
            resource = schedule[resource.given[0]]
            resource = Spec((), {"tile": resource.named["tile"], "at": next(iter(space.named), None)})
        dims: list[Dim] = []
        sharded: list[Dim] = []
        for o in space.given:
            own = [o.dim] if isinstance(o, Axis) else [d for d in o.dims if d.name != "ranks"]
            dims += own
            if isinstance(o, Tensor):
                sharded += [] if o.sharded is None else [o.dims[o.sharded]]
            else:
                sharded += [o.dim] if o.cut else []
        cut = [d for d in dims if d.parts]
        homes = {d.name: f"{d.name}_home" for d in cut}
        if cut:
            homes[(sharded or cut)[0].name] = "home"
        at = resource.named.get("at") or ("home" if sharded else None)
        sizes, step = resource.named["tile"][: len(dims)], resource.named["tile"][len(dims) :]
        cuts = [
            [Range(d, lo, min(lo + (n or end - lo), end), n) for begin, end in d.pieces()
             for lo in range(begin, end, n or max(1, end - begin))]
            for d, n in zip(dims, sizes, strict=True)
        ]  # fmt: skip
        for ranges in itertools.product(*cuts):
            for where in itertools.product(range(self.world), repeat=len(space.named)):
                axes = dict(zip(space.named, where, strict=True))
                axes |= {homes[r.dim.name]: r.dim.home(r.start) for r in ranges if r.dim.name in homes}
                tile = Tile(list(ranges), axes)
                for rank in range(self.world) if at is None else [axes[at]]:
                    yield Work(lambda tile=tile: function.function(tile, *args), rank, next(iter(step), None),
                               dict(resource.named.get("whole", ())))  # fmt: skip

    def turn(self, work: Work) -> None:
        self.rank, self.step, self.whole, self.log, self.position = work.rank, work.step, work.whole, work.log, 0
        work.run()

    def run(self, schedule: Mapping[str, Any], seed: int) -> None:
        """All tiles, in an order that the seed gives. Raises Faulty."""
        works = [w for launch in self.launches for w in self.tiles(launch, schedule)]
        self.dry = True
        for w in works:
            self.turn(w)
        self.dry = False
        random.Random(seed).shuffle(works)
        while works:
            waiting = []
            for w in works:
                done = len(w.log)
                try:
                    self.turn(w)
                except NotReady:
                    waiting.append((w, len(w.log) > done))
            if len(waiting) == len(works) and not any(moved for _, moved in waiting):
                raise Faulty("tiles wait for ever")
            works = [w for w, _ in waiting]


def _reduced(of: str) -> Callable[..., Any]:
    return lambda a, axis=None: block(getattr(np, of)(np.asarray(a), axis=axis))


TL = SimpleNamespace(
    float32=np.float32, float16=np.float16, int32=np.int32, zeros=lambda shape, dtype: block(np.zeros(shape, dtype)),
    full=lambda shape, value, dtype: block(np.full(shape, value, dtype)),
    where=lambda c, a, b: block(np.where(c, a, b)),
    maximum=lambda a, b: block(np.maximum(a, b)), minimum=lambda a, b: block(np.minimum(a, b)),
    abs=lambda a: block(np.abs(a)), trans=lambda a: block(np.asarray(a).T), sum=_reduced("sum"), max=_reduced("max"),
    arange=lambda a, b: block(np.arange(a, b, dtype=np.int32)), constexpr=None,
    dot=lambda a, b, acc=0: block(np.asarray(a) @ np.asarray(b) + np.asarray(acc)),
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """An output that a call asks for."""

    dtype: Any = np.float32


def reference(
    source: str, program: str, schedule: str, world: int, dims: Mapping[str, Dim], given: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """What each rank has of the outputs of a program, by name. `dims`: those that members of lists have of their own
    are called `N[0]`; `given`: for each parameter what each rank gives, or an `Output`, or a list of such for a list,
    or None for what is left out. Raises Faulty."""
    tree = ast.parse(source)
    tree.body = [s for s in tree.body if not isinstance(s, ast.Import)]
    machine = Machine(world, dims)
    known: dict[str, Any] = {"tk": machine.words(), "tl": TL, "triton": SimpleNamespace(jit=lambda f: f)}
    exec(compile(tree, f"<{program}>", "exec", dont_inherit=True), known)
    declared = known[program].__annotations__

    def tensor(declaration: Declared, values: Any, member: int | None = None) -> Tensor | None:
        if values is None:
            return None
        machine.member = member
        dtype = values.dtype if isinstance(values, Output) else np.asarray(values[0]).dtype
        made = machine.buffer(declaration.dims, declaration.axis, dtype)
        machine.member = None
        if not isinstance(values, Output):
            made.fill(values)
        return made

    tensors: dict[str, Any] = {
        name: [tensor(d.of, v, k) for k, v in enumerate(given[name])] if isinstance(d, Each) else tensor(d, given[name])
        for name, d in declared.items()
    }
    known[program](**tensors)
    machine.run(known[schedule], seed)
    results: dict[str, Any] = {}
    for name, values in given.items():
        if isinstance(values, Output):
            results[name] = tensors[name].result()
        elif isinstance(values, list) and values and isinstance(values[0], Output):
            results[name] = [t.result() for t in tensors[name]]
    return results
