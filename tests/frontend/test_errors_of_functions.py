"""A user's functions with @triton.jit that run on CPU ranks, and that Triton does not compile: errors at the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import Case, alone, changed, check, load
from tilelink.errors import NotUnderstoodError

FUNCTIONS = """
SCALE, THREE = 2, tl.constexpr(3)


@triton.jit
def scaled(a):
    return a * SCALE


@triton.jit
def twice(a):
    return scaled(a) + scaled(a)


@triton.jit
def early(a):
    total = tl.sum(a)
    if total > 0:
        return a
    return -a


@triton.jit
def signed(a, negative: tl.constexpr, by=None):
    if by is not None:
        return a * by
    if negative and a.dtype == tl.float32:
        return -a
    return a * THREE


@tk.tile
def role"""


def calling(name: str, body: str, *says: str) -> Case:
    return Case(name, NotUnderstoodError, changed(alone(body), {"\n@tk.tile\ndef role": FUNCTIONS}), says)


WRONG = [
    calling(
        "number of Python",
        "a = twice(tl.zeros((16, 16), tl.float32))  # <-",
        "scaled reads SCALE, which is 2 and no constant for Triton (", "user.py:", "write SCALE = tl.constexpr(2)",
    ),
    calling(
        "return below a branch on data",
        "a = early(tl.zeros((16, 16), tl.float32))  # <-",
        "early returns below `if total > 0`, a branch on data", "return it in the last line",
    ),
    calling(
        "coordinate for a constant",
        "a = signed(tl.zeros((16, 16), tl.float32), t.M.start)  # <-",
        "negative is a tl.constexpr, and here M_lo, which is known only in the kernel: leave tl.constexpr out",
    ),
    calling(
        "condition for a constant",
        "a = signed(tl.zeros((16, 16), tl.float32), negative=t.M.start > 0)  # <-",
        "negative is a tl.constexpr, and here M_lo > 0, which is known only in the kernel",
    ),
    calling(
        "block for a constant",
        "a = signed(tl.zeros((16, 16), tl.float32), tl.max(tl.zeros((16,), tl.float32)))  # <-",
        "negative is a tl.constexpr, and here a block",
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_triton_does_not_compile(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


@pytest.mark.parametrize("arguments", ["True", "len(t.M) == 16", "tk.world() > 2", "False, tk.rank()", "True, by=a"])
def test_what_is_known_when_triton_compiles(arguments: str, tmp_path: Path) -> None:
    """Branches on constants, dtypes and None are decided then, so returns below them are none of a loop."""
    body = f"a = tl.zeros((16, 16), tl.float32)\nout[t].store(signed(a, {arguments}))"
    module = load(tmp_path, calling("right", body).source)
    assert "signed" in str(module.program.bind(module.schedule))
