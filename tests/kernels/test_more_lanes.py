"""Random lanes of every program; and the long suite of all_gather_matmul, other ones at every call of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gpu.place import dry
from bench.lanes import lane
from bench.references import REFERENCES
from tests.kernels.drawing import SLOW, calls
from tests.kernels.gather_gemm import Call, run_and_check
from tilelink.programs.program import Program


@pytest.mark.verify
@pytest.mark.parametrize("world", [2, 3, 4])
def test_new_random_lanes_are_right(world: int) -> None:
    @settings(max_examples=300, deadline=None, suppress_health_check=SLOW, print_blob=True)
    @given(st.tuples(*[calls(world)] * 4), st.integers(0, 2**16), st.integers(5, 9))
    def check(lane: tuple[Call, ...], seed: int, sms: int) -> None:
        run_and_check(*lane, seed=seed, sms=sms, slots=1)

    check()


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("program", REFERENCES, ids=lambda p: p.name)
def test_lanes_of_each_program(program: Program, seed: int) -> None:
    """As `make soak` draws them."""
    drawn = lane(seed, [program])
    assert not drawn.wrong(dry()), str(drawn)
