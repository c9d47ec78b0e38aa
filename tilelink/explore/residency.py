"""How many workers of a rank a schedule lets be under way at a time."""

from __future__ import annotations

import random

from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import Events
from tilelink.explore.trial import FIRST


def any_number_will_do(events: Events) -> bool:
    """Whether a run can be done by however few workers that begin in the order of their numbers: roles wait only for
    earlier ones, and each has workers of its own, behind those of the roles before it."""
    firsts = [events.allotment[role.name].first for role in events.program.in_kernel]
    return not why_not_structural(events.program) and firsts == sorted(set(firsts))


def residents(events: Events, seed: int) -> int | None:
    """How many a schedule lets be under way: all of them (None), or every other time fewer, where that will do."""
    chance = random.Random(f"residents {seed}")
    fewer = chance.random() < 0.5 and seed != FIRST and any_number_will_do(events)
    return chance.randint(1, events.kernel_workers) if fewer else None
