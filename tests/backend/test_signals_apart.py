"""Signals that lie apart, as on GPUs, on ranks of the CPU: kernels, engines and messages find the same words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.backend.edited import replaced
from tests.kernels.gather_gemm import Call, in_tiles
from tests.kernels.routed import Routed, random_counts
from tests.parameters import first_of
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.verification.mutants.tools import MutatedWorld
from tilelink.backend.targets import CPU, TARGETS, portable
from tilelink.errors import HeapError, StuckError
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.runtime.cpu.world import CpuWorld

APART = replace(CPU, name="cpu whose signals lie apart", signal_bytes=32, wide_polls=True)


@pytest.mark.parametrize("schedule", first_of(["push", "engine", "pull", "multicast"]))
def test_three_calls(schedule: str) -> None:
    call = Call((9, 0, 20), K=24, integers=True, schedule=in_tiles(schedule, (16, 16), (16, 16, 16)))
    world = CpuWorld(3, target=APART, heap_bytes=8 << 20, sms=20)
    for _ in range(3):
        call.check(world.run(call.on))
    (prepared,) = world.lane.prepared.values()
    assert "full_signals_here + 8*(" in prepared.lowered.source


def test_streams_of_a_gpu_find_the_words() -> None:
    """The host of a GPU, with a device that stands in for one."""
    device = StandIn(sms=20)
    device.target = APART
    world = virtual_world(3, device)
    call = Call((9, 0, 40), integers=True, schedule=in_tiles("engine", (16, 16), (16, 16, 16)))
    for _ in range(3):
        call.check(world.run(call.on))


def test_several_signals_are_polled_at_once() -> None:
    world = CpuWorld(4, target=APART, heap_bytes=8 << 20, sms=20)
    for seed in (1, 2):
        counts = random_counts(4, 2, seed, most=9)
        call = Routed((dispatch_matmul, "push"), counts, N=16, K=16, integers=True, seed=seed, room=300)
        call.check(world.run(call.on))


def test_signals_take_their_room_in_the_heap() -> None:
    call = Call((640, 640), N=8, K=16, schedule=in_tiles("push", (16, 16), (16, 16, 16)))  # 80 signals
    CpuWorld(2, heap_bytes=8 << 20, signal_bytes=512, sms=20).run(call.on)
    with pytest.raises(HeapError, match="signal_bytes=2560"):
        CpuWorld(2, target=APART, heap_bytes=8 << 20, signal_bytes=512, sms=20).run(call.on)


@pytest.mark.parametrize("target", [CPU, APART], ids=lambda t: t.name)
def test_a_signal_that_never_comes_is_named(target: object) -> None:
    silent = replaced(r"^( +)notify\(.*\n", r"\1pass\n")
    world = MutatedWorld(2, kernel=silent, primitives=portable, target=target, heap_bytes=4 << 20, sms=20)
    call = Call((32, 32), integers=True, schedule=in_tiles("push", (16, 16), (16, 16, 16)))
    with pytest.raises(StuckError, match=r"waits for full\[M\[32:48\], .* \(signal 2\): expected 3, observed 0"):
        world.run(call.on)


def test_gpus_have_a_sector_for_each() -> None:
    assert all(t.signal_bytes == 32 for t in TARGETS.values() if t.backend)
    assert TARGETS["sm_90"].across_nodes().signal_words == 4, "of 64 bits"
    assert CPU.across_nodes().signal_bytes == 16
