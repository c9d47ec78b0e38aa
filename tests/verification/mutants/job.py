"""A mutant with what it is one of, and what became of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.verification.mutants.mutant import Mutant


class Answer(NamedTuple):
    """`tool`: the first that found a mutant, "" where none did; `said`: what it said. `why`: why one that none found is
    no mistake, "" where nobody knows."""

    tool: str
    said: str
    why: str = ""


@dataclass(frozen=True)
class Job:
    """A mutant of a source of a subject; `level`: what kind of source."""

    level: str
    subject: str
    mutant: Mutant
    text: str
    judge: Callable[[], Answer]

    @property
    def key(self) -> str:
        """The same as long as the subject and its source are."""
        return hashlib.sha256(f"{self.level} {self.subject}\n{self.mutant.of(self.text)}".encode()).hexdigest()[:16]
