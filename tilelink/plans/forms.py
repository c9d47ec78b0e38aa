"""The fused forms of an operator on a machine: every plan in its schedule, fitted to the sizes, and the fastest plans
with changes of their schedules. Predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilelink.analysis.check import check_events
from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate import Prediction, predict, steps_of
from tilelink.analysis.simulate.costs import Costs, costs, moving_least, workers_least
from tilelink.analysis.simulate.steps import Steps
from tilelink.errors import MachineMemoryError, TileLinkError
from tilelink.frontend.ir import Role
from tilelink.frontend.schedule import STREAMS, CopyEngine, SMs
from tilelink.plans.names import Plan, plans, sizes_of
from tilelink.plans.unfused import NARROWEST, Shape
from tilelink.programs.program import Program
from tilelink.programs.schedule_text import NamedSchedule

GAIN = 0.02
"""The share by which a change must make a form faster to be worth a longer name. Changes are other SMs or streams of a
role, and narrower tiles if all SMs have one."""
REACH = 1.3
"""Forms that take at most this many times as long as the fastest are changed, too: narrower tiles help some more than
others."""
NARROW = 64
"""Columns of the narrowest tile that is tried if tiles fill all SMs. The main loop of narrower tiles takes more time to
issue its instructions than to multiply (80 of 8 warps in 160 clocks, 128 x 32 x 64 products in 128). The model does not
know this."""
UNJUDGED = 'not tried: no published kernel has waits="pieces", so nothing judges its predictions; ask for it by name'
FILLED = "its tiles go across parts, which is for few rows, but the rows of a rank fill them"
LEFT_OUT = ("bias", "dbias", "gathered", "epilogue")
"""Parameters of programs that predictions leave out."""
WORKERS, BYTES = "its busiest workers", "its bytes between ranks"
"""Names of the bounds of a form that are known before it is simulated."""


@dataclass(frozen=True)
class Form:
    """A fused form. `us`: its predicted time; None if `why` says that it can't run, or can't be the fastest."""

    by: Plan
    us: float | None
    why: str = ""

    @property
    def plan(self) -> str:
        """The plan as operators take it."""
        return str(self.by)

    @property
    def program(self) -> str:
        """The program as `tilelink simulate` takes it."""
        return self.by.program.name

    @property
    def schedule(self) -> str:
        """The schedule as `tilelink simulate` takes it."""
        return str(self.by.schedule)


@dataclass(frozen=True)
class Forms:
    """All forms: the fitted plans, in order, then the fastest one with a changed schedule, if that is faster.
    `fastest`, `prediction`: the fastest form and its prediction; None if no plan can run."""

    all: tuple[Form, ...]
    fastest: Form | None = None
    prediction: Prediction | None = None

    @property
    def us(self) -> dict[str, float]:
        """The times of the forms that can run and were simulated, by plan."""
        return {form.plan: form.us for form in self.all if form.us is not None}

    def and_fastest(self, form: Form, prediction: Prediction) -> Forms:
        """These forms, with the fastest one after all changes."""
        return Forms(self.all if form in self.all else (*self.all, form), form, prediction)


Predict = Callable[[Plan, float | None], Prediction | str]
"""Takes a plan and the time to beat, if there is one. Returns a prediction, or why the plan does not beat that time."""
Bound = Callable[[Steps, Costs, Machine], float]
Change = tuple[str, Any, float]
"""A field of a role's schedule, its new value, and the share by which it has to make a form faster."""


def if_faster(steps: Steps, machine: Machine, beaten: float | None, bounds: Mapping[str, Bound]) -> Prediction | str:
    """The prediction of a run; or the one of its `bounds`, as text, that shows that it takes `beaten` us or more."""
    if beaten is not None:
        each = costs(steps, machine, {})
        for what, bound in bounds.items():
            if (least := bound(steps, each, machine)) >= beaten:
                return f"{what} alone take {least:,.1f} us"
    return predict(steps, machine, {})


def tried(known: Iterable[Plan], predicted: Predict) -> Forms:
    """The forms of plans. If `predicted` raises, the form says why; but MachineMemoryError is raised again."""
    found: list[Form] = []
    fastest: Form | None = None
    best: Prediction | None = None
    for plan in known:
        try:
            made = predicted(plan, best.makespan_us if best else None)
        except MachineMemoryError:
            raise
        except TileLinkError as e:
            made = e.message
        found.append(Form(plan, None, made) if isinstance(made, str) else Form(plan, made.makespan_us))
        if not isinstance(made, str) and (best is None or made.makespan_us < best.makespan_us):
            fastest, best = found[-1], made
    return Forms(tuple(found), fastest, best)


def climbed(
    form: Form,
    prediction: Prediction,
    role: str,
    change: Callable[[str, Prediction], Change | None],
    predicted: Predict,
) -> tuple[Form, Prediction]:
    """The form and its prediction, with changes of a role's schedule that are repeated while they make it faster."""
    while said := change(role, prediction):
        field, value, gain = said
        plan = form.by.and_changed(role, field, value)
        try:
            made = predicted(plan, prediction.makespan_us)
        except TileLinkError:  # a schedule that can't be at these sizes, or takes more SMs than there are
            break
        if isinstance(made, str) or made.makespan_us >= (1 - gain) * prediction.makespan_us:
            break
        form, prediction = Form(plan, made.makespan_us), made
    return form, prediction


def roles_of(prediction: Prediction) -> list[str]:
    """The roles of a schedule; members of a list are one."""
    return list(dict.fromkeys(r.launched for r in prediction.steps.events.program.roles))


def with_other_counts(forms: Forms, predicted: Predict) -> Forms:
    """The forms, and the fastest one with other numbers of SMs: each role's number is doubled, or halved, again and
    again while that is `GAIN` faster. COMET (arXiv 2502.19811, section 3) calls them division points."""
    form, prediction = forms.fastest, forms.prediction
    if form is None or prediction is None:
        return forms
    for role in roles_of(prediction):
        before = form
        for times in (2.0, 0.5):
            if form is before:
                form, prediction = climbed(form, prediction, role, partial(_count, times), predicted)
    return forms.and_fastest(form, prediction)


def _count(times: float, launched: str, prediction: Prediction) -> Change | None:
    """The change that multiplies a role's SMs by `times`; None if its schedule gives no number, or if none is left."""
    roles = prediction.steps.events.program.roles
    resource = next(r.resource for r in roles if r.launched == launched)
    count = int(times * (resource.count or 0))
    return ("count", count, GAIN) if count else None


def on_sms(plan: Plan) -> list[SMs]:
    """The resources of the roles of a plan that run on SMs, without its changes."""
    return [r for r in plan.program.schedule(plan.schedule.name).values() if isinstance(r, SMs)]


def _rows_across(plan: Plan) -> int:
    """Rows of the tiles of a plan that go across the parts of ranks; 0 where none do."""
    across = (r for r in on_sms(plan) if r.order.parts is None)
    return max((int(n or 0) for r in across for n in r.tile[:-1]), default=0)


@dataclass(frozen=True)
class Question:
    """An operator at its sizes, on a machine."""

    operator: str
    machine: Machine
    world: int
    dtype: str
    shape: Shape

    def forms(self) -> Forms:
        """The fused forms. A form that can't run on the machine, such as a multicast, says why. Raises
        MachineMemoryError, and UnsafeProgramError if the check finds the fastest form unsafe."""
        least: dict[str, float] = {}
        simulated: dict[Plan, Prediction] = {}

        def predicted(plan: Plan, beaten: float | None) -> Prediction | str:
            program = plan.program
            if any(r.waits == "pieces" for r in on_sms(plan)):
                return UNJUDGED
            if 0 < _rows_across(plan) * self.world <= int(str(self.shape["M"])):
                return FILLED
            if beaten is not None and program.name not in least:
                least[program.name] = self._least_us(program)
            if beaten is not None and least[program.name] >= beaten:
                return f"{BYTES} alone take {least[program.name]:,.1f} us"
            made = self._predict(plan, beaten)
            if isinstance(made, Prediction):
                simulated[plan] = made
            return made

        found = tried(plans(self.operator).values(), predicted)
        if found.fastest is None or found.prediction is None:
            return found
        near = [f for f in found.all if f.us is not None and f.us <= REACH * found.prediction.makespan_us]
        made = [self._changed(f, simulated[f.by]) for f in near]
        fastest, prediction = min(made, key=lambda m: m[1].makespan_us)
        check_events(prediction.steps.events).raise_if_unsafe()
        return found.and_fastest(fastest, prediction)

    def _predict(self, plan: Plan, beaten: float | None) -> Prediction | str:
        """The prediction of a plan; or why no run of it takes less than `beaten` us, where its steps say so."""
        return if_faster(self._steps(plan.program, plan.schedule), self.machine, beaten, {WORKERS: workers_least})

    def _steps(self, program: Program, schedule: NamedSchedule | None = None, **sizes: int) -> Steps:
        """The steps of a run, with the tensors that predictions have. `sizes` replace those asked for."""
        dtypes = dict.fromkeys((n for n in program.declared if n not in LEFT_OUT), self.dtype)
        nodes, size = self.machine.nodes_of(self.world), sizes_of(program, {**self.shape, **sizes})
        bound = program.bound_at(schedule, world=self.world, sizes=size, dtypes=dtypes, per_node=nodes)
        return steps_of(*bound, self.machine, {})

    def _least_us(self, program: Program) -> float:
        """A lower bound on the time of a program, from its bytes between ranks. These grow with the rows, so the bytes
        of one row a rank are scaled up."""
        few, rows = self.world, self.shape["M"]
        if not isinstance(rows, int) or rows <= few:
            return 0.0
        steps = self._steps(program, M=few)
        return moving_least(steps, costs(steps, self.machine, {}), self.machine) * rows / few

    def _changed(self, form: Form, prediction: Prediction) -> tuple[Form, Prediction]:
        """The form and its prediction after changes of its schedule, for one role after the other; a change is kept if
        it makes the form faster."""
        for role in roles_of(prediction):
            form, prediction = climbed(form, prediction, role, self._change, self._predict)
        return form, prediction

    def _change(self, launched: str, prediction: Prediction) -> Change | None:
        """A change that may make a role faster, and by how much it has to: half the columns of its tiles, if it
        multiplies; twice its SMs, if it has a number of them; other streams of a copy engine. None: there is none."""
        roles = [r for r in prediction.steps.events.program.roles if r.launched == launched]
        resource = roles[0].resource
        if isinstance(resource, CopyEngine):
            return "streams", next(s for s in STREAMS if s != resource.streams), GAIN
        multiplying, count = _multiplying(prediction)
        if launched in {r.launched for r in multiplying}:
            tiles = [tuple(int(n or 0) for n in r.resource.tile) for r in roles]
            columns = {t[-2] for t in tiles}
            half = min(columns) // (2 if len(columns) == 1 else 1)  # so that all members of a list can have it
            least, gain = (NARROWEST, 0.0) if count < self.machine.free_sms else (NARROW, GAIN)
            return None if half < least else ("tile", (*tiles[0][:-2], half, tiles[0][-1]), gain)
        return ("count", 2 * resource.count, GAIN) if resource.count else None


def _multiplying(prediction: Prediction) -> tuple[list[Role], int]:
    """The roles that multiply, and the number of their tiles on a rank."""
    steps = prediction.steps
    tiles = np.unique(steps.tile[steps.operations > 0])
    roles = np.unique(steps.of_tiles("role")[tiles]).tolist()
    return [steps.events.program.roles[k] for k in roles], int((steps.of_tiles("rank")[tiles] == 0).sum())
