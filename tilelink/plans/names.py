"""Plans by their names: the program and the schedule by which an operator is computed, or plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from tilelink.errors import ScheduleError, Site, TileSizeError, similar
from tilelink.frontend.kept import kept
from tilelink.kernels import operators
from tilelink.programs.schedule_text import NamedSchedule, read_changes, split_schedule

if TYPE_CHECKING:
    import torch

    from tilelink.programs.program import Program

TORCH = "torch"
"""The plan of a call that plain torch computes, as TILELINK_BACKEND=torch has it for all calls."""
AUTO = "auto"
"""The plan that stands for the plan that is predicted to be the fastest on this machine."""
ANYWHERE = (None, AUTO, TORCH)
"""Plans that ask for no program. Every operator and layer can have them."""


class Plan(NamedTuple):
    """A way to compute an operator: a program in a schedule. `name`: what the plan is called without its changes."""

    name: str
    program: Program
    schedule: NamedSchedule

    @property
    def given(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The function that makes the matrices that the program takes from ordinary ones; None if it takes these."""
        return said_of(self.program).get("given")

    def and_changed(self, role: str, field: str, value: Any) -> Plan:
        """This plan with one more change of its schedule."""
        return self._replace(schedule=self.schedule.and_changed(role, field, value))

    def __str__(self) -> str:
        """The plan as operators take it."""
        return str(replace(self.schedule, name=self.name))


@kept()
def programs() -> dict[str, dict[str, Program]]:
    """The programs of each operator, as their files say (`tilelink.kernels`), by the names that plans have for them.
    The program "", if there is one, has schedules that are plans by their own names."""
    found: dict[str, dict[str, Program]] = {}
    for program in operators().values():
        if said := said_of(program):
            found.setdefault(said["operator"], {})[said.get("plan", "")] = program
    return found


def said_of(program: Program) -> Mapping[str, Any]:
    """The words of a program's file about its plans (see `tilelink.kernels`); empty if the program is no plan."""
    said = program.function.__globals__
    return said if "operator" in said else {}


@kept()
def plans(operator: str) -> dict[str, Plan]:
    """The plans of an operator that a program computes, by name. The first is the default. The first schedule of a
    program with a name has this name alone, the rest "one_shot:push"."""
    others = dict(programs()[operator])
    usual = others.pop("", None)
    named = {schedule: (usual, schedule) for schedule in usual.schedules} if usual is not None else {}
    for name, other in others.items():
        first, *rest = other.schedules
        named |= {name: (other, first)} | {f"{name}:{s}": (other, s) for s in rest}
    return {name: Plan(name, program, NamedSchedule(schedule)) for name, (program, schedule) in named.items()}


@kept()
def planned(operator: str, plan: str | None) -> Plan:
    """The plan that a person has typed, with changes behind its name as in a schedule: "one_shot,matmul.tile=16x64x64".
    Raises ScheduleError, and TileSizeError for a change."""
    known = plans(operator)
    name, changes = split_schedule(plan)
    if plan is not None and name not in known and (name is not None or not changes):
        every = f"plans of {operator} are {', '.join(known)}, {TORCH} and {AUTO}"
        raise ScheduleError(f"plan is {plan!r}; {every}{similar(name or '', [*known, TORCH, AUTO])}")
    found = known[name] if name is not None else next(iter(known.values()))
    of_program = found.schedule.name
    read = read_changes(found.program, of_program, found.program.schedule(of_program), changes)
    return found._replace(schedule=read)


def sizes_of(program: Program, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of an operator (M, N and K) by the dimensions of a program that computes it. Raises ShapeError if the
    program takes K in pieces, and K can't be cut into them."""
    pieces_of = said_of(program).get("sizes")
    return dict(shape) if pieces_of is None else {d: n for d, n in shape.items() if d != "K"} | pieces_of(shape["K"])


def names_program(plan: str | None) -> TypeGuard[str]:
    """Whether a plan names a program, and is none of `ANYWHERE`."""
    return plan not in ANYWHERE


def check_plan(operator: str, plan: str | None) -> None:
    """Raises ScheduleError if `plan` is no plan of the operator, and TileSizeError for an impossible tile."""
    if names_program(plan):
        try:
            planned(operator, plan)
        except (ScheduleError, TileSizeError) as e:
            raise type(e)(e.message, Site.of_user()) from None
