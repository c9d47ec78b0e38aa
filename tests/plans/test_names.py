"""Names of plans: with changes after them, and what is none."""

from __future__ import annotations

import pytest

from tilelink.errors import ScheduleError, TileLinkError, TileSizeError
from tilelink.plans.names import check_plan, planned, programs


def test_programs_say_which_operator_they_compute() -> None:
    found = {operator: {plan: p.name for plan, p in known.items()} for operator, known in programs().items()}
    assert found == {
        "all_gather_linear": {"": "all_gather_matmul", "split": "all_gather_split_matmul"},
        "all_gather_linear_backward": {"": "all_gather_matmul_backward"},
        "linear_all_reduce": {
            "": "matmul_all_reduce", "fabric": "matmul_fabric_all_reduce", "one_shot": "matmul_one_shot_all_reduce",
        },
        "linear_reduce_scatter": {"": "matmul_reduce_scatter", "ring": "matmul_ring_reduce_scatter"},
        "linear_reduce_scatter_backward": {"": "matmul_reduce_scatter_backward"},
        "mixture_of_experts": {"one_kernel": "mixture_of_experts"},
    }


@pytest.mark.parametrize(
    ("plan", "program", "schedule"),
    [
        (None, "matmul_all_reduce", "fused"),
        ("pull", "matmul_all_reduce", "pull"),
        ("one_shot", "matmul_one_shot_all_reduce", "fused"),
        ("one_shot:push, matmul.tile=16x32x64", "matmul_one_shot_all_reduce", "push,matmul.tile=16x32x64"),
        ("matmul.stages=2", "matmul_all_reduce", "fused,matmul.stages=2"),
    ],
)
def test_programs_and_schedules_of_plans(plan: str | None, program: str, schedule: str) -> None:
    made = planned("linear_all_reduce", plan)
    found = made.program
    assert (found.name, str(made.schedule)) == (program, schedule)
    assert planned("linear_all_reduce", str(made)) == made
    check_plan("linear_all_reduce", plan)
    fitted = found.fit(made.schedule, world=2, dtypes="bfloat16", M=64, N=64, K=64)
    assert "tile=16x32x64" not in schedule or fitted.of("matmul").tile == (16, 32, 64)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("plan", "kind", "said"),
    [
        ("ring", ScheduleError, "plan is 'ring'; plans of linear_all_reduce are fused, push"),
        ("fussed", ScheduleError, "torch and auto; did you mean fused?"),
        ("", ScheduleError, "plan is ''; plans of"),
        ("one_shot,faster", ScheduleError, "faster: a change is ROLE.FIELD=VALUE"),
        ("one_shot,share.count=4", ScheduleError, "no role share in this schedule"),
        ("one_shot,matmul.tile=16x17x64", TileSizeError, "matmul.tile=16x17x64: tile"),
    ],
)
def test_what_is_no_plan(plan: str, kind: type[TileLinkError], said: str) -> None:
    with pytest.raises(kind) as error:
        check_plan("linear_all_reduce", plan)
    assert said in error.value.message and error.value.site is not None
    assert error.value.site.file == __file__
