"""Tests that share one pool of processes run in one worker of pytest-xdist."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

FOLDERS = "tests/ops/", "tests/nn/", "tests/integrations/"


class OnePool(LoadFileScheduling):
    """Files go to workers as with --dist loadfile, but those of `FOLDERS` go to one. A second pool would import,
    prepare and compile again what the first has, in four processes."""

    def _split_scope(self, nodeid: str) -> str:
        scope = str(super()._split_scope(nodeid))
        return "the pool" if scope.startswith(FOLDERS) else scope
