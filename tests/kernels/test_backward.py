"""The backward programs: gradients of AllGather-GEMM and of GEMM-ReduceScatter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF, relative_rms_of_all
from bench.operands import Operands, laid_out
from tests.kernels.gather_gemm import small_world
from tests.parameters import each_once, rarely
from tilelink.analysis.check import check_events
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.matmul_reduce_scatter_backward import matmul_reduce_scatter_backward

OF_GATHER, OF_SCATTER = all_gather_matmul_backward, matmul_reduce_scatter_backward
Gradients = list[torch.Tensor]


def run(
    program: Any, parts: Sequence[int], N: Any, K: int, dtype: torch.dtype, *, integers: bool = False,
    transposed: bool = False, bias: bool = True, seed: int = 0, **call: Any,
) -> tuple[list[list[Gradients]], Operands]:  # fmt: skip
    """Gradients by rank and call, of two calls in a row with poisoned outputs, and the operands, which say what is
    right."""
    sizes, asked = {"N": N, "K": K}, ("dbias",) * bias
    made = Operands(program, parts, sizes, torch.device("cpu"), dtype=dtype, whole=integers, asked=asked, seed=seed)
    for given in made.ranks if transposed else ():
        weight, turned = given["weight"], partial(laid_out, layout="columns")
        given["weight"] = list(map(turned, weight)) if isinstance(weight, list) else turned(weight)
    world = small_world(len(parts), sms=24)
    return world.run(lambda g: [made.call(made.program, g, poisoned=True, **call) for _ in range(2)], seed=K), made


def check(found: list[list[Gradients]], operands: Operands) -> None:
    """Every gradient of every call, by kind over all ranks."""
    for call in range(2):
        for kind in range(len(operands.right[0])):
            made, right = [of[call][kind] for of in found], [of[kind] for of in operands.right]
            assert all(y.dtype == operands.dtype and y.shape == e.shape for y, e in zip(made, right, strict=True))
            if operands.whole:
                assert all(torch.equal(y, e.to(y.dtype)) for y, e in zip(made, right, strict=True)), kind
            else:
                assert not any(y.isnan().any() for y in made), kind
                assert relative_rms_of_all(made, right) < LIMIT_OF[operands.dtype], kind


PROGRAMS = OF_GATHER, OF_SCATTER
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
    N, transposed = (17, 16) if program is OF_GATHER else 17, len(parts) % 2 == 0
    check(*run(program, parts, N, 20, torch.float32, integers=True, transposed=transposed, schedule=schedule))


@each_once("program, dtype", list(PROGRAMS), list(LIMIT_OF), ids=named)
def test_gradients_by_dtype(program: Any, dtype: torch.dtype) -> None:
    check(*run(program, (18, 7), 33, 24, dtype, transposed=True, bias=dtype == torch.bfloat16, seed=1))


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_the_same_bits_from_run_to_run(program: Any) -> None:
    runs = [run(program, (20, 7), 24, 20, torch.bfloat16, seed=2)[0] for _ in range(2)]
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
            given: dict[str, Any] = {"world": world, "dtypes": dtypes, "M": 300, "N": N, "K": 40}
            report = program.check(schedule, **given)
            assert (report.verdict, report.proof) == ("safe", "structural")
        assert check_events(program.unroll(schedule, **given)).verdict == "safe"
