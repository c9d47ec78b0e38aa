"""Plans by their names: by which program, in which of its schedules, an operator is computed; or by plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tilelink.errors import ScheduleError, Site, TileSizeError
from tilelink.frontend.kept import kept
from tilelink.frontend.schedule_text import changed_by, split_schedule

if TYPE_CHECKING:
    from tilelink.frontend.program import Program

PROGRAMS = {
    "all_gather_linear": ("all_gather_matmul", {}),
    "linear_reduce_scatter": ("matmul_reduce_scatter", {"ring": "matmul_ring_reduce_scatter"}),
    "linear_all_reduce": ("matmul_all_reduce", {"one_shot": "matmul_one_shot_all_reduce"}),
    "all_gather_linear_backward": ("all_gather_matmul_backward", {}),
    "linear_reduce_scatter_backward": ("matmul_reduce_scatter_backward", {}),
}
"""The program of each operator, whose schedules are plans by their own names; and others, by what plans call them."""
TORCH = "torch"
"""The plan of a call that plain torch computes, as TILELINK_BACKEND=torch has it for all calls."""
AUTO = "auto"
"""The plan that stands for the one that is predicted to be the fastest on this machine."""


class Plan(NamedTuple):
    """A plan that a program computes, in a schedule."""

    program: Program
    schedule: str


@kept()
def plans(operator: str) -> dict[str, tuple[Program, str]]:
    """The plans of an operator by which a program computes it: that program and the name of its schedule. The first is
    the default. The first schedule of another program has the plan's name alone, the rest "one_shot:push"."""
    from tilelink.kernels import operators

    known = operators()
    usual, others = PROGRAMS[operator]
    found = {schedule: (known[usual], schedule) for schedule in known[usual].schedules}
    for name, other in others.items():
        first, *rest = known[other].schedules
        found |= {name: (known[other], first)} | {f"{name}:{s}": (known[other], s) for s in rest}
    return found


@kept()
def planned(operator: str, plan: str | None) -> Plan:
    """The program of a plan, and its schedule as text; a plan may have changes after its name, as a schedule may:
    "one_shot,matmul.tile=16x64x64". Raises ScheduleError, also TileSizeError for a change."""
    known = plans(operator)
    name, changes = split_schedule(plan)
    if plan is not None and name not in known and (name is not None or not changes):
        raise ScheduleError(f"plan is {plan!r}; plans of {operator} are {', '.join(known)}, {TORCH} and {AUTO}")
    program, schedule = known[name] if name is not None else next(iter(known.values()))
    changed_by(program, program.schedule(schedule), changes)
    return Plan(program, ",".join([schedule, *changes]))


def check_plan(operator: str, plan: str | None) -> None:
    """Raises ScheduleError for what is no plan of an operator, TileSizeError for a tile that can't be."""
    if plan not in (None, TORCH, AUTO):
        try:
            planned(operator, plan)
        except (ScheduleError, TileSizeError) as e:
            raise type(e)(e.message, Site.of_user()) from None
