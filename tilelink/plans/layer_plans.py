"""Plans of a layer of experts by their names: the two programs that compute its products, and their schedules.

"push" is a schedule of programs that send a row for each choice of a token; "once" and "once:few" are schedules of
programs that send a token once to a rank. A program without a schedule of this name takes its first one. Changes may
follow the name, `push,dispatch.count=8`; each program takes the changes of its own roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilelink.errors import ScheduleError, listed
from tilelink.frontend.kept import kept
from tilelink.kernels.all_gather_grouped_matmul import all_gather_grouped_matmul
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.grouped_matmul_reduce_scatter import grouped_matmul_reduce_scatter
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.language import launched
from tilelink.plans.model import Experts, WholeLayer
from tilelink.plans.names import AUTO, TORCH, Plan
from tilelink.programs.program import Program
from tilelink.programs.schedule_text import NamedSchedule, read_changes, split_schedule

ONCE = "once"
"""The prefix of plans that send a token once to a rank; the sum of its rows there comes back."""
ONE_KERNEL = "one_kernel"
"""The prefix of plans that compute the whole layer in one kernel."""


@dataclass(frozen=True)
class Pair:
    """Two programs that compute the first and the second product of a layer. `prefix`: the prefix of their plans."""

    prefix: str
    first: Program
    second: Program

    @property
    def schedules(self) -> dict[str, str]:
        """The plans of the pair, with the schedule of each. The first is the default."""
        named = dict.fromkeys([*self.first.schedules, *self.second.schedules])
        if not self.prefix:
            return {s: s for s in named}
        default = next(iter(named))
        return {self.prefix if s == default else f"{self.prefix}:{s}": s for s in named}


OF_ROWS = Pair("", dispatch_matmul, matmul_combine)
OF_TOKENS = Pair(ONCE, all_gather_grouped_matmul, grouped_matmul_reduce_scatter)
PAIRS = (OF_ROWS, OF_TOKENS)


def in_one(plan: str | None) -> bool:
    """Whether a plan computes the whole layer in one kernel."""
    return plan is not None and plan.startswith(ONE_KERNEL)


def is_once(plan: str | None) -> bool:
    """Whether a plan sends a token once to a rank."""
    return plan is not None and without_changes(plan).split(":")[0] == ONCE


def without_changes(plan: str) -> str:
    """The name of a plan, without its changes."""
    return plan.split(",")[0].strip()


def sizes_of_layer(layer: Experts | WholeLayer, program: Program) -> dict[str, int]:
    """The sizes of a program that computes a layer, without those of its tokens. If a token sends a row to each slice
    of an expert, each slice is a choice of it."""
    first = layer.products[0]
    sizes = {"experts": first.all // first.spread, **layer.shape}
    if "top" in program.recorded().dims:
        sizes["top"] = first.each * (1 if program in (OF_TOKENS.first, OF_TOKENS.second) else first.cut)
    return sizes


@kept()
def plan_of(pair: Pair, program: Program, plan: str | None) -> Plan:
    """The plan that one program takes of a layer's plan. The program may also be another one with schedules of these
    names. Raises ScheduleError if `plan` is no plan of the pair, TileSizeError for an impossible tile."""
    known = pair.schedules
    name, changes = split_schedule(plan)
    name = name or next(iter(known))
    if name not in known:
        every = [*(n for p in PAIRS for n in p.schedules), TORCH, AUTO]
        here = f"there are {listed(every, name)}"
        if name in every:  # of another pair
            here = f"for {program.name} there are {listed([*known, TORCH], name)}; only products of experts have it"
        raise ScheduleError(f"plan is {plan!r}; {here}")
    schedule = known[name] if known[name] in program.schedules else next(iter(program.schedules))
    roles = {launched(role) for p in (pair.first, pair.second, program) for role in p.schedule(None)}
    strange = [change for change in changes if _role(change) not in roles]
    if strange:
        raise ScheduleError(f"{strange[0]}: the roles of a plan {name} are {listed(sorted(roles), _role(strange[0]))}")
    own = [change for change in changes if _role(change) in {launched(role) for role in program.schedule(schedule)}]
    return Plan(name, program, read_changes(program, schedule, program.schedule(schedule), own))


def plans_of(pair: Pair, program: Program) -> Iterator[Plan]:
    """The plans whose schedules a program of a pair has."""
    for name, schedule in pair.schedules.items():
        if schedule in program.schedules:
            yield Plan(name, program, NamedSchedule(schedule))


def combined(plans: Sequence[Plan]) -> str:
    """The plan of a layer that is made of its programs' plans."""
    changes = [str(change) for plan in plans for change in plan.schedule.changes]
    return ",".join([plans[0].name, *changes])


def _role(change: str) -> str:
    return launched(change.split(".")[0].strip())
