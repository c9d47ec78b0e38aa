"""The command line is a contract: keys, exit codes, and what is said about bad input."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import tilelink as tk
from tilelink.cli import COMMANDS, main
from tilelink.cli.program import read_shape, shape_text
from tilelink.cli.schedule import read_schedule, schedule_text
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push

ROOT = Path(__file__).parent.parent
SIZES = {"M": 512, "K": 512, "N": 512}

USER_FILE = """\
import triton.language as tl
import tilelink as tk
from sizes import ROWS

print("a user's file may print")

@tk.tile
def double(t, x, y):
    y[t].store(x[t].load() * 2)

@tk.program
def doubled(x: tk.Sharded("A", "B"), y: tk.Sharded("A", "B")):
    double[tk.tiles(x)](x, y)

backwards = tk.order(lambda step, rank, world: world - 1 - step)
plain = tk.Schedule(double=tk.SMs(tile=(ROWS, 32)))
"""
UNSOUND_ORDER = USER_FILE.replace("world - 1 - step", "1 // 0").replace("32)", "32), order=backwards")


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    (tmp_path / "sizes.py").write_text("ROWS = 16\n")
    sys.modules.pop("sizes", None)  # the one of another test, in another folder
    file = tmp_path / "user.py"
    file.write_text(USER_FILE)
    return file


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command puts on the path to run a user's file goes with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


class Run:
    """A command line in this process. Called, it returns the exit code and what --json printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.text(*argv, "--json")
        found = json.loads(out)
        assert found["schema"] == 1
        assert found["status"] == {0: "ok", 1: "finding", 2: "error"}[code]
        return code, found

    def text(self, *argv: str) -> tuple[int, str, str]:
        code = main(argv)
        return code, *self.capsys.readouterr()

    def error(self, *argv: str) -> dict[str, Any]:
        """The error of bad input. People are told the same, on stderr, and nothing on stdout."""
        code, found = self(*argv)
        error: dict[str, Any] = found["error"]
        assert code == 2
        assert set(error) == {"class", "message", "file", "line"}
        code, out, err = self.text(*argv)
        assert (code, out) == (2, "")
        assert f"{error['class']}: {error['message']}" in err
        assert "Traceback" not in err
        if error["line"]:
            assert f"{error['file']}:{error['line']}: " in err
        return error


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


# ---- list


def test_list(run: Run) -> None:
    code, found = run("list")
    assert code == 0
    assert found["command"] == "list"
    by_name = {o["name"]: o for o in found["operators"]}
    assert list(by_name) == list(operators())
    found = by_name["all_gather_matmul"]
    assert found["schedules"] == ["push", "pull", "multicast", "engine"]
    assert found["tensors"] == [
        {"name": "x", "kind": "input", "dims": ["M", "K"], "sharded": "M", "optional": False, "each": False},
        {"name": "weight", "kind": "input", "dims": ["K", "N"], "sharded": None, "optional": False, "each": True},
        {"name": "out", "kind": "output", "dims": ["M", "N"], "sharded": None, "optional": False, "each": True},
        {"name": "bias", "kind": "input", "dims": ["N"], "sharded": None, "optional": True, "each": True},
    ]
    assert found["functions"] == ["epilogue"]


def test_list_for_people(run: Run) -> None:
    code, out, err = run.text("list")
    assert (code, err) == (0, "")
    lines = out[out.index("all_gather_matmul\n") :].splitlines()
    assert lines[2:5] == [
        "    x[M/world, K], each weight[K, N], each bias[N] (optional) -> each out[M, N]",
        "    functions: epilogue",
        "    schedules: push (default), pull, multicast, engine",
    ]


# ---- check


def test_check(run: Run) -> None:
    code, found = run("check", "all_gather_matmul", "--world", "2", "--shape", "M=100")
    assert code == 0
    assert set(found) >= {"verdict", "proof", "findings", "events", "seconds", "peak_rss_bytes"}
    assert (found["verdict"], found["proof"], found["findings"], found["notes"]) == ("safe", "structural", [], [])
    assert found["events"] > 0 and found["seconds"] > 0 and found["peak_rss_bytes"] > 0
    assert (found["world"], found["shape"]["M"], found["schedule"].split(",")[0]) == (2, 100, "push")
    code, out, err = run.text("check", "all_gather_matmul", "--world", "2", "--shape", "M=100")
    assert (code, out) == (0, f"safe (proof: structural, for all sizes; {found['events']} events)\n")
    assert err.startswith("# tilelink check all_gather_matmul --world 2 --shape M=100,K=512,N=512")


def test_check_finds(run: Run) -> None:
    code, found = run("check", "all_gather_matmul", "--sms", "12", "--reserve", "3")
    assert code == 1
    assert (found["verdict"], found["proof"]) == ("unsafe", "unrolled")
    (finding,) = found["findings"]
    assert list(finding) == ["kind", "tensor", "what", "tiles", "ranks", "regions", "lines", "chain", "remedy"]
    assert (finding["kind"], finding["tiles"], finding["ranks"]) == ("residency", ["matmul tile 0"], [0])
    code, out, _ = run.text("check", "all_gather_matmul", "--sms", "12", "--reserve", "3")
    assert code == 1 and out.startswith("unsafe (1 finding;") and "remedy: launch on 9 SMs" in out


def test_check_for_a_machine(run: Run) -> None:
    """Residency is a matter of the machine's SMs: one that waits for what an MI300X has no room for is all right on
    another."""
    shape = "M=8192,N=8192,K=256", "--reserve", "100"
    code, found = run("check", "all_gather_matmul", "--machine", "mi300x", "--shape", *shape)
    assert code == 1 and (found["machine"], found["sms"]) == ("mi300x", 304)
    (finding,) = found["findings"]
    assert finding["kind"] == "residency" and "204 are resident (304 SMs, 100 of them kept" in finding["what"]
    code, found = run("check", "all_gather_matmul", "--machine", "h200", "--shape", *shape[:1])
    assert code == 0 and found["sms"] == 132
    code, found = run("check", "all_gather_matmul", "--machine", "h200", "--sms", "8")
    assert (code, found["error"]["class"]) == (2, "UsageError")
    code, found = run("check", "all_gather_matmul", "--machine", "h1000")
    assert (code, found["error"]["class"]) == (2, "UnknownMachineError")


# ---- show

CODE: list[Any] = [("ptx", "sm_90", "wgmma.mma_async"), ("amdgcn", "gfx942", "v_mfma")]
CODE += [pytest.param("ptx", "sm_100", "tcgen05.mma", marks=pytest.mark.verify)]


@pytest.mark.parametrize(("stage", "target", "instruction"), CODE)
def test_show_machine_code(run: Run, stage: str, target: str, instruction: str) -> None:
    """Compiled without a GPU; the counts of the program and of the code are equal."""
    code, found = run("show", "all_gather_matmul", "--stage", stage, "--target", target)
    assert code == 0
    assert instruction in found["text"]
    assert found["sha256"] == hashlib.sha256(found["text"].encode()).hexdigest()
    assert found["expected"] == found["found"]
    assert {"acquire", "release", "barrier", "fence", "mma"} <= found["expected"].keys()
    assert found["registers"] <= 512 and found["spill_bytes"] == 0 < found["shared_bytes"]


def test_a_gate_that_finds_something_is_a_finding(run: Run) -> None:
    """Two tiles of 256 in four stages do not fit into the registers of four warps."""
    flags = "--stage ptx --shape M=2048,N=1024,K=512 --schedule matmul.tile=256x256x64,matmul.warps=4,gather.warps=4"
    code, found = run("show", "all_gather_matmul", *flags.split())
    assert (code, found["status"], found["target"]) == (1, "finding", "sm_90")
    assert any("spilled" in f for f in found["findings"])


def test_a_target_without_the_stage(run: Run) -> None:
    error = run.error("show", "all_gather_matmul", "--stage", "amdgcn", "--target", "sm_90")
    assert error["class"] == "UsageError" and "gfx942 has" in error["message"]


@pytest.mark.parametrize("stage", ["program", "events", "triton"])
def test_show(run: Run, stage: str) -> None:
    code, found = run("show", "all_gather_matmul", "--stage", stage)
    assert code == 0
    assert found["text"] == all_gather_matmul.show(stage)
    assert found["sha256"] == hashlib.sha256(found["text"].encode()).hexdigest()
    assert (found["command"], found["stage"], found["target"]) == ("show", stage, "cpu")
    assert (found["world"], found["shape"], found["dtype"]) == (4, SIZES, "bfloat16")
    assert (found["defaults"], found["absent"], found["schedule"]) == (["M", "K", "N"], ["bias"], "push")
    assert found.get("events") == (len(found["text"].splitlines()) if stage == "events" else None)


def test_people_see_the_same_as_programs(run: Run) -> None:
    command = "show all_gather_matmul --stage events --shape M=64,K=96 --schedule pull,gather.count=2 --dtype fp16"
    _, found = run(*command.split())
    code, out, err = run.text(*command.split())
    assert code == 0
    assert out == found["text"]
    command, *rest = err.splitlines()
    assert rest == [
        "# sizes by default: N",
        "# without: bias",
        f"# events: {found['events']}",
        f"# sha256: {found['sha256']}",
    ]
    assert command.startswith("# tilelink show all_gather_matmul ")
    assert " --world 4 --shape M=64,K=96,N=512 " in command
    _, again = run(*command.removeprefix("# tilelink ").split())
    assert again == {**found, "defaults": []}  # with every flag said, it is the same


def test_flags_reach_the_program(run: Run) -> None:
    command = "show all_gather_matmul --stage events --world 3 --dtype fp32 --schedule pull --shape M=5+0+3,K=16,N=16"
    _, found = run(*command.split())
    assert found["shape"] == {"M": [5, 0, 3], "K": 16, "N": 16}
    sizes: dict[str, Any] = {"M": (5, 0, 3), "K": 16, "N": 16}
    wanted = all_gather_matmul.unroll(all_gather_matmul.fit("pull", **sizes), world=3, dtypes="float32", **sizes)
    assert found["text"] == wanted.text()
    assert found["events"] == len(wanted)


def test_a_users_file(run: Run, user_file: Path) -> None:
    code, found = run("show", f"{user_file}:doubled", "--schedule", "double.order=backwards")
    assert code == 0
    assert "program doubled\n" in found["text"]
    assert found["schedule"] == "plain,double.order=backwards"
    _, out, err = run.text("show", f"{user_file}:doubled")
    assert out.startswith("program doubled\n")
    assert err.startswith("a user's file may print\n")


# ---- the grammar of flags


def test_shape_grammar() -> None:
    shape = read_shape("M=512, N=7168,K=5+0+3")
    assert shape == {"M": 512, "N": 7168, "K": (5, 0, 3)}
    assert read_shape(shape_text(shape)) == shape


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, push),
        ("pull", pull),
        ("matmul.tile=64x64x32", push.changed(matmul={"tile": (64, 64, 32)})),
        ("pull,gather.count=4, gather.tile=128xnone", pull.changed(gather={"count": 4, "tile": (128, None)})),
        ("gather.count=none", push.changed(gather={"count": None})),
        ("matmul.order=ring", push.changed(matmul={"order": tk.ring})),
        ("matmul.group=4,gather.order=own_rank_first", push.changed(
            matmul={"order": tk.grouped(4)}, gather={"order": tk.own_rank_first},
        )),
        ("gather.at=reader,gather.at=home,matmul.at=none", push),
        ("matmul.stages=4,matmul.warps=4", push.changed(matmul={"stages": 4, "warps": 4})),
    ],
)  # fmt: skip
def test_schedule_grammar(text: str | None, wanted: tk.Schedule) -> None:
    schedule = read_schedule(all_gather_matmul, text, 4, dict(SIZES))
    assert schedule == wanted
    again = schedule_text(all_gather_matmul, schedule, text)
    assert read_schedule(all_gather_matmul, again, 4, dict(SIZES)) == wanted


def test_every_field_of_a_role_can_be_said() -> None:
    said = ["count=1", "tile=16x16x16", "order=ring", "at=none", "stages=1", "warps=1", "via=load-store", "whole=none"]
    assert [s.split("=")[0] for s in said] == [f.name for f in fields(tk.SMs)]
    for change in said:
        read_schedule(all_gather_matmul, f"matmul.{change}", 4, dict(SIZES))


def test_named_schedules_are_fitted_and_changes_are_not(run: Run) -> None:
    _, found = run("show", "all_gather_matmul", "--shape", "M=64,K=64,N=64")
    assert found["schedule"] == "push,gather.tile=16x64,matmul.tile=16x64x64"
    error = run.error("show", "all_gather_matmul", "--shape", "M=64,K=64,N=64", "--schedule", "matmul.tile=128x64x64")
    assert error["class"] == "TileSizeError"


# ---- bad input


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        ("--world 0", "WorldError", "a world of 0"),
        ("--world -1", "WorldError", "a world of -1"),
        ("--world many", "UsageError", "invalid int value"),
        ("--shape M", "UsageError", "'M' is neither DIM=SIZE"),
        ("--shape M=-4", "UsageError", "'M=-4' is neither"),
        ("--shape M=4,M=8", "UsageError", "M is given twice"),
        ("--shape Q=4", "DimensionError", "no dimension Q; it has M, K, N"),
        ("--shape M=4+4", "DimensionError", "2 parts (4, 4) for 4 ranks"),
        ("--shape K=1+1+1+1", "DimensionError", "K is not spread over the ranks"),
        ("--dtype bf17", "UsageError", "bf17 is not a dtype"),
        ("--dtype int64", "DtypeError", "tl.dot does not take int64"),
        ("--schedule shove", "ScheduleError", "no schedule shove; it has push, pull, multicast, engine"),
        ("--schedule push,pull", "UsageError", "--schedule pull: a change is ROLE.FIELD=VALUE"),
        ("--schedule push,", "UsageError", "a change is ROLE.FIELD=VALUE"),
        ("--schedule tile=64", "UsageError", "--schedule tile=64: a change is"),
        ("--schedule send.tile=64", "ScheduleError", "no role send in this schedule; it has gather, matmul"),
        ("--schedule matmul.speed=9", "UsageError", "a role on SMs has no speed; it has count, tile, order"),
        ("--schedule matmul.tile=64*64", "UsageError", "'64*64' is not a natural number"),
        ("--schedule matmul.tile=65x64x32", "TileSizeError", "--schedule matmul.tile=65x64x32: tile (65, 64"),
        ("--schedule matmul.stages=none", "UsageError", "'none' is not a natural number"),
        ("--schedule matmul.order=random", "UsageError", "no order random; there is own_rank_first"),
        ("--schedule gather.at=work", "ScheduleError", "it can be one of reader, home"),
        ("--stage llir", "UsageError", "choose from 'program', 'events', 'triton'"),
        ("--target sm_75", "UsageError", "choose from 'cpu'"),
        ("--wor 4", "UsageError", "unrecognized arguments"),
        ("--loud", "UsageError", "unrecognized arguments: --loud"),
    ],
)  # fmt: skip
def test_bad_flags(run: Run, flags: str, kind: str, message: str) -> None:
    error = run.error("show", "all_gather_matmul", *flags.split())
    assert error["class"] == kind
    assert message in error["message"]


def test_errors_of_the_frontend_have_their_line(run: Run) -> None:
    error = run.error("show", "all_gather_matmul", "--dtype", "int64")
    assert error["file"] == all_gather_matmul.file
    assert "tl.dot" in Path(error["file"]).read_text().splitlines()[error["line"] - 1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "required: COMMAND"),
        ("plot all_gather_matmul", "choose from 'list', 'check', 'show'"),
        ("show", "required: TARGET"),
        ("show two operators", "unrecognized arguments: operators"),
        ("show all_to_all", "there is no operator all_to_all; there is all_gather"),
        ("list --world 2", "unrecognized arguments: --world 2"),
    ],
)
def test_bad_commands(run: Run, argv: str, message: str) -> None:
    error = run.error(*argv.split())
    assert error["class"] == "UsageError"
    assert message in error["message"]
    assert run(*argv.split())[1]["command"] == next((c for c in argv.split()[:1] if c in COMMANDS), None)


@pytest.mark.parametrize(
    ("text", "kind", "message", "line"),
    [
        ("import os\nx = (1,\n", "SyntaxError", "was never closed", 2),
        ("import os\n\nimport there_is_no_such_module\n", "ModuleNotFoundError", "there_is_no_such_module", 3),
        ("from sizes import COLUMNS\n", "ImportError", "COLUMNS", 1),
        ("def f():\n    return 1 // 0\n\nf()\n", "ZeroDivisionError", "division", 2),
        ("import sys\nsys.exit('done')\n", "UsageError", "ends the process with 'done'", None),
        ("doubled = 3\n", "UsageError", "doubled is no program but of type int; there is no program", None),
        (USER_FILE.replace("doubled(", "tripled("), "UsageError", "called 'doubled'; there is tripled", None),
        (USER_FILE.replace("x[t].load()", "z[t].load()"), "UndefinedNameError", "z is not defined", 9),
        (USER_FILE.replace("double[tk.tiles(x)](x, y)", "double[x](x, y)"), "DimensionError", "a role runs over", 13),
        (USER_FILE.replace("plain = ", ""), "ScheduleError", "has no schedule beside it", 11),
        (UNSOUND_ORDER, "ScheduleError", "fails on rank 0", 13),
    ],
)  # fmt: skip
def test_bad_files(run: Run, user_file: Path, text: str, kind: str, message: str, line: int | None) -> None:
    user_file.write_text(text)
    error = run.error("show", f"{user_file}:doubled")
    assert error["class"] == kind
    assert message in error["message"]
    assert (error["file"], error["line"]) == (str(user_file), line)


def test_the_line_may_stand_in_a_module_beside_the_file(run: Run, user_file: Path) -> None:
    (user_file.parent / "sizes.py").write_text("\nROWS = 1 // 0\n")
    error = run.error("show", f"{user_file}:doubled")
    assert (error["class"], error["line"]) == ("ZeroDivisionError", 2)
    assert error["file"] == str(user_file.parent / "sizes.py")


@pytest.mark.parametrize("target", ["user.py", "user.py:", "user.py:double", "user.py:nothing", "other.py:x", ".:x"])
def test_bad_targets(run: Run, user_file: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(user_file.parent)
    error = run.error("show", target)
    assert error["class"] == "UsageError"
    assert error["file"] == str(Path(target.split(":")[0]).resolve())


def test_what_nobody_foresaw_is_no_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Any, sizes: Any) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("tilelink.analysis.unroll.unroll", broken)
    code, out, err = run.text("show", "matmul", "--stage", "events", "--json")
    assert code == 2
    assert json.loads(out)["error"]["class"] == "RuntimeError"
    assert "Traceback" in err


# ---- as a process


def tilelink(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `tilelink` is this package's command."""
    line = f'tilelink() {{ "{sys.executable}" -m tilelink "$@"; }}; set -o pipefail; {command}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=60, **options)


def test_process(user_file: Path) -> None:
    done = tilelink("tilelink show user.py:doubled --stage triton --json", cwd=user_file.parent)
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "ok"
    assert done.stderr == "a user's file may print\n"


def test_process_with_bad_input() -> None:
    done = tilelink("tilelink show --json --frobnicate")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["class"] == "UsageError"
    assert done.stderr == ""


def test_a_reader_may_leave() -> None:
    done = tilelink("tilelink show all_gather_matmul --stage events --shape M=4096 2>/dev/null | head -n 1")
    assert done.returncode == 0
    assert done.stdout.startswith("rank 0 worker 0 gather tile 0: ")
    done = tilelink("tilelink show all_gather_matmul --stage events --shape M=4096 --json | true && tilelink -h | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_is_not_imported() -> None:
    """It takes seconds, and nothing that is shown needs it."""
    show = "import sys; from tilelink.cli import main; main(['show', 'matmul', '--stage', 'triton'])"
    code = f"{show}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_works(run: Run, command: str) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "-h"])
    assert exit.value.code == 0
    example = run.capsys.readouterr().out.split("example:")[1].replace("\\\n", " ").split()
    assert example[:2] == ["tilelink", command]
    assert run.text(*example[1:])[0] == 0


# ---- explore

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


def test_explore_with_no_worker_resident(run: Run) -> None:
    error = run.error("explore", "all_gather_matmul", "--resident", "0")
    assert error["class"] == "UsageError" and "--resident: 0 is less than 1" in error["message"]


def test_explore_repeats_a_seed(run: Run) -> None:
    again = [run("explore", "all_gather_matmul", *QUICKLY, "--replay", seed)[1] for seed in ("5", "5", "6")]
    assert [a["schedules_run"] for a in again] == [1, 1, 1]
    assert again[0]["schedule_hash"] == again[1]["schedule_hash"] != again[2]["schedule_hash"]


RACE = """\
import tilelink as tk

@tk.tile
def gather(t, x, full):
    there = tk.copy(x[t], full[t].at(t.reader))
    tk.notify(there)
    there.store(x[t].load() * 2)

@tk.tile
def use(t, full, out):
    out[t].store(tk.wait(full[t]).load())

@tk.program
def late(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    use[tk.tiles(out)](full, out)

few = tk.Schedule(gather=tk.SMs(1, tile=(16, 16)), use=tk.SMs(1, tile=(16, 16)))
"""


def test_explore_finds(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text(RACE)
    asked = ["explore", f"{file}:late", "--world", "2", "--shape", "M=20,K=16", "--dtype", "float32"]
    code, found = run(*asked, "--seeds", "6")
    assert code == 1
    race = next(f for f in found["findings"] if f["kind"] == "race")
    assert list(race) == ["seed", "kind", "lines", "what"]
    assert f"{file}:7: there.store(x[t].load() * 2)" in race["lines"]
    code, again = run(*asked, "--replay", str(race["seed"]))
    assert code == 1 and race in again["findings"]
    code, out, _ = run.text(*asked, "--seeds", "6")
    assert code == 1 and f"race (seed {race['seed']}): " in out and f"{file}:7" in out


def test_explore_says_what_unrolling_refuses(run: Run) -> None:
    file = ROOT / "tests" / "verification" / "odd_rows.py"
    code, found = run("explore", f"{file}:sums_of_tiles", "--world", "2", "--shape", "M=66,K=32")
    assert (code, found["schedules_run"]) == (1, 0)
    (finding,) = found["findings"]
    assert finding["kind"] == "unguarded read" and finding["what"].endswith("; it was not run")
    assert "total += tl.sum(rows[pair].load(), 0)[None, :]" in finding["lines"][0]


@pytest.mark.parametrize("flags", [["--seeds", "-1"], ["--policy", "fair"], ["--replay", "x"], ["--backend", "gpu"]])
def test_explore_refuses_flags(run: Run, flags: list[str]) -> None:
    assert run.error("explore", "all_gather_matmul", *flags)["class"] == "UsageError"
