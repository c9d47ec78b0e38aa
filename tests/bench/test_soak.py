"""The soak: a seed says all of a case, all programs come, results are checked, and what is wrong is told."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench import soak, soak_experts
from bench.lanes import WORLDS, lane, world_of
from bench.references import REFERENCES
from tests.bench.on_stand_in import OnStandIn
from tests.programs.exchanges import doubled, readers_first
from tilelink.programs.program import Program


def test_a_seed_says_all_of_a_case() -> None:
    assert [lane(seed) for seed in range(20)] == [lane(seed) for seed in range(20)]
    assert len({str(lane(seed)) for seed in range(100)}) == 100
    assert all(lane(seed).world == world_of(seed) for seed in range(100))


def test_all_programs_schedules_and_worlds_come() -> None:
    lanes = [lane(seed) for seed in range(600)]
    calls = [call for drawn in lanes for call in drawn.calls]
    assert {(c.program, c.name) for c in calls} == {(p, s) for p in REFERENCES for s in p.schedules}
    assert Counter(drawn.world for drawn in lanes).keys() == set(WORLDS)
    assert any(len(set(c.parts)) > 1 and 0 in c.parts for c in calls)
    assert {c.whole for c in calls} == {c.poisoned for c in calls} == {True, False}


def run(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the object that is printed, and what is said beside it."""
    code = soak.main(["--jobs", "1", "--out", str(folder), "--json", *flags])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_cases_follow_each_other_until_the_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, said = run(tmp_path, capsys, "--seconds", "1", "--seed", "0", "--worlds", "1,2")
    assert (code, found["status"], found["findings"]) == (0, "ok", [])
    assert found["cases"] == len(found["seeds"]) >= 1 and found["calls"] == sum(found["programs"].values())
    assert set(found["worlds"]) <= {"1", "2"} and re.search(r"right  case 0: 1 ranks, \w+", said)
    recorded = json.loads((tmp_path / "soak.json").read_text())
    assert recorded["command"].startswith("python -m bench.soak --jobs 1") and recorded["seeds"] == found["seeds"]


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.verify) for seed in (3, 5, 11, 12))])
def test_the_same_cases_on_virtual_ranks(seed: int) -> None:
    """Of a device that stands in for a GPU."""
    assert lane(seed).world <= soak.ON_ONE_GPU and not lane(seed).wrong(OnStandIn().place())


def test_all_layers_of_experts_come() -> None:
    layers = [soak_experts.layer(seed) for seed in range(400)]
    assert layers == [soak_experts.layer(seed) for seed in range(400)]
    assert {(d.backend, d.plan) for d in layers} >= {("torch", None), ("interpret", "push"), ("interpret", "few")}
    assert {d.world for d in layers} == {1, 2, 3, 4} and {d.slices for d in layers} >= {1, 2, 3, 4}
    assert any(d.capacity is not None and d.rows(d.operands()) > d.capacity for d in layers)


@pytest.mark.verify
def test_a_soak_of_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, said = run(tmp_path, capsys, "--experts", "--seconds", "0", "--seed", "0")
    assert (code, found["cases"], found["programs"]) == (0, 1, {"mixture_of_experts": 1}) and "from seed 0 on" in said


def test_a_finding_of_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "soaked", lambda first, seconds: [(first, "rank 1: out is off by 1.0e+00")])
    code, found, _ = run(tmp_path, capsys, "--experts", "--seconds", "0", "--seed", "7")
    assert code == 1 and found["findings"][0]["error"] == "rank 1: out is off by 1.0e+00"


def only(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cases are of this program, which should gather."""
    (gather,) = [right for p, right in REFERENCES.items() if p.name == "all_gather"]
    monkeypatch.setitem(REFERENCES, program, gather)
    monkeypatch.setattr(soak, "lane", lambda seed: lane(seed, [program]))


MISTAKES = [
    (doubled, "call 0 is wrong, relative RMS 1.0: doubled pull"),
    (readers_first, "readers_first is not safe to run\ndeadlock"),
]


@pytest.mark.parametrize(("program", "says"), MISTAKES, ids=lambda v: getattr(v, "name", ""))
def test_a_mistake_is_a_finding_and_its_case_can_be_repeated(
    program: Program, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(program, monkeypatch)
    monkeypatch.setattr(soak, "MOST", 1)
    code, found, said = run(tmp_path, capsys, "--seed", "0", "--worlds", "2")
    assert (code, found["status"]) == (1, "finding")
    (finding,) = found["findings"]
    assert says in finding["error"] and says in said and f"WRONG  case {finding['seed']}" in said
    code, again, _ = run(tmp_path, capsys, "--case", str(finding["seed"]))
    assert code == 1 and again["findings"][0]["error"] == finding["error"]


@pytest.mark.verify
def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "run", _dies)
    found = list(soak.soak(iter([3, 1, 4, 1, 5]), seconds=60, jobs=2))
    assert 1 <= len(found) <= 2 and all("has died" in case.error for case in found)


def _dies(seed: int) -> None:
    os._exit(1)


@pytest.mark.parametrize("flags", [["--worlds", "5"], ["--jobs", "0"], ["--seconds", "soon"]], ids=" ".join)
def test_bad_flags(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, _ = run(tmp_path, capsys, *flags)
    assert (code, found["status"]) == (2, "error")
