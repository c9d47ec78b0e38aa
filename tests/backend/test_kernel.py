"""Kernels as objects: how they are printed, what their names are, and what the verifier refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilelink.backend import kernel
from tilelink.backend.kernel import (
    Body,
    Function,
    Kind,
    Scope,
    Writer,
    call,
    names_in,
    verify,
)
from tilelink.errors import LoweringError

MODULE = {"wait", "notify"}


def function(body: Body, *parameters: str) -> Function:
    return Function("tile", parameters, body)


def refused(body: Body, *parameters: str) -> str:
    with pytest.raises(LoweringError) as error:
        verify(function(body, *parameters), MODULE)
    return error.value.message


def test_a_function_is_printed_with_its_parameters() -> None:
    write = Writer()
    base = write.set("base", "tl.load(heaps)", Kind.FIXED)
    with write.loop("k", 0, "K", 2):
        with write.branch("k == 0"):
            write.do(call("notify", base, '"sys"'))
        with write.otherwise():
            pass
    with write.branch("K"):
        pass
    with write.otherwise():
        write.do("base")
    made = function(write.body, "heaps", "K", "world")
    verify(made, MODULE)
    assert names_in(made.body) == {"heaps", "K", "k", "base", "notify"}
    assert str(made).splitlines() == [
        "@triton.jit",
        "def tile(heaps, K, world: tl.constexpr):",
        "    base = tl.load(heaps)",
        "    for k in range(0, K, 2):",
        "        if k == 0:",
        '            notify(base, "sys")',
        "    if K:",
        "        pass",
        "    else:",
        "        base",
    ]


def test_a_scope_gives_every_meaning_a_name_and_no_name_twice() -> None:
    module = Scope(taken=["wait"])
    assert module.name("tensor", "wait") == "wait_1"
    inner = Scope(module)
    assert inner.name("token", "wait") == "wait_2"
    assert inner.name("token", "anything") == "wait_2"
    assert inner.name("tensor", "wait") == "wait_1"
    given = [inner.name(n, n) for n in ("for", "a b", "2d", "tl", "range", "größe")]
    assert given == ["for_1", "a_b", "_2d", "tl_1", "range_1", "größe"]


def test_what_was_not_assigned_is_not_read() -> None:
    write = Writer()
    write.do(call("wait", "word"))
    assert "word is read and was not assigned" in refused(write.body)
    verify(function(write.body, "word"), MODULE)


def test_what_one_way_of_a_branch_assigns_is_not_read_after_it() -> None:
    write = Writer()
    with write.branch("rank"):
        write.set("a", "1")
    write.do("a")
    assert "a is read and was not assigned" in refused(write.body, "rank")


@pytest.mark.parametrize("kinds", [(Kind.FIXED, Kind.FIXED), (Kind.FIXED, Kind.VARIABLE)])
def test_a_name_has_one_meaning(kinds: tuple[Kind, Kind]) -> None:
    write = Writer()
    for kind in kinds:
        write.set("x_16_by_16", "1", kind)
    assert "x_16_by_16 has two meanings" in refused(write.body)


def test_a_block_is_read_before_another_takes_its_name() -> None:
    """As three loads of a statement were not once."""
    write = Writer()
    first = write.set("x_block", "1", Kind.TEMPORARY)
    write.do(first)
    write.set("x_block", "2", Kind.TEMPORARY)
    verify(function(write.body), MODULE)
    write.set("x_block", "3", Kind.TEMPORARY)
    assert "x_block is assigned again before it was read" in refused(write.body)


@pytest.mark.parametrize("taken", ["wait", "heaps"])
def test_what_the_module_or_the_caller_gives_is_not_assigned(taken: str) -> None:
    write = Writer()
    write.set(taken, "1")
    assert f"{taken} is assigned, and is a parameter or a name of the module" in refused(write.body, "heaps")


def test_an_else_stands_behind_a_branch() -> None:
    write = Writer()
    with pytest.raises(LoweringError, match="an else stands behind no branch"), write.otherwise():
        pass
    with write.loop("k", 2):
        pass
    with pytest.raises(LoweringError, match="an else stands behind no branch"), write.otherwise():
        pass


def test_the_verifier_needs_no_assert() -> None:
    """Compiled as `python -O` does it, which leaves them out."""
    file = Path(str(kernel.__file__))
    made = ModuleType("optimised_kernel")
    sys.modules[made.__name__] = made  # for its dataclasses
    try:
        exec(compile(file.read_text() + "\n\nassert False\n", str(file), "exec", optimize=1), vars(made))
        with pytest.raises(LoweringError):
            made.verify(made.Function("f", (), [made.Assign((), "x")]), [])
    finally:
        del sys.modules[made.__name__]
