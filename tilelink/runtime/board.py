"""What the hosts of a group tell each other beside the heaps: how far they are, what they call, what they raised.

Each rank has a row of shared memory, which only that rank writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilelink.emulator import Words

HEARTBEAT, PHASE, ENDED, NOTE, POSTS = 0, 1, 2, 4, 5
"""Words of a row: memory operations so far; phases of resets; whether the process has ended in order; the length of the
note; for each of two posts the number of the call (from 1), its digest, and the length of its text."""
NUMBER, DIGEST, LENGTH, POST = 0, 1, 5, 6
TEXTS = 8 * (POSTS + 2 * POST)
TEXT_BYTES = 32 << 10
ROW_BYTES = TEXTS + 3 * TEXT_BYTES
LONGEST = 1000
"""Characters of a value in a text. Longer ones are told apart by their digest."""


@dataclass(frozen=True)
class Post:
    """Call `number` of a rank: a digest of all that ranks have to agree on, and the values for a person."""

    number: int
    digest: bytes
    values: Mapping[str, str]

    @classmethod
    def of(cls, number: int, call: Mapping[str, Any]) -> Post:
        values = {n: str(v) for n, v in call.items()}
        digest = hashlib.sha256(json.dumps(values).encode()).digest()
        return cls(number, digest, {n: _short(v) for n, v in values.items()})


def _short(value: str) -> str:
    if len(value) <= LONGEST:
        return value
    return f"{value[:LONGEST]}... (sha256 {hashlib.sha256(value.encode()).hexdigest()[:16]})"


class Board:
    """The rows of all ranks, as a rank sees them. Calls are numbered from 0.

    A rank posts a call, then waits for that call of all others; so of each rank two posts have to be kept: nobody
    makes the call after the next one before all have seen this one.
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
        """Tells what this rank calls."""
        side = post.number % 2
        at = POSTS + POST * side
        row = self._plain[self.rank]
        row[at + DIGEST : at + DIGEST + 4] = np.frombuffer(post.digest, np.int64)
        row[at + LENGTH] = self._write(1 + side, json.dumps(post.values, ensure_ascii=False))
        self._words[self.rank].store(at + NUMBER, post.number + 1)

    def posted(self, rank: int, number: int) -> bool:
        """Whether a rank has made this call."""
        return bool(self._plain[rank][POSTS + POST * (number % 2) + NUMBER] > number)

    def read(self, rank: int, number: int) -> Post:
        """The call of a rank that has made it, or a later one: a rank that could not make two calls has waited for
        nobody, and overwrites the first."""
        side = number % 2
        at = POSTS + POST * side
        found = self._words[rank].load(at + NUMBER) - 1
        row = self._plain[rank]
        digest, text = row[at + DIGEST : at + DIGEST + 4].tobytes(), self._read(rank, 1 + side, int(row[at + LENGTH]))
        try:
            return Post(found, digest, json.loads(text))
        except ValueError:  # it is being overwritten
            return Post(found, digest, {})

    def calls(self, rank: int) -> int:
        """How many calls a rank has made."""
        return int(max(self._plain[rank][POSTS + POST * side + NUMBER] for side in range(2)))

    def forget_calls(self) -> None:
        """This rank begins anew."""
        for side in range(2):
            self._words[self.rank].store(POSTS + POST * side + NUMBER, 0)

    # ---- notes, ends, resets

    def note(self, text: str) -> None:
        """Leaves a text for the other ranks."""
        self._words[self.rank].store(NOTE, self._write(0, text))

    def note_of(self, rank: int) -> str:
        """What a rank left."""
        return self._read(rank, 0, self._words[rank].load(NOTE))

    def end(self) -> None:
        """This rank makes no more calls."""
        self._words[self.rank].store(ENDED, 1)

    def ended(self, rank: int) -> bool:
        """Whether a rank said that it makes no more calls."""
        return self._words[rank].load(ENDED) == 1

    def enter_phase(self, phase: int) -> None:
        """Phases of collective work are numbered from 1."""
        self._words[self.rank].store(PHASE, phase)

    def in_phase(self, rank: int, phase: int) -> bool:
        """Whether a rank is in this phase, or beyond."""
        return self._words[rank].load(PHASE) >= phase

    # ---- texts

    def _write(self, place: int, text: str) -> int:
        """Writes a text of this rank; its length in bytes."""
        data = text.encode()[:TEXT_BYTES]
        begin = TEXTS + place * TEXT_BYTES
        self._bytes[self.rank][begin : begin + len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def _read(self, rank: int, place: int, length: int) -> str:
        begin = TEXTS + place * TEXT_BYTES
        return self._bytes[rank][begin : begin + length].tobytes().decode(errors="replace")
