"""Exploring: a run is repeated under many schedules, each fixed by its seed. Each failure is a finding."""

from tilelink.tools.explore.explorer import Exploration, explore
from tilelink.tools.explore.findings import Found
from tilelink.tools.explore.oracle import Oracle
from tilelink.tools.explore.trial import Outcome, Result, Subject, Trial
from tilelink.tools.explore.worlds import Lowered, of_world

__all__ = [
    "Exploration", "Found", "Lowered", "Oracle", "Outcome", "Result", "Subject", "Trial", "explore", "of_world",
]  # fmt: skip
