"""The script for a GPU, on machines that have none: its steps run on CPU ranks and on virtual ranks of a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bench.gpu.place
from bench import steps
from bench.gpu import command, others, recorded, right, speed, supervise, vain
from bench.gpu.command import STEPS, main
from bench.gpu.no_cuda import missing
from bench.gpu.place import Place, by_host, dry
from bench.gpu.report import BEGUN, DIED, OUT_OF_TIME, WRONG, OutOfTimeError, Report
from bench.gpu.summary import ratios
from bench.operands import Operands
from bench.records import json_lines
from bench.references import ROUNDED
from tests.bench.on_stand_in import OnStandIn
from tilelink.kernels import operators


def reported(step: Any, tmp_path: Path, place: Place, seconds: float = 300) -> list[dict[str, Any]]:
    step(place, Report(tmp_path / "found.jsonl", "step", place, "a command", seconds))
    return json_lines(tmp_path / "found.jsonl")


@pytest.mark.parametrize("step", [
    "first", "vain", "speed", "kernels", "tiles",
    *(pytest.param(step, marks=pytest.mark.verify) for step in ("experts", "timelines")),  # they take longest
    pytest.param("graphs", marks=pytest.mark.verify),  # those on virtual ranks are in every run
])  # fmt: skip
def test_steps_on_the_cpu(step: str, tmp_path: Path) -> None:
    assert command.here(dry(), tmp_path / "found.jsonl", step, "a command") == 0
    begun, *found = json_lines(tmp_path / "found.jsonl")
    assert begun["what"] == BEGUN and begun["ok"] is None
    assert found and all(r["step"] == step and r["kind"] == "interpreted" and r["ok"] is not False for r in found)
    assert all(r["command"] == "a command" for r in found)
    assert not any(r["speedup"] for r in found), "an interpreter's time is held against nobody's"


@pytest.mark.verify
def test_the_host_is_timed_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls whose launches do nothing, and of a launch of Triton's that does nothing either. In a process of its
    own: there, another library stands in place of CUDA's."""
    if missing():
        pytest.skip(f"no {missing()}")
    steps_are(monkeypatch, tmp_path, "from bench.gpu import host; host.CALLS, host.TIMES = 10, 3")
    assert main(["--step", "host", "--dry", "--out", str(tmp_path)]) == 0
    (found,) = (r for r in json_lines(tmp_path / "gpu-dry.jsonl") if r["what"] != BEGUN)
    assert found["past_triton"]
    assert all(found[f"{name}_us"]["median_us"] > 0 for name in ("bare", "push", "pull", "operator"))
    assert found["operator_above_a_bare_launch_us"] and found["median_us"] is None and "do nothing" in found["what"]


def test_every_step_has_its_time() -> None:
    assert sum(seconds for seconds, _ in STEPS.values()) <= 14 * 60
    tables = list(STEPS)[: list(STEPS).index("host") + 1]  # of docs/performance.md, as docs/gpu.md says
    assert {"speed", "one_card", "loopback"} < set(tables) and sum(STEPS[name][0] for name in tables) <= 8 * 60


@pytest.mark.parametrize("which", [("push", "engine"), pytest.param((), marks=pytest.mark.verify)], ids=["two", "all"])
def test_results_on_virtual_ranks(which: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two schedules; virtual ranks have results of the others in every run, and here in `make verify`."""
    if which:
        monkeypatch.setattr(right, "SCHEDULES", which)
    monkeypatch.setattr(right, "WORLDS", (2,))
    monkeypatch.setattr(right, "DTYPES", ("bfloat16",))
    place = replace(OnStandIn().place(), parts={2: (20, 5)})
    found = reported(right.results, tmp_path, place)
    assert [r["schedule"] for r in found] == 2 * list(right.SCHEDULES)
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


@pytest.mark.verify
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
    monkeypatch.setattr(right, "SCHEDULES", ("push", "pull", "engine"))
    monkeypatch.setattr(right, "settle", lambda group: group.synchronize())
    found = reported(right.graphs, tmp_path, OnStandIn().place())
    assert [(r["schedule"], r["ok"]) for r in found] == [("push", True), ("pull", True), ("engine", None)]
    assert found[0]["exact"] and found[1]["exact"]
    assert found[2]["error"].startswith("nobody has asked this GPU yet whether a graph runs a branch of copies")


def test_waits_in_vain_on_virtual_ranks(tmp_path: Path) -> None:
    absent, mute = reported(vain.vain, tmp_path, OnStandIn().place())
    assert absent["ok"] and "a rank did not come within 2 s" in absent["message"]
    assert mute["ok"] and "role matmul, tile" in mute["message"]


def test_the_gemm_with_signals_set_is_the_whole_run_but_the_gather(tmp_path: Path) -> None:
    plain, fused = reported(speed.speed, tmp_path, OnStandIn().place())
    assert plain["ok"] and fused["ok"] and fused["rel_rms"] < 2.5e-3
    assert fused["baseline"].startswith("cuBLAS") and fused["speedup"]


def test_calls_that_are_timed_take_turns_at_being_first() -> None:
    """And each is timed behind what is done before it."""
    seen: list[str] = []

    def clock(call: Any, before: Any) -> float:
        before(), call()
        return 1.0

    place = replace(dry(), clock=clock, repeats=3)
    calls = [(lambda k, n=n: seen.append(f"before {n}"), lambda k, n=n: seen.append(n)) for n in ("ours", "theirs")]
    assert speed.timed(place, calls) == [[1.0] * 3] * 2  # type: ignore[arg-type]
    assert [s for s in seen if "before" not in s] == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert all(first == f"before {then}" for first, then in zip(seen[::2], seen[1::2], strict=True))


def test_the_cache_is_flushed_between_what_is_before_and_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def device_us(call: Any, before: Any) -> float:
        before(), call()
        return 1.0

    more = SimpleNamespace(max=lambda: seen.append("flush"))
    monkeypatch.setattr(bench.gpu.place, "device_us", device_us)
    monkeypatch.setattr(bench.gpu.place, "_more_than_the_cache", lambda: more)
    assert bench.gpu.place._by_events(lambda: seen.append("call"), lambda: seen.append("before")) == 1.0
    assert seen == ["before", "flush", "call"]
    assert bench.gpu.place.FLUSHED >= 128 << 20, "GPUs have caches of 50 to 126 MB"


def test_figures_say_at_which_clocks(tmp_path: Path) -> None:
    place = replace(OnStandIn().place(), clocks=lambda busy: {"sm_mhz": busy() is not None and 1980.0})
    for record in reported(speed.speed, tmp_path, place):
        assert record["clocks"] == {"sm_mhz": 1980.0}


# ---- it fires


def test_a_wrong_result_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Operands.call
    monkeypatch.setattr(Operands, "call", lambda *call, **more: [y + 1 for y in real(*call, **more)])
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


def test_an_error_after_which_a_device_is_of_no_use_ends_the_step(tmp_path: Path) -> None:
    """All that came after it would have it, too, and look wrong."""
    broken = replace(dry(), settle=lambda: exec("raise RuntimeError('CUDA error: an illegal memory access')"))

    def step(place: Place, report: Report) -> None:
        for case in range(3):
            with report.case(f"case {case}"):
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(OutOfTimeError):
        reported(step, tmp_path, broken)
    first, second = json_lines(tmp_path / "found.jsonl")
    assert (first["verdict"], second["what"], second["verdict"]) == (WRONG, "case 1", DIED)
    assert second["error"].startswith("not begun: after an error of the device this process can do nothing more: Runt")
    (tmp_path / "found.jsonl").unlink()
    assert [r["verdict"] for r in reported(step, tmp_path, dry())] == [WRONG] * 3, "others leave it as it was"


def test_a_slow_gemm_that_is_wrong_gets_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "relative_rms", lambda results, right: 0.1)
    for record in reported(speed.speed, tmp_path, dry()):
        assert record["ok"] is False and record["median_us"] is None


def test_what_is_left_when_the_time_is_over_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError):
        reported(right.first, tmp_path, dry(), seconds=-1)
    (found,) = json_lines(tmp_path / "found.jsonl")
    assert (found["ok"], found["verdict"]) == (None, OUT_OF_TIME) and "not begun" in found["error"]


# ---- steps in processes

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def steps_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Children of the script run with other steps, made by `code` from the names of `bench.gpu.command`."""
    file = tmp_path / "python"
    begin = "import sys, time; from bench.gpu import command, right, supervise; supervise.GRACE = command.GRACE = 0.5"
    run = "sys.exit(command.main(sys.argv[3:]))"  # of -m bench.gpu ...
    file.write_text(f"#!{sys.executable}\n{begin}\n{code}\n{run}\n")
    file.chmod(0o700)
    monkeypatch.setattr(supervise, "sys", SimpleNamespace(executable=str(file)))
    monkeypatch.setattr(supervise, "GRACE", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(command.__file__).parent.parent.parent))


@pytest.mark.verify
def test_a_step_that_hangs_leaves_its_record_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has started a process, which ends with it, and was in the middle of a case."""
    started = tmp_path / "started"
    waited = subprocess.Popen.wait

    def patience(process: Any, timeout: float | None = None) -> int:
        """Until the case has begun; no test waits for a time to pass."""
        if timeout is None or "hangs" not in process.args:
            return waited(process, timeout)
        while not started.exists():
            with suppress(subprocess.TimeoutExpired):
                return waited(process, 0.05)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", patience)
    code = f"""
import os, subprocess
def hang(place, report):
    with report.case("a case", op="matmul", schedule="gemm"):
        open({str(started)!r} + ".tmp", "w").write(str(subprocess.Popen(["sleep", "600"]).pid))
        os.rename({str(started)!r} + ".tmp", {str(started)!r})
        time.sleep(600)
command.STEPS = {{"hangs": (600.0, hang), "first": (60.0, right.first)}}
"""
    steps_are(monkeypatch, tmp_path, code)
    monkeypatch.setattr(command, "STEPS", {"hangs": (600.0, right.first), "first": (60.0, right.first)})
    assert main(["--dry", "--out", str(tmp_path)]) == 3
    begun, hung, other, *results = json_lines(tmp_path / "gpu-dry.jsonl")
    assert (begun["step"], begun["what"], other["step"], other["what"]) == ("hangs", BEGUN, "first", BEGUN)
    assert (hung["what"], hung["ok"], hung["verdict"]) == ("the step as a whole", None, OUT_OF_TIME)
    assert hung["error"] == "was ended after 3000 s at a case: matmul gemm"
    assert [r["ok"] for r in results] == [True, True]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


class InThisProcess:
    """A step's process: here its command is run when the script waits for it."""

    def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
        self.command, self.environment = command, env

    def wait(self, timeout: float | None = None) -> int:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "environ", self.environment)
            return main(self.command[3:])


def test_findings_of_a_step_are_said_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And in the exit code. The step's process has the queues that it needs: CUDA reads their number once."""

    def finds(place: Place, report: Report) -> None:
        report.add(os.environ[QUEUES], ok=False, error="is wrong")

    monkeypatch.setattr(supervise, "subprocess", SimpleNamespace(Popen=InThisProcess, TimeoutExpired=TimeoutError))
    monkeypatch.setattr(supervise, "end_session", lambda process: None)
    monkeypatch.setattr(steps, "watched", nullcontext)  # it writes to the stderr of a process
    monkeypatch.delenv(QUEUES, raising=False)
    monkeypatch.setattr(command, "STEPS", {"finds": (60.0, finds)})
    assert main(["--dry", "--out", str(tmp_path)]) == 1
    begun, found = json_lines(tmp_path / "gpu-dry.jsonl")
    assert (begun["what"], begun["step"], found["step"]) == (BEGUN, "finds", "finds")
    assert (found["verdict"], found["error"], found["what"]) == (WRONG, "is wrong", "32")
    said = capsys.readouterr().err
    assert f"{WRONG}: step finds" in said and f"1 {WRONG}" in said


@pytest.mark.verify
@pytest.mark.parametrize(
    ("step", "code_of_main", "verdict", "error"),
    [
        ("dies", 3, DIED, "ended with exit code 1"),
        ("finds", 1, WRONG, "is wrong"),
        ("late", 3, OUT_OF_TIME, "not begun: the time of this step is over"),
    ],
    ids=["dies", "finds", "late"],
)
def test_a_step_that_dies_or_is_late_or_has_findings(
    step: str, code_of_main: int, verdict: str, error: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Each has a verdict of its own, is said again at the end, and in the exit code. Its process has the queues that it
    needs: CUDA reads it once."""
    code = """
def late(place, report):
    report.until = 0
    with report.case("a case"):
        pass
command.STEPS = {"dies": (60.0, lambda place, report: sys.exit(1)), "late": (60.0, late),
                 "finds": (60.0, lambda place, report: report.add(os.environ[QUEUES], ok=False, error="is wrong"))}
"""
    steps_are(monkeypatch, tmp_path, f"import os; QUEUES = {QUEUES!r}{code}")
    monkeypatch.delenv(QUEUES, raising=False)
    monkeypatch.setattr(command, "STEPS", {step: (60.0, right.first)})
    assert main(["--dry", "--out", str(tmp_path)]) == code_of_main
    begun, found = json_lines(tmp_path / "gpu-dry.jsonl")
    assert (begun["what"], found["step"], found["verdict"], found["error"]) == (BEGUN, step, verdict, error)
    assert step != "finds" or found["what"] == "32"
    said = capsys.readouterr().err
    assert f"{verdict}: step {step}" in said and f"1 {verdict}" in said


@pytest.mark.verify
def test_a_step_alone_has_the_queues_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also `--step` has a process of its own."""
    code = f"""
import os
command.STEPS = {{"first": (60.0, lambda place, report: report.add(os.environ[{QUEUES!r}], ok=True))}}
"""
    steps_are(monkeypatch, tmp_path, code)
    monkeypatch.delenv(QUEUES, raising=False)
    assert main(["--dry", "--step", "first", "--out", str(tmp_path)]) == 0
    assert [r["what"] for r in json_lines(tmp_path / "gpu-dry.jsonl")] == [BEGUN, "32"]


def test_a_machine_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("OUT", str(tmp_path))
    assert main([]) == 2
    (found,) = json_lines(tmp_path / "gpu-none.jsonl")
    assert found["kind"] == "compiled" and found["what"].startswith("compiled only") and found["ok"] is None


def test_the_clock_of_the_host() -> None:
    assert by_host(lambda: None) < 1e6


def test_a_graph_that_replays_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what stands for a graph on the CPU."""
    monkeypatch.setattr(recorded.RecordedCalls, "replay", lambda graph: None)
    monkeypatch.setattr(right, "SCHEDULES", ("push",))
    (found,) = reported(right.graphs, tmp_path, dry())
    assert found["error"] == "replay 0, call 0 is wrong"


def test_ratios_are_said_side_by_side() -> None:
    head = {"what": "GEMM", "op": "matmul", "schedule": "gemm", "baseline": "cuBLAS"}
    found = [{**head, "speedup": s} for s in (0.9, 1.0, 1.05)] + [{"what": "begun"}]
    assert ratios(found) == ["GEMM, matmul gemm: 0.90 to 1.05 of cuBLAS, median 1.00 of 3"]


def test_narrow_tiles_are_timed_where_wide_ones_leave_sms_without_work() -> None:
    assert speed.narrow_is_faster("h200", 8192, 1792, 4096) and not speed.narrow_is_faster("h200", 8192, 3584, 8192)
    assert not speed.narrow_is_faster(None, 8192, 1792, 4096), "nobody knows this GPU"
    assert speed.with_tiles("push", "matmul", True) == "push,matmul.tile=128x128x64,matmul.stages=6"
