"""The whole layer of experts as one program gives the right numbers, whatever the world, the routing, the schedule and
the wave."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.kernels.gather_gemm import small_world
from tests.kernels.routed import random_counts, run_and_check
from tests.kernels.whole_layer import KEPT, Layer, in_tiles
from tests.parameters import covering, first_of, rarely
from tilelink.emulator import Operation
from tilelink.runtime.trace import align

IN_EIGHT = [pytest.param(s, 8, marks=pytest.mark.verify) for s in ("push", "pull", "few")]
"""The halves of the layer have eight ranks in every run."""
FEW = rarely(covering(product(("push", "pull", "few"), (1, 2, 3, 4))), lambda _, world: world == 4)
"""Four ranks are on two nodes in every run."""


@pytest.mark.parametrize(("schedule", "world"), [*FEW, *IN_EIGHT])
def test_integers_are_exact_twice_in_a_row_and_runs_do_what_events_say(schedule: str, world: int) -> None:
    """The second time other rows go elsewhere, by what was prepared for the first."""
    most, experts = (6 if world < 3 else 4), (2 if world < 4 else 1)
    counts = [random_counts(world, experts, seed, most, empty=0.3 if world < 8 else 0.8) for seed in (1, 2)]
    room = 3 + max(max(map(sum, zip(*c, strict=True))) for c in counts) * world
    calls = [Layer(schedule, c, N=16, K=16, integers=True, keep=KEPT, seed=k, room=room) for k, c in enumerate(counts)]
    operations: list[Operation] = []
    lane = small_world(world, observer=operations.append)
    run_and_check(*calls, world=lane)
    assert len(lane.lane.prepared) == 1
    for n in range(2):
        record = lane.groups[0].recent[n]
        assert align(record.counted.events, operations, f"mixture_of_experts run {n}").done


@pytest.mark.parametrize("schedule", ["push", *(pytest.param(s, marks=pytest.mark.verify) for s in ("pull", "few"))])
def test_nothing_is_routed_or_all_of_it_to_one_expert_from_one_rank(schedule: str) -> None:
    nothing = [[0, 0, 0]] * 6
    one = [[0, 0, 0]] * 4 + [[0, 19, 0], [0, 0, 0]]
    run_and_check(*(Layer(schedule, counts, K=16, N=16, integers=True) for counts in (nothing, one, nothing)))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(d, marks=pytest.mark.verify) for d in (torch.float32, torch.float16))]
)
def test_errors_are_those_of_rounding(dtype: torch.dtype) -> None:
    run_and_check(Layer("push", random_counts(2, 2, 3, most=10), K=64, N=24, dtype=dtype, keep=KEPT))


@pytest.mark.parametrize("name", first_of(["ups", "gates"]))
def test_one_product_is_kept_without_the_other(name: str) -> None:
    run_and_check(Layer("push", random_counts(2, 1, 5, most=4), K=16, N=16, integers=True, keep=(name,)))


@pytest.mark.parametrize("waves", [(None, 1), pytest.param((None, 1, 2), marks=pytest.mark.verify)], ids=str)
def test_bits_depend_neither_on_the_order_of_execution_nor_on_the_wave(waves: tuple[int | None, ...]) -> None:
    counts = random_counts(2, 2, 4, most=8)
    of_waves = [run_and_check(Layer(in_tiles("push", w), counts, K=16, N=16), seed=w or 0)[0] for w in waves]
    for outs in of_waves[1:]:
        assert all(torch.equal(a["out"], b["out"]) for a, b in zip(of_waves[0], outs, strict=True))


@pytest.mark.parametrize("seeds", [(5,), pytest.param((5, 6), marks=pytest.mark.verify)], ids=str)
def test_across_nodes(seeds: tuple[int, ...]) -> None:
    counts = [random_counts(4, 1, seed, most=12) for seed in seeds]
    calls = [Layer("push", c, N=16, K=16, integers=True) for c in counts]
    run_and_check(*calls, world=small_world(4, per_node=2))
