"""The limits of the errors can tell: what is computed carelessly is beyond them, what is computed with care is not."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from bench.check import LIMIT_OF, relative_rms_of_all
from tests.kernels.gather_gemm import Call, run, run_and_check
from tests.programs.low_precision import all_gather_matmul_low
from tilelink.emulator import arithmetic

TILES: dict[str, dict[str, Any]] = {"gather": {"tile": (32, 64)}, "matmul": {"tile": (32, 32, 16)}}


def call(dtype: torch.dtype, **more: Any) -> Call:
    schedule = all_gather_matmul_low.schedules["push"].changed(**TILES)
    return Call((32, 16), N=40, K=256, dtype=dtype, schedule=schedule, **more)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_sum_in_low_precision_is_found(dtype: torch.dtype) -> None:
    run_and_check(call(dtype))
    careless = call(dtype, program=all_gather_matmul_low)
    (outs,) = run([careless])
    assert LIMIT_OF[dtype] < relative_rms_of_all(outs, careless.expected) < inf
    with pytest.raises(AssertionError, match="relative RMS"):
        careless.check(outs)


def test_stores_that_truncate_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = call(torch.bfloat16)
    run_and_check(careful)

    def truncated(values: Any) -> Any:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)

    monkeypatch.setattr(arithmetic, "from_float32", truncated)
    (outs,) = run([careful])
    assert LIMIT_OF[torch.bfloat16] < relative_rms_of_all(outs, careful.expected) < inf
    with pytest.raises(AssertionError, match="relative RMS"):
        careful.check(outs)


def test_operands_of_fewer_bits_are_found() -> None:
    """As tensor cores cut float32 to TF32, unless they are told not to."""
    careful = call(torch.float32)
    (outs,) = run_and_check(careful)
    cut = call(torch.float32)
    cut.__dict__["x"] = [(x.view(torch.int32) & -(1 << 13)).view(torch.float32) for x in careful.x]
    assert LIMIT_OF[torch.float32] < relative_rms_of_all(outs, cut.expected) < inf


def test_nan_is_found() -> None:
    careful = call(torch.float32)
    (outs,) = run_and_check(careful)
    outs[1][3, 4] = float("nan")
    with pytest.raises(AssertionError, match="rank 1: 1 of 1920 elements are NaN"):
        careful.check(outs)
