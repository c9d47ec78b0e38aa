"""The script for a GPU, on machines that have none: its steps run on CPU ranks and on virtual ranks of a stand-in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import command, others, right, speed, vain
from bench.gpu.command import STEPS, main
from bench.gpu.place import Place, by_host, dry
from bench.gpu.report import OutOfTimeError, Report
from bench.operands import Operands
from bench.references import ROUNDED
from tests.bench.on_stand_in import OnStandIn
from tilelink.kernels import operators


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def reported(step: Any, tmp_path: Path, place: Place, seconds: float = 300) -> list[dict[str, Any]]:
    step(place, Report(tmp_path / "found.jsonl", "step", place, "a command", seconds))
    return records(tmp_path / "found.jsonl")


@pytest.mark.parametrize("step", ["first", "vain", "graphs", "speed", "host", "kernels", "timelines"])
def test_steps_on_the_cpu(step: str, tmp_path: Path) -> None:
    assert main(["--dry", "--step", step, "--out", str(tmp_path)]) == 0
    found = records(tmp_path / "gpu-dry.jsonl")
    assert found and all(r["step"] == step and r["kind"] == "interpreted" and r["ok"] is not False for r in found)
    assert all(r["command"] == f"python3 -m bench.gpu --dry --step {step} --out {tmp_path}" for r in found)
    assert not any(r["speedup"] for r in found), "an interpreter's time is held against nobody's"


def test_every_step_has_its_time() -> None:
    assert sum(seconds for seconds, _ in STEPS.values()) <= 8 * 60


def test_results_on_virtual_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right, "WORLDS", (2,))
    monkeypatch.setattr(right, "DTYPES", ("bfloat16",))
    place = replace(OnStandIn().place(), parts={2: (20, 5)})
    found = reported(right.results, tmp_path, place)
    assert [r["schedule"] for r in found] == 2 * list(right.schedules(place))
    assert all(r["ok"] and r["exact"] and r["rel_rms"] < 2.5e-3 for r in found)


@pytest.mark.verify
def test_sums_on_virtual_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of uneven parts; the CPU tries the other cases with --dry."""
    place = OnStandIn().place()
    cases = [c for c in right.adding(place) if c[-1] == place.parts[2]]
    monkeypatch.setattr(right, "adding", lambda place: cases)
    found = reported(right.sums, tmp_path, place)
    assert [(r["op"], r["schedule"]) for r in found] == [(p.name, s) for p in right.SUMS for s in p.schedules]
    assert all(r["ok"] and r["exact"] for r in found)


def test_others_on_virtual_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One schedule of each; the CPU tries the others with --dry."""
    first = [(p.name, next(iter(p.schedules))) for p in others.OTHERS]
    monkeypatch.setattr(others, "cases", lambda: first)
    found = reported(others.others, tmp_path, OnStandIn().place())
    assert [(r["op"], r["schedule"]) for r in found] == first
    assert all(r["ok"] and r["calls"] == 2 for r in found), [r["error"] for r in found]
    assert {r["op"]: r["exact"] for r in found} == {p.name: None if p in ROUNDED else True for p in others.OTHERS}


def test_every_program_is_run_in_every_schedule() -> None:
    place = dry()
    run = {(c[0].name, c[3]) for c in (*right.gathering(place), *right.adding(place))} | set(others.cases())
    assert run == {(name, schedule) for name, p in operators().items() for schedule in p.schedules}


def test_graphs_on_virtual_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right, "WORLDS", (2,))
    monkeypatch.setattr(right, "REPLAYS", 3)
    monkeypatch.setattr(right, "schedules", lambda place: ("push", "pull"))
    monkeypatch.setattr(right, "settle", lambda group: group.synchronize())
    found = reported(right.graphs, tmp_path, OnStandIn().place())
    assert [(r["schedule"], r["ok"], r["exact"]) for r in found] == [("push", True, True), ("pull", True, True)]


def test_waits_in_vain_on_virtual_ranks(tmp_path: Path) -> None:
    absent, mute = reported(vain.vain, tmp_path, OnStandIn().place())
    assert absent["ok"] and "a rank did not come within 2 s" in absent["message"]
    assert mute["ok"] and "role matmul, tile" in mute["message"]


def test_the_gemm_with_signals_set_is_the_whole_run_but_the_gather(tmp_path: Path) -> None:
    plain, fused = reported(speed.speed, tmp_path, OnStandIn().place())
    assert plain["ok"] and fused["ok"] and fused["rel_rms"] < 2.5e-3
    assert fused["baseline"].startswith("cuBLAS") and fused["speedup"]


# ---- it fires


def test_a_wrong_result_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = right.Inputs.call
    monkeypatch.setattr(right.Inputs, "call", lambda self, group, schedule: real(self, group, schedule) + 1)
    found = reported(right.first, tmp_path, dry())
    assert [r["ok"] for r in found] == [False, False] and "call 0 of whole numbers is wrong" in found[0]["error"]


def test_what_another_program_makes_wrong_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Operands.call
    monkeypatch.setattr(others, "cases", lambda: [("all_gather", "pull"), ("all_gather_gated_matmul", "pull")])
    monkeypatch.setattr(Operands, "call", lambda *call, **more: [y + 1 for y in real(*call, **more)])
    found = reported(others.others, tmp_path, dry())
    assert [(r["ok"], r["error"]) for r in found] == [(False, "call 0 is wrong")] * 2


def test_an_error_is_a_finding_and_the_others_still_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def world(n: int, **options: Any) -> Any:
        if n == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return dry().world(n)

    found = reported(right.first, tmp_path, replace(dry(), world=world))
    assert [r["ok"] for r in found] == [False, True]
    assert found[0]["error"] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert "world" in found[0]["traceback"]


def test_a_slow_gemm_that_is_wrong_gets_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "relative_rms", lambda results, right: 0.1)
    for record in reported(speed.speed, tmp_path, dry()):
        assert record["ok"] is False and record["median_us"] is None


def test_what_is_left_when_the_time_is_over_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError):
        reported(right.first, tmp_path, dry(), seconds=-1)
    (found,) = records(tmp_path / "found.jsonl")
    assert found["ok"] is None and "not begun" in found["error"]


def test_a_step_that_dies_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "sys", type("Sys", (), {"executable": "/bin/false"}))
    path = tmp_path / "found.jsonl"
    assert command._in_a_process(path, "first", []) == 1
    monkeypatch.setattr(command, "sys", type("Sys", (), {"executable": "/bin/sh"}))  # knows no -m: ends with 2
    assert command._in_a_process(path, "first", []) == 1
    (found,) = records(path)
    assert found["step"] == "first" and found["error"] == "ended with exit code 2"


def test_a_machine_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("OUT", str(tmp_path))
    assert main([]) == 2
    (found,) = records(tmp_path / "gpu-none.jsonl")
    assert found["kind"] == "compiled" and found["what"].startswith("compiled only") and found["ok"] is None


def test_the_clock_of_the_host() -> None:
    assert by_host(lambda: None) < 1e6
