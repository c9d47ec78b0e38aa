"""Checks programs and forms that neither `results` nor `sums` runs, in every schedule: backward, gated, two weights
with the gathered rows kept, collectives alone."""

from __future__ import annotations

from collections.abc import Sequence

from bench.gpu.place import Place, gpu
from bench.gpu.report import Report
from bench.gpu.right import SUMS, compile_ahead, judged, operands
from bench.operands import Operands, optional, takes_lists
from bench.references import REFERENCES
from tilelink.kernels import operators
from tilelink.programs.program import Program

WORLD, CALLS = 2, 2
OTHERS = [program for program in REFERENCES if program not in SUMS]


def inputs(place: Place, program: Program, parts: Sequence[int], seed: int = 0) -> Operands:
    """Returns operands of whole numbers in bfloat16, without optional inputs and with all outputs. Lists have two
    members."""
    outputs = {p for p in optional(program) for name, _ in program.flattened[p] if name in program.on_demand}
    return operands(place, program, parts, seed, members=2 if takes_lists(program) else 1, asked=outputs)


def cases() -> list[tuple[str, str]]:
    """Returns the names of programs and schedules."""
    return [(program.name, schedule) for program in OTHERS for schedule in program.schedules]


def others(place: Place, report: Report) -> None:
    """Checks two calls in a row with different inputs, on two ranks, in every case."""
    compile_ahead(place, report, prepare, cases())
    for name, schedule in cases():
        program, (n, k) = operators()[name], (place.sizes[d] for d in "NK")
        about = {"dtype": "bfloat16", "world": WORLD, "shape": f"M={list(place.parts[WORLD])},N={n},K={k}"}
        with report.case("result", op=name, schedule=schedule, **about) as found:
            sets = [inputs(place, program, place.parts[WORLD], seed) for seed in range(CALLS)]
            outs = place.world(WORLD).run(
                lambda g, i=sets, p=program, s=schedule: [x.call(p, g, schedule=s) for x in i]
            )
            found |= {"calls": CALLS, **judged(sets, outs)}


def prepare(name: str, schedule: str) -> None:
    """Compiles a case on the GPU."""
    place, program = gpu(), operators()[name]
    given = inputs(place, program, place.parts[WORLD])
    place.world(WORLD).run(lambda group: given.call(program.prepare, group, schedule=schedule))
