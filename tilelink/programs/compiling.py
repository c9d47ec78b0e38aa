"""Compiles lowered programs; an error of Triton names the user's line."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from tilelink.backend.cache import file_name
from tilelink.backend.lower import Lowered
from tilelink.errors import Site
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import Compiled, CompileError
from tilelink.inspect.compile import compiled as compiled_as_it_is

_IN_FUNCTION = re.compile(r"at (\d+):\d+:\n((?:.*\n)*?) *\^", re.M)
"""Where Triton stops in a function: a line, counted from the `def`, and the lines up to it."""
_IN_FILE = re.compile(r"^(\S.*?):(\d+):\d+: error: (.*)$", re.M)
"""Where MLIR stops, as it writes to stderr."""


def compiled(lowered: Lowered, sizes: Sizes, *, sass: bool = False) -> tuple[Compiled, ...]:
    """`tilelink.inspect.compile.compiled`, whose CompileError here names the user's line and what Triton said last."""
    with _stderr() as written:
        try:
            made = compiled_as_it_is(lowered, sizes, sass=sass)
        except CompileError as e:
            raise at_user_line(lowered, e.message, written()) from None
    return made


@contextmanager
def placed_errors(lowered: Lowered) -> Iterator[None]:
    """Inside, a CompileError with the `texts_of` Triton's errors becomes one at the user's line."""
    try:
        yield
    except CompileError as e:
        raise at_user_line(lowered, e.message) from e.__cause__


def texts_of(error: BaseException) -> str:
    """The texts of an error of Triton and of its causes, the innermost last: one for each function around it."""
    cause = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {error}" + (f"\n{texts_of(cause)}" if cause is not None else "")


def at_user_line(lowered: Lowered, message: str, written: str = "") -> CompileError:
    """The error of a compilation at the user's line. `message`: the texts of Triton's errors, the innermost last.
    `written`: what its compiler wrote to stderr."""
    reason, site = message.strip().splitlines()[-1], None
    own = file_name(lowered.source, lowered.program.name)
    for number, lines in _IN_FUNCTION.findall(message):
        site = _of_function(lowered, int(number), lines.splitlines()[-1]) or site
    for file, number, said in _IN_FILE.findall(written):
        here = lowered.site_of(int(number)) if Path(file).name == own else Site.at(file, int(number))
        if site is None and here is not None:
            reason, site = said, here
    where = f"{lowered.program.name} for {lowered.target.name}"
    return CompileError(f"{where}: Triton does not compile this: {reason}", site)


def _of_function(lowered: Lowered, number: int, text: str) -> Site | None:
    """The user's line for line `number` of a function of the module, which has this text."""
    lines = lowered.source.splitlines()
    for f in ast.parse(lowered.source).body:
        at = f.lineno + number - 1
        if isinstance(f, ast.FunctionDef) and at <= (f.end_lineno or 0) and lines[at - 1] == text:
            return lowered.site_of(at)
    return None


@contextmanager
def _stderr() -> Iterator[Callable[[], str]]:
    """Inside, what this process and its children write to stderr is kept; the yielded function returns it. It is
    written in the end, unless an error ends the block: a compiler writes a whole module with each of its errors."""

    def written() -> str:
        file.seek(0)
        return file.read()

    sys.stderr.flush()
    before = os.dup(2)
    with TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(before, 2)
            os.close(before)
        sys.stderr.write(written())
