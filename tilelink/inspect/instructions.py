"""Machine code as instructions, each with its kind and the function of the source that it comes from, and as loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from tilelink.inspect.dialects import ACCESSES, DIALECTS, KINDS, Dialect

NOTABLE = ("matrix", "tma_load", "tma_store", *ACCESSES, "atomic", "barrier", "system_fence", "proxy_fence")
"""The kinds of instructions that `Code.order` lists."""


@dataclass(frozen=True)
class Instruction:
    """An instruction. `function`: the function of the emitted module that contains its line; "" if unknown."""

    text: str
    kind: str
    function: str
    predicated: bool
    bytes: int


@dataclass(frozen=True)
class Loop:
    """A loop of machine code. `function`: the emitted module's function that has most of its instructions; "" if loops
    inside are of other functions. The loop in which warps wait for their function is one of these."""

    header: int
    body: frozenset[int]
    function: str


@dataclass(frozen=True)
class Stretch:
    """Instructions of a stretch of code, by kind. `widths`: global accesses by kind and by their bytes."""

    total: int
    kinds: dict[str, int]
    widths: dict[str, dict[int, int]]


@dataclass(frozen=True)
class Code:
    """The instructions of a kernel, in the order of the text, and where each may go next."""

    instructions: tuple[Instruction, ...]
    after: tuple[tuple[int, ...], ...]
    slow: int
    """The first instruction of the slow paths that the assembler put behind the end of the kernel."""

    @classmethod
    def read(cls, text: str, backend: str, file: str, functions: dict[int, str]) -> Code:
        """Reads disassembled text. `functions`: the function at each line of the module in `file`."""
        dialect = DIALECTS[backend]
        made: list[Instruction] = []
        labels: dict[str, int] = {}
        chain: list[tuple[str, str]] = []
        read = True
        for line in text.splitlines():
            if re.match(dialect.about, line):
                chain = re.findall(dialect.place, line) if read else [*chain, *re.findall(dialect.place, line)]
                read = False
            elif found := re.match(dialect.label, line):
                labels[found[1]] = len(made)
            elif found := re.match(dialect.instruction, line):
                here = next((int(n) for path, n in chain if path.rsplit("/", 1)[-1] == file), 0)
                made.append(_instruction(found[1], functions.get(here, ""), dialect))
                read = True
        after = [tuple(_next(k, x, dialect, labels)) for k, x in enumerate(made)]
        ends = [k for k, x in enumerate(made) if not after[k] and re.match(dialect.last, x.text)]
        inside = tuple(tuple(k for k in ways if k < len(made)) for ways in after)
        return cls(tuple(made), inside, max(ends, default=len(made) - 1) + 1)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, outer ones first: instructions that lead back to a header that all paths into them pass."""
        before: list[list[int]] = [[] for _ in self.after]
        for k, ways in enumerate(self.after):
            for way in ways:
                before[way].append(k)
        reached = _reached([0], self.after) if self.after else set()
        bodies: dict[int, set[int]] = {}
        for header in {way for k, ways in enumerate(self.after) for way in ways if way != k + 1}:
            around = _reached([0], self.after, {header})
            if back := [k for k in before[header] if k in reached and k not in around]:
                bodies[header] = _reached(back, before, {header}) | {header}
        made: list[Loop] = []
        for header, body in sorted(bodies.items(), key=lambda item: -len(item[1])):
            here = frozenset(k for k in body if k < self.slow)
            if header not in here:
                continue
            count = Counter(f for k in here if (f := self.instructions[k].function))
            outer = [x.function for x in made if x.body >= here]
            made.append(Loop(header, here, max(count, key=lambda f: count[f]) if count else (outer or [""])[-1]))
        shared = [any(y.body < x.body and y.function != x.function for y in made) for x in made]
        return tuple(replace(x, function="") if s else x for x, s in zip(made, shared, strict=True))

    def steady(self, function: str) -> Loop | None:
        """The innermost loop with matrix instructions, the largest if there are several; without any, the loop with
        loads of the copy engine for tiles; else the loop that moves most bytes, not counting loops inside it."""
        own = [x for x in self.loops if x.function == function]
        for kind in ("matrix", "tma_load"):
            has = [x for x in self.loops if self._count(x.body, kind)]
            if inner := [x for x in has if x in own and not any(y.body < x.body for y in has)]:
                return max(inner, key=lambda x: (self._count(x.body, kind), len(x.body)))
        alone = {x: x.body - frozenset().union(*(y.body for y in own if y.body < x.body)) for x in own}
        moved = {x: sum(self.instructions[k].bytes for k in body) for x, body in alone.items()}
        return max((x for x in own if moved[x]), key=lambda x: moved[x], default=None)

    def stretch(self, where: Iterable[int]) -> Stretch:
        """Counts instructions by kind."""
        here = [self.instructions[k] for k in where]
        count = Counter(x.kind for x in here)
        widths = {kind: Counter(x.bytes for x in here if x.kind == kind) for kind in ACCESSES}
        return Stretch(
            len(here), {kind: count[kind] for kind in KINDS}, {k: dict(sorted(w.items())) for k, w in widths.items()}
        )

    def once(self, tile: Loop, steady: Loop) -> frozenset[int]:
        """The instructions that may run in a tile if no wait has to wait: of inner loops, which poll, only the shortest
        path through, and nothing that is reached from the rest of them. Of branches it has all ways."""
        iteration = {steady.header, *self._way([steady.header], steady.header, tile)}
        way = {tile.header, *self._way([tile.header], steady.header, tile), *iteration}
        way.update(self._way(iteration, tile.header, tile))
        polls = {k for x in self.loops if x.body < tile.body and not x.body & {steady.header} for k in x.body}
        return frozenset(_reached([tile.header], self.after, polls - way) & tile.body)

    def path(self, tile: Loop, steady: Loop, cost: Callable[[Instruction], float]) -> list[int]:
        """The dearest path through a tile and its steady loop, among the instructions of `once`, in the order in which
        they run. It goes once through each loop, and takes one way at each branch. `cost`: of an instruction."""
        once = self.once(tile, steady)
        ways = {k: {way for way in self.after[k] if way in once} for k in once}
        for x in reversed([x for x in self.loops if x.body < tile.body]):  # inner loops first
            here = x.body & once
            beyond = {way for k in here for way in ways[k]} - x.body
            ways |= {k: ways[k] - {x.header} | beyond for k in here if x.header in ways[k]}
        last = {k for k in once if tile.header in ways[k]}
        ways |= {k: ways[k] - {tile.header} for k in last}
        costs = {k: cost(self.instructions[k]) for k in once}
        return [*_dearest(tile.header, {steady.header}, ways, costs)[:-1], *_dearest(steady.header, last, ways, costs)]

    def _way(self, first: Iterable[int], last: int, tile: Loop) -> list[int]:
        """The instructions on the shortest path in a tile from one of `first` to `last`, without both ends."""
        came = {k: k for k in first}
        step, there = list(came), -1
        while step and there < 0:
            ahead: list[int] = []
            for k in step:
                for way in self.after[k]:
                    if way == last:
                        there = k
                    elif way not in came and way in tile.body:
                        came[way] = k
                        ahead.append(way)
            step = ahead
        found: list[int] = []
        while there >= 0 and came[there] != there:
            found.append(there)
            there = came[there]
        return found

    def order(self, where: Iterable[int]) -> Iterator[str]:
        """Yields runs of notable instructions, in order: "8 global_store"."""
        for kind, same in groupby(x.kind for k in where if (x := self.instructions[k]).kind in NOTABLE):
            yield f"{sum(1 for _ in same)} {kind}"

    def _count(self, where: Iterable[int], kind: str) -> int:
        return sum(self.instructions[k].kind == kind for k in where)


def _instruction(text: str, function: str, dialect: Dialect) -> Instruction:
    bare = re.sub(r"^@!?U?P\w+\s+", "", text)
    kind = next((kind for kind, pattern in dialect.kinds.items() if re.match(pattern, bare)), "other")
    moved = dialect.bytes_of(bare.split()[0]) if kind in ACCESSES else 0
    return Instruction(bare, kind, function, bare != text, moved)


def _next(k: int, x: Instruction, dialect: Dialect, labels: dict[str, int]) -> Iterator[int]:
    """The instructions that an instruction may go to."""
    yield from (labels[target] for target in re.findall(dialect.jump, x.text) if target in labels)
    if x.predicated or not re.match(f"{dialect.always}|{dialect.end}", x.text):
        yield k + 1


def _reached(first: Iterable[int], ways: Sequence[Iterable[int]], avoiding: Container[int] = ()) -> set[int]:
    """The instructions that are reached from `first`, on paths that pass none of those in `avoiding`."""
    to_do = [k for k in first if k not in avoiding]
    reached = set(to_do)
    while to_do:
        for k in ways[to_do.pop()]:
            if k not in avoiding and k not in reached:
                reached.add(k)
                to_do.append(k)
    return reached


def _dearest(
    first: int, last: Container[int], ways: Mapping[int, Iterable[int]], costs: Mapping[int, float]
) -> list[int]:
    """The path of the highest cost from `first` to one of `last`, with both ends. It takes no way that leads back."""
    best: dict[int, tuple[float, int]] = {}
    begun, stack = {first}, [(first, iter(ways[first]))]
    while stack:
        k, ahead = stack[-1]
        if (way := next((way for way in ahead if way not in begun), None)) is not None:
            begun.add(way)
            stack.append((way, iter(ways[way])))
            continue
        stack.pop()
        ends = [(best[way][0], way) for way in ways[k] if way in best] + [(0.0, -1)] * (k in last)
        if ends:
            cost, way = max(ends)
            best[k] = cost + costs[k], way
    path = [first]
    while (way := best[path[-1]][1]) >= 0:
        path.append(way)
    return path
