"""Every kind of error of the frontend: its class, the user's file and line (marked `# here`), values, remedy."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilelink import errors
from tilelink.errors import TileLinkError
from tilelink.frontend.program import Program

MODULE = """\
import triton
import triton.language as tl
import tilelink as tk

@tk.tile
def gather(t, x, full):
{gather}

@tk.tile
def matmul(t, full, weight, out):
{matmul}

@tk.program
def user(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
{program}

plain = {schedule}
"""
GATHER = "tk.notify(tk.copy(x[t], full[t].at(t.reader)))"
MATMUL = """\
rows = tk.wait(full[t.rows])
acc = tl.zeros(t.shape, tl.float32)
for k in tk.steps(full.cols):
    acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
out[t].store(acc)"""
PROGRAM = """\
full = tk.local("M", "K")
gather[tk.tiles(x, reader=tk.ranks)](x, full)
matmul[tk.tiles(out)](full, weight, out)"""
SCHEDULE = 'tk.Schedule(gather=tk.SMs(2, tile=(16, 16), at="home"), matmul=tk.SMs(tile=(16, 16, 16)))'
SIZES = {"M": 64, "N": 32, "K": 48}


@dataclass(frozen=True)
class Case:
    """A module with one thing wrong. `said`: what the message has to contain."""

    error: str
    said: tuple[str, ...]
    gather: str = GATHER
    matmul: str = MATMUL
    program: str = PROGRAM
    schedule: str = SCHEDULE
    dtypes: Any = "float32"
    world: Any = 4
    sizes: tuple[tuple[str, Any], ...] = tuple(SIZES.items())

    def source(self) -> str:
        def body(text: str) -> str:
            return "\n".join(f"    {line}" for line in text.split("\n"))

        return MODULE.format(
            gather=body(self.gather), matmul=body(self.matmul), program=body(self.program), schedule=self.schedule
        )


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


CASES = {
    "memory outside of views": Case(
        "ViewError", ("tl.load", "view.load()"),
        matmul=changed(MATMUL, "rows[:, k].load()", "tl.load(full)").replace("acc)\nout", "acc)  # here\nout"),
    ),
    "an address of a tensor": Case(
        "ViewError", ("no address",), gather="y = x + 4  # here\n" + GATHER,
    ),
    "a slice by numbers": Case(
        "ViewError", ("0:4",), gather=changed(GATHER, "x[t]", "x[0:4]") + "  # here",
    ),
    "a read without a wait": Case(
        "UnguardedReadError", ("full", "without a wait", "tk.wait"),
        matmul=changed(MATMUL, "tk.wait(full[t.rows])", "full[t.rows]").replace("acc)\nout", "acc)  # here\nout"),
    ),
    "a wait nobody notifies": Case(
        "WaitWithoutNotifyError", ("matmul waits", "no tile of the program notifies full"),
        gather="tk.copy(x[t], full[t].at(t.reader))",
        matmul=changed(MATMUL, "tk.wait(full[t.rows])", "tk.wait(full[t.rows])  # here"),
    ),
    "a notify of what was not stored": Case(
        "NotifyWithoutStoreError", ("did not store", "copy return"),
        gather="tk.copy(x[t], full[t].at(t.reader))\ntk.notify(full[t])  # here",
    ),
    "a view with two homes": Case(
        "HomeError", ("more than one home", "spread over the ranks"),
        gather="tk.copy(x[:, t.cols], full[:, t.cols].at(t.reader))  # here",
    ),
    "dimensions that do not match": Case(
        "DimensionError", ("dimension 0 of weight is K", "N[N_lo"),
        matmul=changed(MATMUL, "weight[k, t.cols].load(), acc)", "weight[t.cols, k].load(), acc)  # here"),
    ),
    "a copy between shapes": Case(
        "DimensionError", ("keeps coordinates",), gather="tk.notify(tk.copy(x[t], full[t.rows].at(t.reader)))  # here",
    ),
    "a dtype dot does not take": Case(
        "DtypeError", ("tl.dot does not take int64", "float16"),
        matmul=changed(MATMUL, "weight[k, t.cols].load(), acc)", "weight[k, t.cols].load(), acc)  # here"),
        dtypes={"x": "int64", "weight": "int64", "out": "float32"},
    ),
    "operands of two dtypes": Case(
        "DtypeError", ("left is float16", "right bfloat16"),
        matmul=changed(MATMUL, "weight[k, t.cols].load(), acc)", "weight[k, t.cols].load(), acc)  # here"),
        dtypes={"x": "float16", "weight": "bfloat16", "out": "float32"},
    ),
    "a rank below zero": Case(
        "RankError", ("there is no rank -1", "tk.world()"),
        gather="tk.notify(tk.copy(x[t], full[t].at(-1)))  # here",
    ),
    "a rank beyond the world": Case(
        "RankError", ("rank 4 in a world of 4",),
        gather="tk.notify(tk.copy(x[t], full[t].at(t.reader + 1)))  # here",
    ),
    "a world of zero": Case("WorldError", ("a world of 0",), world=0),
    "a tile larger than the tensor": Case(
        "TileSizeError", ("tile of 256 along M", "larger than the tensor", "at most 64"),
        schedule=changed(SCHEDULE, "tile=(16, 16, 16)", "tile=(256, 16, 16)"),
        program=changed(PROGRAM, "weight, out)", "weight, out)  # here"),
    ),
    "a tile that is no power of two": Case(
        "TileSizeError", ("48 is not a power of two",),
        schedule=changed(SCHEDULE, "tile=(16, 16, 16)", "tile=(48, 16, 16)") + "  # here",
    ),
    "a name that is not defined": Case(
        "UndefinedNameError", ("wieght is not defined", "weight"),
        matmul=changed(MATMUL, "weight[k, t.cols].load(), acc)", "wieght[k, t.cols].load(), acc)  # here"),
    ),
    "a branch on data around a notify": Case(
        "DataBranchError", ("branch on data", "tl.where"),
        gather=f"if tl.sum(x[t].load()) > 0:\n    {GATHER}  # here",
    ),
    "a branch on data around a wait": Case(
        "DataBranchError", ("branch on data",),
        matmul="acc = tl.zeros(t.shape, tl.float32)\nif tl.sum(acc) > 0:\n    tk.wait(full[t.rows])  # here",
    ),
    "a role without a schedule": Case(
        "RoleWithoutScheduleError", ("says nothing of role matmul", "gather"),
        schedule='tk.Schedule(gather=tk.SMs(2, tile=(16, 16), at="home"))',
        program=changed(PROGRAM, "weight, out)", "weight, out)  # here"),
    ),
    "a schedule without a role": Case(
        "ScheduleWithoutRoleError", ("has no role reduce", "gather, matmul"),
        schedule=changed(SCHEDULE, "tk.Schedule(", "tk.Schedule(reduce=tk.SMs(tile=(16, 16)), ") + "  # here",
    ),
    "no step for a loop": Case(
        "TileSizeError", ("no step",),
        schedule=changed(SCHEDULE, "tile=(16, 16, 16)", "tile=(16, 16)"),
        matmul=changed(MATMUL, "tk.steps(full.cols):", "tk.steps(full.cols):  # here"),
    ),
    "blocks too small for dot": Case(
        "TileSizeError", ("at least 16",),
        schedule=changed(SCHEDULE, "tile=(16, 16, 16)", "tile=(16, 16, 8)"),
        matmul=changed(MATMUL, "weight[k, t.cols].load(), acc)", "weight[k, t.cols].load(), acc)  # here"),
    ),
    "nobody to execute": Case(
        "ScheduleError", ("at='nobody'", "reader, home"),
        schedule=changed(SCHEDULE, 'at="home"', 'at="nobody"'),
        program=changed(PROGRAM, "(x, full)", "(x, full)  # here"),
    ),
    "an order that is no permutation": Case(
        "ScheduleError", ("permutation of 0..3",),
        schedule=changed(SCHEDULE, 'at="home"', 'at="home", order=tk.order(lambda step, rank, world: step * 0)'),
    ),
    "a notification that depends on coordinates": Case(
        "SignalCountError", ("M_lo",),
        gather="if t.rows.start > 16:\n    tk.notify(tk.copy(x[t], full[t].at(t.reader)))  # here",
    ),
    "a read beyond what was waited for": Case(
        "ViewError", ("M[0:16] is outside of what was waited for, M[0:8]",),
        matmul="""\
for m in tk.steps(t.rows):
    rows = tk.wait(full[m])
    for k in tk.steps(full.cols):
        out[t].store(rows[t.rows, k].load())  # here""",
        schedule=changed(SCHEDULE, "tile=(16, 16, 16)", "tile=(16, 16, 8)"),
        sizes=(("M", 64), ("N", 8), ("K", 8)),
    ),
    "a statement that is not understood": Case(
        "NotUnderstoodError", ("while",), gather="while True:  # here\n    pass",
    ),
    "a missing argument": Case(
        "DimensionError", ("gather takes x, full; 1 given",),
        program=changed(PROGRAM, "(x, full)", "(x)  # here"),
    ),
    "a dimension nobody declares": Case(
        "DimensionError", ("dimension Q",),
        program=changed(PROGRAM, 'tk.local("M", "K")', 'tk.local("M", "Q")  # here'),
    ),
}  # fmt: skip


def load(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The source as a module in a file, where tile functions are read from."""
    file = folder / "users_program.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("users_program", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "users_program", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    source = case.source()
    with pytest.raises(TileLinkError) as caught:
        module = load(source, tmp_path, monkeypatch)
        module.user.unroll(module.plain, world=case.world, dtypes=case.dtypes, **dict(case.sizes))
    error = caught.value
    assert type(error).__name__ == case.error, error
    for fragment in case.said:
        assert fragment in str(error), error
    marked = [k + 1 for k, line in enumerate(source.split("\n")) if "# here" in line]
    if marked:
        assert error.site is not None
        assert (Path(error.site.file).name, error.site.line) == ("users_program.py", marked[0]), error


def test_the_correct_program_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program: Program = load(Case("", ()).source(), tmp_path, monkeypatch).user
    assert len(program.unroll("plain", world=4, **SIZES))


def test_all_classes_of_the_frontend_are_tried() -> None:
    tried = {c.error for c in CASES.values()}
    frontend = {
        "ViewError", "UnguardedReadError", "WaitWithoutNotifyError", "NotifyWithoutStoreError", "HomeError",
        "DimensionError", "DtypeError", "RankError", "WorldError", "TileSizeError", "UndefinedNameError",
        "DataBranchError", "RoleWithoutScheduleError", "ScheduleWithoutRoleError", "SignalCountError", "ScheduleError",
        "NotUnderstoodError",
    }  # fmt: skip
    assert frontend <= tried and all(hasattr(errors, n) for n in frontend)
