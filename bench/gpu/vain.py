"""Checks that waits for a failing rank end within their bound, with names, and that a reset repairs the world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from bench.gpu.place import Place
from bench.gpu.report import Report
from bench.gpu.right import operands
from bench.operands import Operands
from tilelink.errors import NeverEnteredError, StuckError
from tilelink.frontend.sizes import even_parts
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.script import KernelStep, Script, Step
from tilelink.runtime.launch import Run

WORLD, SCHEDULE = 2, "push"


def vain(place: Place, report: Report) -> None:
    """Checks a rank that never calls, a rank whose gather brings nothing, and a good call after each."""
    cases: dict[str, tuple[type[StuckError], tuple[str, ...], Callable[[Operands, Any], Any]]] = {
        "a rank never enters": (NeverEnteredError, ("rank 0", "rank 1", "all_gather_matmul run 1"), _absent),
        "a signal is withheld": (StuckError, ("role matmul", "tile", "waits for full[", "expected", "observed"), _mute),
    }
    for what, (error, names, broken) in cases.items():
        with report.case(f"wait in vain: {what}", op="all_gather_matmul", world=WORLD, schedule=SCHEDULE) as found:
            inputs = operands(place, all_gather_matmul, even_parts(place.sizes["M"], WORLD))
            ranks = place.world(WORLD)
            good = inputs.judge(ranks.run(lambda group, i=inputs: i.call(all_gather_matmul, group, schedule=SCHEDULE)))
            assert good["ok"], f"the call before is wrong already: {good}"
            try:
                ranks.run(broken(inputs, ranks))
            except StuckError as e:
                found["message"] = str(e)
                missing = [n for n in names if n not in str(e)]
                if place.on_gpu and type(e) is not error:  # a CpuWorld knows why it is stuck, and has no bounds
                    missing.insert(0, f"it is a {type(e).__name__}, not a {error.__name__}")
                found |= {"ok": not missing, "error": f"not in the error: {', '.join(missing)}" if missing else None}
            else:
                found |= {"ok": False, "error": "no error was raised"}
                continue
            after = inputs.judge(ranks.run(lambda group, i=inputs: i.call(all_gather_matmul, group, schedule=SCHEDULE)))
            if not after["ok"]:
                found |= {"ok": False, "error": f"the call after the reset is wrong: {after}"}


def _absent(inputs: Operands, ranks: Any) -> Callable[[Any], Any]:
    def body(group: Any) -> Any:
        return inputs.call(all_gather_matmul, group, schedule=SCHEDULE) if group.rank == 0 else None

    return body


def _mute(inputs: Operands, ranks: Any) -> Callable[[Any], Any]:
    """Returns a body in which rank 1 calls without workers for its gather, so it brings nothing to any rank."""

    def body(group: Any) -> Any:
        with muted(group, "gather") if group.rank == 1 else nullcontext():
            return inputs.call(all_gather_matmul, group, schedule=SCHEDULE)

    return body


@contextmanager
def muted(group: Any, role: str) -> Iterator[None]:
    """A context in which this rank's calls have no workers for a role."""
    on_gpu = isinstance(group, CudaGroup)
    name = "play" if on_gpu else "launch"
    real = getattr(group, name)

    def launch(run: Run) -> None:
        arguments = run.arguments
        run.arguments = lambda kernel: {  # type: ignore[method-assign]
            n: 0 if n == f"{role}_workers" else v for n, v in arguments(kernel).items()
        }
        real(run)

    setattr(group, name, (lambda script, *rest: real(without_workers(script, role), *rest)) if on_gpu else launch)
    try:
        yield
    finally:
        delattr(group, name)


def without_workers(script: Script, role: str) -> Script:
    """Returns the same run without workers for a role: the role's tiles are not done."""

    def without(step: Step) -> Step:
        if not isinstance(step, KernelStep):
            return step
        values = (0 if n == f"{role}_workers" else v for n, v in zip(step.kernel.names, step.values, strict=True))
        return replace(step, values=tuple(values))

    return replace(script, steps=tuple(map(without, script.steps)))
