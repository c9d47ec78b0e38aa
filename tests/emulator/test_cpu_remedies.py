"""What the report of a race says would be right."""

from __future__ import annotations

from typing import Any

import pytest

from tilelink.emulator.races import Party, remedy
from tilelink.errors import Site


def party(rank: int = 0, kind: str = "load", number: int = 0, program: int = 0, **more: Any) -> Party:
    return Party(
        rank, f"work call {number + 1}", program, kind, "", "x", 0, ((0, 4),), Site("kernel.py", 3), number,
        writes=kind != "load", atomic=kind.startswith("atomic"), **more,
    )  # fmt: skip


SIGNAL = 'release a signal (sem="release", scope="{}") once it has {} its {}'

CASES = {
    "the next call stores what a peer still reads": (
        party(0, "load", 1), party(1, "store", 2), False,
        ["let rank 0 " + SIGNAL.format("sys", "done", "load"), "rank 1 wait", "before it does its store",
         "a second buffer alone may only put this off by a call"],
    ),
    "whatever came first in this execution": (
        party(1, "store", 2), party(0, "load", 1), False, ["let rank 0 " + SIGNAL.format("sys", "done", "load")],
    ),
    "a read that does not wait": (
        party(0, "load"), party(1, "store"), False,
        ["let rank 1 " + SIGNAL.format("sys", "done", "store"), "rank 0 wait", "before it does its load"],
    ),
    "two programs of a launch": (
        party(0, "store", program=2), party(0, "load", program=5), False,
        ["let program 2 " + SIGNAL.format("gpu", "done", "store"), "program 5 wait"],
    ),
    "two streams": (
        party(0, "store", 0), party(0, "load", 1), False,
        ["let work call 1 release", "put both launches on one stream"],
    ),
    "a buffer that is sent": (
        party(0, "store"), party(0, "load", agent="put_nbi"), False, ["call quiet() between the put_nbi and the store"],
    ),
    "two transfers of a program": (
        party(0, "store", agent="get_nbi"), party(0, "store", agent="p"), False,
        ["call quiet() between the get_nbi and the p (or fence(), where both only write at one peer)"],
    ),
    "a transfer and its target": (
        party(1, "store", agent="put"), party(0, "load"), False,
        ["let rank 1 " + SIGNAL.format("sys", "called quiet() for", "put"), "before it does its load"],
    ),
    "a transfer that reads too early": (
        party(0, "store"), party(1, "load", agent="get"), False, ["rank 1 wait", "before it starts its get"],
    ),
    "a flag that is stored": (
        party(0, "store"), party(1, "atomic_add"), True,
        ["only atomics may touch", 'make the store of rank 0 one, with sem="release" or "acquire" and scope="sys"'],
    ),
    "atomics of two kinds": (
        party(0, "atomic_add"), party(0, "atomic_add", program=1), True, ['one width and kind, with scope="gpu"'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_remedy_is_told(name: str) -> None:
    first, second, on_signal, expected = CASES[name]
    text = remedy(first, second, on_signal)
    assert all(part in text for part in expected), text
