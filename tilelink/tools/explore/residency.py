"""How many workers of a rank a schedule lets be under way at a time, and which of them begin."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import Events
from tilelink.emulator import Admission
from tilelink.errors import Site, WorldError
from tilelink.tools.explore.trial import FIRST


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
