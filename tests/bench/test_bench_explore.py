"""Exploring all programs: what is run, what is recorded, and a sample that is always the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import explore as command
from bench.explore import BACKENDS, RECORD, Case, cases, explored, known, main
from bench.records import json_lines
from tests.parameters import rarely
from tilelink.kernels.all_gather_matmul import all_gather_matmul


def test_the_programs_of_the_library_and_the_examples_are_all_explored() -> None:
    asked = list(cases(BACKENDS))
    assert {(c.program, c.schedule, c.world, c.backend, c.policy) for c in asked} == {
        (p, s, w, b, policy) for p, s in known() for w in (2, 3, 4) for b in BACKENDS for policy in ("random", "pct")
    }
    for backend, count in BACKENDS.items():
        assert sum(c.seeds for c in asked if c.backend == backend) >= count


# By the record, which has all of them, as a test below holds: to find them in the library takes seconds.
ON_RECORD = [(r["program"], r["schedule"]) for r in json_lines(RECORD) if (r["world"], r["policy"]) == (3, "pct")]


LAST = dict(ON_RECORD)
"""A schedule of each program, in every run; its first is predicted there."""


@pytest.mark.parametrize(
    ("program", "schedule"),
    rarely(dict.fromkeys(ON_RECORD), lambda program, schedule: LAST[program] != schedule),
)
def test_events_of_every_program(program: str, schedule: str) -> None:
    done = explored(Case(program, schedule, 3, "oracle", "pct", 3))
    assert done.schedules_run == 3 and not done.findings


SAMPLE = [
    pytest.param("all_gather_matmul", "pull", 3, "random", marks=pytest.mark.verify),
    pytest.param("matmul_all_reduce", "fused", 2, "pct", marks=pytest.mark.verify),
    ("matmul_ring_reduce_scatter", "ringed", 2, "random"),
    pytest.param("gathered_attention", "causal", 2, "pct", marks=pytest.mark.verify),
]


@pytest.mark.parametrize(("program", "schedule", "world", "policy"), SAMPLE)
def test_kernels_of_some_programs(program: str, schedule: str, world: int, policy: str) -> None:
    done = explored(Case(program, schedule, world, "lowered", policy, 2))
    assert done.schedules_run == 2 and not done.findings


def test_the_record_has_a_line_a_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "record.jsonl"
    flags = ["--lowered", "0", "--oracle", "12", "--only", "all_gather_matmul pull", "--jobs", "1", "--out", str(file)]
    assert main(flags) == 0
    out, err = capsys.readouterr()
    assert "oracle: 12 schedules" in out and out.endswith("0 findings\n")
    assert "all_gather_matmul pull, 4 ranks, oracle, pct: 2 schedules, 0 findings" in err
    lines = json_lines(file)
    assert [(r["world"], r["policy"], r["seeds"]) for r in lines] == [
        (w, policy, 2) for w in (2, 3, 4) for policy in ("random", "pct")
    ]


def test_what_is_not_run_again_stays_on_record(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    flags = ["--lowered", "0", "--oracle", "12", "--jobs", "1", "--out", str(file), "--only"]
    assert [main([*flags, f"all_gather_matmul{of} pull"]) for of in ("[2]", "", "")] == [0, 0, 0]
    names = [r["program"] for r in json_lines(file)]
    assert names == ["all_gather_matmul"] * 6 + ["all_gather_matmul[2]"] * 6


def test_every_program_and_schedule_is_on_record() -> None:
    recorded = json_lines(RECORD)
    asked = {(program, schedule, backend) for program, schedule in known() for backend in BACKENDS}
    assert {(r["program"], r["schedule"], r["backend"]) for r in recorded} == asked
    assert not any(r["findings"] for r in recorded)


def test_lists_of_one_and_of_two_are_two_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known()["all_gather_matmul[2]", "pull"] is all_gather_matmul.of(2)
    assert known()["all_gather_matmul", "pull"] is all_gather_matmul
    twice = [("all_gather_matmul pull", all_gather_matmul, "pull", frozenset[str]())] * 2
    monkeypatch.setattr(command, "forms", lambda: twice)
    with pytest.raises(ValueError, match="two programs are called all_gather_matmul pull"):
        known.__wrapped__()


def test_a_finding_is_printed_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("all_gather_matmul", "pull", 2, "oracle", "random", 3)
    finding = {"kind": "race", "lines": ["kernel.py:1: x"], "what": "two stores", "seed": 2}
    assert command.respond([command.Explored(case, 3, 3, "0", (finding,), 0.1)]) == 1
    out, _ = capsys.readouterr()
    assert "race (seed 2): two stores" in out and out.endswith("1 finding\n")
