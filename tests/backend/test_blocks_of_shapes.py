"""Roles that take blocks of several shapes in loops and branches: results are right, and kernels compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.programs import shapes
from tilelink.backend.targets import FORMS
from tilelink.inspect.compile import each_compiled
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld

WORLD = 2


def numbers(*shape: int) -> torch.Tensor:
    """So that sums are the same in every order."""
    return torch.randint(-4, 5, shape).float()


def ran(program: Program, given: list[dict[str, torch.Tensor]]) -> list[Any]:
    schedule = shapes.schedules()[program]
    return CpuWorld(WORLD).run(lambda group: program(**given[group.rank], schedule=schedule, group=group))


def test_blocks_of_one_tensor() -> None:
    x, order = numbers(32, 64), torch.tensor([5, 1, -1, 31, 5, 0], dtype=torch.int32)
    rows = x.sum(1)
    (out, _) = ran(shapes.summed, [{"x": x}] * WORLD)
    assert torch.equal(out, 3 * rows)
    (out, _) = ran(shapes.picked, [{"x": x, "order": order}] * WORLD)
    assert torch.equal(out, 2 * torch.where(order >= 0, rows[order.clamp(min=0).long()], 0))
    (out, _) = ran(shapes.branched, [{"x": x}] * WORLD)
    assert torch.equal(out, torch.cat([x[:16], rows[16:, None].expand(16, 64)]))


def test_blocks_to_and_from_all_ranks() -> None:
    x, scale = numbers(WORLD, 32, 64), numbers(WORLD, 32)
    every = x.flatten(0, 1)
    for out in ran(shapes.sent, [{"x": of} for of in x]):
        assert torch.equal(out, 2 * every + every.sum(1, keepdim=True))
    for out in ran(shapes.sent_one, [{"x": x[r], "scale": scale[r]} for r in range(WORLD)]):
        assert torch.equal(out, 2 * torch.cat([scale[0][:, None].expand(32, 64), x[1]]))
    for out in ran(shapes.added, [{"x": x[r], "scale": scale[r]} for r in range(WORLD)]):
        assert torch.equal(out, x.sum((0, 2)) + scale.sum(0))


@pytest.mark.parametrize(
    ("target", "via"), [("sm_90", "multicast"), pytest.param("gfx942", "load-store", marks=pytest.mark.verify)]
)
def test_they_compile(target: str, via: str) -> None:
    """Triton lets no name change its shape in a loop or a branch."""
    sizes = {"M": 64, "N": 64, "S": 24}
    jobs = []
    for program, schedule in shapes.schedules(via).items():
        own = {d: n for d, n in sizes.items() if d in program.bind(schedule).dims}
        jobs.append(program.lowered_at(schedule, target=FORMS[target], world=WORLD, sizes=own, dtypes="float32"))
    for made in each_compiled(jobs, lambda _, kernels: kernels, processes=2):
        assert isinstance(made, tuple), made
