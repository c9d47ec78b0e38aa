"""One schedule of those that are tried, and all that fixes it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from tilelink.runtime.cpu import Pct, PolicyWord

FIRST = 0
"""The seed of the schedule in which all take turns and nothing is late. The results of others are held against its
results, and what it takes in turns says among how many turns PCT picks its change points."""
POLICIES = ("random", "pct")


@dataclass(frozen=True)
class Trial:
    """A schedule: its seed, a policy by name, and `turns`, which the first schedule took."""

    seed: int
    policy: str = "random"
    turns: int = 1

    @property
    def word(self) -> PolicyWord:
        """The policy as an execution takes it."""
        if self.seed == FIRST:
            return "round_robin"
        return partial(Pct, length=self.turns) if self.policy == "pct" else "random"

    def residents(self, workers: int) -> int | None:
        """How many of a rank's workers may be under way at a time: all of them, or every other time fewer."""
        chance = random.Random(f"residents {self.seed}")
        return chance.randint(1, workers) if self.seed != FIRST and chance.random() < 0.5 else None
