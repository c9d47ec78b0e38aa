"""The plan "auto": chosen by prediction, alike on all ranks, inside the operator."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.ops import auto_on_ranks, on_ranks
from tests.ops.sharded import EACH, GATHER, REDUCE, SCATTER, Call
from tests.parameters import first_cases
from tests.runtime.processes import Pool
from tilelink.errors import ArgumentError, UnknownMachineError
from tilelink.ops.agreement import machine_name
from tilelink.ops.operator import Asked, fastest
from tilelink.plans import choose
from tilelink.plans.names import planned
from tilelink.plans.unfused import unfused

SCATTERED = Call(SCATTER, (11, 16), (20,), lengths=(6, 5))
PAIR = [(0, 1)]


def test_the_fastest_plan_runs(pool: Pool) -> None:
    """Predicted for the power of two below the rows."""
    call = replace(SCATTERED, bias=True, frozen=("x", "weight"))
    wanted = ["matmul_reduce_scatter fused,matmul.tile=16x16x16"]  # as tests/plans/test_choose.py has it
    for ((programs, wrong),) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.ran, call, "h800")[:2]:
        assert (programs, wrong) == (wanted, [])


@pytest.mark.parametrize(
    ("call", "program"),
    first_cases([(SCATTERED, "matmul_reduce_scatter"), (Call(GATHER, (8, 16), (20, 12)), "all_gather_matmul")]),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_plan_runs_in_the_backward(pool: Pool, call: Call, program: str) -> None:
    wanted = [f"{program} pull", f"{program}_backward pull"]
    for ((programs, wrong),) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.ran_by, "pull", [call])[:2]:
        assert (programs, wrong) == (wanted, [])


def test_no_program_runs_where_torch_is_faster(pool: Pool) -> None:
    for ((programs, wrong),) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.ran_by, "torch", EACH)[:2]:
        assert (programs, wrong) == ([], [])


def test_the_first_plan_where_the_machine_is_not_known(pool: Pool) -> None:
    wanted = ["matmul_reduce_scatter fused", "matmul_reduce_scatter_backward push"]
    for ((programs, wrong),) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.ran, SCATTERED, None)[:2]:
        assert (programs, wrong) == (wanted, [])


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (Call(GATHER, (4, 9, 16), (20, 12), dim=1, lengths=(4, 5)), [(GATHER, 32), (f"{GATHER}_backward", 32)]),
        (Call(GATHER, (3, 32), (24,), dim=-1), []),
        (Call(GATHER, (4, 16), (24, 8), keep=True), [(GATHER, 4), (SCATTER, 4)]),
        (Call(SCATTER, (4, 16), (24,), frozen=("weight",)), [(SCATTER, 4), (GATHER, 4)]),
        (Call(SCATTER, (3, 16), (24,), dim=1), [(SCATTER, 16)]),
        (Call(SCATTER, (0, 16), (24,)), []),
        (Call(REDUCE, (3, 5, 16), (20,)), [(REDUCE, 8)]),
    ],
    ids=lambda value: value.operator if isinstance(value, Call) else "",
)
def test_what_is_asked_for(pool: Pool, call: Call, asked: list[tuple[str, int]]) -> None:
    for (found,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.asked_by, call, "interpret")[:2]:
        assert found == (asked, [])


def test_plain_torch_asks_for_nothing(pool: Pool) -> None:
    for (found,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.asked_by, SCATTERED, "torch")[:2]:
        assert found == ([], [])


def test_ranks_that_know_different_machines_are_told(pool: Pool) -> None:
    machines = ["h800", "l20"]
    for (error,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.raised_on, machines, False)[:2]:
        assert error.startswith("RankMismatchError") and "rank 1 has machine l20, rank 0 h800" in error
    for (error,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.raised_on, machines, True)[:2]:
        assert error.startswith("RankMismatchError") and "set TILELINK_MACHINE to one machine on all ranks" in error
    for (error,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.raised_on, ["h800"] * 2, True)[:2]:
        assert error == "nothing"


def test_ranks_that_leave_other_numbers_of_sms_to_nccl_are_told(pool: Pool) -> None:
    for (error,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.reserved_on_each, [24, 16])[:2]:
        assert error.startswith("RankMismatchError: rank ") and "set NCCL_MAX_CTAS to one number on all ranks" in error
    for (asked,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.reserved_on_each, [16, 16])[:2]:
        assert asked == "16"


def test_the_first_call_on_cuda_devices_tells_every_rank_what_one_raised(pool: Pool) -> None:
    """Every rank comes to the comparison, whatever happened before it; so no rank waits for one that failed."""
    (first,), (second,) = pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.failing_first)[:2]
    different = "RankMismatchError: this call: rank 1 has operator linear_all_reduce, rank 0 linear_reduce_scatter"
    assert first == ["ShapeError: x is too short", different, "agreed", "ShapeError: x is too short"]
    assert second == ["RankFailedError: rank 0 raised ShapeError: x is too short", different, "agreed", "agreed"]


def test_compiled_once_for_all_tokens(pool: Pool) -> None:
    """The choice is made when the operator runs, of the tokens that there are."""
    for ((count, asked, far),) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.compiled, [5, 33, 7])[:2]:
        assert (count, asked) == (1, [4, 32, 4])
        assert max(far) < 1e-6


def test_plain_torch_as_on_a_gpu(pool: Pool) -> None:
    """In the dtype of x, and sums travel so."""
    for (wrong,) in pool.results(on_ranks.on_groups, PAIR, auto_on_ranks.as_a_library, EACH)[:2]:
        assert wrong == []


@pytest.mark.parametrize("world, name", [(16, "h800"), (2, None)])
def test_the_first_plan_where_nothing_is_predicted(world: int, name: str | None) -> None:
    """A machine with fewer GPUs than the group, or none that is known."""
    assert fastest(Asked(REDUCE, 8, 16, 16), world, name, torch.bfloat16) == planned(REDUCE, None)


def test_the_first_plan_of_an_operator_that_is_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("tilelink.plans.choose")
    monkeypatch.setattr(module, "unfused", lambda operator, *given: unfused("linear_all_to_all", *given))
    with pytest.raises(ArgumentError, match="linear_all_to_all is not predicted: nothing describes its unfused form"):
        choose(REDUCE, M=16, N=48, K=16, world=2, machine="h800")
    assert fastest(Asked(REDUCE, 16, 48, 16), 2, "h800", torch.bfloat16) == planned(REDUCE, None)


def test_the_machine_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILELINK_MACHINE", raising=False)

    def named(name: str) -> Callable[[torch.device], str]:
        return lambda device: name

    for name, machine in {"NVIDIA H800": "h800", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA TITAN": None}.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", named(name))
        assert machine_name(torch.device("cuda")) == machine
    assert machine_name(torch.device("cpu")) is None
    monkeypatch.setenv("TILELINK_MACHINE", "l20")
    assert machine_name(torch.device("cpu")) == machine_name(torch.device("cuda")) == "l20"
    monkeypatch.setenv("TILELINK_MACHINE", "l21")
    with pytest.raises(UnknownMachineError, match="there is no machine l21"):
        machine_name(torch.device("cpu"))
