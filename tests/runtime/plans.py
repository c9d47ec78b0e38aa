"""What hosts do for a run, edited."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilelink.backend.host import Step
from tilelink.runtime import prepare

Plan = tuple[Step, ...]


def without(kind: type[Step]) -> Callable[[Plan], Plan]:
    def edit(plan: Plan) -> Plan:
        return tuple(s for s in plan if not isinstance(s, kind))

    return edit


def planned(monkeypatch: pytest.MonkeyPatch, edit: Callable[[Plan], Plan]) -> None:
    """Hosts do what the edited plan says."""
    plan = prepare.host_plan
    monkeypatch.setattr(prepare, "host_plan", lambda *arguments: edit(plan(*arguments)))
