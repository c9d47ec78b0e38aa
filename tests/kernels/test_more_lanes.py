"""The long suite of all_gather_matmul: other random lanes at every call of it, more of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.gather_gemm import Call, run_and_check
from tests.kernels.test_all_gather_matmul import SLOW, calls


@pytest.mark.verify
@pytest.mark.parametrize("world", [2, 3, 4])
def test_new_random_lanes_are_right(world: int) -> None:
    @settings(max_examples=300, deadline=None, suppress_health_check=SLOW, print_blob=True)
    @given(st.tuples(*[calls(world)] * 4), st.integers(0, 2**16), st.integers(5, 9))
    def check(lane: tuple[Call, ...], seed: int, sms: int) -> None:
        run_and_check(*lane, seed=seed, sms=sms, slots=1)

    check()
