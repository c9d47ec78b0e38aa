"""Exploring: a run is repeated under many schedules, each fixed by its seed; what goes wrong in one is a finding."""

from tilelink.explore.explorer import Exploration, explore
from tilelink.explore.findings import Finding
from tilelink.explore.lowered import Lowered
from tilelink.explore.oracle import Oracle
from tilelink.explore.outcome import Outcome, Result, Subject
from tilelink.explore.trial import Trial
from tilelink.explore.worlds import of_world

__all__ = [
    "Exploration", "Finding", "Lowered", "Oracle", "Outcome", "Result", "Subject", "Trial", "explore", "of_world",
]  # fmt: skip
