"""all_gather_matmul that keeps what it gathers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.kernels.gather_gemm import NAMED, in_tiles, small_world
from tests.parameters import covering, first_of, rarely
from tilelink.errors import UnsafeProgramError
from tilelink.kernels.all_gather_matmul import all_gather_matmul

KEPT = {"x": "float32", "gathered": "float32"}
CASES = list(zip(NAMED, [(20, 0, 7), (33, 1), (16, 16, 5), (0, 20), (20, 17), (5, 0, 9)], strict=True))
SOME = rarely(covering(product(CASES, [(20,), (33, 3)])), lambda case, _: case[0] not in ("push", "engine"))
"""Every run has those that a rank sends, and those that an engine brings; others gather into the same rows."""


@pytest.mark.parametrize(("case", "columns"), SOME, ids=str)
def test_what_is_gathered_is_kept(case: tuple[str, tuple[int, ...]], columns: tuple[int, ...]) -> None:
    """Exactly, beside what is right of the product, in calls in a row."""
    schedule, parts = case
    x = [torch.randint(-3, 4, (m, 40)).float() for m in parts]
    weights = [[torch.randint(-3, 4, (40, n)).float() for n in columns] for _ in parts]
    options: dict[str, Any] = {"schedule": in_tiles(schedule, (16, 32), (16, 16, 32)), "parts": {"M": parts}}

    def on(group: Any) -> list[Any]:
        kept = [torch.full((sum(parts), 40), float("nan")) for _ in range(2)]
        return [all_gather_matmul(x[group.rank], weights[group.rank], gathered=k, group=group, **options) for k in kept]

    for of_rank, mine in zip(small_world(len(parts)).run(on), weights, strict=True):
        for outs, kept in of_rank:
            assert torch.equal(kept, torch.cat(x))
            assert all(torch.equal(y, torch.cat(x) @ w) for y, w in zip(outs, mine, strict=True))


@pytest.mark.parametrize("world", first_of([2, 4, 8]))
def test_that_is_safe(world: int) -> None:
    parts = (5, 0, 20, 1, 16, 33, 0, 7)[:world]
    for schedule in all_gather_matmul.schedules:
        for columns in (40, (40, 3)):
            report = all_gather_matmul.check(schedule, world=world, dtypes=KEPT, M=parts, N=columns, K=24)
            assert report.verdict == "safe", str(report)


def test_tiles_that_there_are_not_keep_nothing() -> None:
    with pytest.raises(UnsafeProgramError, match=r"no tile writes gathered\[M\[0:8\], K\[0:8\]\]"):
        small_world(2).run(
            lambda g: all_gather_matmul(torch.ones(4, 8), torch.ones(8, 0), gathered=torch.empty(8, 8), group=g)
        )
