"""Choosing plans: what wins where, by how much, and what is said of it."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans.machines import described
from tilelink.analysis.machine import machine
from tilelink.analysis.simulate import predict
from tilelink.analysis.simulate.costs import workers_least
from tilelink.analysis.simulate.steps import Steps
from tilelink.errors import ArgumentError, MachineError, MachineMemoryError, TileLinkError, UnknownMachineError
from tilelink.plans import MARGIN, Choice, choose, plans
from tilelink.plans.choose import reason
from tilelink.plans.forms import Forms
from tilelink.plans.names import planned
from tilelink.plans.unfused import Unfused, library_collective, library_matmul, unfused

LLAMA: dict[str, Any] = {"K": 4096, "world": 8, "machine": "h800"}
GATE_UP, QKV = (1792, 1792), (512, 128, 128)
SMALL: dict[str, Any] = {"M": 8, "N": 20, "K": 16, "world": 2, "dtype": "float32"}


def assert_told(choice: Choice) -> None:
    """The reason has the numbers of both forms, rounded."""
    assert choice.fused is not None
    for number in (choice.unfused_us, choice.fused_us, choice.unfused.product_us, choice.unfused.collective_us):
        assert f"{number:,.1f}" in choice.reason
    assert choice.fused.plan in choice.reason and "launch and signals" in choice.reason


def test_fused_wins_where_products_hide_the_bytes() -> None:
    choice = choose("all_gather_linear", M=2048, N=GATE_UP, **LLAMA)
    assert (choice.choice, choice.plan) == ("fused", "push")
    assert choice.bound_us is not None and choice.fused_us is not None and choice.fused is not None
    assert choice.bound_us <= choice.fused_us and choice.unfused_us >= (1 + MARGIN) * choice.fused_us
    assert_told(choice)
    assert f"{choice.unfused_us / choice.fused_us:.2f} times as fast as unfused" in choice.reason
    _, program, schedule = planned("all_gather_linear", choice.plan)
    assert choice.by == planned("all_gather_linear", choice.plan)
    again = program.simulate(schedule, machine="h800", world=8, M=2048, N=GATE_UP, K=4096)
    assert again.makespan_us == choice.fused_us


def test_unfused_wins_where_fused_is_hardly_faster() -> None:
    """There are few products to hide the bytes behind."""
    choice = choose("all_gather_linear", M=2112, N=QKV, **LLAMA)
    assert (choice.choice, choice.plan) == ("unfused", "torch")
    assert choice.fused_us is not None and 1 < choice.unfused_us / choice.fused_us < 1 + MARGIN
    assert_told(choice)
    ratio = f"{choice.unfused_us / choice.fused_us:.2f} times as fast as unfused"
    assert f"{ratio}, just less than the 1.15 that predictions need" in choice.reason
    assert choice.fused is not None and choice.fused.plan == "push,matmul.tile=128x64x64"
    fitted = next(f for f in choice.forms if f.plan == choice.fused.plan.split(",")[0])
    assert fitted.us is not None and choice.fused_us < fitted.us
    again = planned("all_gather_linear", choice.fused.plan).program.simulate(
        choice.fused.schedule, machine="h800", world=8, M=2112, N=QKV, K=4096
    )
    assert again.makespan_us == choice.fused_us


def test_unfused_wins_where_signals_are_slow(tmp_path: Path) -> None:
    choice = choose("linear_reduce_scatter", **SMALL, machine=described(tmp_path, flight_us=500))
    assert (choice.choice, choice.plan) == ("unfused", "torch")
    assert choice.fused_us is not None and choice.fused_us > choice.unfused_us
    assert_told(choice)
    assert f"{choice.unfused_us / choice.fused_us:.2f} times as fast as unfused" in choice.reason


def test_the_fastest_is_chosen_and_of_equals_the_first() -> None:
    choice = choose("linear_reduce_scatter", **SMALL, machine="h800")
    assert choice.plan == "fused,matmul.tile=16x16x16"
    assert [f.plan for f in choice.forms] == [*plans("linear_reduce_scatter"), choice.plan]
    assert choice.fused_us == min(f.us for f in choice.forms if f.us is not None)
    alone = choose("all_gather_linear", M=16, N=16, K=16, world=1, machine="h800")
    times = [f.us for f in alone.forms]
    assert alone.fused == alone.forms[times.index(min(t for t in times if t is not None))]
    assert (alone.choice, alone.unfused.collective_us) == ("unfused", 0.0)


@pytest.mark.parametrize(("more", "plan"), [(0.0, "fused,matmul.tile=16x16x16"), (-1e-6, "torch")])
def test_a_tie_with_the_margin_is_fused(monkeypatch: pytest.MonkeyPatch, more: float, plan: str) -> None:
    module = importlib.import_module("tilelink.plans.choose")
    us = choose("linear_reduce_scatter", **SMALL, machine="h800").fused_us
    assert us is not None
    tie = Unfused((1 + MARGIN) * us + more, 0.0, 0.0)
    monkeypatch.setattr(module, "unfused", lambda *_: tie)
    sizes = {"M": 8, "N": 20, "K": 16, "world": 2}
    assert module._choose.__wrapped__("linear_reduce_scatter", "h800", "float32", 0, **sizes).plan == plan


@pytest.mark.verify
def test_what_cannot_be_the_fastest_for_its_bytes_is_not_simulated() -> None:
    """And would not have been: the bound holds."""
    sizes = {"M": 1024, "N": 1024, "K": 64}
    choice = choose("linear_reduce_scatter", **sizes, world=4, machine="l20")
    (ring,) = (f for f in choice.forms if f.plan == "ring")
    assert ring.us is None and ring.why.startswith("its bytes between ranks alone take ")
    least = float(ring.why.split()[-2])
    ring_plan = plans("linear_reduce_scatter")["ring"]
    dtypes = {"x": "bfloat16", "weight": "bfloat16", "out": "bfloat16"}
    found = ring_plan.program.simulate(ring_plan.schedule, machine="l20", world=4, dtypes=dtypes, **sizes)
    assert choice.fused_us is not None and choice.fused_us <= least < found.makespan_us


def test_what_a_machine_lacks_is_told() -> None:
    choice = choose("all_gather_linear", **SMALL, machine="mi300x")
    (multicast,) = (f for f in choice.forms if f.plan == "multicast")
    assert multicast.us is None and "mi300x has no agent multicast" in multicast.why
    assert choice.fused is not None


@pytest.mark.parametrize(
    ("m", "n", "k", "change"), [(512, 1792, 4096, "gather.count=24"), (1024, 3584, 8192, "gather.streams=peers")]
)
def test_other_sms_and_streams_are_tried(m: int, n: int, k: int, change: str, tmp_path: Path) -> None:
    """With few rows, what one stream, or few SMs, would bring comes too late."""
    on = "h100" if "count" in change else described(tmp_path, "h100", agents__tma__push=5, agents__tma__pull=5)
    choice = choose("all_gather_linear", M=m, N=n, K=k, world=8, machine=on)
    assert choice.fused is not None and change in choice.fused.plan.split(",")
    plan = planned("all_gather_linear", choice.fused.plan)
    again = plan.program.simulate(plan.schedule, machine=on, world=8, M=m, N=n, K=k)
    fitted = next(f for f in choice.forms if f.plan == choice.fused.plan.split(",")[0])
    assert fitted.us is not None and again.makespan_us == choice.fused.us < 0.98 * fitted.us


@pytest.mark.verify
def test_the_backward_is_chosen_too() -> None:
    for operator in ("all_gather_linear_backward", "linear_reduce_scatter_backward"):
        choice = choose(operator, **SMALL, machine="h800")
        assert choice.fused is not None and choice.fused.plan.split(",")[0] in plans(operator)
        assert choice.plan in (choice.fused.plan, "torch")


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"operator": "linear"}, ArgumentError, "there is no operator 'linear'; there are all_gather_linear"),
        ({"M": 0}, ArgumentError, "M=0; it must be an integer"),
        ({"N": ()}, ArgumentError, r"N=\(\); it must be an integer"),
        ({"K": 2.5}, ArgumentError, "K=2.5; it must be an integer"),
        ({"world": 9}, MachineError, "a world of 9 on h800, which has 8 GPUs"),
        ({"machine": "h100_nodes2"}, MachineError, "a world of 2 lies within a node of h100_nodes2"),
        ({"machine": "h8000"}, UnknownMachineError, "there is no machine h8000"),
        ({"reserved": 10**4}, MachineError, "reserved"),
        ({"dtype": "bf17"}, ArgumentError, "bf17 is not a dtype"),
        ({"dtype": "float8_e4m3fn"}, MachineError, "h800: no matmul rate for"),
        ({"M": 10**7, "N": 10**5, "K": 10**4}, MachineMemoryError, "GB on a rank; h800 has 80 GB"),
    ],
)
def test_what_can_not_be_asked(changes: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as error:
        choose(**{"operator": "linear_reduce_scatter", "machine": "h800", **SMALL, **changes})
    assert isinstance(error.value, TileLinkError) and error.value.site is not None
    assert error.value.site.file == __file__


def test_a_size_that_is_missing_is_named() -> None:
    """By the keyword, and not by a function that has another name among the operators."""
    with pytest.raises(ArgumentError) as error:
        choose("linear_reduce_scatter", M=8, N=20, k=16, world=2, machine="h800")  # type: ignore[call-arg]
    assert error.value.message == "got an unexpected keyword argument 'k'; did you mean K?"
    with pytest.raises(ArgumentError) as error:
        choose("linear_reduce_scatter", M=8, N=20, world=2, machine="h800")  # type: ignore[call-arg]
    assert error.value.message == "missing 1 required keyword-only argument: 'K'"


# ---- the unfused form


def test_parts_of_the_unfused_form() -> None:
    h800, shape = machine("h800"), {"M": 1024, "N": 512, "K": 256}
    scattered = unfused("linear_reduce_scatter", h800, 8, "bfloat16", shape)
    reduced = unfused("linear_all_reduce", h800, 8, "bfloat16", shape)
    fixed = h800.launch_us + h800.collective_us
    assert scattered.total_us == scattered.product_us + scattered.collective_us + h800.launch_us
    assert scattered.product_us == reduced.product_us == library_matmul(h800, "bfloat16", 1024, 512, 256)
    moved = 1024 * 512 * 2 * 7 / 8
    assert scattered.collective_us == pytest.approx(fixed + moved / (h800.collective * 1e3))
    assert reduced.collective_us - fixed == pytest.approx(2 * (scattered.collective_us - fixed))
    merged = unfused("all_gather_linear", h800, 8, "bfloat16", {**shape, "N": (256, 128, 128)})
    assert merged == unfused("all_gather_linear", h800, 8, "bfloat16", shape)


def test_a_backward_hides_its_collectives_behind_products() -> None:
    h800, shape = machine("h800"), {"M": 512, "N": 512, "K": 256}
    found = unfused("all_gather_linear_backward", h800, 8, "bfloat16", shape)
    assert 0 < found.hidden_us <= min(found.product_us, found.collective_us)
    forms = Forms((), None, None)
    assert f"launch, less {found.hidden_us:,.1f} in which products and collective overlap); " in reason(found, forms)
    assert replace(found, hidden_us=0.0).total_us == found.total_us + found.hidden_us


@pytest.mark.parametrize("m", [1, 16, 100, 1000])
def test_a_product_is_not_faster_than_the_machine(m: int) -> None:
    h800, n, k = machine("h800"), 1000, 4096
    operations = 2 * m * n * k / (h800.matmul_rate("bfloat16") * 1e6)
    weight = n * k * 2 / (h800.memory_rate * 1e3)
    assert max(operations, weight) < library_matmul(h800, "bfloat16", m, n, k) < 40


def test_what_workers_alone_rule_out_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """And would not have been the fastest: no run of a plan takes less than its workers alone."""
    module, simulated = importlib.import_module("tilelink.plans.forms"), []

    def watched(steps: Steps, *on: Any) -> Any:
        simulated.append(steps)
        return predict(steps, *on)

    monkeypatch.setattr(module, "predict", watched)
    monkeypatch.setattr(module.Question, "_changed", lambda self, form, prediction: (form, prediction))
    sizes: dict[str, Any] = {"M": 4096, "N": 2048, "K": 64}
    h800 = machine("h800")
    on = replace(h800, agents={n: agent for n, agent in h800.agents.items() if n != "tma"})
    found = module.Question("linear_reduce_scatter", on, 4, "bfloat16", sizes).forms()
    (pull,) = (f for f in found.all if f.plan == "pull")
    assert pull.us is None and pull.why.startswith("its busiest workers alone take ")
    assert len(simulated) == sum(f.us is not None for f in found.all)
    least, takes = float(pull.why.split()[-2]), planned("linear_reduce_scatter", "pull").program
    whole = takes.simulate("pull", machine=on, world=4, **sizes).makespan_us
    assert found.prediction is not None and found.prediction.makespan_us <= least <= whole
    for plan in ("fused", "push", "engine"):
        p = takes.simulate(plan, machine=on, world=4, **sizes)
        assert workers_least(p.steps, p.costs, p.machine) <= p.makespan_us


def test_the_collective_of_few_rows_tells_that_of_many() -> None:
    h800 = machine("h800")
    for name in ("all_gather", "reduce_scatter", "all_reduce"):
        few, many, uneven = (library_collective(name, h800, 4, "bfloat16", m, 512) for m in (4, 4096, 4097))
        fixed = h800.launch_us + h800.collective_us
        assert many - fixed == pytest.approx(1024 * (few - fixed)) and uneven > many


def test_sms_that_are_left_to_others_cost_the_fused_forms() -> None:
    """As a lane leaves them where NCCL is its group's backend. The unfused form has all SMs."""
    asked: dict[str, Any] = {"M": 2048, "N": (3584, 3584), **LLAMA}
    whole, left = (choose("all_gather_linear", reserved=n, **asked) for n in (0, 24))
    assert left.unfused_us == whole.unfused_us
    assert left.fused_us is not None and whole.fused_us is not None and left.fused_us > 1.05 * whole.fused_us
