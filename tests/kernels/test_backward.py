"""The backward programs: gradients of AllGather-GEMM and of GEMM-ReduceScatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF, relative_rms_of_all
from tests.kernels.gather_gemm import small_world
from tests.parameters import each_once, rarely
from tilelink.analysis.check import check_events
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.matmul_reduce_scatter_backward import matmul_reduce_scatter_backward

OF_GATHER, OF_SCATTER = all_gather_matmul_backward, matmul_reduce_scatter_backward
Gradients = list[torch.Tensor]


class Numbers:
    """Random operands from a seed. `integers`: such that every sum is exact."""

    def __init__(self, seed: int, dtype: torch.dtype, integers: bool, transposed: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype, self.integers, self.transposed = dtype, integers, transposed

    def __call__(self, *shape: int) -> torch.Tensor:
        if self.integers:
            return torch.randint(-2, 3, shape, generator=self.generator).to(self.dtype)
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def weight(self, rows: int, columns: int) -> torch.Tensor:
        return self(columns, rows).T if self.transposed else self(rows, columns)

    def poison(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=self.dtype)


def of_gather(
    parts: Sequence[int], N: Sequence[int], K: int, numbers: Numbers, bias: bool, **call: Any
) -> tuple[list[list[Gradients]], list[Gradients]]:
    """Gradients by rank and call, and what is right."""
    ranks, M = range(len(parts)), sum(parts)
    x = [numbers(m, K) for m in parts]
    weights = [[numbers.weight(K, n) for n in N] for _ in ranks]
    dys = [[numbers(M, n) for n in N] for _ in ranks]

    def on(group: Any) -> list[Gradients]:
        r, made = group.rank, []
        for _ in range(2):
            outs = numbers.poison(parts[r], K), [numbers.poison(K, n) for n in N]
            dbias = [numbers.poison(n) for n in N] if bias else None
            dx, dweight, *rest = OF_GATHER(
                dys[r], weights[r], x[r], *outs, dbias, group=group, parts={"M": parts}, **call
            )
            made.append([dx, *dweight, *(b for given in rest for b in given)])
        return made

    full = torch.cat(x).double()
    sums = sum(d.double() @ w.double().T for r in ranks for d, w in zip(dys[r], weights[r], strict=True))
    assert isinstance(sums, torch.Tensor)
    expected = [
        [dx, *(full.T @ d.double() for d in dys[r]), *(d.double().sum(0) for d in dys[r] if bias)]
        for r, dx in enumerate(sums.split(list(parts)))
    ]
    return small_world(len(parts), sms=24).run(on, seed=K), expected


def of_scatter(
    parts: Sequence[int], N: Sequence[int], K: int, numbers: Numbers, bias: bool, **call: Any
) -> tuple[list[list[Gradients]], list[Gradients]]:
    """Gradients by rank and call, and what is right. N has one member."""
    (n,) = N
    ranks, M = range(len(parts)), sum(parts)
    dy = [numbers(m, n) for m in parts]
    weight, x = [numbers.weight(K, n) for _ in ranks], [numbers(M, K) for _ in ranks]

    def on(group: Any) -> list[Gradients]:
        r, made = group.rank, []
        for _ in range(2):
            outs = numbers.poison(M, K), numbers.poison(K, n), numbers.poison(n) if bias else None
            made.append([*OF_SCATTER(dy[r], weight[r], x[r], *outs, group=group, parts={"M": parts}, **call)])
        return made

    full = torch.cat(dy).double()
    expected = [
        [full @ w.double().T, a.double().T @ full, *([full.sum(0)] if bias else [])]
        for w, a in zip(weight, x, strict=True)
    ]
    return small_world(len(parts), sms=24).run(on, seed=K), expected


def check(found: list[list[Gradients]], expected: list[Gradients], numbers: Numbers) -> None:
    """Every gradient of every call, by kind over all ranks."""
    for call in range(2):
        for kind in range(len(expected[0])):
            made, right = [of[call][kind] for of in found], [of[kind] for of in expected]
            assert all(y.dtype == numbers.dtype and y.shape == e.shape for y, e in zip(made, right, strict=True))
            if numbers.integers:
                assert all(torch.equal(y, e.to(y.dtype)) for y, e in zip(made, right, strict=True)), kind
            else:
                assert not any(y.isnan().any() for y in made), kind
                assert relative_rms_of_all(made, right) < LIMIT_OF[numbers.dtype], kind


PROGRAMS = {OF_GATHER: of_gather, OF_SCATTER: of_scatter}
SHAPES = [(20,), (5, 0, 17), (18, 7), (9, 1, 0, 16), (17, 20)]
CASES = rarely(
    [(p, s, parts) for p in PROGRAMS for s, parts in zip(p.schedules, SHAPES, strict=False)],
    lambda program, schedule, _: schedule == ("engine" if program is OF_GATHER else "pull"),
)
"""Those that one program has are not in every run of the other."""


def named(value: Any) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.versions
@pytest.mark.parametrize(("program", "schedule", "parts"), CASES, ids=named)
def test_gradients_exactly(program: Any, schedule: str, parts: tuple[int, ...]) -> None:
    numbers = Numbers(0, torch.float32, integers=True, transposed=len(parts) % 2 == 0)
    members = (17, 16) if program is OF_GATHER else (17,)
    check(*PROGRAMS[program](parts, members, 20, numbers, bias=True, schedule=schedule), numbers)


@each_once("program, dtype", list(PROGRAMS), list(LIMIT_OF), ids=named)
def test_gradients_by_dtype(program: Any, dtype: torch.dtype) -> None:
    numbers = Numbers(1, dtype, integers=False, transposed=True)
    check(*PROGRAMS[program]((18, 7), (33,), 24, numbers, bias=dtype == torch.bfloat16), numbers)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_same_bits_from_run_to_run(program: Any) -> None:
    runs = []
    for _ in range(2):
        numbers = Numbers(2, torch.bfloat16, integers=False, transposed=False)
        runs.append(PROGRAMS[program]((20, 7), (24,), 20, numbers, bias=True)[0])
    first = runs[0][0][0]
    for of_rank in zip(*runs, strict=True):
        calls = [call for run in of_rank for call in run]
        assert all(torch.equal(a, b) for call in calls for a, b in zip(calls[0], call, strict=True))
    if program is OF_SCATTER:  # the bias is one for all ranks
        assert all(torch.equal(first[2], of_rank[0][2]) for of_rank in runs[0])


@each_once("program, world", list(PROGRAMS), [2, 4, 8], ids=named, dear=lambda _, world: world == 8)
def test_they_are_safe(program: Any, world: int) -> None:
    """By their structure, also with a bias, whose gradient is stored by some tiles only; and by their events."""
    N = (40, 20) if program is OF_GATHER else 40
    for schedule in program.schedules:
        for dtypes in ("float32", dict.fromkeys(program.parameters, "float32")):
            given: dict[str, Any] = {"world": world, "dtypes": dtypes, "M": 1000, "N": N, "K": 40}
            report = program.check(schedule, **given)
            assert (report.verdict, report.proof) == ("safe", "structural")
        assert check_events(program.unroll(schedule, **given)).verdict == "safe"
