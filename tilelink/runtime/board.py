"""Memory that the processes of a group share, and the board in it, by which their hosts tell each other how far they
are, what they call, and what they raised."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tilelink.emulator import Words
from tilelink.runtime.agreement import gathered, together

HEARTBEAT, PHASE, ENDED, NOTE, POSTS = 0, 1, 2, 4, 5
"""Words of a row: memory operations so far; phases of resets; whether the process has ended in order; the length of the
note; for each of two posts the number of the call (from 1), and the length of its text."""
NUMBER, LENGTH, POST = 0, 1, 2
TEXTS = 8 * (POSTS + 2 * POST)
TEXT_BYTES = 64 << 10
ROW_BYTES = TEXTS + 3 * TEXT_BYTES
LONGEST = 1000
"""The most characters of a value in a text. A longer value is cut and gets a digest."""


@dataclass(frozen=True)
class Post:
    """Call `number` of a rank, and the values on which ranks have to agree in it, as texts."""

    number: int
    values: Mapping[str, str]

    @classmethod
    def of(cls, number: int, call: Mapping[str, Any]) -> Post:
        return cls(number, {n: _short(str(v)) for n, v in call.items()})


def _short(value: str) -> str:
    if len(value) <= LONGEST:
        return value
    return f"{value[:LONGEST]}... (sha256 {hashlib.sha256(value.encode()).hexdigest()[:16]})"


class Board:
    """The rows of all ranks, as one rank sees them; each rank writes its own. Calls are numbered from 0.

    A rank posts a call, then waits for the same call of all others. Two posts of each rank are therefore enough: no
    rank makes the call after the next one before all have seen this one.
    """

    def __init__(self, rows: Sequence[torch.Tensor], rank: int) -> None:
        self.rank = rank
        self._bytes = [row.numpy() for row in rows]
        self._words = [Words(row[:TEXTS].view(torch.int64)) for row in rows]
        self._plain = [row[:TEXTS].view(torch.int64).numpy() for row in rows]
        self.heartbeat = self._plain[rank][HEARTBEAT : HEARTBEAT + 1]

    def heartbeats(self) -> tuple[int, ...]:
        """How many memory operations each rank has done."""
        return tuple(int(row[HEARTBEAT]) for row in self._plain)

    # ---- calls

    def post(self, post: Post) -> None:
        """Posts a call of this rank."""
        side = post.number % 2
        at = POSTS + POST * side
        self._plain[self.rank][at + LENGTH] = self._write(1 + side, json.dumps(post.values, ensure_ascii=False))
        self._words[self.rank].store(at + NUMBER, post.number + 1)

    def posted(self, rank: int, number: int) -> bool:
        """Whether a rank has made this call."""
        return bool(self._plain[rank][POSTS + POST * (number % 2) + NUMBER] > number)

    def read(self, rank: int, number: int) -> Post:
        """The call of a rank that has posted it. It may be a later call: a rank that could not make two calls has not
        waited for the others, and overwrites the first post."""
        side = number % 2
        at = POSTS + POST * side
        found = self._words[rank].load(at + NUMBER) - 1
        text = self._read(rank, 1 + side, int(self._plain[rank][at + LENGTH]))
        try:
            return Post(found, json.loads(text))
        except ValueError:  # it is being overwritten
            return Post(found, {})

    def calls(self, rank: int) -> int:
        """How many calls a rank has made."""
        return int(max(self._plain[rank][POSTS + POST * side + NUMBER] for side in range(2)))

    def forget_calls(self) -> None:
        """Withdraws the posts of this rank, which begins anew."""
        for side in range(2):
            self._words[self.rank].store(POSTS + POST * side + NUMBER, 0)

    # ---- notes, ends, resets

    def note(self, text: str) -> None:
        """Leaves a text for the other ranks."""
        self._words[self.rank].store(NOTE, self._write(0, text))

    def note_of(self, rank: int) -> str:
        """The text that a rank has left."""
        return self._read(rank, 0, self._words[rank].load(NOTE))

    def end(self) -> None:
        """Says that this rank makes no more calls."""
        self._words[self.rank].store(ENDED, 1)

    def ended(self, rank: int) -> bool:
        """Whether a rank said that it makes no more calls."""
        return self._words[rank].load(ENDED) == 1

    def enter_phase(self, phase: int) -> None:
        """Says that this rank has reached a phase. Phases of collective work are numbered from 1."""
        self._words[self.rank].store(PHASE, phase)

    def in_phase(self, rank: int, phase: int) -> bool:
        """Whether a rank is in this phase, or beyond."""
        return self._words[rank].load(PHASE) >= phase

    # ---- texts

    def _write(self, place: int, text: str) -> int:
        """Writes a text of this rank; returns its length in bytes."""
        data = text.encode()[:TEXT_BYTES]
        begin = TEXTS + place * TEXT_BYTES
        self._bytes[self.rank][begin : begin + len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def _read(self, rank: int, place: int, length: int) -> str:
        begin = TEXTS + place * TEXT_BYTES
        return self._bytes[rank][begin : begin + length].tobytes().decode(errors="replace")


# ---- memory


def share(process_group: dist.ProcessGroup, size: int) -> list[torch.Tensor]:
    """Collective: makes `size` bytes on every rank, zero at first; returns the memory of all ranks as uint8 tensors, by
    rank. It has no name in any file system: the kernel frees it when the last process ends, however it ends. Raises
    WorldError on every rank if one of them can't reach the memory of another."""
    mine = together(process_group, " can't make memory to share", lambda: _made(size), refused=(OSError,))
    try:
        owners = gathered(process_group, (_machine(), os.getpid(), mine))
        reach = " can't reach the memory of its peers"
        return together(process_group, reach, lambda: [_mapped(owner, size) for owner in owners], refused=(OSError,))
    finally:
        os.close(mine)  # all have opened it


def _machine() -> tuple[str, int]:
    """The boot id of the kernel and the pid namespace, which are equal for processes that can see each other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.stat("/proc/self/ns/pid").st_ino


def _made(size: int) -> int:
    memory = os.memfd_create("tilelink")
    os.ftruncate(memory, size)
    return memory


def _mapped(owner: tuple[tuple[str, int], int, int], size: int) -> torch.Tensor:
    machine, pid, descriptor = owner
    if machine != _machine():
        raise OSError("they are on different machines, or in different containers")
    theirs = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(theirs, size), dtype=torch.uint8)
    finally:
        os.close(theirs)
