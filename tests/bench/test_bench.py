"""The harness: what it writes, that nothing is said of a wrong result, and what it calls a regression."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import measure, overview, pictures, processes
from bench.cases import LAYERS, plan
from bench.check import relative_rms
from bench.command import main
from bench.compare import TOLERANCE, regressions
from bench.operators import OPERATORS, UNFUSED, AllGatherMatmul
from bench.overview import CHECK, FORESEEN
from bench.records import LOGICAL, RESULTS, WALL, read
from bench.references import REFERENCES
from bench.table import table
from tests.parameters import first_of
from tests.runtime.processes import fork_server
from tilelink.analysis.draw import png
from tilelink.analysis.simulate import FUSED
from tilelink.analysis.timeline import Timeline
from tilelink.kernels import operators
from tilelink.kernels.all_gather import all_gather
from tilelink.plans.names import sizes_of

CONTRACT = {
    "op", "shape", "dtype", "world", "schedule", "kind", "what", "rel_rms", "ok", "median_us", "min_us", "max_us",
    "repeats", "baseline", "speedup", "bound_us", "versions", "command",
}  # fmt: skip
TINY = ["--shapes", "M=32,N=64,K=64", "--worlds", "2", "--dtypes", "fp32", "--ops", "all_gather_matmul", "--quick"]
FORMS = (UNFUSED, "push", "pull", "multicast", "engine")
REDUCTIONS = {
    "matmul_reduce_scatter": (UNFUSED, "fused", "push", "pull", "engine", "ring"),
    "matmul_all_reduce": (UNFUSED, "fused", "multicast", "fabric", "one_shot"),
}
Record = dict[str, Any]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    """What the harness answers to programs, and the folder that it writes to."""
    out = tmp_path_factory.mktemp("bench")
    with redirect_stdout(StringIO()) as said, pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure, "CPU_HEAP", 4 << 20)
        patched.setattr(pictures, "png", picture_of_the_last)
        assert main([*TINY, "--out", str(out), "--jobs", "1", "--json"]) == 0
    return json.loads(said.getvalue()), out


def picture_of_the_last(timeline: Timeline, path: Path) -> None:
    """In place of `png`: draws the form with the most to draw. A picture takes longer than its runs."""
    path.write_bytes(b"")
    if f"-{FORMS[-1]}-" in path.name:
        png(timeline, path)
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(autouse=True)
def small_heaps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is filled when a world is made."""
    monkeypatch.setattr(measure, "CPU_HEAP", 4 << 20)


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come without pictures, which take longer than the runs: `TestRecords` has them."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_jobs_side_by_side_are_done_each_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own; results come in the order of the jobs."""
    monkeypatch.setattr(processes, "get_context", lambda kind: get_context("fork"))  # which makes one at once
    options: dict[str, Any] = {"cost": float, "said": lambda made: f"job {made[0]}"}
    made = processes.run_all(in_a_process, [3, 1, 2], 2, **options)
    assert [job for job, _ in made] == [3, 1, 2] and os.getpid() not in {process for _, process in made}
    said = capsys.readouterr().err
    assert "1 of 3" in said and "3 of 3" in said and all(f"s left: job {n}" in said for n in (1, 2, 3))


def in_a_process(job: int) -> tuple[int, int]:
    return job, os.getpid()


@pytest.mark.verify
def test_programs_are_measured_with_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "get_context", lambda kind: fork_server())  # these have imported torch already
    assert main([*TINY, "--out", str(tmp_path), "--jobs", "2", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert records == read(tmp_path) and all(r["ok"] for r in records)
    assert [(r["schedule"], r["what"]) for r in records] == [(f, w) for f in FORMS for w in (LOGICAL, WALL)]


class TestRecords:
    def test_are_what_is_answered_and_what_is_written(self, result: tuple[Record, Path]) -> None:
        answer, out = result
        assert (answer["schema"], answer["command"], answer["status"]) == (1, "bench", "ok")
        assert answer["records"] == read(out) == [json.loads(line) for line in (out / RESULTS).read_text().splitlines()]

    def test_have_the_keys_of_the_contract(self, result: tuple[Record, Path]) -> None:
        records = result[0]["records"]
        assert [(r["schedule"], r["what"]) for r in records] == [(f, w) for f in FORMS for w in (LOGICAL, WALL)]
        for r in records:
            assert r.keys() >= CONTRACT
            case = "all_gather_matmul", "M=32,N=64,K=64", "float32", 2
            assert (r["op"], r["shape"], r["dtype"], r["world"]) == case
            assert r["ok"] and 0 < r["rel_rms"] <= r["limit"] == 1e-6
            assert (r["kind"], r["repeats"]) == ("measured", 2)
            assert "python -m bench --shapes" in r["command"]
            assert r["versions"].keys() == {"python", "torch", "triton", "numpy", "tilelink", "commit"}
            assert r["machine"]["cpu"] and r["machine"]["cores"] >= 1
            assert (r["baseline"] is None) == (r["schedule"] == UNFUSED)

    def test_call_no_figure_of_the_interpreter_a_speedup(self, result: tuple[Record, Path]) -> None:
        logical, wall = result[0]["records"][2:4]
        assert all(r["speedup"] is None and r["bound_us"] is None for r in result[0]["records"])
        assert logical["logical"]["min"] <= logical["logical"]["median"] <= logical["logical"]["max"]
        assert logical["logical"]["unit"] == "memory operations"
        assert logical["logical"]["ratio"] > 0
        assert logical["median_us"] is logical["min_us"] is logical["max_us"] is None
        assert wall["logical"] is None
        assert 0 < wall["min_us"] <= wall["median_us"] <= wall["max_us"]

    def test_are_linked_from_one_page(self, result: tuple[Record, Path]) -> None:
        answer, out = result
        assert answer["files"][0] == str(out / "index.html")
        linked = re.findall(r'href="([^"]+)"', (out / "index.html").read_text())
        assert sorted([*linked, "index.html"]) == sorted(p.name for p in out.iterdir())

    def test_come_with_timelines_of_every_form(self, result: tuple[Record, Path]) -> None:
        answer, out = result
        assert sorted(map(Path, answer["files"])) == sorted(out.iterdir())
        for form, last in zip(FORMS, ("multiply", *["matmul"] * 4), strict=True):
            (trace,) = out.glob(f"*-{form}-*.perfetto.json")
            events = json.loads(trace.read_text())["traceEvents"]
            roles = {e["args"]["role"] for e in events if "role" in e.get("args", {})}
            assert roles == {"gather", last}
            assert len(list(out.glob(f"*-{form}-*.png"))) == 1

    def test_make_a_table_that_says_what_its_figures_are(self, result: tuple[Record, Path]) -> None:
        text = table(result[0]["records"])
        baseline = OPERATORS["all_gather_matmul"].baseline[:60]
        for words in ("Not a time", "Not a speed-up", "Not performance", "logical ratio", baseline):
            assert words in text
        assert len(re.findall(r"right +\d+(?:\.5)? \(\d+ – \d+\) +\d", text)) == len(FORMS)


@pytest.mark.parametrize("op", first_of(REDUCTIONS))
@pytest.mark.usefixtures("no_matplotlib")
def test_sums_are_measured_in_all_their_forms(op: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Uneven shards where the rows of the sum are cut over the ranks."""
    rows = "25+7" if op == "matmul_reduce_scatter" else "32"
    assert main([*TINY, "--ops", op, "--shapes", f"M={rows},N=64,K=64", "--out", str(tmp_path), "--jobs", "1"]) == 0
    assert [(r["schedule"], r["ok"]) for r in read(tmp_path) if r["what"] == LOGICAL] == [
        (form, True) for form in REDUCTIONS[op]
    ]
    assert len(list(tmp_path.glob("*.perfetto.json"))) == len(REDUCTIONS[op])
    said = capsys.readouterr().out
    assert ("ring [4] " in said) == ("[4] Its partial sums travel in float32" in said) == ("ring" in REDUCTIONS[op])


@pytest.mark.verify
def test_several_weights_are_measured_on_one_gather(tmp_path: Path) -> None:
    """Uneven shards; unfused, the weights lie side by side."""
    shape = "M=25+7,N=33+16,K=64"
    assert main([*TINY, "--shapes", shape, "--out", str(tmp_path), "--jobs", "1"]) == 0
    assert [(r["schedule"], r["ok"], r["shape"]) for r in read(tmp_path) if r["what"] == LOGICAL] == [
        (form, True, shape) for form in FORMS
    ]


class TestOverview:
    """What `make bench` does without a flag."""

    def run(self, out: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
        code = main([*flags, "--out", str(out), "--jobs", "1"])
        return code, *capsys.readouterr()

    def test_checks_every_schedule_and_tells_one_path(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, said, progress = self.run(tmp_path, capsys, "--ops", "matmul,all_gather", "--worlds", "2")
        assert code == 0 and "2 of 2 schedules of programs are right" in said
        assert said.endswith(f"All pages and results: {tmp_path / 'index.html'}\n") and said.count(str(tmp_path)) == 1
        assert re.search(r"\] 1 of 2, about \d+ s left: all_gather, pull: right$", progress, re.MULTILINE)
        records = read(tmp_path)
        assert [(r["op"], r["schedule"], r["kind"], r["what"]) for r in records] == [
            ("all_gather", "pull", "measured", CHECK), ("matmul", "gemm", "measured", CHECK)
        ]  # fmt: skip
        for r in records:
            assert r.keys() >= CONTRACT and r["ok"] and r["rel_rms"] <= r["limit"] and r["world"] == 2
            assert r["median_us"] is r["speedup"] is r["bound_us"] is r["logical"] is None
        assert records[0]["shape"] == "M=48+32,N=96,K=64"
        assert "\nM=48+32 are the rows of each rank. A schedule is right if its relative RMS against" in said

    def test_a_limit_is_that_which_was_applied(self) -> None:
        """A layer rounds more often than others, and may be further off."""
        checks = [overview.Check(op, "push", "bfloat16", 2) for op in ("mixture_of_experts", "all_gather_matmul")]
        layer, gather = (record for check in checks for record in check.run())
        assert layer["ok"] and 2.5e-3 < layer["rel_rms"] <= layer["limit"] < 3.5e-3
        assert gather["ok"] and gather["rel_rms"] <= gather["limit"] < 2.7e-3
        assert ", N=64+32 the columns of two weights. A schedule" in " ".join(overview.text([layer, gather]).split())

    def test_checks_all_programs_and_predicts_all_mlps(self, tmp_path: Path) -> None:
        jobs = overview.jobs(None, [4], ["bfloat16"], tmp_path)
        checks = [j for j in jobs if isinstance(j, overview.Check)]
        assert [(c.op, c.schedule) for c in checks] == [(p.name, s) for p in operators().values() for s in p.schedules]
        shapes = [(j.name, j.operator, j.n, j.k) for j in jobs if isinstance(j, overview.Layer)]
        assert len(shapes) == 12
        assert shapes[:2] == [
            ("MLP-1 up", "all_gather_linear", 1376, 4096), ("MLP-1 down", "linear_reduce_scatter", 4096, 1376)
        ]  # fmt: skip
        some = overview.jobs(["all_gather_matmul"], [2, 3], ["float16"], tmp_path)
        assert [j.name for j in some if isinstance(j, overview.Layer)] == [f"MLP-{k} up" for k in range(1, 7)]
        assert {(j.world, j.dtype) for j in some if isinstance(j, overview.Check)} == {(2, "float16"), (3, "float16")}

    def test_predicts_with_intervals_beside_unfused_and_the_bound(self, tmp_path: Path) -> None:
        layer = overview.Layer("small up", "all_gather_linear", 256, 512, tmp_path, tokens=512, world=2)
        records = layer.run()
        assert [r["schedule"] for r in records] == [*FORMS[1:], "pieces", "few", "split"]
        for r in records:
            program = operators()[r["op"]]
            sizes = sizes_of(program, {"M": 512, "N": 256, "K": 512})
            found = program.simulate(r["schedule"], machine="h800", world=2, **sizes)
            assert (r["kind"], r["what"], r["ok"], r["for"]) == ("predicted", FORESEEN, True, "h800")
            assert r["median_us"] == r["min_us"] == round(found.makespan_us, 3)
            assert r["max_us"] == round(FUSED.of(found.makespan_us)[1], 3) and r["bound_us"] == round(found.bound_us, 3)
            assert r["speedup"] == pytest.approx(r["unfused_us"] / r["median_us"], abs=1e-4)
        (page,) = tmp_path.iterdir()
        fastest = min(records, key=lambda r: r["median_us"])
        assert fastest["page"] == page.name == f"{fastest['op']}-{fastest['schedule']}-small-up.html"
        text = overview.text(records)
        assert "Predicted, not measured" in text and FUSED.source in " ".join(text.split())
        for r in records:
            assert f"{r['min_us']:,.0f} to {r['max_us']:,.0f}" in text

    def test_says_what_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = REFERENCES[all_gather]
        monkeypatch.setitem(REFERENCES, all_gather, lambda *of: [{"out": 2 * r["out"]} for r in right(*of)])
        code, said, _ = self.run(tmp_path, capsys, "--ops", "all_gather", "--worlds", "2")
        assert code == 1 and "0 of 1 schedules of programs are right" in said
        assert "WRONG: all_gather, pull, 2 ranks, bfloat16: the relative RMS, 5.00e-01, is over the limit" in said
        assert "1 results are wrong" in (tmp_path / "index.html").read_text()


def spoil(form: str, how: Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]) -> Any:
    """`AllGatherMatmul.call` with spoilt inputs in one form."""
    call = AllGatherMatmul.call

    def spoilt(self: AllGatherMatmul, steps: Any, inputs: Any, group: Any, shape: Any) -> torch.Tensor:
        name = next(n for n, f in self.forms(shape, group.world).items() if f == steps)
        return call(self, steps, how(inputs) if name == form else inputs, group, shape)

    return spoilt


@pytest.mark.usefixtures("no_matplotlib")
class TestWrongResults:
    @pytest.mark.parametrize("form", first_of([UNFUSED, "push"]))
    def test_have_no_figures(
        self, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(AllGatherMatmul, "call", spoil(form, lambda given: (given[0], given[1] * 1.00001)))
        assert main([*TINY, "--out", str(tmp_path), "--jobs", "1"]) == 1
        records = {(r["schedule"], r["what"]): r for r in read(tmp_path)}
        for what in (LOGICAL, WALL):
            wrong = records[form, what]
            assert not wrong["ok"] and wrong["rel_rms"] > wrong["limit"] and wrong["repeats"] == 0
            assert wrong["logical"] is wrong["median_us"] is wrong["min_us"] is wrong["max_us"] is None
            assert all(records[other, what]["ok"] for other in FORMS if other != form)
        ratio = records["pull", LOGICAL]["logical"]["ratio"]
        assert (ratio is None) == (form == UNFUSED)
        said = capsys.readouterr().out
        assert re.search(rf"{form} +1\.\d\de-05 +WRONG$", said, re.MULTILINE)
        assert f"{form}: the relative RMS is over the limit of 1.0e-06; no figures" in said
        assert not list(tmp_path.glob(f"*-{form}-*"))

    def test_are_reported_where_a_run_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(AllGatherMatmul, "call", spoil("push", lambda given: (given[0][:, 1:], given[1])))
        assert main([*TINY, "--out", str(tmp_path), "--jobs", "1", "--json"]) == 1
        captured = capsys.readouterr()
        answer = json.loads(captured.out)
        assert answer["status"] == "finding"
        assert [r["schedule"] for r in answer["records"] if not r["ok"]] == ["push", "push"]
        assert "ShapeError" in answer["records"][2]["error"]
        assert "ShapeError" in captured.err

    @pytest.mark.parametrize("spoilt", [torch.full((2, 2), torch.nan), torch.full((2, 2), torch.inf), torch.ones(2, 3)])
    def test_are_far_off_where_they_are_no_numbers(self, spoilt: torch.Tensor) -> None:
        right = torch.ones(2, 2, dtype=torch.float64)
        assert relative_rms([torch.ones(2, 2), spoilt], [right, right]) == float("inf")
        assert relative_rms([torch.ones(2, 2), torch.full((2, 2), 1.5)], [right, right]) == 0.5


class TestCompare:
    def compare(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, *results: list[Record]) -> tuple[int, Record]:
        paths = [tmp_path / f"{k}.jsonl" for k in range(2)]
        for path, records in zip(paths, results, strict=True):
            path.write_text("".join(json.dumps(r) + "\n" for r in records))
        code = main(["compare", *map(str, paths), "--json"])
        return code, json.loads(capsys.readouterr().out)

    def test_finds_what_got_worse(
        self, result: tuple[Record, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = result[0]["records"]
        after = deepcopy(before)
        after[2]["logical"]["median"] *= 1.5
        code, answer = self.compare(capsys, tmp_path, before, after)
        assert (code, answer["command"], answer["status"], answer["compared"]) == (1, "bench compare", "finding", 10)
        (found,) = answer["regressions"]
        assert (found["kind"], found["schedule"], found["what"], found["change"]) == ("slower", "push", LOGICAL, 0.5)

    def test_finds_nothing_where_nothing_is(
        self, result: tuple[Record, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A busy machine makes the interpreter slow, not the kernels; small changes are the scheduler's."""
        before = result[0]["records"]
        after = deepcopy(before)
        after[3]["median_us"] *= 10
        after[2]["logical"]["median"] *= 1 + TOLERANCE / 2
        code, answer = self.compare(capsys, tmp_path, before, after)
        assert (code, answer["status"], answer["regressions"]) == (0, "ok", [])
        assert main(["compare", str(result[1]), str(result[1])]) == 0
        assert capsys.readouterr().out == "0 regressions in 10 figures and results\n"

    def test_takes_what_is_wrong_or_gone_for_worse(self, result: tuple[Record, Path]) -> None:
        before = result[0]["records"]
        after = deepcopy(before[:-2])
        after[0] |= {"ok": False, "logical": None}
        found = [(r["schedule"], r["kind"]) for r in regressions(before, after)]
        assert found == [(UNFUSED, "wrong"), (FORMS[-1], "missing"), (FORMS[-1], "missing")]
        assert regressions(after[:1], before) == []


BAD = {
    "op": (["--ops", "none"], "UsageError", "there is no operator none"),
    "no shape": (["--shapes", "M=512;N=3"], "UsageError", "neither DIM=SIZE"),
    "dimensions": (["--shapes", "M=512,N=64"], "UsageError", "has the dimensions M, N, K"),
    "layer": (["--ops", "matmul_all_reduce", "--shapes", "qkv"], "UsageError", "matmul_all_reduce has no layer qkv"),
    "empty": (["--shapes", "M=0,N=64,K=64"], "UsageError", "is empty"),
    "parts": (["--shapes", "M=5+3,N=64,K=64"], "DimensionError", "2 parts"),
    "no parts": (["--shapes", "M=8,N=64+64,K=64"], "UsageError", "does not cut N"),
    "world": (["--worlds", "0"], "WorldError", "a world of 0"),
    "no world": (["--worlds", "4,x"], "UsageError", "--worlds"),
    "no dtype": (["--dtypes", "bf17"], "UsageError", "bf17"),
    "dtype": (["--dtypes", "int8"], "DtypeError", "no limit for results in int8"),
    "jobs": (["--jobs", "0"], "UsageError", "--jobs 0"),
    "flag": (["--slow"], "UsageError", "--slow"),
    "no file": (["compare", "none.jsonl", "none.jsonl"], "UsageError", "none.jsonl can't be read"),
    "no results": (["compare", __file__, __file__], "UsageError", "holds no results"),
    "one": (["compare", "one"], "UsageError", "required"),
}


class TestBadInput:
    @pytest.mark.parametrize("flags, kind, words", BAD.values(), ids=BAD)
    def test_is_refused_before_anything_runs(
        self, flags: list[str], kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(processes, "measure", lambda case: pytest.fail(f"{case} is run"))
        monkeypatch.setattr(overview, "run", lambda job: pytest.fail(f"{job} is run"))
        assert main([*flags, "--json"]) == 2
        answer = json.loads(capsys.readouterr().out)
        assert (answer["schema"], answer["status"]) == (1, "error")
        assert answer["error"].keys() == {"class", "message", "file", "line"}
        assert answer["error"]["class"] == kind and words in answer["error"]["message"]
        assert "bench" not in (answer["error"]["file"] or "") or "compare" in flags
        assert list(tmp_path.iterdir()) == []

    def test_is_a_folder_that_can_not_be_written_to(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "out"
        assert main([*TINY, "--out", str(out), "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["class"], error["file"]) == ("UsageError", str(out))

    def test_is_told_to_people_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--worlds", "0"]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and "a world of 0" in captured.err and "Traceback" not in captured.err


class TestPlan:
    def test_measures_the_layers_of_the_issue(self) -> None:
        cases = plan(list(OPERATORS), list(LAYERS), [4], ["bfloat16"], range(3), Path("out"))
        forms = {"all_gather_matmul": FORMS} | REDUCTIONS
        assert [(c.op, c.layer, c.schedule) for c in cases] == [
            (op, layer, form) for op in OPERATORS for layer in OPERATORS[op].layers for form in forms[op]
        ]
        assert [*LAYERS] == ["gate_up", "qkv", "o_proj", "down"]
        assert cases[0].shape_text == "M=512,N=7168,K=4096"
        assert "matmul: 112 tiles of 128x256x128 on 14 workers" in cases[1].work

    def test_measures_a_layer_with_the_operators_that_have_it(self) -> None:
        cases = plan(list(OPERATORS), ["down"], [4], ["bfloat16"], [0], Path("out"))
        assert {c.op for c in cases} == set(REDUCTIONS)

    def test_takes_uneven_shards(self) -> None:
        cases = plan(["all_gather_matmul"], [{"M": (5, 0, 27), "N": 40, "K": 72}], [3], ["float16"], [0], Path("out"))
        assert cases[1].shape_text == "M=5+0+27,N=40,K=72"
        assert len({c.name for c in cases}) == len(FORMS)
