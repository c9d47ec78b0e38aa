"""Sides of a race: which tiles are named, and that memory without a tensor has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import tilelink as tk
from tilelink.backend.module import Kernel
from tilelink.emulator.races import Party, Race
from tilelink.errors import Site
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.stuck import with_tiles
from tilelink.runtime.trace import SIGNALS

EVENTS = all_gather_matmul.unroll(
    tk.Schedule(gather=tk.SMs(1, tile=(16, 16), at="home"), matmul=tk.SMs(2, tile=(16, 16, 16))),
    world=2, M=32, N=16, K=16,
)  # fmt: skip
LAUNCH = "all_gather_matmul run 0"
PREPARED = cast(Any, SimpleNamespace(lowered=SimpleNamespace(main=Kernel("all_gather_matmul", ())), events=EVENTS))


def side(region: str, box: tuple[tuple[int, int], ...]) -> Party:
    """Program 1 of rank 0 loads from a region of its own rank, as the first tile of `matmul` does."""
    return Party(0, LAUNCH, 1, "load", "", region, 0, box, Site("k.py", 1, "x"), 0, False, False)


def named(party: Party) -> Party:
    return with_tiles([Race(party, party, "", "")], {(0, LAUNCH): PREPARED})[0].first


def test_the_tile_that_reads_is_named() -> None:
    found = named(side("full", ((0, 16), (0, 16))))
    assert "role matmul, tile 0" in found.tile and "rows[:, k].load()" in found.sites[0].text


@pytest.mark.parametrize("region", ["stamps", f"{SIGNALS}stamps"])
def test_a_region_that_is_no_tensor_has_no_tiles(region: str) -> None:
    found = named(side(region, ((0, 1), (0, 4), (0, 2))))
    assert (found.tile, found.sites) == ("", ())
