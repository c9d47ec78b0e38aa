"""Layers of experts on a machine: dispatch with the first product, the second with combine, fused and unfused; and the
whole layer in two kernels or in one.

Predicted where each rank has whole experts, with tokens dealt out evenly over them, or by a power law. Where experts
are cut over ranks no program here computes them, and there is a bound alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from tilelink.analysis.machine import Machine
from tilelink.analysis.machine import machine as described
from tilelink.analysis.simulate import Prediction, predict, steps_of
from tilelink.analysis.simulate.costs import GB_S, TFLOP_S, collective, costs, workers_least
from tilelink.analysis.simulate.verdict import times_as_fast
from tilelink.errors import TileLinkError
from tilelink.frontend.kept import kept
from tilelink.frontend.values import ITEM_SIZE
from tilelink.kernels import operators
from tilelink.plans.choose import MARGIN, Choice, chosen, path_of
from tilelink.plans.forms import Forms, Question, tried
from tilelink.plans.model import Experts
from tilelink.plans.names import TORCH, Plan, plans
from tilelink.plans.unfused import Unfused
from tilelink.programs.program import Program
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
    shape = {"K": experts.depth, "N": experts.columns}
    forms = _forms(program, shape, experts, machine, dtype, tokens, routing)
    if forms.prediction is None:
        return None
    told = _shape(program, shape, experts, tokens)
    return chosen(Question(experts.name, machine, experts.spread, dtype, told), _plain(forms, machine), forms)


def _shape(program: Program, shape: dict[str, int], experts: Experts, tokens: int) -> dict[str, Any]:
    """All sizes of a program of experts."""
    every = {"routed": tokens * experts.each, "experts": experts.all // experts.spread, **shape, "tokens": tokens}
    return every | ({"top": experts.each} if "top" in program.recorded().dims else {})


def _forms(
    program: Program, shape: dict[str, int], experts: Experts, machine: Machine, dtype: str, tokens: int, routing: str
) -> Forms:
    """The forms of a program, one a schedule. The structure shows that it is safe, so no events are checked."""
    sizes = _shape(program, shape, experts, tokens)
    if routing == POWER_LAW:
        sizes["routed"] = power_law(experts, tokens)
    on: dict[str, Any] = {"world": experts.spread, "sizes": sizes, "dtypes": dtype}

    def predicted(plan: Plan, beaten: float | None) -> Prediction | str:
        bound, exact = program.bound_at(plan.name, per_node=machine.nodes_of(experts.spread), **on)
        steps = steps_of(bound, exact, machine, {})
        least = workers_least(steps, costs(steps, machine, {}), machine)
        if beaten is not None and least >= beaten:
            return f"its busiest workers alone take {least:,.1f} us"
        return predict(steps, machine, {})

    return tried([Plan(name, program, NamedSchedule(name)) for name in program.schedules], predicted)


def _plain(forms: Forms, machine: Machine) -> Unfused:
    """The unfused form, of the fastest fused one."""
    assert forms.prediction is not None
    return Unfused(forms.prediction.compute_us, collective(forms.prediction.steps, machine), machine.launch_us)


class WholeLayer(NamedTuple):
    """The two products of a layer of experts, with what stands between."""

    gate_up: Experts
    down: Experts

    @property
    def name(self) -> str:
        return "experts"


@dataclass(frozen=True)
class LayerChoice:
    """What `choose_layer` found, in microseconds, predicted. `forms_us`: of each fused plan of `mixture_of_experts`;
    `fastest`: the plan that takes least; `bound_us`: no schedule in one kernel is faster."""

    unfused_us: float
    forms_us: Mapping[str, float]
    fastest: str
    bound_us: float
    reason: str
    shape: Mapping[str, Any]

    @property
    def fused_us(self) -> float:
        return self.forms_us[self.fastest]

    @property
    def choice(self) -> str:
        """What is predicted to be worth it: "fused" or "unfused"."""
        return "fused" if self.unfused_us >= (1 + MARGIN) * self.fused_us else "unfused"

    @property
    def plan(self) -> str:
        """What operators take, "torch" for the unfused form."""
        return self.fastest if self.choice == "fused" else TORCH


def choose_layer(
    layer: WholeLayer, machine: Machine, dtype: str, tokens: int, routing: str = EVEN, rows: int | None = None
) -> LayerChoice | None:
    """Which form of a layer is predicted to be the fastest for `tokens` of all ranks: unfused, two kernels with SwiGLU
    between, in each schedule that both have, or one kernel. `rows`: that a rank has room for, by default all that may
    come. None where experts are cut, or a program can't be on the machine. Raises MachineMemoryError."""
    gate_up, down = layer
    if gate_up.cut > 1:
        return None
    whole = operators()["mixture_of_experts"]
    shape = {"K": gate_up.depth, "N": down.depth}
    given = (gate_up, machine, dtype, tokens, routing)
    first, second = (
        _forms(operators()[PROGRAMS[e.name]], {"K": e.depth, "N": e.columns}, e, *given[1:]) for e in layer
    )
    one = _forms(whole, shape, *given)
    if one.prediction is None or first.prediction is None or second.prediction is None:
        return None
    rows, there = room(gate_up, tokens) if rows is None else rows, tokens * gate_up.each // gate_up.spread
    between, plain = (_activation_us(machine, dtype, n, down.depth) for n in (rows, there))
    forms_us = {name: form.us for name, form in zip(plans(whole.name), one.all, strict=True) if form.us is not None}
    of_one = min(forms_us, key=lambda name: forms_us[name])
    parts = {f.plan: (f.us, s.us) for f in first.all for s in second.all if f.plan == s.plan}
    two = {name: a + between + b for name, (a, b) in parts.items() if a is not None and b is not None}
    if not two:
        return None
    of_two = min(two, key=lambda name: two[name])
    forms_us |= two
    apart = [_plain(forms, machine) for forms in (first, second)]
    unfused_us = sum(p.total_us for p in apart) + plain
    first_us, second_us = parts[of_two]
    said = (
        f"{of_one} takes {forms_us[of_one]:,.1f} us ({path_of(one.prediction)}); two kernels, {of_two}, take "
        f"{two[of_two]:,.1f} us ({first_us:,.1f} and {second_us:,.1f}, {between:,.1f} SwiGLU over room for {rows:,} "
        f"rows); unfused takes {unfused_us:,.1f} us ({sum(p.product_us for p in apart):,.1f} products, "
        f"{sum(p.collective_us for p in apart):,.1f} collectives, {plain:,.1f} SwiGLU over {there:,} rows)"
    )
    fastest = min(forms_us, key=lambda name: forms_us[name])
    ratio = unfused_us / forms_us[fastest]
    said += f": {times_as_fast(ratio)}" + (f", where predictions need {1 + MARGIN:.2f}" if ratio < 1 + MARGIN else "")
    told = _shape(whole, shape, gate_up, tokens)
    return LayerChoice(unfused_us, forms_us, fastest, one.prediction.bound_us, said, told)


@kept(4096)
def fastest_layer(
    name: str | None, reserved: int, world: int, dtype: str, tokens: int, experts: int, top: int, width: int,
    hidden: int, rows: int,
) -> str:  # fmt: skip
    """The plan of `mixture_of_experts` that is predicted to be the fastest on a machine, but for plain torch, whose
    host reads the counts; "push" where nothing is predicted. `reserved`: SMs that are left to others; `tokens`,
    `experts`: of all ranks; `rows`: that a rank has room for. Numbers of tokens between two powers of two share a plan.
    """
    tokens = 1 << max(0, tokens.bit_length() - 1)
    found = (("experts_gate_up", 2 * hidden, width), ("experts_down", width, hidden))
    layer = WholeLayer(*(Experts(of, experts, top, columns, depth, world, 1) for of, columns, depth in found))
    try:
        choice = choose_layer(layer, described(name or "").leaving(reserved), dtype, tokens, rows=rows)
    except TileLinkError:
        choice = None
    return "push" if choice is None else choice.fastest


def _activation_us(machine: Machine, dtype: str, rows: int, hidden: int) -> float:
    """SwiGLU of rows (rows, 2 * hidden), in one kernel of its own that reads and writes device memory."""
    return machine.launch_us + 3 * rows * hidden * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)


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


def layer_heap_bytes(layer: WholeLayer, dtype: str, tokens: int) -> int:
    """As `heap_bytes`, of the whole layer in one kernel: rows that arrive, hidden features, results, and what comes
    back."""
    gate_up, down = layer
    return heap_bytes(gate_up, dtype, tokens) + room(gate_up, tokens) * down.depth * ITEM_SIZE[dtype] + heap_bytes(
        down, dtype, tokens
    )


def experts_bound_us(experts: Experts, machine: Machine, dtype: str, tokens: int) -> float:
    """Microseconds that no form is faster than, where each expert gets as many tokens as any: the longer of its
    products at the rate of all SMs, and of reading the weights of experts that have a token."""
    rows = tokens * experts.each / experts.spread
    reached = min(experts.all / experts.spread, rows)
    products = 2 * rows * experts.columns * experts.depth / (machine.matmul_rate(dtype) * TFLOP_S)
    weights = reached * experts.columns * experts.depth * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)
    return max(products, weights)
