"""Room on a rank: rows of layers of experts, and bytes of the heap."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from tilelink.analysis.placement import placed
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.plans.layer_plans import OF_TOKENS, PAIRS, in_one, is_once, plan_of, plans_of, sizes_of_layer
from tilelink.plans.model import GATE_UP, Experts, WholeLayer
from tilelink.plans.names import AUTO, TORCH, Plan, planned, plans
from tilelink.programs.fitting import takes


def rows_at_most(world: int, tokens: int, top: int, experts: int) -> int:
    """The most rows that a rank with this number of `experts` can get, if each rank has `tokens` tokens for `top`
    experts each. With room for them, no row is ever dropped."""
    return world * tokens * min(top, experts)


def room(experts: Experts, tokens: int) -> int:
    """Rows that a rank has room for by default, with an even part of `tokens`."""
    each = ceil(tokens / experts.world)
    return rows_at_most(experts.world, each, experts.each, experts.all // experts.spread)


def heap_bytes(layer: Experts | WholeLayer, plan: str | None, dtype: str, tokens: int, rows: int) -> int:
    """Bytes of a rank's slot of the symmetric heap for one call of a plan, if each rank has `tokens` tokens and room
    for `rows` rows; a lane has two slots. "auto" takes the most that any plan takes, "torch" takes none."""
    return max((_slot_bytes(by, of, dtype, tokens, rows) for by, of in _programs(layer, plan)), default=0)


def _programs(layer: Experts | WholeLayer, plan: str | None) -> Iterator[tuple[Plan, Experts | WholeLayer]]:
    """The programs by which a plan may compute a layer, each with what it computes. If one kernel computes the layer,
    two more compute its gradients."""
    if plan == TORCH:
        return
    name, every = plan, plan == AUTO
    if isinstance(layer, WholeLayer) and (every or in_one(plan)):
        for by in plans(mixture_of_experts.name).values() if every else [planned(mixture_of_experts.name, plan)]:
            yield by, layer
            name = by.schedule.name
    for pair in PAIRS:
        if every or (pair is OF_TOKENS) == is_once(plan):
            for product in layer.products:
                program = pair.first if product.name == GATE_UP else pair.second
                for by in plans_of(pair, program) if every else [plan_of(pair, program, name)]:
                    yield by, product


def _slot_bytes(plan: Plan, layer: Experts | WholeLayer, dtype: str, tokens: int, rows: int) -> int:
    """Bytes for the program of one plan; 0 if its schedule can't be told which tokens go to which ranks."""
    first, program = layer.products[0], plan.program
    parts = {"tokens": tokens, "sent": tokens * first.each * first.cut, "routed": rows}
    sizes: dict[str, Any] = {d: (length,) * first.world for d, length in parts.items()}
    sizes |= sizes_of_layer(layer, program)
    dtypes = dict.fromkeys(program.of_any_dtype - program.on_demand, dtype)
    if program in (OF_TOKENS.first, OF_TOKENS.second) and first.spread > 1:
        dtypes["wanted"] = "int32"
        if not takes(program, plan.schedule.name, frozenset(["wanted"])):
            return 0
    absent = program.absent(dtypes)
    fitted = program.fit(plan.schedule, world=first.world, dtypes=dtypes, absent=absent, sizes=sizes)
    bound = program.bind(fitted, dtypes, absent)
    return placed(bound, Sizes.of(bound, first.world, sizes, counted=False)).data_bytes
