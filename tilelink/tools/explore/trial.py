"""One schedule of those that are tried, and all that fixes it: who runs next, and how many workers are under way."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import Events
from tilelink.emulator import Admission, Pct, PolicyWord
from tilelink.errors import Site, WorldError

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


def any_number_will_do(events: Events) -> bool:
    """Whether a run can be done by however few workers that begin in the order of their numbers: roles wait only for
    earlier ones, and each has workers of its own, behind those of the roles before it."""
    firsts = [events.allotment[role.name].first for role in events.program.in_kernel]
    return not why_not_structural(events.program) and firsts == sorted(set(firsts))


@dataclass(frozen=True)
class Residency:
    """At most `most` workers of a rank are under way at a time (None: all), and begin as `admit` says."""

    most: int | None = None
    admit: Admission = "in order"

    @classmethod
    def asked(cls, most: int | None) -> Residency:
        """At most so many, the last first, which mostly wait for others; all by default. Raises WorldError for fewer
        than 1."""
        if most is None:
            return cls()
        if most < 1:
            raise WorldError(f"resident={most}: at least 1 worker of a rank is under way", Site.of_user())
        return cls(most, "last first")

    def under(self, events: Events, seed: int) -> Residency:
        """That of the schedule of a seed. Where nothing was asked for, every other one has fewer than all, if any
        number will do."""
        chance = random.Random(f"residents {seed}")
        fewer = self.most is None and seed != FIRST and chance.random() < 0.5 and any_number_will_do(events)
        return replace(self, most=chance.randint(1, events.kernel_workers)) if fewer else self
