"""Launches past Triton: CUDA gets the same bytes as from Triton's launcher. CUDA is a library of ours that writes them
down, in a process of its own; all above it is real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.no_cuda import missing

CASES = [
    "numbers", "sm_90 all_gather_matmul", "sm_90 all_gather_matmul_publish", "sm_90+warps all_gather_matmul",
    "a map whose address is elsewhere", "what does not fit",
]  # fmt: skip


@pytest.mark.versions
@pytest.mark.skipif(bool(missing()), reason=f"no {missing()}")
def test_cuda_gets_the_same_bytes_as_from_triton() -> None:
    command, root = [sys.executable, "-m", "tests.runtime.launched_twice"], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted({f["case"] for f in found}) == sorted(CASES)
    assert [f for f in found if not f["same"]] == []
