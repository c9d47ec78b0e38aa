"""A user's functions with @triton.jit that Triton does not compile, that multiply, or that ask for their worker: errors
at the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import Case, alone, changed, check, load
from tilelink.backend.targets import TARGETS
from tilelink.errors import NotUnderstoodError
from tilelink.programs.compiling import compiled

FUNCTIONS = """
SCALE, TEXT, THREE = 2, "no float16", tl.constexpr(3)


@triton.jit
def scaled(a):
    return a * SCALE


@triton.jit
def twice(a):
    return scaled(a) + scaled(a)


@triton.jit
def product(a):
    return tl.dot(a, a)


@triton.jit
def powers(a):
    return a, product(a)


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


@triton.jit
def pruned(a):
    tl.static_assert(a.dtype != tl.float16, TEXT)
    if a.dtype == tl.int8:
        return a * SCALE
    return a


@triton.jit
def divided(a, n: tl.constexpr):
    return a / (n + 1)


@triton.jit
def pair(a, n):
    return a, n


@triton.jit
def reused(a, flag: tl.constexpr):
    b, n = pair(a, flag)
    if n == 4:
        return b
    held = flag
    if held:
        return b
    held = tl.max(b)
    return b * held


@triton.jit(noinline=True)
def apart(a):
    if a > 3:
        return a * 2.0
    return a


@triton.jit
def ending(a, n):
    for i in range(4):
        if i > n:
            break
        a += 1
    return a


@triton.jit
def skipping(a, n: tl.constexpr):
    for i in tl.static_range(2):
        total = tl.sum(a)
        if total > i:
            continue
        a += n
    return a


@triton.jit
def of_worker(a):
    return a + tl.program_id(0)


@triton.jit
def of_two_workers(a):
    return of_worker(a) + of_worker(a)


@triton.jit
def by_lambda(a):
    return (lambda x: x + 1)(a)


@triton.jit
def left_out(a, n: tl.constexpr):
    if n > 3:
        raise ValueError
    if n == 2:
        return a
    return (lambda x: x + 1)(a)


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
        "product in a function that is called",
        "a, b = powers(tl.zeros((16, 16), tl.float32))  # <-",
        "product calls tl.dot (", "user.py:", "write product with @tk.tile in place of @triton.jit",
    ),
    calling(
        "return below a branch on data",
        "a = early(tl.zeros((16, 16), tl.float32))  # <-",
        "early returns below `if total > 0`, a branch on data", "return it in the last line",
    ),
    calling(
        "return below a branch on a coordinate",
        "a = signed(tl.zeros((16, 16), tl.float32), t.M.start)  # <-",
        "signed returns below `if negative and a.dtype == tl.float32`, a branch on data",
    ),
    calling(
        "break",
        "a = ending(tl.zeros((16, 16), tl.float32), tk.rank())  # <-",
        "ending has a break (", "user.py:", "which Triton does not compile: no loop ends early",
    ),
    calling(
        "continue", "a = skipping(tl.zeros((16, 16), tl.float32), 2)  # <-",
        "skipping has a continue (", "which Triton does not compile: put the rest of the loop's body below an `if`",
    ),
    calling(
        "number of the worker",
        "a = of_two_workers(tl.zeros((16, 16), tl.float32))  # <-",
        "of_worker calls tl.program_id (", "user.py:", "depends on the workers of the schedule, and a tile is the same "
        "whichever computes it; take the tile's ranges, such as t.rows.start, as an argument",
    ),
    calling("lambda", "a = by_lambda(tl.zeros((16, 16), tl.float32))  # <-", "has a lambda (", "write a function"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_triton_does_not_compile(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


@pytest.mark.parametrize("arguments", ["True", "len(t.M) == 16", "len(t.M) > 2", "False, tk.rank()", "True, by=a"])
def test_what_is_known_when_triton_compiles(arguments: str, tmp_path: Path) -> None:
    """Branches on constants, dtypes and None are decided then, so returns below them are none of a loop."""
    body = f"a = tl.zeros((16, 16), tl.float32)\nout[t].store(signed(a, {arguments}))"
    module = load(tmp_path, calling("right", body).source)
    assert "signed" in str(module.program.bind(module.schedule))


def test_what_triton_leaves_out_is_not_refused(tmp_path: Path) -> None:
    body = "a = left_out(tl.zeros((16, 16), tl.float32), 2)\nout[t].store(a)"
    module = load(tmp_path, calling("right", body).source)
    assert "left_out" in str(module.program.bind(module.schedule))


@pytest.mark.parametrize("call", ["pruned(a)", "reused(a, True)", "apart(tl.max(a)) + a", "divided(a, t.M.start)"])
def test_what_triton_leaves_out_or_takes(call: str, tmp_path: Path) -> None:
    body = f"a = tl.zeros((16, 16), tl.float32)\nout[t].store({call})"
    module = load(tmp_path, calling("right", body).source)
    asked = {"world": 2, "dtypes": "float32", "sizes": {"M": 32, "K": 32, "N": 32}}
    compiled(*module.program.lowered_at(module.schedule, target=TARGETS["sm_90"], **asked))
