"""What would be right, where a schedule shows that a program goes wrong: the check knows it, of the same events."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from tilelink.analysis.check import check_events
from tilelink.analysis.check.findings import Finding as Checked
from tilelink.analysis.check.residency import residency
from tilelink.analysis.events import Events
from tilelink.tools.explore.findings import Finding

CAUSES = {"unequal results": "race"}
"""What is behind a finding, where that has another name."""


class Advice:
    """The remedies for findings in the events of a program, of which at most `resident` workers of a rank are under way
    (None: all)."""

    def __init__(self, events: Events, resident: int | None) -> None:
        self.events, self.resident = events, resident

    def __call__(self, finding: Finding) -> Finding:
        """The finding with a remedy: that of what the check finds in these lines, or in the program at all, else its
        own."""
        kinds = finding.kind, CAUSES.get(finding.kind)
        alike = [f for f in self._checked if f.kind in kinds]
        near = [f for f in alike if set(f.lines) & set(finding.lines)]
        if finding.kind == "deadlock" and not alike:
            near = self._not_resident()
        found = near or (alike if finding.kind in CAUSES or not finding.lines else [])
        return replace(finding, remedy=found[0].remedy) if found else finding

    @cached_property
    def _checked(self) -> tuple[Checked, ...]:
        return check_events(self.events).findings

    def _not_resident(self) -> list[Checked]:
        if self.resident is None:
            return []
        events = self.events
        return residency(events.program, events.allotment, events.sms, events.sms - self.resident)
