"""What ranks do in tests of the plan "auto"."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import tilelink.ops as ops
from tests.ops.on_ranks import computed_by, new_counter, noted, wrong
from tests.ops.sharded import Call
from tilelink.errors import ShapeError, TileLinkError
from tilelink.ops import agreement, known, operator, plain
from tilelink.ops.agreement import agree, agreed_machine
from tilelink.ops.collectives import Members
from tilelink.plans.names import TORCH, planned


@contextmanager
def on_machine(name: str | None) -> Iterator[None]:
    """Inside, TILELINK_MACHINE is this."""
    os.environ[agreement.MACHINE] = name or ""
    try:
        yield
    finally:
        del os.environ[agreement.MACHINE]


@contextmanager
def predicting(plan_of: Callable[[int, str], str]) -> Iterator[list[tuple[str, int]]]:
    """Inside, the plan with so many rows on a machine is this one; operators and rows that were asked for."""
    choose, asked = operator.choose, list[tuple[str, int]]()

    def noting(operator: str, *, M: int, machine: str, **_: Any) -> SimpleNamespace:
        asked.append((operator, M))
        plan = plan_of(M, machine)
        return SimpleNamespace(by=None if plan == TORCH else planned(operator, plan))

    operator.choose = noting  # type: ignore[assignment]
    known._known.clear()  # or calls like earlier ones would keep their plan
    try:
        yield asked
    finally:
        operator.choose = choose
        known._known.clear()


def ran(group: dist.ProcessGroup, call: Call, machine: str | None) -> tuple[list[str], list[str]]:
    """The programs that a call with its gradients runs by "auto", with their schedules; and what is wrong of it."""
    with on_machine(machine), noted() as runs:
        errors = wrong(group, [call], "interpret", "auto")
    return [f"{program.name} {options.get('schedule')}" for program, options in runs], errors


def ran_by(group: dist.ProcessGroup, plan: str, calls: Sequence[Call]) -> tuple[list[str], list[str]]:
    """As `ran`, of calls that are predicted to be the fastest by this plan."""
    with predicting(lambda M, machine: plan):
        found = [ran(group, call, "h800") for call in calls]
    return [p for programs, _ in found for p in programs], [e for _, errors in found for e in errors]


def asked_by(group: dist.ProcessGroup, call: Call, backend: str) -> tuple[list[tuple[str, int]], list[str]]:
    """What a call with its gradients asks for; and what is wrong of it."""
    with on_machine("h800"), predicting(lambda M, machine: "torch") as asked:
        errors = wrong(group, [call], backend, "auto")
    return asked, errors


def raised_on(group: dist.ProcessGroup, machines: Sequence[str], directly: bool) -> str:
    """What "auto" raises where ranks take their machine for different ones: in a call, or as on CUDA devices, where the
    first call of a group tells its ranks."""
    rank = dist.get_rank(group)
    try:
        if directly:
            with first_on_cuda(group) as members, on_machine(machines[rank]):
                agree(members, CUDA, lambda: {"operator": "linear_all_reduce"})
                agreed_machine(members, CUDA)
        else:
            plans = predicting(lambda M, machine: "torch" if machine == "l20" else "one_shot")
            with plans, on_machine(machines[rank]), computed_by("interpret", group):
                ops.linear_all_reduce(torch.ones(2, 4), torch.ones(6, 4), group=group, plan="auto")
    except TileLinkError as e:
        return f"{type(e).__name__}: {e.message}"
    return "nothing"


def reserved_on_each(group: dist.ProcessGroup, reserved: Sequence[int]) -> str:
    """What "auto" says on CUDA devices where lanes would leave so many SMs to others; else how many it plans for."""
    real = agreement.reserved_on
    agreement.reserved_on = lambda members, device: reserved[members.rank]
    try:
        with first_on_cuda(group) as members, on_machine("h800"):
            agree(members, CUDA, lambda: {"operator": "linear_all_reduce"})
            agreed_machine(members, CUDA)
            return agreement._machines[group][0]["reserved"]
    except TileLinkError as e:
        return f"{type(e).__name__}: {e.message}"
    finally:
        agreement.reserved_on = real


CUDA = torch.device("cuda")


@contextmanager
def first_on_cuda(group: dist.ProcessGroup) -> Iterator[Members]:
    """Inside, no call of the group was made on CUDA devices."""
    try:
        yield Members.named(group.group_name)
    finally:
        agreement._machines.pop(group, None)


def failing_first(group: dist.ProcessGroup) -> list[str]:
    """What the ranks raise in the first calls of a group on CUDA devices: where rank 0 has a bad tensor, where it calls
    another operator, where all call alike, and where rank 0 fails later, which is not told."""
    rank, found = dist.get_rank(group), []

    def bad() -> dict[str, str]:
        raise ShapeError("x is too short")

    def other() -> dict[str, str]:
        return {"operator": "linear_reduce_scatter"}

    def same() -> dict[str, str]:
        return {"operator": "linear_all_reduce"}

    with first_on_cuda(group) as members, on_machine("h800"):
        for of_first in (bad, other, same, bad):
            try:
                agree(members, CUDA, of_first if rank == 0 else same)
                found.append("agreed")
            except TileLinkError as e:
                found.append(f"{type(e).__name__}: {e.message.partition(';')[0]}")
    return found


def compiled(group: dist.ProcessGroup, tokens: Sequence[int]) -> tuple[int, list[int], list[float]]:
    """How often a function with plans "auto" is compiled for these numbers of tokens; of which the plans were asked
    for; how far results are from plain torch's."""
    def layer(x: torch.Tensor, weight: torch.Tensor, plan: str) -> torch.Tensor:
        return ops.linear_all_reduce(x, weight, group=group, plan=plan)

    counter = new_counter()
    function, weight = torch.compile(layer, backend=counter, fullgraph=True), torch.randn(6, 8)
    far = []
    with on_machine("h800"), predicting(lambda M, machine: "torch" if M > 4 else "one_shot") as asked:
        for n in tokens:
            x = torch.randn(n, 8)
            torch._dynamo.mark_dynamic(x, 0)
            with computed_by("interpret", group):
                found = function(x, weight, "auto")
            right = layer(x, weight, "torch")
            far.append(float((found - right).norm() / right.norm()))
    return counter.frame_count, [M for _, M in asked], far


def as_a_library(group: dist.ProcessGroup, calls: Sequence[Call]) -> list[str]:
    """What is wrong of calls by plain torch as it is on devices that are no CPU: in the dtype of x."""
    exact, plain._exact = plain._exact, lambda x: False
    try:
        return wrong(group, calls, "torch")
    finally:
        plain._exact = exact
