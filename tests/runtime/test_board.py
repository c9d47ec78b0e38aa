"""What hosts tell each other beside the heaps, and how they wait: in one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tilelink.errors import WorldError
from tilelink.runtime.agreement import mismatch
from tilelink.runtime.board import LONGEST, ROW_BYTES, TEXT_BYTES, Board, Post
from tilelink.runtime.bounds import Bounds, Processes, Stillness, wait_until
from tilelink.runtime.store_board import StoreBoard


def in_memory(world: int = 2) -> list[Board]:
    """The board as every rank sees it."""
    rows = [torch.zeros(ROW_BYTES, dtype=torch.uint8) for _ in range(world)]
    return [Board(rows, rank) for rank in range(world)]


def in_a_store(world: int = 2) -> list[StoreBoard]:
    """The same, where ranks share no memory."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    return [StoreBoard(store, rank, world) for rank in range(world)]


each_board = pytest.mark.parametrize("boards", [in_memory, in_a_store])


@each_board
def test_a_call_is_read_as_it_was_posted(boards: Callable[[], list[Any]]) -> None:
    mine, theirs = boards()
    for number in range(5):
        assert not theirs.posted(0, number)
        post = Post.of(number, {"program": f"p{number} – ünïcode", "sizes": {"M": (number, 3)}})
        mine.post(post)
        assert theirs.posted(0, number) and theirs.read(0, number) == post and theirs.calls(0) == number + 1
    assert theirs.read(0, 3).number == 3, "two calls are kept"
    assert theirs.read(0, 2).number == 4, "a call that was overwritten does not pass for another"
    mine.forget_calls()
    assert not theirs.posted(0, 0) and theirs.calls(0) == 0


@each_board
def test_long_values_are_told_apart(boards: Callable[[], list[Any]]) -> None:
    text = "x" * 2 * LONGEST
    first, second = (Post.of(0, {"functions": text + end}) for end in "ab")
    assert first.values != second.values
    assert mismatch("call 0", {0: first.values, 1: second.values}) is not None
    mine, theirs = boards()
    mine.post(Post.of(0, {str(k): "ü" * 2 * LONGEST for k in range(8)}))
    assert len(theirs.read(0, 0).values) == 8, "the longest call fits"


@each_board
def test_notes_ends_and_phases(boards: Callable[[], list[Any]]) -> None:
    mine, theirs = boards()
    assert theirs.note_of(0) == "" and not theirs.ended(0) and not theirs.in_phase(0, 1)
    mine.note("ä" * TEXT_BYTES)
    assert set(theirs.note_of(0)) <= {"ä", "\ufffd"} and len(theirs.note_of(0)) > TEXT_BYTES // 3
    mine.note("LookupError: short")
    assert theirs.note_of(0) == "LookupError: short"
    mine.enter_phase(2)
    assert theirs.in_phase(0, 2) and theirs.in_phase(0, 1) and not theirs.in_phase(0, 3)
    mine.end()
    assert theirs.ended(0) and not theirs.ended(1)


def test_heartbeats_restart_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tilelink.runtime.bounds.time.monotonic", lambda: now)
    mine, theirs = in_memory()
    still = Stillness(theirs.heartbeats)
    now = 107.0
    assert still.seconds() == 7
    mine.heartbeat[0] += 1
    assert theirs.heartbeats() == (1, 0) and still.seconds() == 0
    now = 110.0
    assert still.seconds() == 3


@pytest.mark.parametrize("seconds", [0, -1.0, "3", float("nan"), None])
def test_bounds_that_are_none(seconds: object) -> None:
    with pytest.raises(WorldError, match="stuck_timeout="):
        Bounds(300, seconds)  # type: ignore[arg-type]
    with pytest.raises(WorldError, match="enter_timeout="):
        Bounds(seconds, 10)  # type: ignore[arg-type]


def test_a_process_that_ends_is_seen() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = Processes([process.pid])
    assert processes.gone() == set()
    process.communicate(b"\n")
    assert processes.gone() == {0} and processes.gone() == {0}
    assert Processes([process.pid]).gone() == {0}, "it had ended before"
    processes.close()


def test_a_wait_looks_until_it_is_over() -> None:
    looks = iter(range(100))
    checks: list[int] = []
    wait_until(lambda: next(looks) == 60, lambda: checks.append(0))
    assert len(checks) == 60

    def over() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        wait_until(lambda: False, over)
