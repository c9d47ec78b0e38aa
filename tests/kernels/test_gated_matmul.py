"""AllGather-GEMM with a gate: two products in one tile, of which a function makes one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF, relative_rms_of_all
from bench.operands import Operands, laid_out
from tests.kernels.gather_gemm import small_world
from tests.programs.epilogues import difference
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul

SCHEDULES = list(all_gather_gated_matmul.schedules)
K, N = 40, 24


def run(
    parts: tuple[int, ...], schedule: str, dtype: torch.dtype, integers: bool, **given: Any
) -> tuple[list[list[torch.Tensor]], Operands]:
    """Results of two calls in a row on all ranks, with poisoned outputs, and the operands."""
    sizes, place = {"N": N, "K": K}, torch.device("cpu")
    made = Operands(
        all_gather_gated_matmul, parts, sizes, place, dtype=dtype, whole=integers, asked=["up_bias"], seed=sum(parts)
    )  # fmt: skip
    for of_rank in made.ranks:
        of_rank |= {name: laid_out(of_rank[name], "columns") for name in ("gate", "up")}
    given |= {"poisoned": True, "schedule": schedule}
    world = small_world(len(parts))
    return world.run(lambda g: [out for _ in range(2) for out in made.call(made.program, g, **given)]), made


CASES = list(zip(SCHEDULES, [(20,), (5, 0, 17), (18, 7), (9, 33), (5, 0, 9)], strict=True))


@pytest.mark.parametrize(("schedule", "parts"), CASES, ids=str)
def test_a_function_of_the_user_exactly(schedule: str, parts: tuple[int, ...]) -> None:
    results, made = run(parts, schedule, torch.float32, True, combine=difference)
    full = torch.cat([r["x"] for r in made.ranks]).double()
    for outs, r in zip(results, made.ranks, strict=True):
        right = full @ r["gate"].double() - 2 * (full @ r["up"].double() + r["up_bias"].double())
        assert all(torch.equal(out, right.float()) for out in outs)


@pytest.mark.parametrize(("schedule", "dtype"), list(zip(SCHEDULES[:3], LIMIT_OF, strict=True)), ids=str)
def test_silu_by_default(schedule: str, dtype: torch.dtype) -> None:
    results, made = run((18, 7), schedule, dtype, False)
    for outs in zip(*results, strict=True):
        assert relative_rms_of_all(outs, [right for (right,) in made.right]) < LIMIT_OF[dtype]


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_is_safe(schedule: str, world: int) -> None:
    report = all_gather_gated_matmul.check(schedule, world=world, M=100, N=40, K=40)
    assert (report.verdict, report.proof) == ("safe", "structural")
