"""The gates on what records of them do not have: products of float32, and parts of several lengths; compiled only."""

from __future__ import annotations

import pytest

from bench.gates import lowered_for
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge
from tilelink.kernels import operators

CASES = [(name, schedule) for name, program in operators().items() for schedule in program.schedules]
SPILLED = 256
"""Bytes of each thread that may be spilled. Threads have 1,400 bytes before CUDA has to ask for more memory."""


@pytest.mark.verify
@pytest.mark.parametrize(("name", "schedule"), CASES, ids=lambda value: str(value))
def test_products_of_float32_fit_in_registers(name: str, schedule: str) -> None:
    """With the tiles of a call on a GPU. Some registers are spilled, which is all that the gates may say."""
    made, exact = lowered_for(operators()[name], schedule, "sm_90", dtype="float32")
    kernels = compiled(made, exact)
    assert not [f for f in judge(made, kernels).findings if "registers are spilled" not in f]
    assert max(k.spill_bytes for k in kernels) <= SPILLED


@pytest.mark.verify
@pytest.mark.parametrize(("name", "schedule"), CASES, ids=lambda value: str(value))
def test_parts_of_several_lengths(name: str, schedule: str) -> None:
    made, exact = lowered_for(operators()[name], schedule, "sm_90", even=False)
    assert judge(made, compiled(made, exact)).findings == ()
