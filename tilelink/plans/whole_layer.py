"""A whole layer of experts on a machine: unfused, in two kernels with SwiGLU between, or in one. Predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilelink.analysis.machine import Machine
from tilelink.analysis.machine import machine as described
from tilelink.analysis.simulate.costs import GB_S
from tilelink.errors import TileLinkError
from tilelink.frontend.kept import kept
from tilelink.frontend.values import ITEM_SIZE
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.plans.choose import MARGIN, compared, path_of
from tilelink.plans.experts import Tokens, experts_bound_us
from tilelink.plans.forms import Forms
from tilelink.plans.layer_plans import OF_ROWS, PAIRS, Pair, combined, plan_of, plans_of
from tilelink.plans.model import WholeLayer
from tilelink.plans.names import TORCH, plans
from tilelink.plans.room import room
from tilelink.plans.routings import EVEN


@dataclass(frozen=True)
class LayerChoice:
    """The result of `choose_layer`, in predicted microseconds. `forms_us`: of each fused plan of `mixture_of_experts`
    that was simulated. `fastest`: the fastest plan. `bound_us`: no schedule in one kernel is faster."""

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
        """The form that is predicted to be worth it: "fused" or "unfused"."""
        return "fused" if self.unfused_us >= (1 + MARGIN) * self.fused_us else "unfused"

    @property
    def plan(self) -> str:
        """The plan as operators take it; "torch" for the unfused form."""
        return self.fastest if self.choice == "fused" else TORCH


def choose_layer(
    layer: WholeLayer, machine: Machine, dtype: str, tokens: int, routing: str = EVEN
) -> LayerChoice | None:
    """The form of a layer that is predicted to be the fastest for `tokens` of all ranks: unfused; two kernels with
    SwiGLU between them, by a pair of programs in each of its schedules; or one kernel. The fastest form has the best
    numbers of SMs for moving rows. A rank has room for all rows that may come. None if a program can't run on the
    machine. Raises MachineMemoryError."""
    gate_up, down = layer
    asked = Tokens(machine, dtype, tokens, routing)
    rows, there = room(gate_up, tokens), tokens * gate_up.each // gate_up.spread
    forms = LayerForms.of(asked, layer, rows, PAIRS)
    if forms is None:
        return None
    one, of_two, forms_us, best = forms.one, forms.of_two, forms.forms_us, forms.fastest
    assert one.prediction is not None
    of_one, by_two = _least(one.us), _least(of_two)
    between, plain = (activation_us(machine, dtype, n, down.depth) for n in (rows, there))
    unfused_us = sum(asked.unfused(product).total_us for product in layer) + plain
    other = "" if best in (of_one, by_two) else f"{best} takes {forms_us[best]:,.1f} us; "
    said = (
        f"{other}{of_one} takes {forms_us[of_one]:,.1f} us "
        f"({path_of(one.prediction)}); two kernels, {by_two}, take {of_two[by_two]:,.1f} us ({between:,.1f} of "
        f"them SwiGLU over room for {rows:,} rows); unfused takes {unfused_us:,.1f} us ({plain:,.1f} of them SwiGLU "
        f"over {there:,} rows): {compared(unfused_us / forms_us[best])}"
    )
    told = asked.sizes(layer, next(iter(plans(mixture_of_experts.name).values())))
    return LayerChoice(unfused_us, forms_us, best, one.prediction.bound_us, said, told)


@dataclass(frozen=True)
class LayerForms:
    """The fused forms of a layer. `one`: the forms in one kernel. `of_two`: microseconds of two kernels with SwiGLU
    between them, by plan. `forms_us`: of all forms, and of the fastest with the best numbers of SMs."""

    one: Forms
    of_two: Mapping[str, float]
    forms_us: Mapping[str, float]

    @property
    def fastest(self) -> str:
        return _least(self.forms_us)

    @classmethod
    def of(cls, asked: Tokens, layer: WholeLayer, rows: int, pairs: Sequence[Pair]) -> LayerForms | None:
        """The forms; None if a program can't run on the machine. `rows`: the rows that a rank has room for."""
        one, of_two = asked.forms(layer, plans(mixture_of_experts.name).values()), dict[str, float]()
        if one.prediction is None:
            return None
        between = activation_us(asked.machine, asked.dtype, rows, layer.down.depth)
        several: list[TwoKernels] = []
        for pair in pairs:
            beaten = min([*one.us.values(), *of_two.values()]) if several else None
            for two in TwoKernels.of(asked, layer, pair, between, beaten):
                several.append(two)
                of_two |= two.forms_us
        if not several:
            return None
        forms_us = one.us | of_two
        fastest = _least(forms_us)
        if fastest in one.us:
            forms_us |= asked.on_other_sms(layer, one).us
        for two in several:
            forms_us |= two.on_other_sms(fastest) if fastest in two.forms_us else {}
        return cls(one, of_two, forms_us)


class TwoKernels:
    """The forms of a layer by a pair of programs, with `between_us` for SwiGLU between them."""

    def __init__(
        self, asked: Tokens, layer: WholeLayer, pair: Pair, between_us: float, forms: Sequence[Forms]
    ) -> None:
        self.asked, self.pair, self.between_us, self.forms = asked, pair, between_us, forms
        self.products = list(zip(layer, (pair.first, pair.second), strict=True))
        self.forms_us = dict(self._together())

    @classmethod
    def of(
        cls, asked: Tokens, layer: WholeLayer, pair: Pair, between_us: float, beaten: float | None
    ) -> list[TwoKernels]:
        """The forms of a pair. Empty if a program can't run on the machine, or if the first program with the bound of
        the second product takes `beaten` us or more."""
        first = asked.forms(layer.gate_up, plans_of(pair, pair.first))
        if first.fastest is None or first.fastest.us is None:
            return []
        least = first.fastest.us + between_us
        least += experts_bound_us([layer.down], asked.machine, asked.dtype, asked.number, asked.routing)
        if beaten is not None and least >= beaten:
            return []
        second = asked.forms(layer.down, plans_of(pair, pair.second))
        return [] if second.fastest is None else [cls(asked, layer, pair, between_us, (first, second))]

    def _together(self) -> Iterator[tuple[str, float]]:
        """The plans whose two programs were simulated, with their times. A program without a schedule of the name takes
        its first one."""
        times = [{form.by.name: form.us for form in forms.all} for forms in self.forms]
        for name in self.pair.schedules:
            parts = [of.get(name, next(iter(of.values()))) for of in times]
            if None not in parts:
                yield name, self.between_us + sum(us for us in parts if us is not None)

    def on_other_sms(self, name: str) -> dict[str, float]:
        """The form of a plan with the best numbers of SMs: its plan, and its time."""
        found = []
        for experts, program in self.products:
            forms = self.asked.forms(experts, [plan_of(self.pair, program, name)])
            forms = self.asked.on_other_sms(experts, forms)
            assert forms.fastest is not None and forms.fastest.us is not None
            found.append(forms.fastest)
        return {combined([form.by for form in found]): self.between_us + sum(form.us or 0.0 for form in found)}


@dataclass(frozen=True)
class LayerQuestion:
    """The call for which a plan of `mixture_of_experts` is chosen. `machine`: its name, None if unknown. `reserved`:
    SMs that are left to others. `tokens`, `experts`: of all ranks. `top`: experts of a token. `width`: features of a
    token. `hidden`: features of an expert on a rank. `rows`: the rows that a rank has room for. `slices`: ranks that
    share an expert. `once`: whether plans "once" are tried."""

    machine: str | None
    reserved: int
    world: int
    dtype: str
    tokens: int
    experts: int
    top: int
    width: int
    hidden: int
    rows: int
    slices: int = 1
    once: bool = False

    def rounded(self) -> LayerQuestion:
        """The same question for tokens rounded down to a power of two, with room for rows in proportion."""
        least = 1 << max(0, self.tokens.bit_length() - 1)
        return replace(self, tokens=least, rows=self.rows * least // max(1, self.tokens))


def fastest_layer(asked: LayerQuestion) -> str:
    """The plan of `mixture_of_experts` that is predicted to be the fastest on a machine; "push" if nothing is
    predicted. Plain torch is left out, since its host reads the counts. Numbers of tokens between two powers of two
    share a plan, if ranks have room for rows in proportion."""
    return _fastest(asked.rounded())


@kept(4096)
def _fastest(asked: LayerQuestion) -> str:
    """`fastest_layer` for a rounded question."""
    spread = asked.world // asked.slices
    layer = WholeLayer.of(asked.experts, asked.top, asked.width, asked.hidden, spread, asked.slices)
    try:
        tokens = Tokens(described(asked.machine or "").leaving(asked.reserved), asked.dtype, asked.tokens)
        forms = LayerForms.of(tokens, layer, asked.rows, PAIRS if asked.once else (OF_ROWS,))
    except TileLinkError:
        forms = None
    return "push" if forms is None else forms.fastest


def activation_us(machine: Machine, dtype: str, rows: int, hidden: int) -> float:
    """Microseconds of SwiGLU on rows (rows, 2 * hidden), in a separate kernel that reads and writes device memory."""
    return machine.launch_us + 3 * rows * hidden * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)


def _least(forms_us: Mapping[str, float]) -> str:
    return min(forms_us, key=lambda name: forms_us[name])
