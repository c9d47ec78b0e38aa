"""`tilelink explore`: keys, seeds repeated, findings with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import unsafe
from tests.programs.lines import line_of
from tests.tools.cli.command_lines import ROOT, Run
from tilelink.errors import shown
from tilelink.tools.explore import oracle, worlds

QUICKLY = ["--world", "2", "--shape", "M=20,K=16,N=16"]


def test_explore(run: Run) -> None:
    code, found = run("explore", "all_gather_matmul", *QUICKLY, "--seeds", "3", "--policy", "pct")
    assert code == 0
    assert (found["schedules_run"], found["distinct"], found["findings"]) == (3, 3, [])
    assert (found["policy"], found["backend"], found["dtype"]) == ("pct", "lowered", "bfloat16")
    assert found["schedule"] == "push,gather.tile=16x16,matmul.tile=16x16x16"
    code, out, err = run.text("explore", "all_gather_matmul", *QUICKLY, "--seeds", "2")
    assert (code, out) == (0, "no finding in 2 schedules, 2 of them distinct (random)\n")
    assert "# tilelink explore all_gather_matmul --world 2 --shape M=20,K=16,N=16 --dtype bfloat16" in err


def test_every_program_fits_the_device_that_is_explored(run: Run) -> None:
    """Whose 24 SMs are fewer than a schedule may ask for."""
    code, found = run("explore", "all_gather_split_matmul", "--world", "2", "--seeds", "1", "--backend", "oracle")
    assert code == 0 and "gather.count=16" in found["schedule"]


def test_explore_events_alone(run: Run) -> None:
    code, found = run("explore", "all_gather_matmul", "--seeds", "50", "--backend", "oracle", "--schedule", "engine")
    assert (code, found["schedules_run"], found["distinct"], found["findings"]) == (0, 50, 50, [])
    again = [run("explore", "all_gather_matmul", "--replay", "7", "--backend", "oracle")[1] for _ in range(2)]
    assert again[0]["schedule_hash"] == again[1]["schedule_hash"]


@pytest.mark.parametrize("backend", ["lowered", "oracle"])
def test_explore_lists_of_weights(run: Run, backend: str) -> None:
    lists = ["--world", "2", "--shape", "M=20,N=16+8,K=16"]
    code, found = run("explore", "all_gather_matmul", *lists, "--seeds", "2", "--backend", backend)
    assert (code, found["schedules_run"], found["findings"]) == (0, 2, [])
    assert found["shape"] == {"M": 20, "K": 16, "N": [16, 8]}


@pytest.mark.parametrize("backend", ["lowered", "oracle"])
def test_explore_says_that_there_is_nothing_to_do(run: Run, backend: str) -> None:
    nothing = ["all_gather_matmul", "--world", "2", "--shape", "M=0,N=16,K=16", "--seeds", "1", "--backend", backend]
    code, found = run("explore", *nothing)
    assert (code, found["findings"], found["notes"]) == (0, [], ["nothing to do: M = 0"])
    assert run.text("explore", *nothing)[1].endswith("note: nothing to do: M = 0\n")


def test_explore_with_no_worker_resident(run: Run) -> None:
    error = run.error("explore", "all_gather_matmul", "--resident", "0")
    assert error["class"] == "UsageError" and "--resident: 0 is less than 1" in error["message"]


@pytest.mark.parametrize(
    ("sizes", "backend", "kind", "says"),
    [
        ("M=100000000,N=9,K=7", "lowered", "MachineMemoryError", "calls of 2 ranks; exploring takes at most 8.6 GB"),
        ("M=20000000,N=1,K=1", "lowered", "BudgetError", "events; exploring takes at most 10,000,000: explore smaller"),
        ("M=100000000,N=9,K=7", "oracle", "BudgetError", "events; exploring takes at most 10,000,000: explore smaller"),
    ],
)
def test_explore_refuses_what_is_too_large(
    run: Run, monkeypatch: pytest.MonkeyPatch, sizes: str, backend: str, kind: str, says: str
) -> None:
    """Before anything of that size is made."""

    def made(*_: object, **__: object) -> None:
        raise AssertionError("it is unrolled")

    monkeypatch.setattr(worlds, "unroll", made)
    monkeypatch.setattr(oracle, "unroll", made)
    asked = ["explore", "all_gather_matmul", "--seeds", "1", "--world", "2", "--schedule", "few"]
    error = run.error(*asked, "--shape", sizes, "--backend", backend)
    assert error["class"] == kind and says in error["message"]


def test_explore_repeats_a_seed(run: Run) -> None:
    again = [run("explore", "all_gather_matmul", *QUICKLY, "--replay", seed)[1] for seed in ("5", "5", "6")]
    assert [a["schedules_run"] for a in again] == [1, 1, 1]
    assert again[0]["schedule_hash"] == again[1]["schedule_hash"] != again[2]["schedule_hash"]


def test_explore_finds(run: Run) -> None:
    file = shown(unsafe.__file__)
    where = f"{file}:{line_of(unsafe.store_after_notify, 'there.store(')}"
    asked = ["explore", f"{file}:stores_after_notify", "--world", "2", "--shape", "M=20,K=16", "--dtype", "float32"]
    code, found = run(*asked, "--seeds", "6")
    assert code == 1
    race = next(f for f in found["findings"] if f["kind"] == "race")
    assert list(race) == ["seed", "kind", "lines", "what", "remedy"]
    assert race["remedy"].startswith("notify what") and "remedy" not in race["what"]
    assert f"{where}: there.store(x[t].load() * 2)" in race["lines"]
    code, again = run(*asked, "--replay", str(race["seed"]))
    assert code == 1 and race in again["findings"]
    code, out, _ = run.text(*asked, "--seeds", "6")
    assert code == 1 and f"race (seed {race['seed']}): " in out and where in out
    assert out.count("    remedy: notify what") == 1


def test_explore_says_what_unrolling_refuses(run: Run) -> None:
    file = ROOT / "examples" / "mistakes" / "odd_rows.py"
    code, found = run("explore", f"{file}:sums_of_tiles", "--world", "2", "--shape", "M=66,K=32")
    assert (code, found["schedules_run"]) == (1, 0)
    (finding,) = found["findings"]
    assert finding["kind"] == "unguarded read" and finding["what"].endswith("; it was not run")
    assert any("total += tl.sum(rows[pair].load(), 0)[None, :]" in line for line in finding["lines"])
    assert finding["remedy"].startswith("read no further than")


BEYOND = """\
import tilelink as tk

@tk.tile
def shift(t, x, out):
    for k in tk.steps(x.cols):
        {statement}

@tk.program
def shifted(x: tk.{x}("M", "K"), out: tk.Local("M", "K")):
    shift[tk.tiles(out)](x, out)

few = tk.Schedule(shift=tk.SMs(1, tile=(16, 16, 16)))
"""


@pytest.mark.parametrize(
    ("x", "statement", "kind", "remedy"),
    [("Local", "out[t].store(x[70, k].load())", "out of bounds", "let views end"),
     ("Local", "tk.copy(x[t.rows, k].at(tk.rank() + 1), out[t.rows, k])", "no such rank", "take the rank modulo"),
     ("Local", "out[t.rows, k].at((tk.rank() + 1) % tk.world()).store(x[t.rows, k].load())", "foreign output",
      "store it to a buffer")],
)  # fmt: skip
def test_explore_says_the_line_and_a_remedy_of_what_is_refused(
    run: Run, tmp_path: Path, x: str, statement: str, kind: str, remedy: str
) -> None:
    file = tmp_path / "beyond.py"
    file.write_text(BEYOND.format(x=x, statement=statement))
    code, found = run("explore", f"{file}:shifted", "--world", "2", "--shape", "M=32,K=16", "--dtype", "float32")
    assert (code, found["schedules_run"]) == (1, 0)
    (finding,) = found["findings"]
    assert finding["kind"] == kind and finding["remedy"].startswith(remedy)
    assert finding["lines"] == [f"{file}:6: {statement}"]
    _, out, _ = run.text("explore", f"{file}:shifted", "--world", "2", "--shape", "M=32,K=16", "--dtype", "float32")
    assert f"    {file}:6: {statement}\n    remedy: {remedy}" in out


@pytest.mark.parametrize("flags", [["--seeds", "-1"], ["--policy", "fair"], ["--replay", "x"], ["--backend", "gpu"]])
def test_explore_refuses_flags(run: Run, flags: list[str]) -> None:
    assert run.error("explore", "all_gather_matmul", *flags)["class"] == "UsageError"
