"""What `tilelink doctor` finds out, on a machine that has what is needed, and where it is missing."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tilelink.kernels import all_gather_matmul
from tilelink.tools import capabilities
from tilelink.tools.capabilities import Capability
from tilelink.tools.cli import main


def found() -> dict[str, Capability]:
    return {c.name: c for c in capabilities.capabilities()}


def test_what_is_needed_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"] == "doctor" and answer["status"] == "ok"
    assert answer["versions"]["torch"] == torch.__version__
    assert answer["gpu"] == [] or torch.cuda.is_available()
    assert all(c["ok"] for c in answer["capabilities"].values() if c["needed"])
    assert "result is exact" in answer["capabilities"]["cpu_ranks"]["why"]


def test_people_read_a_line_a_capability(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(capabilities.NEEDED) + len(capabilities.WIDER)


def test_an_unsupported_version_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.10.1" if name == "triton" else real(name))
    assert main(["doctor", "--json"]) == 1
    why = json.loads(capsys.readouterr().out)["capabilities"]["versions"]["why"]
    assert why == "triton 3.10.1: supported is 3.6 or newer, before 3.10"


def test_a_cache_that_others_may_write_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))
    cache = found()["cache"]
    assert not cache.ok and "may be written by others" in cache.why


def test_a_wrong_result_is_not_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    right = all_gather_matmul.all_gather_matmul

    def off_by_one(*tensors: Any, group: Any) -> torch.Tensor:
        y: torch.Tensor = right(*tensors, group=group)
        group.synchronize()
        return y + group.rank

    monkeypatch.setattr(all_gather_matmul, "all_gather_matmul", off_by_one)
    ranks = found()["cpu_ranks"]
    assert not ranks.ok and ranks.why.endswith("its result is wrong on rank 1")


def test_a_gpu_that_is_not_there_is_no_finding() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    gpu = found()["gpu"]
    assert not gpu.ok and not gpu.needed and "CUDA" in gpu.why
