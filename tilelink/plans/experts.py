"""Layers of experts on a machine: dispatch with the first product, the second with combine, fused and unfused.

Predicted where each rank has whole experts, with tokens dealt out evenly over them. Where experts are cut over ranks no
program here computes them, and there is a bound alone.
"""

from __future__ import annotations

from typing import Any

from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate.costs import GB_S, TFLOP_S, collective
from tilelink.frontend.values import ITEM_SIZE
from tilelink.kernels import operators
from tilelink.plans.choose import Choice, chosen
from tilelink.plans.forms import Question, tried
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


def choose_experts(experts: Experts, machine: Machine, dtype: str, tokens: int) -> Choice | None:
    """Whether the program of a layer beats the unfused form for `tokens` of all ranks, in the best of its schedules, as
    fitted. None where experts are cut, or the program can't be on the machine. Raises MachineMemoryError."""
    if experts.cut > 1:
        return None
    program = operators()[PROGRAMS[experts.name]]
    shape: dict[str, Any] = {"routed": tokens * experts.each, "experts": experts.all // experts.spread}
    shape |= {"K": experts.depth, "N": experts.columns}
    on = {"machine": machine, "world": experts.spread, "dtypes": dtype, **shape}
    known = [Plan(name, program, NamedSchedule(name)) for name in program.schedules]
    forms = tried(known, lambda plan, beaten: program.simulate(plan.name, **on))
    if (best := forms.prediction) is None:
        return None
    plain = Unfused(best.compute_us, collective(best.steps, machine), machine.launch_us)
    return chosen(Question(experts.name, machine, experts.spread, dtype, shape), plain, forms)


def experts_bound_us(experts: Experts, machine: Machine, dtype: str, tokens: int) -> float:
    """Microseconds that no form is faster than, where each expert gets as many tokens as any: the longer of its
    products at the rate of all SMs, and of reading the weights of experts that have a token."""
    rows = tokens * experts.each / experts.spread
    reached = min(experts.all / experts.spread, rows)
    products = 2 * rows * experts.columns * experts.depth / (machine.matmul_rate(dtype) * TFLOP_S)
    weights = reached * experts.columns * experts.depth * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)
    return max(products, weights)
