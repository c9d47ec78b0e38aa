"""Values that a tile function reads outside of itself are part of kernels: a change is an error, in every call."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.frontend.wrong import load
from tilelink.errors import ChangedValueError
from tilelink.runtime.cpu.world import CpuWorld

SOURCE = """\
import types

import triton.language as tl

import tilelink as tk

SCALE = 5
SIZES = types.SimpleNamespace(twice=2)
ADDED = tl.constexpr(0)


@tk.tile
def times(block):
    return block * SIZES.twice


@tk.tile
def scaled(t, x, out):
    out[t].store(times(x[t].load()) * SCALE + ADDED)


@tk.program
def scale(x: tk.Local("M", "N"), out: tk.Local("M", "N")):
    scaled[tk.tiles(out)](x, out)


def scaling(factor):
    @tk.tile
    def scaled(t, x, out):
        out[t].store(x[t].load() * factor)

    @tk.program
    def scale(x: tk.Local("M", "N"), out: tk.Local("M", "N")):
        scaled[tk.tiles(out)](x, out)

    return scale


whole = tk.Schedule(scaled=tk.SMs(tile=(16, 16)))
halves = tk.Schedule(scaled=tk.SMs(tile=(16, 8)))
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    return load(tmp_path, SOURCE)


def called(program: Any, schedule: Any, rows: int = 16, dtype: torch.dtype = torch.float32) -> float:
    x = torch.ones(rows, 16, dtype=dtype)
    (out,) = CpuWorld(1).run(lambda g: program(x, schedule=schedule, group=g))
    return float(out[0, 0])


@pytest.mark.parametrize(("name", "before"), [("SCALE", 5), ("SIZES.twice", 2), ("SIZES", 2)])
def test_a_change_is_an_error(name: str, before: int, module: ModuleType) -> None:
    assert called(module.scale, module.whole) == called(module.scale, module.whole) == 10
    owner = module.SIZES if name == "SIZES.twice" else module
    setattr(owner, name.split(".")[-1], SimpleNamespace(twice=9) if name == "SIZES" else 9)
    calls = [
        {"schedule": module.whole}, {"schedule": module.whole, "rows": 32}, {"schedule": module.halves},
        {"schedule": module.whole, "dtype": torch.float64},
    ]  # fmt: skip
    for how in calls:
        said = rf"{name}[.\w]* was {before} when \w+ was first read, and is 9 now"
        with pytest.raises(ChangedValueError, match=said):
            called(module.scale, **how)
    with pytest.raises(ChangedValueError, match="Define"):
        module.scale.check(module.halves, world=1, M=16, N=16)
    setattr(owner, name.split(".")[-1], SimpleNamespace(twice=2) if name == "SIZES" else before)
    assert called(module.scale, module.halves) == 10


def test_functions_around_give_each_program_its_own(module: ModuleType) -> None:
    assert [called(module.scaling(n), module.whole) for n in (2, 3, 2)] == [2, 3, 2]


def test_an_equal_value_is_no_change(module: ModuleType) -> None:
    assert called(module.scale, module.whole) == 10
    module.SCALE = int("5")
    assert called(module.scale, module.whole) == 10
    module.SCALE = 5.0  # other kernels: integers times 5.0 are no integers
    with pytest.raises(ChangedValueError, match=r"was 5 when scaled was first read, and is 5\.0 now"):
        called(module.scale, module.whole)
