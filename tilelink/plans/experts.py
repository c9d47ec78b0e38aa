"""Layers of experts on a machine: dispatch with the first product, the second with combine, fused and unfused.

Predicted where each rank has whole experts, with tokens dealt out evenly over them, or by a power law. Where experts
are cut over ranks no program here computes them, and there is a bound alone.
"""

from __future__ import annotations

import random
from math import ceil
from typing import Any

import numpy as np

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


ROUTINGS = EVEN, POWER_LAW = "even", "power-law"
EXPONENT = 1.2
"""Of the power law: the expert that is k-th in demand is asked for k ** -1.2 times as often as the first, by no more
tokens than there are. NVIDIA's aiconfigurator measures layers of experts so (`power_law_1.2`)."""


def choose_experts(
    experts: Experts, machine: Machine, dtype: str, tokens: int, routing: str = EVEN
) -> Choice | None:
    """Whether the program of a layer beats the unfused form for `tokens` of all ranks, in the best of its schedules, as
    fitted. `routing`: one of `ROUTINGS`. None where experts are cut, or the program can't be on the machine. Raises
    MachineMemoryError."""
    if experts.cut > 1:
        return None
    program = operators()[PROGRAMS[experts.name]]
    shape: dict[str, Any] = {"routed": tokens * experts.each, "experts": experts.all // experts.spread}
    shape |= {"K": experts.depth, "N": experts.columns, "tokens": tokens}
    shape |= {"top": experts.each} if program.name == "matmul_combine" else {}
    on = {"machine": machine, "world": experts.spread, "dtypes": dtype, **shape}
    if routing == POWER_LAW:
        on["routed"] = power_law(experts, tokens)
    known = [Plan(name, program, NamedSchedule(name)) for name in program.schedules]
    forms = tried(known, lambda plan, beaten: program.simulate(plan.name, **on))
    if (best := forms.prediction) is None:
        return None
    plain = Unfused(best.compute_us, collective(best.steps, machine), machine.launch_us)
    return chosen(Question(experts.name, machine, experts.spread, dtype, shape), plain, forms)


def power_law(experts: Experts, tokens: int) -> list[list[int]]:
    """Rows of each expert from each rank, of `tokens` dealt out over the experts by the power law. Which experts are
    asked for most is drawn, always alike."""
    asked = np.arange(1, experts.all + 1) ** -EXPONENT
    rows, left = np.zeros(experts.all), float(tokens * experts.each)
    while left > 0.5:  # what an expert can't take, since it has all tokens, goes to others
        free = rows < tokens
        rows[free] += left * asked[free] / asked[free].sum()
        left = float((rows - tokens).clip(0).sum())
        rows = rows.clip(max=tokens)
    ends = np.rint(np.cumsum(rows)).astype(int)
    whole = np.diff(ends, prepend=0).tolist()
    random.Random(0).shuffle(whole)
    ranks = range(experts.spread)
    return [[n * (s + 1) // experts.spread - n * s // experts.spread for s in ranks] for n in whole]


def room(experts: Experts, tokens: int) -> int:
    """Rows that a rank has room for by default, where it has an even part of `tokens`: no row is ever dropped."""
    return experts.spread * ceil(tokens / experts.spread) * min(experts.each, experts.all // experts.spread)


def heap_bytes(experts: Experts, dtype: str, tokens: int) -> int:
    """Bytes of a rank's slot of the symmetric heap that the program of a layer takes for that room; a lane has two
    slots. Before the product there are rows; behind it what experts made, and what comes back."""
    back = ceil(tokens / experts.spread) * experts.each
    arrives = room(experts, tokens) * experts.depth
    leaves = (room(experts, tokens) + back) * experts.columns
    return ITEM_SIZE[dtype] * (arrives if PROGRAMS[experts.name] == "dispatch_matmul" else leaves)


def experts_bound_us(experts: Experts, machine: Machine, dtype: str, tokens: int) -> float:
    """Microseconds that no form is faster than, where each expert gets as many tokens as any: the longer of its
    products at the rate of all SMs, and of reading the weights of experts that have a token."""
    rows = tokens * experts.each / experts.spread
    reached = min(experts.all / experts.spread, rows)
    products = 2 * rows * experts.columns * experts.depth / (machine.matmul_rate(dtype) * TFLOP_S)
    weights = reached * experts.columns * experts.depth * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)
    return max(products, weights)
