"""Waits in vain end within their bound, by name, and after a reset the world is as new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bench.gpu.place import Place
from bench.gpu.report import Report
from bench.gpu.right import Inputs
from tilelink.backend.targets.portable import STUCK_NS
from tilelink.errors import NeverEnteredError, StuckError
from tilelink.frontend.sizes import even_parts
from tilelink.runtime.cuda.script import KernelStep, Script, Step
from tilelink.runtime.cuda.virtual_world import VirtualGroup, VirtualWorld

WORLD, SCHEDULE = 2, "push"


def vain(place: Place, report: Report) -> None:
    """A rank that never calls; a rank whose gather brings nothing; and a good call after each."""
    cases: dict[str, tuple[type[StuckError], tuple[str, ...], Callable[[Inputs, Any], Any]]] = {
        "a rank never enters": (NeverEnteredError, ("rank 0", "rank 1", "all_gather_matmul run 1"), _absent),
        "a signal is withheld": (StuckError, ("role matmul", "tile", "waits for full[", "expected", "observed"), _mute),
    }
    for what, (error, names, broken) in cases.items():
        with report.case(f"wait in vain: {what}", op="all_gather_matmul", world=WORLD, schedule=SCHEDULE) as found:
            inputs = Inputs(place, even_parts(place.sizes["M"], WORLD), "bfloat16", whole=True)
            ranks = place.world(WORLD)
            good = inputs.judge(ranks.run(lambda group, i=inputs: i.call(group, SCHEDULE)))
            assert good["ok"], f"the call before is wrong already: {good}"
            if not place.on_gpu and broken is _mute:
                found["error"] = "not done here: a kernel's arguments are changed on a GPU alone"
                found["ok"] = None
                continue
            try:
                ranks.run(broken(inputs, ranks))
            except StuckError as e:
                found["message"] = str(e)
                missing = [n for n in names if n not in str(e)] if place.on_gpu else []
                if place.on_gpu and type(e) is not error:
                    missing.insert(0, f"it is a {type(e).__name__}, not a {error.__name__}")
                found |= {"ok": not missing, "error": f"not in the error: {', '.join(missing)}" if missing else None}
            else:
                found |= {"ok": False, "error": "no error was raised"}
                continue
            after = inputs.judge(ranks.run(lambda group, i=inputs: i.call(group, SCHEDULE)))
            if not after["ok"]:
                found |= {"ok": False, "error": f"the call after the reset is wrong: {after}"}


def _absent(inputs: Inputs, ranks: Any) -> Callable[[Any], Any]:
    def body(group: Any) -> Any:
        return inputs.call(group, SCHEDULE) if group.rank == 0 else None

    return body


def _mute(inputs: Inputs, ranks: VirtualWorld) -> Callable[[Any], Any]:
    """Rank 1 calls with no workers for its gather, so it brings nothing to anybody. It waits for ever, or its workers,
    whose numbers are others than its program says, would be named."""
    word = STUCK_NS.value
    ranks.lane.heaps[1][8 * word : 8 * word + 8].view(torch.int64).zero_()

    def body(group: VirtualGroup) -> Any:
        real = group.play
        if group.rank == 1:
            group.play = lambda script, *rest: real(without_workers(script, "gather"), *rest)  # type: ignore[method-assign]
        try:
            return inputs.call(group, SCHEDULE)
        finally:
            group.play = real  # type: ignore[method-assign]

    return body


def without_workers(script: Script, role: str) -> Script:
    """The same run, with no workers for a role: its tiles are not done."""

    def without(step: Step) -> Step:
        if not isinstance(step, KernelStep):
            return step
        values = (0 if n == f"{role}_workers" else v for n, v in zip(step.names, step.values, strict=True))
        return replace(step, values=tuple(values))

    return replace(script, steps=tuple(map(without, script.steps)))
