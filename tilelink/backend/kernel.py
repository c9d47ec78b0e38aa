"""Kernels as objects, printed once, at the end: functions, assignments, calls, loops and branches.

An expression is text with the names that stand in it. All else follows from these names: which parameters a function
takes, which primitives a module imports, and whether every name has one meaning (`verify`). A scope makes the names.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Self

from tilelink.errors import KernelError


@dataclass(frozen=True)
class Source:
    """An expression: its text, and all names in it but those of Triton and Python."""

    text: str
    names: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.text

    @property
    def grouped(self) -> Source:
        """In parentheses, where it is more than a name or a number."""
        return self if self.text.isidentifier() or self.text.isdigit() else source("({})", self)


Part = Source | str | int
"""What stands in an expression; a str has no names in it."""


def name(text: str) -> Source:
    """A name."""
    return Source(text, frozenset([text]))


def source(template: str, *parts: Part) -> Source:
    """An expression from a template with a {} for each part. The text between is of Triton and Python."""
    found = (p.names for p in parts if isinstance(p, Source))
    return Source(template.format(*map(str, parts)), frozenset().union(*found))


def joined(between: str, parts: Iterable[Part]) -> Source:
    """An expression from parts with a text between them."""
    parts = list(parts)
    return source(between.join(["{}"] * len(parts)), *parts)


def call(function: Source | str, *arguments: Part, **keywords: Part) -> Source:
    """A call of a function of the module, by its name, or of Triton, such as `tl.load`."""
    called = name(function) if isinstance(function, str) and "." not in function else function
    given = [*arguments, *(source(k + "={}", v) for k, v in keywords.items())]
    return source("{}({})", called, joined(", ", given))


def loaded(pointer: Source, mask: Source | None, **other: Part) -> Source:
    """A load; where a mask is, of what lies behind it, `other`."""
    return call("tl.load", pointer, mask=mask, **other) if mask else call("tl.load", pointer)


def stored(pointer: Source, block: Source, mask: Source | None) -> Source:
    return call("tl.store", pointer, block, mask=mask) if mask else call("tl.store", pointer, block)


def converted(value: Source, dtype: str) -> Source:
    return source("{}.to(tl.{})", value.grouped, dtype)


ZERO, ONE = Source("0"), Source("1")


class Kind(Enum):
    """How often a name is assigned."""

    FIXED = "once in its function"
    TEMPORARY = "again only when it was read"
    VARIABLE = "as often as the program says"


@dataclass(frozen=True)
class Assign:
    targets: tuple[str, ...]
    value: Source
    kind: Kind
    operator: str = "="

    @property
    def reads(self) -> frozenset[str]:
        return self.value.names | (frozenset() if self.operator == "=" else frozenset(self.targets))


@dataclass(frozen=True)
class Do:
    """An expression for what it does."""

    value: Source


@dataclass(frozen=True)
class Return:
    value: Source


@dataclass(frozen=True)
class Comment:
    text: str


@dataclass(frozen=True)
class Loop:
    counter: str
    over: Source
    body: Body


@dataclass(frozen=True)
class Branch:
    """if and elif, each a condition with what follows; and else."""

    ways: tuple[tuple[Source, Body], ...]
    otherwise: Body = field(default_factory=list)


Node = Assign | Do | Return | Comment | Loop | Branch
Body = list[Node]


@dataclass(frozen=True)
class Function:
    """A function of a module. `changed`: parameters that it may assign."""

    name: str
    parameters: tuple[str, ...]
    body: Body
    decorator: str = "triton.jit"
    changed: frozenset[str] = frozenset()


class Scope:
    """Makes the names of a module, or of a function in it: one for each meaning, none twice."""

    def __init__(self, outer: Scope | None = None, taken: Iterable[str] = ()) -> None:
        self.outer = outer
        self.names: dict[Hashable, str] = {}
        self.taken = {*taken, "tl", "triton", *keyword.kwlist, *dir(builtins)} if outer is None else set(taken)

    def __contains__(self, name: str) -> bool:
        return name in self.taken or (self.outer is not None and name in self.outer)

    def known(self, meaning: Hashable) -> str | None:
        """The name that stands for something, in here or outside."""
        found = self.names.get(meaning)
        return found if found or self.outer is None else self.outer.known(meaning)

    def name(self, meaning: Hashable, like: str) -> str:
        """The name that stands for something; `like` it, with a number behind it where that is taken."""
        found = self.known(meaning)
        if found is None:
            plain = "".join(c if c.isalnum() else "_" for c in like)
            plain = plain if plain.isidentifier() or keyword.iskeyword(plain) else f"_{plain}"
            found = next(n for k in count() if (n := f"{plain}_{k}" if k else plain) not in self)
            self.names[meaning] = found
            self.taken.add(found)
        return found


class Writer:
    """Writes statements into the body that is open."""

    def __init__(self) -> None:
        self.body: Body = []
        self.outer: list[Body] = []

    def set(self, target: str, value: Source, kind: Kind = Kind.VARIABLE, operator: str = "=") -> Source:
        """Assigns; returns the name."""
        self.body.append(Assign((target,), value, kind, operator))
        return name(target)

    def assign(self, targets: tuple[str, ...], value: Source) -> None:
        self.body.append(Assign(targets, value, Kind.VARIABLE))

    def do(self, value: Source) -> None:
        self.body.append(Do(value))

    def inside(self, body: Body) -> _Opened:
        """with writer.inside(body): statements go there."""
        return _Opened(self, body)

    def loop(self, counter: str, over: Source) -> _Opened:
        made = Loop(counter, over, [])
        self.body.append(made)
        return self.inside(made.body)

    def branch(self, condition: Source) -> _Opened:
        """with writer.branch(condition): what is done where it holds."""
        made = Branch(((condition, []),))
        self.body.append(made)
        return self.inside(made.ways[0][1])

    def otherwise(self) -> _Opened:
        """with writer.otherwise(): what is done where the branch that was last written is not taken."""
        made = self.body[-1]
        if not isinstance(made, Branch):
            raise KernelError("an else stands behind no branch")
        return self.inside(made.otherwise)


class _Opened:
    def __init__(self, writer: Writer, body: Body) -> None:
        self.writer, self.body = writer, body

    def __enter__(self) -> Self:
        self.writer.outer.append(self.writer.body)
        self.writer.body = self.body
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.body = self.writer.outer.pop()


def count_to(*bounds: Part) -> Source:
    """range(...)"""
    return source("range({})", joined(", ", bounds))


def names_in(body: Iterable[Node]) -> frozenset[str]:
    """All names that statements read."""
    found: set[str] = set()
    for s in body:
        match s:
            case Assign():
                found |= s.reads
            case Do() | Return():
                found |= s.value.names
            case Loop():
                found |= s.over.names | names_in(s.body)
            case Branch():
                for condition, inner in s.ways:
                    found |= condition.names | names_in(inner)
                found |= names_in(s.otherwise)
    return frozenset(found)


CONSTANTS = frozenset(["world"])
"""Parameters that kernels are compiled for, whatever function takes them."""


# ---- printing ----------------------------------------------------------------------------------------------------


def printed(function: Function) -> list[str]:
    """The lines of a function."""
    taken = (f"{p}: tl.constexpr" if p in CONSTANTS else p for p in function.parameters)
    return [f"@{function.decorator}", f"def {function.name}({', '.join(taken)}):", *_lines(function.body, "    ")]


def _lines(body: Body, indent: str) -> Iterator[str]:
    for s in body:
        match s:
            case Assign():
                yield f"{indent}{', '.join(s.targets)} {s.operator} {s.value}"
            case Do():
                yield f"{indent}{s.value}"
            case Return():
                yield f"{indent}return {s.value}"
            case Comment():
                yield f"{indent}# {s.text}"
            case Loop():
                yield f"{indent}for {s.counter} in {s.over}:"
                yield from _lines(s.body, indent + "    ")
            case Branch():
                for k, (condition, inner) in enumerate(s.ways):
                    yield f"{indent}{'elif' if k else 'if'} {condition}:"
                    yield from _lines(inner, indent + "    ")
                if s.otherwise:
                    yield f"{indent}else:"
                    yield from _lines(s.otherwise, indent + "    ")
    if all(isinstance(s, Comment) for s in body):
        yield f"{indent}pass"


# ---- the verifier ------------------------------------------------------------------------------------------------


def verify(function: Function, module: Iterable[str]) -> None:
    """Raises KernelError unless every name that a function reads is one of its parameters, one of the module, or was
    assigned before; and unless every name is assigned as often as its kind says. `module`: the names of the module."""
    kinds: dict[str, Kind] = {}

    def fail(what: str) -> None:
        raise KernelError(f"{function.name}: {what}; this is a fault of TileLink's lowering")

    def read(names: frozenset[str], known: set[str], unread: set[str]) -> None:
        if missing := sorted(names - known):
            fail(f"{', '.join(missing)} is read and was not assigned")
        unread -= names

    def assign(target: str, kind: Kind, known: set[str], unread: set[str]) -> None:
        if target in outside - function.changed:
            fail(f"{target} is assigned, and is a parameter or a name of the module")
        if kinds.setdefault(target, kind) != kind or (kind == Kind.FIXED and target in fixed):
            fail(f"{target} has two meanings")
        if target in unread:
            fail(f"{target} is assigned again before it was read")
        if kind == Kind.FIXED:
            fixed.add(target)
        if kind == Kind.TEMPORARY:
            unread.add(target)
        known.add(target)

    def visit(body: Body, known: set[str]) -> None:
        unread: set[str] = set()
        for s in body:
            match s:
                case Assign():
                    read(s.reads, known, unread)
                    for target in s.targets:
                        assign(target, s.kind, known, unread)
                case Do() | Return():
                    read(s.value.names, known, unread)
                case Loop():
                    read(s.over.names, known, unread)
                    inner = set(known)
                    assign(s.counter, Kind.VARIABLE, inner, unread)
                    visit(s.body, inner)
                    unread -= names_in(s.body)
                case Branch():
                    for condition, inside in (*s.ways, (Source(""), s.otherwise)):
                        read(condition.names, known, unread)
                        visit(inside, set(known))
                        unread -= names_in(inside)

    fixed: set[str] = set()
    outside = {*module, *function.parameters}
    visit(function.body, set(outside))
