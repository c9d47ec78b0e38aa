"""The two products of a layer of experts on a machine, fused and unfused: by which program, in which schedule, with how
many SMs for moving rows. Predicted, for tokens that go to experts evenly, or by a power law."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate import Prediction, steps_of
from tilelink.analysis.simulate.costs import GB_S, TFLOP_S, collective, compute, costs, moving_least, workers_least
from tilelink.analysis.simulate.steps import Steps
from tilelink.errors import TileLinkError
from tilelink.frontend.values import ITEM_SIZE
from tilelink.plans.choose import Choice, chosen
from tilelink.plans.forms import BYTES, WORKERS, Forms, Question, if_faster, on_sms, tried, with_other_counts
from tilelink.plans.layer_plans import PAIRS, plans_of, sizes_of_layer
from tilelink.plans.model import GATE_UP, Experts, WholeLayer
from tilelink.plans.names import Plan
from tilelink.plans.routings import EVEN, rows_of_experts, tokens_of_ranks
from tilelink.plans.unfused import Unfused


@dataclass(frozen=True)
class Tokens:
    """The question of a prediction: a number of tokens of all ranks, which go to experts by one of `ROUTINGS`, a dtype
    and a machine."""

    machine: Machine
    dtype: str
    number: int
    routing: str = EVEN

    def predicted(self, layer: Experts | WholeLayer, plan: Plan, beaten: float | None) -> Prediction | str:
        """The prediction of a plan; or why no run of it takes less than `beaten` us. Events are not checked, since the
        structure shows that the program is safe."""
        bounds = {WORKERS: workers_least, BYTES: moving_least}
        return if_faster(self._steps(layer, plan), self.machine, beaten, bounds)

    def _steps(self, layer: Experts | WholeLayer, plan: Plan) -> Steps:
        program, machine, experts = plan.program, self.machine, layer.products[0]
        sizes: dict[str, Any] = self.sizes(layer, plan)
        sizes["routed"] = rows_of_experts(experts, self.number, self.routing)
        told = tokens_of_ranks(experts, self.number, self.routing)
        sizes |= {name: told[name] for name in told.keys() & program.parameters.keys()}
        nodes = machine.nodes_of(experts.world)
        bound = program.bound_at(plan.schedule, world=experts.world, sizes=sizes, dtypes=self.dtype, per_node=nodes)
        return steps_of(*bound, machine, {})

    def unfused(self, experts: Experts) -> Unfused:
        """A product in plain torch: a library's product on all SMs, in the fastest of our tiles, and a library's
        collective. The collective sends a token for each of its experts, or once to each rank that has some of them,
        whichever takes less time."""
        machine, products, collectives = self.machine.of_library, [], []
        plans = {_tiles(plan): plan for plan in plans_of_product(experts)}  # how rows are moved makes no difference
        for plan in plans.values():
            try:
                steps = self._steps(experts, plan)
                products.append(compute(steps, costs(steps, machine, {}), machine))
            except TileLinkError:  # a schedule that can't run on this machine
                continue
            collectives.append(collective(steps, machine))
        return Unfused(min(products), min(collectives), machine.launch_us)

    def sizes(self, layer: Experts | WholeLayer, plan: Plan) -> dict[str, int]:
        """All sizes of a program."""
        experts = layer.products[0]
        of_tokens = {"tokens": self.number, "routed": self.number * experts.each * experts.cut}
        return of_tokens | sizes_of_layer(layer, plan.program)

    def forms(self, layer: Experts | WholeLayer, plans: Iterable[Plan]) -> Forms:
        """The forms of these plans."""
        return tried(plans, partial(self.predicted, layer))

    def on_other_sms(self, layer: Experts | WholeLayer, forms: Forms) -> Forms:
        """The forms, and the fastest one with other numbers of SMs for moving rows, if that is faster."""
        return with_other_counts(forms, partial(self.predicted, layer))


def plans_of_product(experts: Experts) -> Iterator[Plan]:
    """The plans of a product: all schedules of its program in both pairs."""
    for pair in PAIRS:
        yield from plans_of(pair, pair.first if experts.name == GATE_UP else pair.second)


def _tiles(plan: Plan) -> tuple[Any, ...]:
    """The program of a plan, and the tiles of the roles that share SMs, which are the roles that multiply."""
    return plan.program, *(r.tile for r in on_sms(plan) if r.count is None)


def choose_experts(
    experts: Experts, machine: Machine, dtype: str, tokens: int, routing: str = EVEN
) -> Choice | None:
    """The choice for a product and `tokens` of all ranks: the unfused form, or a program in the best of its schedules,
    with the best numbers of SMs for moving rows. `routing`: one of `ROUTINGS`. None if no program can run on the
    machine. Raises MachineMemoryError."""
    asked = Tokens(machine, dtype, tokens, routing)
    forms = asked.forms(experts, plans_of_product(experts))
    if forms.fastest is None:
        return None
    forms = asked.on_other_sms(experts, forms)
    assert forms.fastest is not None
    told = asked.sizes(experts, forms.fastest.by)
    question = Question(experts.name, machine, experts.world, dtype, told)
    return chosen(question, asked.unfused(experts), forms)


def experts_bound_us(
    products: Sequence[Experts], machine: Machine, dtype: str, tokens: int, routing: str = EVEN
) -> float:
    """A lower bound on all forms of these products, in microseconds. It is the longer of two times: for the operations
    at the rate of all SMs; and, if tokens go evenly to experts, for reading the weights of those that have a token."""
    operations = weights = 0.0
    for experts in products:
        rows = tokens * experts.each / experts.spread
        reached = min(experts.all / experts.spread, rows) if routing == EVEN else 0.0
        operations += 2 * rows * experts.columns * experts.depth
        weights += reached * experts.columns * experts.depth * ITEM_SIZE[dtype]
    return max(operations / (machine.matmul_rate(dtype) * TFLOP_S), weights / (machine.memory_rate * GB_S))
