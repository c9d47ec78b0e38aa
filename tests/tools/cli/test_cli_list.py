"""`tilelink list`: keys, and what people read."""

from __future__ import annotations

from tests.tools.cli.command_lines import Run
from tilelink.kernels import operators


def test_list(run: Run) -> None:
    code, found = run("list")
    assert code == 0
    assert found["command"] == "list"
    by_name = {o["name"]: o for o in found["operators"]}
    assert list(by_name) == list(operators())
    found = by_name["all_gather_matmul"]
    assert found["schedules"] == ["push", "pull", "multicast", "engine", "pieces", "few"]
    assert found["tensors"] == [
        {"name": "x", "kind": "input", "dims": ["M", "K"], "sharded": "M", "optional": False, "each": False},
        {"name": "weight", "kind": "input", "dims": ["K", "N"], "sharded": None, "optional": False, "each": True},
        {"name": "out", "kind": "output", "dims": ["M", "N"], "sharded": None, "optional": False, "each": True},
        {"name": "bias", "kind": "input", "dims": ["N"], "sharded": None, "optional": True, "each": True},
        {"name": "gathered", "kind": "output", "dims": ["M", "K"], "sharded": None, "optional": True, "each": False},
    ]
    assert found["functions"] == ["epilogue"]
    told = found["summary"].partition("each weight of a list. ")[2]
    assert told.startswith("gathered: optional, all_gather(x), in its dtype. x and weight have one dtype, float32,")
    assert told.endswith("Raises ArgumentError, DtypeError and others: see `tilelink.kernels`.")


def test_list_for_people(run: Run) -> None:
    code, out, err = run.text("list")
    assert (code, err) == (0, "")
    lines = out[out.index("all_gather_matmul\n") :].splitlines()
    assert lines[1].endswith("each weight of a list."), "the first sentence"
    assert lines[2:5] == [
        "    x[M/world, K], each weight[K, N], each bias[N] (optional) -> each out[M, N], gathered[M, K] (optional)",
        "    functions: epilogue",
        "    schedules: push (default), pull, multicast, engine, pieces, few",
    ]
