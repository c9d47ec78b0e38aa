"""A tile that waits for several signals polls them at once, where the target does: a block of words, not a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.backend.edited import replaced
from tests.kernels.gather_gemm import Call, in_tiles, run, run_and_check
from tests.kernels.routed import Routed, random_counts
from tests.parameters import first_of, some_of
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend import waits
from tilelink.backend.targets import CPU, TARGETS, portable
from tilelink.emulator import RaceError
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.runtime.cpu.world import CpuWorld

AT_ONCE = replace(CPU, name="cpu that polls at once", wide_polls=True)
PIECES = replace(AT_ONCE, name="cpu that takes pieces", warp_size=2)
COUNTS = [random_counts(4, 2, seed, most=9) for seed in (1, 2)]


def calls() -> list[Routed]:
    """Rows of an expert come from four ranks, a few from each, so that a tile waits for several."""
    form = dispatch_matmul, "push"
    return [Routed(form, c, N=16, K=16, integers=True, seed=k, room=300) for k, c in enumerate(COUNTS)]


def source(world: CpuWorld) -> str:
    (prepared,) = world.lane.prepared.values()
    return prepared.lowered.source


@pytest.mark.versions
@pytest.mark.parametrize("seed", first_of([0, 1]))
def test_rows_from_all_sources_are_awaited(seed: int) -> None:
    world = CpuWorld(4, target=AT_ONCE, heap_bytes=8 << 20, sms=8)
    for call in calls():
        call.check(world.run(call.on, seed=seed))
    assert source(world).count("wait_all(") == 1


def test_more_sources_than_are_polled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "AT_ONCE", 2)
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


@pytest.mark.parametrize("k", first_of([20, 100]))
@some_of(3, first=1)
def test_pieces_are_taken_as_they_come(seeds: range, k: int) -> None:
    """A worker waits for the next piece of its rows, and takes what has come behind it, too; two calls in a row, with
    parts that differ, and a K that leaves a rest."""
    schedule = in_tiles("pieces", (16, 32), (16, 16, 16)).changed(gather={"count": 2})
    call = Call((40, 0, 21), N=40, K=k, integers=True, schedule=schedule)
    world = CpuWorld(3, target=PIECES, heap_bytes=4 << 20, sms=5)
    for seed in seeds:
        run_and_check(call, call, world=world, seed=seed)
    assert "while i < " in source(world) and "came = wait_some(control, " in source(world)


def test_where_there_are_no_pieces_nothing_is_awaited() -> None:
    call = Call((20, 7, 0), K=0, integers=True, schedule="pieces")
    run_and_check(call, call, world=CpuWorld(3, target=PIECES, heap_bytes=4 << 20, sms=20))


def test_pieces_that_have_not_come_are_a_race() -> None:
    schedule = in_tiles("pieces", (16, 32), (16, 16, 16)).changed(gather={"count": 2})
    edit = replaced(r"up_to = tl.minimum\(.*", "up_to = stop")
    world = MutatedWorld(3, kernel=edit, primitives=portable, target=PIECES, heap_bytes=4 << 20, sms=5)
    with pytest.raises(RaceError):
        run([Call((40, 24, 21), N=40, K=100, integers=True, schedule=schedule)], world=world)


def test_networks_and_own_warps_poll_one_after_the_other() -> None:
    hopper = TARGETS["sm_90"]
    assert hopper.waits_for_all
    assert not hopper.across_nodes().waits_for_all
    assert not hopper.with_own_warps().waits_for_all
    assert not CPU.waits_for_all
