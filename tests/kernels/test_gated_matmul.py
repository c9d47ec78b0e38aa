"""AllGather-GEMM with a gate: two products in one tile, of which a function makes one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF, relative_rms_of_all
from tests.kernels.gather_gemm import small_world
from tests.programs.epilogues import difference
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul

SCHEDULES = list(all_gather_gated_matmul.schedules)
K, N = 40, 24


def silu_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def run(parts: tuple[int, ...], schedule: str, dtype: torch.dtype, integers: bool, **given: Any) -> tuple[Any, Any]:
    """Results of two calls in a row on all ranks, and the two products of each rank in float64."""
    generator = torch.Generator().manual_seed(sum(parts))

    def numbers(*shape: int) -> torch.Tensor:
        made = torch.randint(-3, 4, shape, generator=generator) if integers else torch.randn(shape, generator=generator)
        return made.to(dtype)

    x = [numbers(m, K) for m in parts]
    gates, ups = ([numbers(N, K).T for _ in parts] for _ in range(2))
    biases = [numbers(N) for _ in parts]

    def on(group: Any) -> list[torch.Tensor]:
        r = group.rank
        made = []
        for _ in range(2):
            out = torch.full((sum(parts), N), float("nan"), dtype=dtype)
            all_gather_gated_matmul(
                x[r], gates[r], ups[r], out, up_bias=biases[r], schedule=schedule, group=group,
                parts={"M": parts}, **given,
            )  # fmt: skip
            made.append(out)
        return made

    full = torch.cat(x).double()
    products = [(full @ g.double(), full @ u.double() + b.double()) for g, u, b in zip(gates, ups, biases, strict=True)]
    return small_world(len(parts)).run(on), products


CASES = list(zip(SCHEDULES, [(20,), (5, 0, 17), (18, 7), (9, 33), (5, 0, 9)], strict=True))


@pytest.mark.parametrize(("schedule", "parts"), CASES, ids=str)
def test_a_function_of_the_user_exactly(schedule: str, parts: tuple[int, ...]) -> None:
    results, products = run(parts, schedule, torch.float32, True, combine=difference)
    for of_rank, (gate, up) in zip(results, products, strict=True):
        assert all(torch.equal(out, (gate - 2 * up).float()) for out in of_rank)


@pytest.mark.parametrize(("schedule", "dtype"), list(zip(SCHEDULES[:3], LIMIT_OF, strict=True)), ids=str)
def test_silu_by_default(schedule: str, dtype: torch.dtype) -> None:
    results, products = run((18, 7), schedule, dtype, False)
    expected = [silu_gate(gate, up) for gate, up in products]
    for call in range(2):
        assert relative_rms_of_all([of_rank[call] for of_rank in results], expected) < LIMIT_OF[dtype]


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_is_safe(schedule: str, world: int) -> None:
    report = all_gather_gated_matmul.check(schedule, world=world, M=100, N=40, K=40)
    assert (report.verdict, report.proof) == ("safe", "structural")
