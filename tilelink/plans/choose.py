"""The choice of a plan: which is predicted to be the fastest on a machine, whether it beats the unfused form, and
why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilelink.analysis.machine import machine as described
from tilelink.analysis.simulate import Prediction
from tilelink.analysis.simulate.verdict import times_as_fast
from tilelink.errors import ArgumentError, MachineError, Site, TileLinkError, counted, listed, public
from tilelink.frontend.kept import kept
from tilelink.frontend.values import dtype_name
from tilelink.plans.forms import Form, Forms, Question
from tilelink.plans.names import TORCH, Plan, programs
from tilelink.plans.unfused import Shape, Unfused, unfused

MARGIN = 0.15
"""The share by which the unfused form has to take longer than a fused one that is chosen. Predictions are off by as
much, as docs/performance-model.md argues from published rows."""
NAMED = 3
"""The most shares of a critical path that are named, the largest first."""
LEAST = 0.1
"""The smallest share that is named, in microseconds."""


@dataclass(frozen=True)
class Choice:
    """The result of `choose`. All times in microseconds, predicted, never measured.

    `by`: the plan, None for the unfused form. `reason`: a sentence with numbers. `forms`: all fused forms. `fused`: the
    fastest of them, if one can run. `bound_us`: no schedule of its program is faster. `shape`, `dtype`: as asked.
    `machine`: its name.
    """

    operator: str
    machine: str
    world: int
    dtype: str
    shape: Shape
    by: Plan | None
    reason: str
    unfused: Unfused
    fused: Form | None
    bound_us: float | None
    forms: tuple[Form, ...]

    @property
    def plan(self) -> str:
        """The plan as operators take it; "torch" for the unfused form."""
        return TORCH if self.by is None else str(self.by)

    @property
    def choice(self) -> str:
        """The form that is predicted to be worth it: "fused" or "unfused"."""
        return "unfused" if self.by is None else "fused"

    @property
    def unfused_us(self) -> float:
        return self.unfused.total_us

    @property
    def fused_us(self) -> float | None:
        return None if self.fused is None else self.fused.us


@public
def choose(
    operator: str, *, M: int, N: int | Sequence[int], K: int, world: int, machine: str, dtype: str = "bfloat16",
    reserved: int = 0,
) -> Choice:  # fmt: skip
    """The plan of an operator that is predicted to be the fastest: a fused one, if unfused takes at least 1 + `MARGIN`
    (1.15) times as long, else "torch". Times are in us. Takes seconds; results are kept.

    `operator`: "all_gather_linear", "linear_reduce_scatter", "linear_all_reduce", or the backward of one of the first
    two, "all_gather_linear_backward" or "linear_reduce_scatter_backward". `M`: the rows of all ranks. `N`, `K`: output
    and input features of a rank's weight, (N, K); several weights have an N each. `world`: the number of ranks.
    `machine`: its name, or the path of a description. `dtype`: of all tensors. `reserved`: SMs that fused forms leave
    to others, as their lane does; the unfused form has all. Raises ArgumentError, UnknownMachineError, MachineError,
    and MachineMemoryError if the operator does not fit the machine.
    """
    if operator not in programs():
        known = f"there are {listed(programs(), operator)}"
        raise ArgumentError(f"there is no operator {operator!r}; {known}", Site.of_user())
    sizes: dict[str, Any] = {"world": world, "M": M, "N": tuple(N) if isinstance(N, Sequence) else N, "K": K}
    for name, size in sizes.items():
        several = size if isinstance(size, tuple) else (size,)
        if not several or any(not isinstance(n, int) or n < 1 for n in several):
            raise ArgumentError(f"{name}={size!r}; it must be an integer, 1 or more", Site.of_user())
    try:
        of_dtype = dtype_name(dtype)
    except ValueError as e:
        raise ArgumentError(str(e), Site.of_user()) from None
    try:
        return _choose(operator, machine, of_dtype, reserved, **sizes)
    except TileLinkError as e:
        raise e.placed() from None


@kept(4096)
def _choose(
    operator: str, machine: str, dtype: str, reserved: int, world: int, M: int, N: int | tuple[int, ...], K: int
) -> Choice:
    found, shape = described(machine), {"M": M, "N": N, "K": K}
    if world > found.ranks:
        there = counted(found.ranks, "GPU")
        raise MachineError(f"a world of {world} on {found.name}, which has {there}", Site.of_user())
    if world <= found.ranks_per_node < found.ranks:
        within = f"a world of {world} lies within a node of {found.name}, whose collectives are described between nodes"
        raise MachineError(f"{within}: ask for a machine of one node", Site.of_user())
    asked = Question(operator, found.leaving(reserved), world, dtype, shape)
    return chosen(asked, unfused(operator, found, world, dtype, shape), asked.forms())


def chosen(asked: Question, plain: Unfused, forms: Forms) -> Choice:
    """The choice between the unfused form and the fused forms."""
    fastest, bound = forms.fastest, None if forms.prediction is None else forms.prediction.bound_us
    wins = fastest is not None and fastest.us is not None and plain.total_us >= (1 + MARGIN) * fastest.us
    by = fastest.by if wins and fastest else None
    of = (asked.operator, asked.machine.name, asked.world, asked.dtype, asked.shape)
    return Choice(*of, by, reason(plain, forms), plain, fastest, bound, forms.all)


def reason(plain: Unfused, forms: Forms) -> str:
    """A sentence that compares the fastest fused form with the unfused one, and says what both are made of."""
    of_plain = f"unfused takes {plain.total_us:,.1f} us ({_parts(plain)})"
    if forms.fastest is None or forms.prediction is None:
        whys = "; ".join(f"{f.plan}: {f.why}" for f in forms.all)
        return f"{of_plain}; no fused form can run: {whys}"
    fused = forms.prediction.makespan_us
    plan, takes = forms.fastest.plan, f"takes {fused:,.1f} us ({path_of(forms.prediction)})"
    ratio = plain.total_us / fused
    if ratio < 1 + MARGIN:
        return f"{of_plain}; the fastest fused form, {plan}, {takes}: {compared(ratio)}"
    return f"{plan} {takes}, {compared(ratio)}; {of_plain}"


def compared(ratio: float) -> str:
    """How many times as fast as unfused a form is, and whether that is enough, as text."""
    said, needed = times_as_fast(ratio), f"{1 + MARGIN:.2f}"
    if not 1 <= ratio < 1 + MARGIN:
        return said
    just_less = f"just less than the {needed} that predictions need"
    return f"{said}, {just_less if f'{ratio:.2f}' == needed else f'where predictions need {needed}'}"


def _parts(plain: Unfused) -> str:
    parts = [(plain.product_us, "products"), (plain.collective_us, "collective"), (plain.launch_us, "launch")]
    said = ", ".join(f"{us:,.1f} {name}" for us, name in parts)
    return said + (f", less {plain.hidden_us:,.1f} in which products and collective overlap" if plain.hidden_us else "")


def path_of(prediction: Prediction) -> str:
    """The largest parts of the critical path, as text: by role, where members of a list count as one role."""
    roles = {r.name: r.launched for r in prediction.steps.events.program.roles}
    shares: dict[str, float] = defaultdict(float)
    for name, us in prediction.shares_us.items():
        shares[roles.get(name, name)] += us
    largest = [s for s in sorted(shares.items(), key=lambda share: -share[1])[:NAMED] if s[1] >= LEAST]
    if (rest := sum(shares.values()) - sum(us for _, us in largest)) >= LEAST:
        largest.append(("other", rest))
    return ", ".join(f"{us:,.1f} {name}" for name, us in largest)
