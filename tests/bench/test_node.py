"""The script for a node, on CPU ranks: what ranks find becomes one record, and steps that hang or die leave theirs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bench.node.command
from bench.gpu.place import dry
from bench.gpu.report import BEGUN, OUT_OF_TIME, OutOfTimeError
from bench.node import forms, ranks
from bench.node.command import STEPS
from bench.node.forms import Layer, operators_of_torch
from bench.node.ranks import Launched, Node
from bench.node.report import TIMES, NodeReport, merged
from bench.records import json_lines

ROOT = Path(bench.node.command.__file__).parent.parent.parent


def test_every_step_has_its_time() -> None:
    assert sum(seconds for seconds, _ in STEPS.values()) < 15 * 60


# ---- one finding of those of all ranks


def times(us: float, late: int = 0) -> dict[str, Any]:
    """Of a rank, two repeats of three forms."""
    return {
        TIMES: {"NCCL + cuBLAS": [us, 30.0], "fused, push": [10.0, us], "fused, pull": [40.0, 40.0]},
        "late": {"NCCL + cuBLAS": 0, "fused, push": late, "fused, pull": 0},
    }


def test_times_are_those_of_the_slowest_rank_in_each_repeat() -> None:
    found = merged({0: times(20.0), 1: times(25.0)})
    assert found[TIMES]["NCCL + cuBLAS"] == [25.0, 30.0] and found[TIMES]["fused, push"] == [10.0, 25.0]
    assert (found["schedule"], found["median_us"], found["speedup"]) == ("push", 17.5, round(27.5 / 17.5, 4))


def test_a_host_that_was_late_on_one_rank_makes_no_figure() -> None:
    found = merged({0: times(20.0), 1: times(20.0, late=1)})
    assert found["schedule"] == "pull" and found["median_us"] == 40.0 and "fused, push" not in found["forms"]
    assert found["late"]["fused, push"] == 1
    assert "speedup" not in merged({0: times(20.0), 1: times(25.0)}, held_against=False)


def test_a_finding_of_one_rank_is_one_of_all() -> None:
    good = {"ok": True, "rel_rms": 1e-4}
    wrong = {"ok": False, "rel_rms": 0.2, "error": "call 1 is wrong", "traceback": "..."}
    found = merged({0: good, 1: wrong, 2: {"ok": None, "error": "no graphs"}})
    assert (found["ok"], found["rel_rms"], found["wrong_ranks"]) == (False, 0.2, [1])
    assert found["error"] == "rank 1: call 1 is wrong" and found["traceback"] == "..."
    assert merged({0: good, 1: {"ok": None, "error": "no graphs"}})["ok"] is None and merged({0: good, 1: good})["ok"]


def test_a_device_that_is_lost_on_one_rank_is_lost_to_all() -> None:
    assert merged({0: {"ok": True}, 1: {"ok": False, "error": "illegal", "lost": True}})["lost"]


# ---- reports


def node(rank: int, store: Any, world: int = 2) -> Node:
    return Node(Launched(rank, world, rank, world, "here", 0), dry(), False, store)


def test_a_rank_that_tells_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(milliseconds=20))
    path, store = tmp_path / "found.jsonl", dist.HashStore()  # type: ignore[attr-defined]
    report = NodeReport(path, "step", node(0, store, world=3), "a command", 60)
    store.set("found 1/2", json.dumps({"ok": True}))
    with report.case("a case"):
        pass
    (found,) = json_lines(path)
    assert (found["ok"], found["error"], report.failed) == (False, "rank 1: it told nothing", 1)
    report.silent.add(1)
    store.set("found 2/2", json.dumps({"ok": True}))
    with report.case("a case"):
        pass
    assert json_lines(path)[-1]["ok"]


def test_rank_0_says_when_the_time_is_over_and_alone_writes(tmp_path: Path) -> None:
    path, store = tmp_path / "found.jsonl", dist.HashStore()  # type: ignore[attr-defined]
    reports = [NodeReport(path, "step", node(r, store), "a command", seconds) for r, seconds in ((0, -1), (1, 60))]
    for report in reports:
        with pytest.raises(OutOfTimeError), report.case("a case"):
            pass
    (found,) = json_lines(path)
    assert found["ok"] is None and "not begun" in found["error"] and len(list(tmp_path.iterdir())) == 1


def test_operators_of_torch_take_what_they_are_given() -> None:
    """Those of the installed torch; nothing of them runs without a GPU."""
    ours = operators_of_torch()
    names = [a.name for a in ours.fused_all_gather_matmul.default._schema.arguments]
    assert names[:4] == ["A", "Bs", "gather_dim", "group_name"] and "return_A" in names
    names = [a.name for a in ours.fused_matmul_reduce_scatter.default._schema.arguments]
    assert names[:5] == ["A", "B", "reduce_op", "scatter_dim", "group_name"]


# ---- whole, in processes


def run(tmp_path: Path, code: str = "", *flags: str, world: int = 2) -> list[int]:
    """Exit codes of the ranks of the script; `code` changes what its processes run."""
    script = tmp_path / "python"
    begin = "import os, sys, time; from types import SimpleNamespace; from bench.gpu import supervise; "
    begin += "from bench.node import command, right"
    ours = f"supervise.sys = SimpleNamespace(executable={str(script)!r})"
    script.write_text(f"#!{sys.executable}\n{begin}\n{ours}\n{code}\nsys.exit(command.main(sys.argv[3:]))\n")
    script.chmod(0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mine = {"PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    mine |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    started = [
        subprocess.Popen(
            [script, "-m", "bench.node", "--dry", "--out", tmp_path, *flags],
            env=os.environ | mine | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]
    return [process.wait() for process in started]


@pytest.mark.verify
def test_a_rank_that_is_killed_is_named_by_the_others(tmp_path: Path) -> None:
    assert run(tmp_path, "", "--step", "killed") == [0, 0]
    begun, found = json_lines(tmp_path / "node-dry-2.jsonl")
    assert begun["what"] == BEGUN and found["ok"] and "rank 1 has died" in found["message"]
    assert found["command"].startswith("torchrun --nproc-per-node 2 -m bench.node --dry")


@pytest.mark.verify
def test_a_step_that_hangs_on_one_rank_leaves_its_record_and_the_others_run(tmp_path: Path) -> None:
    """No rank waits for a time to pass: their patience is over when the one that hangs is in its case."""
    started = tmp_path / "started"
    code = f"""
import subprocess
waited = subprocess.Popen.wait
def patience(process, timeout=None):
    if timeout is None or "hangs" not in process.args:
        return waited(process, timeout)
    while not os.path.exists({str(started)!r}):
        time.sleep(0.02)
    raise subprocess.TimeoutExpired(process.args, timeout)
subprocess.Popen.wait = patience
def hang(node, report):
    with report.case("a case", op="matmul"):
        if node.rank == 1:
            open({str(started)!r}, "w").close()
            time.sleep(600)
command.STEPS = {{"hangs": (600.0, hang), "rendezvous": (60.0, right.rendezvous)}}
"""
    assert run(tmp_path, code) == [3, 0], "torchrun ends rank 0 where another returns something"
    begun, hung, other, met = json_lines(tmp_path / "node-dry-2.jsonl")
    assert [r["step"] for r in (begun, hung, other)] == ["hangs", "hangs", "rendezvous"]
    assert hung["verdict"] == OUT_OF_TIME
    assert hung["error"] == "; ".join(f"rank {r} was ended after 3010 s at a case: matmul" for r in (0, 1))
    assert met["ok"] and met["what"].startswith("the ranks meet")


@pytest.mark.verify
@pytest.mark.parametrize(("world", "flags"), [(3, []), (2, ["--nodes", "2"])])
def test_all_steps_under_torchrun(world: int, flags: list[str], tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "-m", "bench.node"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([*torchrun, "--dry", *flags, "--out", str(tmp_path)], env=environment, cwd=ROOT, check=True)
    found = json_lines(tmp_path / f"node-dry-{world}.jsonl")
    assert {r["step"] for r in found} == set(STEPS) and not [r for r in found if r["ok"] is False]
    rounded = "all_gather_gated_matmul", "mixture_of_experts"  # by an activation
    assert all(r["exact"] or r["op"] in rounded for r in found if r["what"] == "result")
    assert all(r["ok"] for r in found if r["what"] != BEGUN), "nothing is passed over in a dry run"
    assert not any(r["speedup"] for r in found), "an interpreter's time is held against nobody's"


def test_without_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert bench.node.command.main(["--dry"]) == 2
    assert "start it by torchrun --nproc-per-node 8 -m bench.node --dry" in capsys.readouterr().err


# ---- what is timed


class Stream:
    """A stream of a GPU that there is none of: all is done at once. `waited`: for what."""

    def __init__(self) -> None:
        self.waited: list[Any] = []

    def wait_stream(self, other: Any) -> None:
        self.waited.append(other)

    wait_event = wait_stream

    def record_event(self) -> str:
        return "an event"


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], Layer]]:
    """A layer of one rank as on a GPU, whose streams are none."""
    current = Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    theirs = SimpleNamespace(
        fused_all_gather_matmul=lambda x, weights, dim, name, return_A: (None, [x @ weights[0]]),
        fused_matmul_reduce_scatter=lambda x, weight, how, dim, name: x @ weight,
    )
    monkeypatch.setattr(forms, "operators_of_torch", lambda: theirs)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    x, weight = torch.randn(64, 32), torch.randn(48, 32).T
    yield lambda gathers: Layer(gathers, x, weight, 1, True)
    dist.destroy_process_group()


@pytest.mark.parametrize("gathers", [True, False])
def test_all_forms_of_a_layer_compute_the_same(gathers: bool, layer: Callable[[bool], Layer]) -> None:
    made = layer(gathers)
    found = made.forms()
    assert list(found) == ["NCCL + cuBLAS", "4 chunks on two streams", "torch symmetric memory"]
    for name, form in found.items():
        torch.testing.assert_close(made.in_order(form()), made.x @ made.weight, msg=name)
    waited = torch.cuda.current_stream().waited  # type: ignore[attr-defined]
    assert waited == (["an event"] * 4 if gathers else [made.beside]), "what is used has come"
    assert made.beside.waited, "and begins behind what made its inputs"
