"""Kernels as objects, which are printed once, at the end: functions, assignments, calls, loops and branches.

An expression is text. Everything else follows from the names that Python finds in it: the parameters of a function, the
imports of a module, and whether every name has one meaning (`verify`). A scope makes the names.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count

from tilelink.errors import LoweringError
from tilelink.frontend.kept import kept

Source = str
"""An expression."""
ZERO, ONE = "0", "1"
NOT_OURS = frozenset({"tl", "triton", "gluon", *keyword.kwlist, *dir(builtins)})
"""Names of Triton and Python."""
LONGEST_NAME = 100
"""The most letters in the name of a kernel; Triton's files have it, too, and file systems take 255 bytes."""


def kernel_name(program: str) -> str:
    """The name of a program's kernel and of its file. Assemblers take ASCII letters, digits and `_`, but not `_`
    alone."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", program)[:LONGEST_NAME]
    return name if name.strip("_") else f"kernel{name}"


@kept(1 << 16)
def names_of(code: Source) -> frozenset[str]:
    """The names that an expression reads, without the names of Triton and Python."""
    found = (n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return frozenset(n.id for n in found) - NOT_OURS


def grouped(value: Source) -> Source:
    """The expression in parentheses, unless it is a name or a number."""
    return value if value.isidentifier() or value.isdigit() else f"({value})"


def call(function: str, *arguments: Source | int, **keywords: Source | int | None) -> Source:
    """A call of a function, such as `tl.load`. Keywords whose value is None are left out."""
    given = [*map(str, arguments), *(f"{k}={v}" for k, v in keywords.items() if v is not None)]
    return f"{function}({', '.join(given)})"


def converted(value: Source, dtype: str) -> Source:
    return f"{grouped(value)}.to(tl.{dtype})"


CONSTANTS = frozenset(["world"])
"""Parameters that are compile-time constants in every function that takes them."""


class Kind(Enum):
    """How often a name is assigned."""

    FIXED = "once in its function"
    TEMPORARY = "again only when it was read"
    VARIABLE = "as often as the program says"


@dataclass(frozen=True)
class Assign:
    """An assignment. Without targets it is an expression that is evaluated for its effect."""

    targets: tuple[str, ...]
    value: Source
    kind: Kind = Kind.VARIABLE
    operator: str = "="

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} {self.operator} {self.value}" if self.targets else self.value

    @property
    def names(self) -> frozenset[str]:
        return names_of(self.value) | (frozenset() if self.operator == "=" else frozenset(self.targets))


@dataclass(frozen=True)
class Comment:
    text: str
    names = frozenset[str]()

    def __str__(self) -> str:
        return f"# {self.text}"


@dataclass(frozen=True)
class Block:
    """A line such as `if worker == 0`, with the statements below it. `reads`: its condition, or the range of its loop;
    `counter`: the variable that its loop assigns."""

    header: str
    body: Body
    reads: Source = ""
    counter: str = ""

    def __str__(self) -> str:
        return f"{self.header}:"

    @property
    def names(self) -> frozenset[str]:
        return names_of(self.reads)


Node = Assign | Comment | Block
"""A line of a function, with the names that it reads."""
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
        """A call that passes `first`, and then the caller's variables with the names of the other parameters."""
        return call(self.name, *first, *self.parameters[len(first) :])


class Scope:
    """Makes the names of a module, or of a function in it. Each meaning has one name, and no two have the same."""

    def __init__(self, outer: Scope | None = None, taken: Iterable[str] = ()) -> None:
        self.outer = outer
        self.names: dict[Hashable, str] = {}
        self.taken = {*taken, *NOT_OURS} if outer is None else set(taken)

    def __contains__(self, name: str) -> bool:
        return name in self.taken or (self.outer is not None and name in self.outer)

    def known(self, meaning: Hashable) -> str | None:
        """The name of a meaning in this scope or an outer one; None if it has no name yet."""
        found = self.names.get(meaning)
        return found if found or self.outer is None else self.outer.known(meaning)

    def name(self, meaning: Hashable, like: str) -> str:
        """The name of a meaning. A new name is made like `like`, with a number behind it if that is taken."""
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
        """Assigns a value to a name, and returns the name."""
        self.body.append(Assign((target,), value, kind, operator))
        return target

    def assign(self, targets: tuple[str, ...], value: Source) -> None:
        self.body.append(Assign(targets, value))

    def do(self, value: Source) -> None:
        self.assign((), value)

    @contextmanager
    def inside(self, body: Body) -> Iterator[Body]:
        """`with writer.inside(body)`: statements go to that body."""
        outer, self.body = self.body, body
        yield body
        self.body = outer

    @contextmanager
    def block(self, header: str, reads: Source = "", counter: str = "") -> Iterator[None]:
        """`with writer.block(header)`: statements go below that line. An else with nothing below it is not written."""
        with self.inside([]) as body:
            yield
        if body or header != "else":
            self.body.append(Block(header, body, reads, counter))

    def loop(
        self, counter: str, *bounds: Source | int, of: str = "range", **keywords: int
    ) -> AbstractContextManager[None]:
        """Opens a loop over Python's `range`, or over another one, such as `of="tl.range"`."""
        over = call(of, *bounds, **keywords)
        return self.block(f"for {counter} in {over}", over, counter)

    def branch(self, condition: Source, word: str = "if") -> AbstractContextManager[None]:
        return self.block(f"{word} {condition}", condition)

    def otherwise(self) -> AbstractContextManager[None]:
        """Opens the else of the branch that was written last."""
        last = self.body[-1] if self.body else None
        if not isinstance(last, Block) or not last.header.startswith(("if ", "elif ")):
            raise LoweringError("an else stands behind no branch")
        return self.block("else")


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
    """Raises LoweringError if a function reads or assigns a name wrongly. Every name that it reads must be one
    of its parameters, a name of the `module`, or assigned before on every path. Every name must be assigned as often as
    its kind says."""
    kinds: dict[str, Kind] = {}

    def fail(what: str) -> None:
        raise LoweringError(f"{function.name}: {what}; this is a fault of TileLink's lowering")

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
        ways: list[set[str]] = []  # names that are known behind each branch of one if
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
                    ways = [inner] if s.header.startswith("if ") else [*ways, inner]
                    if s.header == "else":
                        known |= set.intersection(*ways)

    fixed: set[str] = set()
    outside = {*module, *function.parameters}
    visit(function.body, set(outside))
