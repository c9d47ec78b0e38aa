"""A tile that waits for several signals polls them at once, where the target does: a block of words, not a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.backend.edited import replaced
from tests.kernels.routed import Routed, random_counts
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend import emit
from tilelink.backend.targets import CPU, TARGETS, portable
from tilelink.emulator import RaceError
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.runtime.cpu.world import CpuWorld

AT_ONCE = replace(CPU, name="cpu that polls at once", wide_polls=True)
COUNTS = [random_counts(4, 2, seed, most=9) for seed in (1, 2)]


def calls() -> list[Routed]:
    """Rows of an expert come from four ranks, a few from each, so that a tile waits for several."""
    form = dispatch_matmul, "push"
    return [Routed(form, c, N=16, K=16, integers=True, seed=k, room=300) for k, c in enumerate(COUNTS)]


def source(world: CpuWorld) -> str:
    (prepared,) = world.lane.prepared.values()
    return prepared.lowered.source


@pytest.mark.versions
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_from_all_sources_are_awaited(seed: int) -> None:
    world = CpuWorld(4, target=AT_ONCE, heap_bytes=8 << 20, sms=8)
    for call in calls():
        call.check(world.run(call.on, seed=seed))
    assert source(world).count("wait_all(") == 1


def test_more_sources_than_are_polled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "AT_ONCE", 2)
    world = CpuWorld(4, target=replace(AT_ONCE, name="cpu that polls two"), heap_bytes=8 << 20, sms=8)
    for call in calls():
        call.check(world.run(call.on))
    assert "tl.arange(0, 2), last)" in source(world)


def test_rows_that_are_not_awaited_are_a_race() -> None:
    world = MutatedWorld(
        4, kernel=replaced(r"here_ready \+= wait_all\(.*", "here_ready += 0"), primitives=portable, target=AT_ONCE,
        heap_bytes=8 << 20, sms=8,
    )  # fmt: skip
    with pytest.raises(RaceError):
        world.run(calls()[0].on)


def test_networks_and_own_warps_poll_one_after_the_other() -> None:
    hopper = TARGETS["sm_90"]
    assert hopper.waits_for_all
    assert not hopper.across_nodes().waits_for_all
    assert not hopper.with_own_warps().waits_for_all
    assert not CPU.waits_for_all
