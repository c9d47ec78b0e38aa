"""Plans: by which program, in which of its schedules, operators are computed; or by plain torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tilelink.errors import ScheduleError, Site

if TYPE_CHECKING:
    from tilelink.frontend.program import Program

PROGRAMS = {
    "all_gather_linear": ("all_gather_matmul", {}),
    "linear_reduce_scatter": ("matmul_reduce_scatter", {"ring": "matmul_ring_reduce_scatter"}),
    "linear_all_reduce": ("matmul_all_reduce", {"one_shot": "matmul_one_shot_all_reduce"}),
}
"""The program of each operator, whose schedules are plans by their own names; and others, by what plans call them."""
TORCH = "torch"
"""The plan of a call that plain torch computes, as TILELINK_BACKEND=torch has it for all calls."""


@cache
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


def planned(operator: str, plan: str | None) -> tuple[Program, str]:
    """The program of a plan, and its schedule."""
    known = plans(operator)
    return next(iter(known.values())) if plan is None else known[plan]


def check_plan(operator: str, plan: str | None) -> None:
    """Raises ScheduleError for what is no plan of an operator."""
    if plan not in (None, TORCH) and plan not in plans(operator):
        there_are = f"plans of {operator} are {', '.join(plans(operator))} and {TORCH}"
        raise ScheduleError(f"plan is {plan!r}; {there_are}", Site.of_user())
