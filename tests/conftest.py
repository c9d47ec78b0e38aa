"""What all tests share: each pass over a tile program is verified; on a GPU, each virtual rank has queues; random
operands are the same in every run; and fixtures that several folders use."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests import collector
from tests.runtime.processes import Pool
from tilelink.runtime.cpu.world import CpuWorld

os.environ.setdefault("TILELINK_VERIFY", "1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # read when CUDA is first used

EXAMPLES = Path(__file__).parents[1] / "examples"


def pytest_configure() -> None:
    """A worker of pytest-xdist keeps to a core, where workers fill all cores. Ranks on the CPU are threads that take
    turns: handing a turn to another core takes longer than what many tasks do in theirs."""
    worker, workers = (os.environ.get(f"PYTEST_XDIST_WORKER{which}", "") for which in ("", "_COUNT"))
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if int(workers) >= len(cores):
            os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Who has which tests; None where a command asks for another way than `make test` does."""
    from tests.one_pool import OnePool

    return OnePool(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    collector.calm()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def small_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heaps of ranks on the CPU are small where nobody asks for a size: each is filled when a world is made."""
    monkeypatch.setitem(inspect.unwrap(CpuWorld.__init__).__kwdefaults__, "heap_bytes", 16 << 20)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four processes for all tests of operators, of layers and of plugs; groups of fewer are sub-groups of them."""
    made = Pool(4)
    yield made
    made.close()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edited kernels, and what probes find, stay out of the user's cache."""
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "kernels"))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check would refuse is launched."""
    monkeypatch.setenv("TILELINK_CHECK", "0")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the examples as a user imports his own, anew in each test."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (EXAMPLES / f"{name}.py").exists():
            del sys.modules[name]
