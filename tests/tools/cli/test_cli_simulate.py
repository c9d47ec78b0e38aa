"""`tilelink simulate` and `tilelink machine`: keys, files and what is said about bad input."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import ring_maximum
from tilelink.analysis.machine import machine, names
from tilelink.analysis.simulate import FUSED
from tilelink.runtime.measure import Measured, description
from tilelink.tools.cli import command, main
from tilelink.tools.cli.simulate import MOST_LINKS

SIZES = "M=512,N=512,K=512"
KEYS = {
    "label", "makespan_us", "compute_us", "comm_us", "bound_us", "unfused_us", "efficiency", "idle_us", "critical_path",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def simulate(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    return run(capsys, "simulate", "all_gather_matmul", "--shape", SIZES, "--world", "4", *argv)


def test_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = simulate(capsys, "--machine", "h800", "--schedule", "pull,gather.count=4")
    assert code == 0 and answer["status"] == "ok" and set(answer) >= KEYS
    assert answer["label"] == "predicted" and answer["machine"] == "h800" and "gather.count=4" in answer["schedule"]
    assert 0 < answer["bound_us"] <= answer["makespan_us"] and answer["unfused_us"] > 0
    assert answer["interval_us"] == [answer["makespan_us"], pytest.approx(1.35 * answer["makespan_us"], abs=2e-3)]
    assert answer["interval"] == asdict(FUSED) == {"least": 0.0, "most": 0.35, "source": FUSED.source}
    assert answer["unfused_interval_us"] == pytest.approx([f * answer["unfused_us"] for f in (0.9, 1.15)], abs=2e-3)
    assert all(isinstance(t, float) for t in answer["idle_us"].values())
    assert {"kind", "rank", "worker", "role", "label", "start", "stop", "tiles"} == set(answer["critical_path"][0])


def test_people_are_told_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "all_gather_matmul", "--shape", SIZES, "--world", "4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("predicted") and "idle, the mean over SMs" in out and "critical path" in out
    first, *rest = out.splitlines()
    least, most = (float(us.replace(",", "")) for us in re.findall(r"([\d,.]+) us", first))
    assert most == pytest.approx(1.35 * least, abs=0.2) and "(+0% to +35%)" in first
    assert any(line.startswith("interval ") and line.endswith(f"{FUSED}  {FUSED.source}") for line in rest)


def test_a_long_critical_path_is_printed_from_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "simulate", f"{ring_maximum.__file__}:ring_maximum", "--world", "4", "--shape", "T=256,D=128"
    assert main([*argv]) == 0
    shown = capsys.readouterr().out.split("critical path\n")[1].splitlines()
    code, answer = run(capsys, *argv)
    path = answer["critical_path"]
    assert code == 0 and len(path) > len(shown) == 2 * MOST_LINKS + 1
    times = [float(line.split(" us")[0].replace(",", "")) for line in shown]
    assert sum(times) == pytest.approx(answer["makespan_us"], abs=0.05 * len(shown))
    assert f"{len(path) - 2 * MOST_LINKS} more, which --json and --trace show" in shown[MOST_LINKS]


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs that take longer than some seconds; here every line is due."""
    monkeypatch.setattr(command, "EVERY", 0.0)
    assert main(["simulate", "all_gather_matmul", "--shape", SIZES, "--world", "4", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "ok"
    assert re.search(r"^\d+ s: unrolling gather, line \d+$", err, re.M) and "s: simulating, 0 of " in err


def test_products_are_left_out_where_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    for program, products in (("all_gather", False), ("all_gather_matmul", True)):
        assert main(["simulate", program, "--shape", SIZES if products else "M=512,K=512", "--world", "4"]) == 0
        assert ("products alone" in capsys.readouterr().out) == products


def test_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("run.json", "run.html"):
        code, answer = simulate(capsys, "--trace", str(tmp_path / name))
        assert code == 0 and answer["trace"] == str(tmp_path / name)
    trace = json.loads((tmp_path / "run.json").read_text())
    assert trace["otherData"]["source"] == "predicted" and len(trace["traceEvents"]) > 10
    assert "predicted" in (tmp_path / "run.html").read_text()


def test_pages_of_one_scale(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """So that two of them can be laid beside each other; and what crosses a link stands beside what could."""
    _, answer = simulate(capsys, "--trace", str(tmp_path / "run.html"), "--until", "500")
    assert answer["makespan_us"] < 500
    found = re.search(r"^const D = (.*);$", (tmp_path / "run.html").read_text(), re.MULTILINE)
    assert found is not None
    data = json.loads(found[1])
    assert data["until"] == 500 and data["whole"] == pytest.approx(answer["makespan_us"], abs=1e-3)
    rate, limit = map(int, re.findall(r"\d+", data["facts"]["busiest link"]))
    assert rate < limit == max(a.saturation for n, a in machine("h100").agents.items() if n != "nic")


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        (["--trace", "run.json", "--until", "500"], "UsageError", "--until is for a page: give --trace FILE.html"),
        (["--trace", "run.html", "--until", "-1"], "UsageError", "'-1' is not a time in microseconds"),
        (["--machine", "h1000"], "UnknownMachineError", "there is no machine h1000"),
        (["--trace", "run.png"], "UsageError", "--trace run.png: .json for ui.perfetto.dev, .html"),
        (["--trace", "nowhere/run.html"], "UsageError", "--trace nowhere/run.html: there is no folder nowhere"),
        (["--agents", "gather"], "UsageError", "--agents gather: it is ROLE=AGENT"),
        (["--agents", "gather=tma", "--machine", "mi300x"], "MachineError", "mi300x has no agent tma"),
        (["--shape", "M=9999999,N=99999,K=99999"], "MachineMemoryError", "GB on a rank; h100 has 80 GB"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], flags: list[str], kind: str, said: str) -> None:
    code, answer = simulate(capsys, *flags)
    assert code == 2 and answer["error"]["class"] == kind and said in answer["error"]["message"]


def test_a_sweep_tells_of_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = simulate(capsys, "--sweep", "schedule=push,nonsense", "--sweep", "gather.count=2,4")
    rows = answer["rows"]
    assert code == 0 and len(rows) == 4 and answer["makespan_us"] == rows[0]["makespan_us"] <= rows[1]["makespan_us"]
    assert [r["point"]["schedule"] for r in rows] == ["push", "push", "nonsense", "nonsense"]
    assert "ScheduleError" in rows[2]["error"] and "makespan_us" not in rows[2]
    slower = simulate(capsys, "--schedule", f"push,gather.count={rows[1]['point']['gather.count']}")[1]
    assert slower["makespan_us"] == rows[1]["makespan_us"]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (["gather.count"], "is not KEY=VALUE,VALUE,..."),
        (["world=two"], "--sweep world=two: a natural number"),
        (["M=512", "M=1024"], "given twice"),
        (["M=many"], "--sweep M=many: "),
        (
            ["schedul=push,pull"],
            "keys are machine, world, schedule, a dimension, and ROLE.FIELD of the schedule; did you mean schedule?",
        ),
        (["wrld=2,4"], "has no dimension wrld; it has M, K, N; did you mean world?"),
        (["schedule=engine", "gather.count=8"], "--sweep gather.count=8: a role on CopyEngine has no count; it has"),
        (["schedule=nonsense"], "no point of the sweep can be predicted; schedule=nonsense: "),
    ],
)
def test_a_sweep_that_cannot_be(capsys: pytest.CaptureFixture[str], axes: list[str], said: str) -> None:
    code, answer = simulate(capsys, *(word for axis in axes for word in ("--sweep", axis)))
    assert code == 2 and answer["error"]["class"] == "UsageError" and said in answer["error"]["message"]
    assert "did you mean columns" not in answer["error"]["message"]


def test_a_description_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    slow, wrong = tmp_path / "slow.toml", tmp_path / "wrong.toml"
    slow.write_text('extends = "h100"\nmatmul.bfloat16 = { value = 1, source = "a guess" }\n')
    wrong.write_text('extends = "h100"\nsms = { value = -1, source = "a guess" }\n')
    assert simulate(capsys, "--machine", str(slow))[1]["compute_us"] > simulate(capsys)[1]["compute_us"]
    code, answer = simulate(capsys, "--machine", str(wrong))
    assert code == 2 and answer["error"]["class"] == "MachineError" and "sms is -1" in answer["error"]["message"]


def test_machines(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = run(capsys, "machine", "list")
    assert [m["name"] for m in answer["machines"]] == list(names())
    _, answer = run(capsys, "machine", "show", "h800")
    numbers = answer["numbers"]
    assert (numbers["agents.tma.saturation"]["value"], numbers["agents.tma.saturation"]["unit"]) == (158, "GB/s")
    units = {"sms": "", "ranks": "", "memory_gb": "GB", "l2_mb": "MB", "l2_rate": "GB/s/SM", "l2_total": "GB/s"}
    assert {n: numbers[n]["unit"] for n in units} == units
    assert all(n["unit"] == "us" for path, n in numbers.items() if path.endswith("_us"))
    code, answer = run(capsys, "machine", "show")
    assert code == 2 and "tilelink machine show NAME" in answer["error"]["message"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_without_a_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "machine", "measure")
    assert code == 2 and answer["error"]["class"] == "DeviceError" and "needs a GPU" in answer["error"]["message"]


def test_what_was_measured_is_a_description(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(description(Measured("GPU X", {"sms": (7.0, "counted"), "# tile_rate": (5.0, "timed")}), "h100"))
    found = machine(str(file))
    assert found.sms == 7 and found.sources["sms"] == "measured on GPU X: counted" and found.title == "GPU X, measured"
