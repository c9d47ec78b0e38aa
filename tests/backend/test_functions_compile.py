"""Programs with several members, functions, biases and rests, compiled: nothing spills, and the gates find nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs.epilogues import gelu
from tilelink.backend.lower import lower_at
from tilelink.backend.targets import TARGETS
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.matmul_reduce_scatter_backward import matmul_reduce_scatter_backward
from tilelink.programs.given import at_sizes
from tilelink.programs.program import Program

WORLD = 4
PROGRAMS = {
    "epilogue": (all_gather_matmul.of(epilogue=gelu), (448, 192)),
    "gate": (all_gather_gated_matmul, 448),
    "backward of gather": (all_gather_matmul_backward, 448),
    "backward of scatter": (matmul_reduce_scatter_backward, 448),
}


@pytest.mark.parametrize("case", PROGRAMS)
@pytest.mark.verify
def test_programs_with_everything_in_them_compile_for_hopper(case: str) -> None:
    program: Program
    program, N = PROGRAMS[case]  # type: ignore[assignment]
    sizes: dict[str, Any]
    program, sizes = at_sizes(program, {"M": 1792, "K": 448, "N": N})
    schedule = program.fit(world=WORLD, dtypes="bf16", absent=frozenset(), **sizes)
    if case == "epilogue":  # erf takes registers: beside a tile of 128 x 256 they don't suffice
        schedule = schedule.changed(matmul={"tile": (128, 128, 64)})
    bound = program.bind(schedule, "bf16")
    exact = Sizes.of(bound, WORLD, sizes)
    lowered = lower_at(bound, exact, TARGETS["sm_90"])
    verdict = judge(lowered, compiled(lowered, exact))
    assert verdict.expected["acquire"] == verdict.found["acquire"] and verdict.found["mma"] > 0
    assert verdict.findings == ()
