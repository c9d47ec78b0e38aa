"""`tilelink plan`: keys, what people are told, and what is said about bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans.configs import MOE, TINY
from tests.plans.machines import described
from tests.tools.cli.command_lines import ROOT, Run
from tilelink.analysis.simulate import FUSED, UNFUSED
from tilelink.frontend.kept import kept
from tilelink.ops.mixture_of_experts import PLANS
from tilelink.plans import MARGIN, Choice, choose
from tilelink.plans.routings import ROUTINGS
from tilelink.plans.unfused import Unfused
from tilelink.tools.cli import plan
from tilelink.tools.cli.command import tried

CONTRACT = {"layer", "op", "tokens", "unfused_us", "fused_us", "bound_us", "choice", "reason", "schedule"}
ONCE = "all_gather_grouped_matmul", "grouped_matmul_reduce_scatter"
GATHER, SCATTER, REDUCE = "all_gather_linear", "linear_reduce_scatter", "linear_all_reduce"
ONE: dict[str, Any] = {"M": 1, "N": 64, "K": 32, "world": 2, "machine": "h800"}
ATTENTION: dict[str, dict[str, Any]] = {
    GATHER: {"M": 4, "N": (32, 8, 8), "K": 64}, SCATTER: {"M": 4, "N": 64, "K": 32}, REDUCE: {"M": 1, "N": 64, "K": 32}
}  # fmt: skip
"""The sizes of the first row of each operator, on two ranks."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY, indent=2))
    return file


@kept()
def once(run: Callable[[Any], Any], job: Any, *predicts: Any) -> Any:
    """What an equal job was told before, unless what predicts it is another."""
    return tried(run, job)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done in this process, and those that several tests ask for once."""

    def here(run: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        yield from ((k, deepcopy(once(run, job, plan.choose, plan.choose_layer))) for k, job in enumerate(jobs))

    monkeypatch.setattr(plan, "on_all_cores", here)


def test_keys(run: Run, config: Path, one_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they say: the parts of a reason add up, and plans are those that are chosen. Every row of an operator is
    told what the first one is: a prediction takes a second."""
    asked: dict[tuple[str, int], list[tuple[Any, int]]] = {}

    def as_the_first(operator: str, *, M: int, N: Any, K: int, **others: Any) -> Choice:
        asked.setdefault((operator, M), []).append((N, K))
        return choose(operator, **ATTENTION[operator], **others)

    monkeypatch.setattr(plan, "choose", as_the_first)
    code, found = run("plan", str(config), "--machine", "h800", "--tp", "2", "--tokens", "1,4")
    assert asked == {
        (GATHER, 4): [((32, 8, 8), 64), ((48, 48), 64)], (SCATTER, 4): [(64, 32), (64, 48)],
        (REDUCE, 4): [(64, 32), (64, 48)], (REDUCE, 1): [(64, 32), (64, 48)],
    }  # fmt: skip
    assert code == 0 and found["command"] == "plan"
    assert (found["label"], found["machine"], found["tp"], found["margin"]) == ("predicted", "h800", 2, MARGIN)
    rows = found["rows"]
    assert [(r["tokens"], r["layer"], r["op"]) for r in rows] == [
        (1, "o", REDUCE), (1, "down", REDUCE),
        (4, "qkv", GATHER), (4, "o", SCATTER), (4, "gate_up", GATHER), (4, "down", SCATTER),
        (4, "o", REDUCE), (4, "down", REDUCE),
    ]  # fmt: skip
    for row in rows:
        assert set(row) >= CONTRACT and row["choice"] in ("fused", "unfused")
        assert (row["plan"] == "torch") == (row["choice"] == "unfused")
        fused, parts = re.search(r"takes ([\d.]+) us \(([^)]*)\)", row["reason"].replace("unfused takes", "")).groups()
        assert sum(float(part.split()[0]) for part in parts.split(", ")) == pytest.approx(float(fused), abs=0.21)
        assert 0 < row["bound_us"] <= row["fused_us"] and row["unfused_us"] > 0
        for interval, form in ((FUSED, "fused"), (UNFUSED, "unfused")):
            between = pytest.approx(interval.of(row[f"{form}_us"]), abs=2e-3)
            assert row[f"{form}_interval_us"] == between
    assert found["interval"] == asdict(FUSED) and found["unfused_interval"] == asdict(UNFUSED)
    qkv = choose(GATHER, **ATTENTION[GATHER], world=2, machine="h800")
    assert qkv.fused is not None and qkv.fused_us is not None
    assert rows[2]["schedule"] == qkv.fused.schedule and rows[2]["reason"] == qkv.reason
    assert rows[2]["fused_us"] == pytest.approx(qkv.fused_us, abs=1e-3) and rows[2]["plan"] == qkv.plan


def test_people_are_told_the_same(run: Run, config: Path, one_core: None) -> None:
    code, out, err = run.text("plan", str(config), "--machine", "h800", "--tp", "2", "--tokens", "1")
    _, found = run("plan", str(config), "--machine", "h800", "--tp", "2", "--tokens", "1")
    assert code == 0 and "predicted, not measured" in out and "[2/2] " in err and err.count(", 1 token: ") == 2
    assert f"off by {FUSED} ({FUSED.source}), unfused ones by {UNFUSED}" in out
    for row in found["rows"]:
        (line,) = (text for text in out.splitlines() if text.startswith(f"{row['layer']} "))
        assert line.split()[:3] == [row["layer"], row["op"], "1"] and line.split()[-1] == row["plan"]
        between = " to ".join(f"{us:,.1f}" for us in row["fused_interval_us"])
        assert f"  {between}  " in line and f"\n  {row['reason']}\n" in out


def test_people_are_told_what_a_table_leaves_out(
    run: Run, config: Path, one_core: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is predicted: the second time it is another layer."""
    few = ["plan", str(config), "--machine", "h800", "--tp", "2", "--tokens", "1"]
    _, out, _ = run.text(*few)
    nccl = "in a process group with NCCL they leave 24 to it, as --reserved 24 predicts"
    assert f"\nfused forms have all 132 SMs; {nccl}\n" in out
    assert "\nA fused form is chosen if unfused us is at least 1.15 times the shorter of its two times." in out
    assert "Plans that wait in pieces are not tried: ask for them by name." in out
    assert "\nNo published row has fewer than 512 tokens: below that, nothing supports the intervals.\n" in out
    monkeypatch.setattr(plan, "choose", lambda *_, **__: choose(REDUCE, **ONE))
    _, out, _ = run.text(*few[:-1], "512", "--reserved", "24")
    assert "\nfused forms leave 24 of 132 SMs to others" in out and "No published row" not in out


def test_a_schedule_can_be_simulated_as_it_is_written(run: Run, config: Path, one_core: None) -> None:
    _, found = run("plan", str(config), "--machine", "h800", "--tp", "2", "--tokens", "1")
    for row in found["rows"]:
        shape = ",".join(f"{d}={n}" for d, n in row["shape"].items())
        asked = ["--machine", "h800", "--world", "2", "--shape", shape, "--schedule", row["schedule"]]
        assert run("simulate", row["program"], *asked)[1]["makespan_us"] == row["fused_us"]


@pytest.mark.verify
def test_layers_of_whole_experts_are_predicted(run: Run, config: Path, one_core: None) -> None:
    """By the programs of dispatch and combine, as they can be simulated; those of "once" are told more."""
    config.write_text(json.dumps(MOE))
    _, found = run("plan", str(config), "--tp", "2", "--ep", "2", "--tokens", "64", "--machine", "h100")
    rows = [r for r in found["rows"] if r["layer"].startswith("experts_")]
    assert [r["layer"] for r in rows] == ["experts_gate_up", "experts_down"]
    for row in rows:
        once = row["plan"].startswith("once")
        assert row["program"] in (ONCE if once else ("dispatch_matmul", "matmul_combine"))
        if once:
            continue
        shape = ",".join(f"{d}={n}" for d, n in row["shape"].items())
        asked = ["--machine", "h100", "--world", "2", "--shape", shape, "--schedule", row["schedule"]]
        simulated = run("simulate", row["program"], *asked)[1]
        assert simulated["makespan_us"] == row["fused_us"] >= row["bound_us"] > 0
        assert row["choice"] == ("fused" if row["unfused_us"] >= 1.15 * row["fused_us"] else "unfused")


def one_choice(*_: Any, **__: Any) -> Choice:
    """In place of what is chosen for layers that no test looks at."""
    return choose(REDUCE, **ONE)


@pytest.fixture
def experts_alone(one_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "choose", one_choice)


def test_a_whole_layer_is_predicted_in_one_kernel_and_in_two(run: Run, config: Path, experts_alone: None) -> None:
    config.write_text(json.dumps(MOE))
    _, found = run("plan", str(config), "--tp", "2", "--ep", "2", "--tokens", "64", "--machine", "h100")
    first, second, row = found["rows"][-3:]
    assert max(first["bound_us"], second["bound_us"]) <= row["bound_us"] <= row["fused_us"], "of no schedule"
    plans = row["forms_us"].keys()  # but for those whose busiest workers alone take longer than another
    assert (row["layer"], row["op"]) == ("experts", "mixture_of_experts")
    names = {plan.split(",")[0] for plan in plans}
    assert {"one_kernel", "push"} < names <= {*PLANS} and len(plans) - len(names) <= 1, "one with other numbers of SMs"
    shape = ",".join(f"{d}={n}" for d, n in row["shape"].items())
    asked = ["mixture_of_experts", "--machine", "h100", "--world", "2", "--shape", shape, "--schedule"]
    assert run("simulate", *asked, "push")[1]["makespan_us"] == row["forms_us"]["one_kernel"]
    assert row["fused_us"] == min(row["forms_us"].values())
    two = min(us for plan, us in row["forms_us"].items() if "one_kernel" not in plan)
    assert two > first["fused_us"] + second["fused_us"], "and SwiGLU"
    fastest = min(plans, key=lambda plan: row["forms_us"][plan])
    fused = row["unfused_us"] >= 1.15 * row["fused_us"]
    assert (row["choice"], row["plan"]) == (("fused", fastest) if fused else ("unfused", "torch"))
    assert f"{fastest.partition(':')[0]}" in row["reason"] and "SwiGLU over room for 256 rows" in row["reason"]


def test_tokens_go_to_experts_by_a_power_law_and_room_is_told(run: Run, config: Path, experts_alone: None) -> None:
    config.write_text(json.dumps(MOE))
    asked = ["plan", str(config), "--tp", "2", "--ep", "2", "--tokens", "64", "--machine", "h100"]
    even, skewed = (run(*asked, "--routing", routing)[1] for routing in ROUTINGS)
    assert (even["routing"], skewed["routing"]) == ROUTINGS
    for one, other in zip(even["rows"][-3:], skewed["rows"][-3:], strict=True):
        assert other["shape"].keys() == one["shape"].keys()
        assert one["room"] == other["room"] == 2 * 32 * 4
    assert even["rows"][-1]["forms_us"] != skewed["rows"][-1]["forms_us"]
    gate_up, down, whole = (r["heap_bytes"] for r in even["rows"][-3:])
    by_first, by_second = (r["plan"].startswith("once") for r in even["rows"][-3:-1])
    assert gate_up == 2 * (256 + 64 * by_first) * 64 and down == 2 * (256 + 32 * (2 if by_second else 4)) * 64
    assert even["rows"][-1]["plan"].startswith("one_kernel")
    assert whole == 2 * 256 * 64 + 2 * 256 * MOE["moe_intermediate_size"] + 2 * (256 + 32 * 4) * 64
    _, out, _ = run.text(*asked)
    assert f"room for 256 rows on a rank, so that none is dropped whatever the routing: {gate_up:,} bytes" in out


@pytest.mark.verify
def test_layers_of_experts_that_are_cut_are_predicted_too(run: Run, config: Path, one_core: None) -> None:
    """With a slice of every expert on every rank all tokens go everywhere once, as they can be simulated."""
    config.write_text(json.dumps(MOE))
    _, found = run("plan", str(config), "--tp", "2", "--ep", "1", "--tokens", "256", "--machine", "h100")
    rows = found["rows"][-3:]
    assert [r["layer"] for r in rows] == ["experts_gate_up", "experts_down", "experts"]
    assert {"one_kernel", "once", "push"} <= rows[2]["forms_us"].keys()
    for row in rows:
        assert 0 < row["bound_us"] <= row["fused_us"] and row["unfused_us"] > 0
    for row in rows[:2]:
        shape = ",".join(f"{d}={n}" for d, n in row["shape"].items())
        asked = ["--machine", "h100", "--world", "2", "--shape", shape, "--schedule", row["schedule"]]
        assert run("simulate", row["program"], *asked)[1]["makespan_us"] == row["fused_us"]


@pytest.mark.verify
def test_on_all_cores(run: Run, config: Path, tmp_path: Path) -> None:
    """In processes of its own: the default of --tp is all GPUs of the machine."""
    two = described(tmp_path, ranks=2)
    code, found = run("plan", str(config), "--machine", two, "--tokens", "1")
    assert (code, found["tp"], found["machine"]) == (0, 2, two) and len(found["rows"]) == 2


@pytest.mark.parametrize(
    ("change", "flags", "kind", "said", "line"),
    [
        ({"hidden_size": 0}, "--tp 2", "ConfigError", "hidden_size is 0: it must be a natural number", 3),
        ({"model_type": "gpt2"}, "--tp 2", "ConfigError", "models of type gpt2 are not known; known are llama", 2),
        ({"num_key_value_heads": 3}, "--tp 2", "ConfigError", "can't be shared by 2 ranks", 6),
        ({}, "--tp 9", "UsageError", "--tp 9: h100 has 8 GPUs", None),
        ({}, "--tp 0", "UsageError", "--tp 0: h100 has 8 GPUs", None),
        ({}, "--tp 2 --ep 2", "UsageError", "has no experts", None),
        ({}, "--tp 4 --ep 3", "UsageError", "--ep 3: experts are spread over groups of ranks", None),
        ({}, "--tokens 1,none", "UsageError", "'1,none' is no list of numbers of tokens", None),
        ({}, "--tokens 0", "UsageError", "'0' is no list of numbers of tokens", None),
        ({}, "--machine h1000", "UnknownMachineError", "there is no machine h1000", None),
    ],
)
def test_bad_input(
    run: Run, config: Path, change: dict[str, Any], flags: str, kind: str, said: str, line: int | None
) -> None:
    config.write_text(json.dumps(TINY | change, indent=2))
    error = run.error("plan", str(config), *flags.split())
    assert (error["class"], error["line"]) == (kind, line) and said in error["message"]
    assert error["file"] == (str(config) if line else None)


def test_models_of_ours_name_the_flag(run: Run) -> None:
    error = run.error("plan", "llama-3-8b", "--tp", "3")
    assert (error["class"], error["file"]) == ("ConfigError", None)
    assert error["message"] == "--tp 3: num_attention_heads is 32, which 3 ranks can't share evenly"
    error = run.error("plan", "mixtral-8x7b", "--tp", "6", "--ep", "3")
    assert error["message"].startswith("--tp 6 --ep 3: num_attention_heads is 32")


def test_a_time_is_rounded_once(run: Run, config: Path, one_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For people from the exact time, as reasons are; for programs to three digits."""
    exact = 77.85 + 1e-4
    monkeypatch.setattr(plan, "choose", lambda *_, **__: replace(choose(REDUCE, **ONE), unfused=Unfused(exact, 0, 0)))
    asked = ["plan", str(config), "--machine", "h800", "--tp", "2", "--tokens", "1"]
    assert run(*asked)[1]["rows"][0]["unfused_us"] == 77.85
    assert "  77.9  " in run.text(*asked)[1]


def test_no_such_model(run: Run) -> None:
    error = run.error("plan", "gpt-9")
    assert error["class"] == "ConfigError" and "a config.json, or one of llama-3-8b" in error["message"]
    assert run.error("plan", "lama-3-8b")["message"].endswith("; did you mean llama-3-8b?")


def test_an_error_of_a_prediction_ends_it(run: Run, config: Path, one_core: None) -> None:
    """That of the first layer, before others are predicted."""
    config.write_text(json.dumps(TINY | {"hidden_size": 2**26}))
    assert run.error("plan", str(config), "--tp", "2", "--tokens", "131072")["class"] == "MachineMemoryError"


@pytest.mark.verify
def test_the_page_shows_what_is_printed(run: Run) -> None:
    page = (ROOT / "README.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("$ tilelink plan"))
    _, out, _ = run.text(*command.split()[2:])
    table, reasons = out.split("\n\nA fused form is chosen")
    assert f"{command}\n{table}\n```" in page
    quoted = page.split("The reasons follow the table, such as\n\n```\n")[1].split("```")[0]
    assert quoted in reasons
