"""Steps with failing ranks on a node: a rank never calls, a rank withholds a signal, and a rank is killed."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from typing import Any

from bench.gpu.vain import muted
from bench.node.ranks import Node
from bench.node.report import NodeReport
from bench.node.right import operands
from tilelink.errors import NeverEnteredError, RankDiedError, StuckError
from tilelink.kernels.all_gather_matmul import all_gather_matmul

SCHEDULE = "push"


def _good(node: Node, group: Any) -> dict[str, Any]:
    given = operands(node, all_gather_matmul)
    out = given.call(all_gather_matmul, group, schedule=SCHEDULE)
    group.synchronize()
    return given.judge([out], node.rank)


def vain(node: Node, report: NodeReport) -> None:
    """Lets the last rank make no call, then the first rank bring nothing. All others raise, and a good call follows. A
    rank that brings nothing reads its own rows in place, so its call ends."""
    about = {"op": "all_gather_matmul", "world": node.world, "schedule": SCHEDULE}
    mute, last = 0, node.world - 1  # the first has rows to bring
    cases: dict[str, tuple[type[StuckError], tuple[str, ...]]] = {
        "a rank never enters": (NeverEnteredError, (f"rank {last}",)),
        "a signal is withheld": (StuckError, ("role matmul", ", tile", "waits for full[", "expected", "observed")),
    }
    for what, (error, names) in cases.items():
        with report.case(f"wait in vain: {what}", **about) as found:
            withheld = error is StuckError
            if node.world == 1:
                found |= {"ok": None, "error": "one rank has no peers to wait for"}
                continue
            group = node.group(enter_timeout=3.0, stuck_timeout=1.0)
            assert _good(node, group)["ok"], "the call before is wrong already"
            raises = node.rank != (mute if withheld else last)
            try:
                with muted(group, "gather") if withheld and node.rank == mute else nullcontext():
                    if withheld or node.rank != last:
                        _good(node, group)
                group.synchronize()
                found |= {"ok": False, "error": "no error was raised"} if raises else {}
            except StuckError as e:
                found["message"] = str(e)
                missing = [n for n in names if n not in str(e)]
                found["ok"] = raises and not missing and isinstance(e, error)
                found["error"] = None if found["ok"] else f"{type(e).__name__} does not say {missing}"
            if node.rank == last and not withheld:
                node.heard(f"gave up: {what}", 0)
            node.told(f"gave up: {what}", "")
            group.reset()
            after = _good(node, group)
            if not after["ok"]:
                found |= {"ok": False, "error": f"the call after the reset is wrong: {after}"}


def killed(node: Node, report: NodeReport) -> None:
    """Kills the process of the last rank between two calls, and checks that all other ranks name it."""
    last = node.world - 1
    report.silent.add(last)
    with report.case("a rank is killed", op="all_gather_matmul", world=node.world, schedule=SCHEDULE) as found:
        if node.world == 1:
            found |= {"ok": None, "error": "one rank has no peers to name it"}
            return
        group = node.group(enter_timeout=10.0)
        found |= _good(node, group)
        if node.rank == last:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(CALLS_AFTER):
                _good(node, group)
            found |= {"ok": False, "error": "no error was raised"}
        except RankDiedError as e:
            named = f"rank {last} has died" in str(e)
            found |= {"message": str(e), "ok": named, "error": None if named else "another rank is named"}


CALLS_AFTER = 3
"""The number of calls after a rank was killed: the first may be past the point where it looks for dead ranks."""
