"""Layers of experts on a machine: dispatch with the first product, the second with combine, fused and unfused.

Predicted where each rank has whole experts, with tokens dealt out evenly over them. Where experts are cut over ranks no
program here computes them, and there is a bound alone.
"""

from __future__ import annotations

from typing import Any

from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate import Prediction
from tilelink.analysis.simulate.costs import GB_S, TFLOP_S
from tilelink.errors import MachineMemoryError, TileLinkError
from tilelink.frontend.values import ITEM_SIZE
from tilelink.plans.forms import Form, Forms
from tilelink.plans.model import Experts
from tilelink.plans.names import Plan
from tilelink.plans.unfused import Unfused
from tilelink.programs.schedule_text import NamedSchedule

PROGRAMS = {"experts_gate_up": "dispatch_matmul", "experts_down": "matmul_combine"}
"""The program of each layer."""
CUT = (
    "no program of this library computes experts that are cut over ranks, so neither form is predicted (--ep with all "
    "ranks keeps them whole); the bound is that of products and of reading weights, where tokens are spread evenly "
    "over the experts"
)


def experts_shape(experts: Experts, tokens: int) -> dict[str, int]:
    """The sizes of the program of a layer: `tokens` of all ranks."""
    sizes = {"routed": tokens * experts.each, "experts": experts.all // experts.spread}
    return sizes | {"K": experts.depth, "N": experts.columns}


def experts_forms(experts: Experts, machine: Machine, dtype: str, tokens: int) -> tuple[Unfused, Forms] | None:
    """The unfused form, and the fused ones: every schedule of the program, as fitted. None where experts are cut, or
    the program can't be on the machine. Raises MachineMemoryError."""
    from tilelink.kernels import operators

    if experts.cut > 1:
        return None
    program, shape = operators()[PROGRAMS[experts.name]], dict[str, Any](experts_shape(experts, tokens))
    found: list[Form] = []
    best: Prediction | None = None
    for schedule in program.schedules:
        us, why = None, ""
        try:
            made = program.simulate(schedule, machine=machine, world=experts.spread, dtypes=dtype, **shape)
            us = made.makespan_us
            best = made if best is None or us < best.makespan_us else best
        except MachineMemoryError:
            raise
        except TileLinkError as e:
            why = e.message
        found.append(Form(Plan(schedule, program, NamedSchedule(schedule)), us, why))
    if best is None:
        return None
    fastest = min((f for f in found if f.us is not None), key=lambda f: f.us or 0.0)
    collective = best.unfused_us - best.compute_us - machine.launch_us
    return Unfused(best.compute_us, collective, machine.launch_us), Forms(tuple(found), fastest, best)


def experts_bound_us(experts: Experts, machine: Machine, dtype: str, tokens: int) -> float:
    """Microseconds that no form is faster than, where each expert gets as many tokens as any: the longer of its
    products at the rate of all SMs, and of reading the weights of experts that have a token."""
    rows = tokens * experts.each / experts.spread
    reached = min(experts.all / experts.spread, rows)
    products = 2 * rows * experts.columns * experts.depth / (machine.matmul_rate(dtype) * TFLOP_S)
    weights = reached * experts.columns * experts.depth * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)
    return max(products, weights)
