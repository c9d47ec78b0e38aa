"""`tilelink doctor`: what this machine and its installation can do."""

from __future__ import annotations

import argparse

from tilelink.tools.cli.command import Answer, Command


def run(args: argparse.Namespace) -> Answer:
    """What this machine and its installation can do; a finding where something is missing that everything needs."""
    from tilelink.tools.capabilities import capabilities, gpus, versions

    found = capabilities()
    keys = {
        "versions": versions(),
        "gpu": gpus(),
        "capabilities": {c.name: {"ok": c.ok, "needed": c.needed, "why": c.why} for c in found},
    }
    width = max(len(c.name) for c in found)
    text = "".join(f"{_mark(c.ok, c.needed):<8}{c.name:<{width}}  {c.why}\n" for c in found)
    return Answer(keys, text, status="ok" if all(c.ok for c in found if c.needed) else "finding")


def _mark(ok: bool, needed: bool) -> str:
    return "ok" if ok else "MISSING" if needed else "no"


COMMAND = Command(run, "tilelink doctor")
