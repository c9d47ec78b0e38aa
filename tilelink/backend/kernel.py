"""Kernels as objects, printed once, at the end: functions, assignments, calls, loops and branches.

An expression is text with the names that stand in it. All else follows from these names: which parameters a function
takes, which primitives a module imports, and whether every name has one meaning (`verify`). A scope makes the names.
"""

from __future__ import annotations

import builtins
import keyword
import unicodedata
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count

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


def call(function: Source | str, *arguments: Part, **keywords: Part | None) -> Source:
    """A call of a function of the module, by its name, or of Triton, such as `tl.load`; without keywords of None."""
    called = name(function) if isinstance(function, str) and "." not in function else function
    given = [*arguments, *(source(k + "={}", v) for k, v in keywords.items() if v is not None)]
    return source("{}({})", called, joined(", ", given))


def converted(value: Source, dtype: str) -> Source:
    return source("{}.to(tl.{})", value.grouped, dtype)


ZERO, ONE = Source("0"), Source("1")
CONSTANTS = frozenset(["world"])
"""Parameters that kernels are compiled for, whatever function takes them."""


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

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} {self.operator} {self.value}"

    @property
    def names(self) -> frozenset[str]:
        return self.value.names | (frozenset() if self.operator == "=" else frozenset(self.targets))


@dataclass(frozen=True)
class Comment:
    text: str
    names = frozenset[str]()

    def __str__(self) -> str:
        return f"# {self.text}"


@dataclass(frozen=True)
class Block:
    """What stands below a line such as `if worker == 0`. `counter`: what a loop assigns."""

    header: Source
    body: Body
    counter: str = ""

    def __str__(self) -> str:
        return f"{self.header}:"

    @property
    def names(self) -> frozenset[str]:
        return self.header.names - {self.counter}


Node = Source | Assign | Comment | Block
"""A line of a function, with the names that it reads. An expression alone stands there for what it does."""
Body = list[Node]


@dataclass(frozen=True)
class Function:
    """A function of a module. `changed`: parameters that it may assign."""

    name: str
    parameters: tuple[str, ...]
    body: Body
    decorator: str = "triton.jit"
    changed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        taken = ", ".join(f"{p}: tl.constexpr" if p in CONSTANTS else p for p in self.parameters)
        return "\n".join([f"@{self.decorator}", f"def {self.name}({taken}):", *_lines(self.body, "    ")])

    def call(self, *first: Source) -> Source:
        """A call of it that gives `first`, and then what the caller has under the names of the other parameters."""
        return call(self.name, *first, *map(name, self.parameters[len(first) :]))


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
            plain = "".join(c if c.isalnum() else "_" for c in unicodedata.normalize("NFKC", like))
            plain = f"_{plain.lstrip('_')}" if plain.startswith("__") or not plain.isidentifier() else plain
            found = next(n for k in count() if (n := f"{plain}_{k}" if k else plain) not in self)
            self.names[meaning] = found
            self.taken.add(found)
        return found


class Writer:
    """Writes statements into the body that is open."""

    def __init__(self) -> None:
        self.body: Body = []

    def set(self, target: str, value: Source, kind: Kind = Kind.VARIABLE, operator: str = "=") -> Source:
        """Assigns; returns the name."""
        self.body.append(Assign((target,), value, kind, operator))
        return name(target)

    def assign(self, targets: tuple[str, ...], value: Source) -> None:
        self.body.append(Assign(targets, value, Kind.VARIABLE))

    def do(self, value: Source) -> None:
        self.body.append(value)

    @contextmanager
    def inside(self, body: Body) -> Iterator[Body]:
        """with writer.inside(body): statements go there."""
        outer, self.body = self.body, body
        yield body
        self.body = outer

    @contextmanager
    def block(self, header: Source, counter: str = "") -> Iterator[None]:
        """with writer.block(header): what stands below a line. Nothing is written of an else with nothing below."""
        with self.inside([]) as body:
            yield
        if body or header.text != "else":
            self.body.append(Block(header, body, counter))

    def loop(self, counter: str, *bounds: Part, of: str = "range", **keywords: Part) -> AbstractContextManager[None]:
        """A loop of Python, or `of` tl.range."""
        over = call(Source(of), *bounds, **keywords)
        return self.block(source("for {} in {}", name(counter), over), counter)

    def branch(self, condition: Source, word: str = "if") -> AbstractContextManager[None]:
        return self.block(source(f"{word} {{}}", condition))

    def otherwise(self) -> AbstractContextManager[None]:
        """What is done where the branch that was last written is not taken."""
        last = self.body[-1] if self.body else None
        if not isinstance(last, Block) or not last.header.text.startswith(("if ", "elif ")):
            raise KernelError("an else stands behind no branch")
        return self.block(Source("else"))


def names_in(body: Iterable[Node]) -> frozenset[str]:
    """All names that statements read."""
    inner = (names_in(s.body) for s in body if isinstance(s, Block))
    return frozenset[str]().union(*(s.names for s in body), *inner)


def _lines(body: Body, indent: str) -> Iterator[str]:
    for s in body:
        yield f"{indent}{s}"
        if isinstance(s, Block):
            yield from _lines(s.body, indent + "    ")
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
            read(s.names, known, unread)
            match s:
                case Assign():
                    for target in s.targets:
                        assign(target, s.kind, known, unread)
                case Block():
                    inner = set(known)
                    if s.counter:
                        assign(s.counter, Kind.VARIABLE, inner, unread)
                    visit(s.body, inner)
                    unread -= names_in(s.body)

    fixed: set[str] = set()
    outside = {*module, *function.parameters}
    visit(function.body, set(outside))
