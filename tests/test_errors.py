"""How reports name places in the source, and how long tracebacks are."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import GATHER, READ, WAIT, changed, load
from tilelink.emulator.sites import KernelSite
from tilelink.errors import (
    Site,
    StuckError,
    TileLinkError,
    UnguardedReadError,
    counted,
    function_text,
    listed,
    public,
    shown,
)
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import push
from tilelink.nn import ExpertParallel, SharedColwiseParallel
from tilelink.runtime.group import Group


def test_files_are_named_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    below, beside = str(tmp_path / "here" / "below" / "a.py"), str(tmp_path / "here_too" / "a.py")
    assert shown(below) == os.path.join("below", "a.py")
    assert (shown(beside), shown("<stdin>")) == (beside, "<stdin>")
    assert str(Site("--schedule push,matmul.warps=4", 0)) == "--schedule push,matmul.warps=4"
    kernel = KernelSite(below, 3, "text", (Site(beside, 4),))
    assert (str(Site(below, 3)), str(kernel)) == ("below/a.py:3", f"below/a.py:3 called at {beside}:4")
    error = TileLinkError("wrong", Site(below, 3)).because_of("the schedule", Site(below, 5))
    assert str(error) == "below/a.py:3: wrong; the schedule: below/a.py:5"
    assert error.site is not None and error.site.file == below  # for programs, wherever they run


def test_files_are_named_where_there_is_no_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert str(Site("/a/b.py", 3)) == "/a/b.py:3"


def test_tracebacks_end_where_tilelink_was_called(tmp_path: Path) -> None:
    """The error names the user's line; our frames say nothing more."""
    wrong = load(tmp_path, changed(GATHER, {WAIT: "full[t.rows]", READ: "        acc += rows[:, k].load()"}))
    world = tk.CpuWorld(2, heap_bytes=64 << 10, signal_bytes=512)

    def call(group: Group) -> None:
        wrong.program(torch.ones(16, 16), torch.ones(32, 16), schedule=wrong.schedule, group=group)

    for run in (wrong.main, lambda: world.run(call)):
        with pytest.raises(UnguardedReadError) as error:
            run()
        frames = traceback.extract_tb(error.value.__traceback__)
        assert {f.filename for f in frames} <= {__file__, wrong.__file__}, frames


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tk.notify(": "tk.notifiy("}, "tk has no notifiy; did you mean notify?"),
        ({READ: "        acc += tl.expp(rows[:, k].load())"}, "tl has no expp; did you mean exp?"),
        ({READ: "        acc += tl.zeros((32, 32), tl.float32)"}, "blocks of shape (16, 16) and (32, 32) do not go"),
    ],
    ids=["word", "function of Triton", "shapes"],
)
def test_tracebacks_tell_one_error(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    """Nothing of how the elaborator found it out."""
    with pytest.raises(TileLinkError) as error:
        load(tmp_path, changed(GATHER, changes)).main()
    told = "".join(traceback.format_exception(error.value))
    assert said in told and "During handling" not in told and f"tilelink{os.sep}frontend" not in told


ORDER = tk.order(lambda step, rank, world: step)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tk.SMs(2, tile=(32, 64), ordr=tk.ring), "tk.SMs(2, tile=(32, 64), ordr=tk.ring): it takes count=, "),
        (lambda: tk.SMs(ordr=tk.grouped(8, tk.ranks_first())), "ordr=tk.grouped(8, tk.ranks_first(tk.own_rank_first))"),
        (lambda: tk.SMs(ordr=ORDER), "ordr=<lambda>): it takes"),
        (lambda: tk.SMs(grp=8), "in this order; group is of an order: write order=tk.grouped(8)"),
        (lambda: push.changed(gather={"columns": 2}), "; columns is of an order: write order=tk.columns_first(1)"),
        (lambda: tk.SMs(tile=(48, 64)), "48 is not a power of two"),
        (lambda: tk.CopyEngine(tile=(48,)), "48 is not a power of two"),
        (lambda: tk.CopyEngine(count=8), "engines are not counted"),
        (lambda: tk.Epilogue(), "missing 1 required positional argument"),
        (lambda: tk.Epilogue("matmul", group=8), "it takes of="),
        (lambda: tk.Schedule(gather=3), "gather=3 is not a resource"),
        (lambda: tk.Schedule(slot=3), "slot=3 is not a resource such as tk.SMs(...); did you mean slots?"),
        (lambda: tk.CpuWorld(2, sed=3), "got an unexpected keyword argument 'sed'; did you mean seed?"),
        (lambda: tk.grouped(0), "a group of 0 rows"),
        (lambda: tk.grouped("a"), "a group of 'a' rows: it must be at least 1"),
        (lambda: tk.grouped(2, 3), "order 3: make an order of a function by tk.order(function)"),
        (lambda: tk.grouped(2, "ring"), "order 'ring': an order is an object, not a name; write tk.ring"),
        (lambda: tk.columns_first(0), "0 columns at a time"),
        (lambda: tk.columns_first("a"), "'a' columns at a time: it must be at least 1"),
        (lambda: tk.columns_first(2, 3), "order 3: make an order"),
        (lambda: tk.ranks_first(3), "order 3: make an order"),
        (lambda: tk.order(3), "3 as an order: it is a function (step, rank, world) -> part"),
        (lambda: tk.order(lambda step, rank, world: step, group=0.5), "a group of 0.5 rows"),
        (lambda: tk.Order("mine", 3), "3 as an order"),
        (lambda: tk.Local(), 'a tensor has at least one dimension: name it, such as "M"'),
        (lambda: tk.Sharded(), "a tensor has at least one dimension"),
        (lambda: tk.Each(), "missing 1 required positional argument: 'declared'"),
        (
            lambda: tk.Each(tk.Each(tk.Sharded("M", "K", axis=1, contiguous="M"))),
            "tk.Each(tk.Each(tk.Sharded('M', 'K', axis=1, contiguous='M'))): a list of tensors",
        ),
        (lambda: tk.Each(tk.Route("S", "R", "E")), "tk.Each(tk.Route('S', 'R', 'E')): a list of tensors"),
        (lambda: tk.program(3), "3 is no function of Python: @tk.program stands on a function written with def"),
        (lambda: all_gather(torch.ones(2, 2)), "all_gather runs on a rank of a group; group= is missing"),
        (lambda: all_gather(grp=3), "group= is missing (grp= is given; did you mean group?). CpuWorld.run(function)"),
        (lambda: all_gather.prepare(torch.ones(2, 2), group=3), "runs on a rank of a group; group= is of type int"),
        (lambda: SharedColwiseParallel(), "the linears that share their input are named one by one"),
        (lambda: ExpertParallel(cut="rows"), "cut='rows'; there are experts, hidden"),
        (lambda: ExpertParallel(rows=1), "unexpected keyword argument 'rows'"),
    ],
)
def test_tracebacks_of_wrong_arguments_end_where_they_were_given(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TileLinkError) as error:
        make()
    assert said in error.value.message
    assert {f.filename for f in traceback.extract_tb(error.value.__traceback__)} == {__file__}


def test_numbers_of_things() -> None:
    assert [counted(n, "tile") for n in (0, 1, 8192)] == ["0 tiles", "1 tile", "8192 tiles"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_functions_are_named_alike_on_every_rank() -> None:
    made = function_text(test_functions_are_named_alike_on_every_rank)
    assert re.fullmatch(r"test_functions_are_named_alike_on_every_rank \(.*test_errors.py:\d+\)", made)
    assert (function_text(torch.relu), function_text(torch.nn.GELU())) == ("relu", "GELU")


def test_an_error_of_a_rank_is_told_with_the_users_frames() -> None:
    def call(group: Group) -> None:
        if group.rank == 1:
            raise KeyError("missing")

    with pytest.raises(KeyError) as error:
        tk.CpuWorld(2, heap_bytes=64 << 10, signal_bytes=512).run(call)
    assert {f.filename for f in traceback.extract_tb(error.value.__traceback__)} == {__file__}
    assert error.value.__notes__ == ["raised on rank 1 first; the other ranks may raise the same"]


def test_an_error_inside_of_tilelink_is_told_with_our_frames_behind_the_users() -> None:
    with pytest.raises(TypeError) as error:
        public(lambda: listed(None, "name"))()  # type: ignore[arg-type]
    names = [f.name for f in traceback.extract_tb(error.value.__traceback__)]
    assert names[1:] == ["<lambda>", "listed"]


def test_a_world_that_is_stuck_is_told_once() -> None:
    """Not first in the words of the emulator."""

    def call(group: Group) -> None:
        if group.rank == 0:
            all_gather(torch.ones(16, 16), schedule="pull", group=group)

    with pytest.raises(StuckError) as error:
        tk.CpuWorld(2, heap_bytes=64 << 10, signal_bytes=512).run(call)
    assert "DeadlockError" not in "".join(traceback.format_exception(error.value))
