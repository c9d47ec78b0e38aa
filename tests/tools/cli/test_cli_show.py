"""`tilelink show`: every stage, of operators and of a user's file; the same for people as for programs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import tilelink as tk
from tests.parameters import first_cases
from tests.tools.cli.command_lines import SIZES, USER_FILE, Run
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.tools.cli import main

CODE = [("ptx", "sm_90", "wgmma.mma_async"), ("amdgcn", "gfx942", "v_mfma"), ("ptx", "sm_100", "tcgen05.mma")]


@pytest.mark.parametrize(("stage", "target", "instruction"), first_cases(CODE))
def test_show_machine_code(run: Run, stage: str, target: str, instruction: str) -> None:
    """Compiled without a GPU; the counts of the program and of the code are equal."""
    code, found = run("show", "all_gather_matmul", "--stage", stage, "--target", target)
    assert code == 0
    assert instruction in found["text"]
    assert found["sha256"] == hashlib.sha256(found["text"].encode()).hexdigest()
    assert found["expected"] == found["found"]
    assert {"acquire", "release", "barrier", "fence", "mma"} <= found["expected"].keys()
    assert found["registers"] <= 512 and found["spill_bytes"] == 0 < found["shared_bytes"]


@pytest.mark.parametrize(
    ("tile", "says"),
    [
        ("1024x1024x64", "sums of 1024 x 1024 take 4194304 bytes of registers, and sm_90 has 262144 for a worker"),
        ("128x128x1024", "1024 x 128 take 524288 bytes of shared memory, and sm_90 has 232448 for a worker"),
    ],
)
def test_a_tile_that_can_not_fit_is_refused_before_it_is_compiled(run: Run, tile: str, says: str) -> None:
    flags = f"--stage ptx --shape M=4096,N=1024,K=1024 --schedule matmul.tile={tile}"
    error = run.error("show", "all_gather_matmul", *flags.split())
    assert error["class"] == "TileSizeError" and says in error["message"]
    assert f"; the schedule: --schedule matmul.tile={tile}" in error["message"]


@pytest.mark.verify
def test_a_gate_that_finds_something_is_a_finding(run: Run) -> None:
    """Two tiles of 256 in four stages do not fit into the registers of four warps."""
    flags = "--stage ptx --shape M=2048,N=1024,K=512 --schedule matmul.tile=256x256x64,matmul.warps=4,gather.warps=4"
    code, found = run("show", "all_gather_matmul", *flags.split())
    assert (code, found["status"], found["target"]) == (1, "finding", "sm_90")
    assert any("spilled" in f for f in found["findings"])
    _, _, said = run.text("show", "all_gather_matmul", *flags.split())
    assert "# the schedule: --schedule matmul.tile=256x256x64,matmul.warps=4,gather.warps=4\n" in said


def test_across_nodes(run: Run) -> None:
    """What is shown is what runs there: the network's kernel; and where that can't be shown, it is said."""
    asked = "show all_gather_matmul --shape M=64,K=64,N=64 --per-node"
    near, far = (run(*asked.split(), n, "--stage", "triton")[1] for n in ("4", "2"))
    assert near["text"] == all_gather_matmul.show("triton", M=64, K=64, N=64) and far["per_node"] == 2
    assert "is_far(" in far["text"] and "is_far(" not in near["text"] and "portable_network" in far["text"]
    flags = run.text(*asked.split(), "2", "--stage", "program")[2]
    assert " --per-node 2 " in flags
    assert "ptx is shown of one node" in run.error(*asked.split(), "2", "--stage", "ptx")["message"]
    for bad, kind in (("0", "WorldError"), ("3", "WorldError")):
        assert run.error(*asked.split(), bad)["class"] == kind
    assert run.error(*asked.split(), "2", "--stage", "triton", "--target", "gfx942")["class"] == "TargetError"


def test_a_target_without_the_stage(run: Run) -> None:
    error = run.error("show", "all_gather_matmul", "--stage", "amdgcn", "--target", "sm_90")
    has = "sm_90 has program, events, triton, host, ptx, sass"
    assert (error["class"], error["message"]) == ("UsageError", f"sm_90 has no amdgcn; gfx942 has it; {has}")
    error = run.error("show", "all_gather_matmul", "--stage", "program", "--target", "sm_90+warps")
    assert error["message"].endswith(" have it; sm_90+warps has gluon, ptx, sass")


def test_help_says_which_targets_have_which_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "-h"])
    said = " ".join(capsys.readouterr().out.split())
    assert "sm_90+warps, sm_100+warps: gluon, ptx, sass" in said and "cpu: program, events, triton, host;" in said


def test_the_specialised_form(run: Run) -> None:
    code, found = run("show", "all_gather_matmul", "--stage", "gluon", "--target", "sm_90")
    assert (code, found["target"]) == (0, "sm_90+warps") and "tl.warp_specialize(" in found["text"]
    error = run.error("show", "all_gather", "--stage", "gluon")
    assert error["class"] == "FormError" and "no role multiplies" in error["message"]


@pytest.mark.parametrize("stage", ["program", "events", "triton"])
def test_show(run: Run, stage: str) -> None:
    code, found = run("show", "all_gather_matmul", "--stage", stage)
    assert code == 0
    assert found["text"] == all_gather_matmul.show(stage)
    assert found["sha256"] == hashlib.sha256(found["text"].encode()).hexdigest()
    assert (found["command"], found["stage"], found["target"]) == ("show", stage, "cpu")
    assert (found["world"], found["shape"], found["dtype"]) == (4, SIZES, "bfloat16")
    assert (found["defaults"], found["absent"]) == (["M", "K", "N"], ["bias", "gathered"])
    assert found["schedule"] == "push,gather.tile=128x512", "as it is fitted to the sizes"
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
        "# without: bias, gathered",
        '# gather: via="tma" has no effect on cpu; --target sm_90 has it',
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


def test_a_file_alone_is_its_one_program(run: Run, user_file: Path) -> None:
    user_file.write_text(f"from tilelink.kernels.matmul import matmul\n{USER_FILE}")
    code, found = run("show", str(user_file), "--world", "2")
    assert code == 0 and "doubled" in found["text"]
    again = USER_FILE[USER_FILE.index("@tk.program") :].replace("doubled", "again")
    user_file.write_text(f"{USER_FILE}\n{again}")
    assert "this file has doubled, again: TARGET is FILE.py:NAME" in run.error("show", str(user_file))["message"]


def test_dtypes_of_tensors(run: Run) -> None:
    said = "x=bfloat16,weight=bfloat16,out=float32,bias=float32"
    code, found = run("show", "all_gather_matmul", "--dtype", said.replace("bfloat16", "bf16"))
    assert code == 0 and found["dtype"] == dict(item.split("=") for item in said.split(","))
    assert "output out: float32[M, N]" in found["text"]
    assert found["absent"] == ["gathered"] and "bias" in found["text"]
    assert f"--dtype {said}" in run.text("show", "all_gather_matmul", "--dtype", said)[2]
    error = run.error("show", "all_gather_matmul", "--dtype", "wieght=bf16")
    assert error["class"] == "DtypeError" and "did you mean weight?" in error["message"]
    assert "is not NAME=DTYPE" in run.error("show", "all_gather_matmul", "--dtype", "x=bf16,x=fp16")["message"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"tilelink {tk.__version__}\n"


def test_a_users_file(run: Run, user_file: Path) -> None:
    code, found = run("show", f"{user_file}:doubled", "--schedule", "double.order=backwards")
    assert code == 0
    assert "program doubled\n" in found["text"]
    assert found["schedule"] == "plain,double.order=backwards"
    _, out, err = run.text("show", f"{user_file}:doubled")
    assert out.startswith("program doubled\n")
    assert err.startswith("a user's file may print\n")


def test_exact_products_have_the_tiles_of_a_gpu_where_it_is_one(run: Run) -> None:
    """As a call on it has them; and what the CPU runs says that it is not so there."""
    asked = ["show", "all_gather_matmul", "--stage", "program", "--dtype", "fp32"]
    _, _, said = run.text(*asked)
    assert "# a GPU has smaller tiles of exact float32 products: --target sm_90 shows them" in said
    assert "matmul.tile=64x64x32" in run(*asked, "--target", "sm_90")[1]["schedule"]
    assert "a GPU has" not in run.text("show", "all_gather_matmul")[2]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", 'gather: via="tma" has no effect on cpu; --target sm_90 has it'),
        ("--target sm_90", ""),
        ("--target gfx942", 'gather: via="tma" has no effect on gfx942; --target sm_90 has it'),
        ("--target sm_90 --shape K=4097", "no effect: rows of x along K are 8194 bytes, no multiple of 16"),
        ("--shape K=4097", "no effect: rows of x along K are 8194 bytes, no multiple of 16"),
        ("--target sm_90 --stage triton --per-node 2", 'gather: via="tma" has no effect in a world of several nodes'),
        ("--target sm_90 --schedule matmul.via=tma", "matmul: via=\"tma\" has no effect: it multiplies, and threads"),
    ],
)
def test_a_role_that_copies_nothing_in_bulk_is_named(run: Run, flags: str, said: str) -> None:
    _, _, note = run.text("show", "all_gather_matmul", *flags.split())
    assert said in note and ("has no effect" in note) == bool(said)
