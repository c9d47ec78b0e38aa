"""One schedule of those that are tried, and all that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilelink.emulator import Pct, PolicyWord

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
