"""all_gather_matmul gives the right numbers, whatever the world, the sizes, the schedule and the order of execution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilelink as tk
from tests.kernels.gather_gemm import FEW, LAYOUTS, LIMITS, NAMED, Call, run_and_check
from tilelink.kernels.all_gather_matmul import all_gather_matmul


@tk.order
def backwards(step, rank, world):  # type: ignore[no-untyped-def]
    """An order of a user: from the last rank to the first, on all ranks alike."""
    return world - 1 - step


ORDERS = [tk.own_rank_first, tk.next_rank_first, tk.ring, tk.grouped(2), tk.grouped(3, tk.ring), backwards]
TILES = (16, 32, 64)


def lengths(tile: int, most: int) -> st.SearchStrategy[int]:
    """Sizes of up to `most` tiles, those around whole tiles often."""
    near = [n for k in range(most + 1) for n in (k * tile - 1, k * tile, k * tile + 1) if 0 < n <= min(100, most * tile)]
    return st.one_of(st.integers(1, min(100, most * tile)), st.sampled_from(near))


def tile_for(size: int) -> st.SearchStrategy[int]:
    """Tiles of which few are needed: every memory operation of the interpreter costs half a millisecond."""
    return st.sampled_from([t for t in TILES if 2 * t >= size] or [TILES[-1]])


@st.composite
def calls(draw: st.DrawFn, world: int) -> Call:
    """One call: any sizes, any schedule."""
    tiles = draw(st.tuples(*[st.sampled_from(TILES)] * 3))
    few = 2 if world < 4 else 1
    rows = st.one_of(st.just(0), lengths(tiles[0], few))
    even = rows.map(lambda m: (m,) * world)
    uneven = st.tuples(*[rows] * world)
    decode = st.integers(0, world - 1).map(lambda r: tuple(int(r == k) for k in range(world)))
    parts = draw(st.one_of(even, uneven, decode))
    N, K = draw(lengths(tiles[1], few)), draw(lengths(tiles[2], few + 1))
    schedule = NAMED[draw(st.sampled_from(list(NAMED)))].changed(
        gather={
            "tile": (draw(tile_for(max(parts))), draw(tile_for(K))),
            "order": draw(st.sampled_from(ORDERS)),
            "count": draw(st.integers(1, 4)),
        },
        matmul={"tile": tiles, "order": draw(st.sampled_from(ORDERS))},
    )
    return Call(
        parts, N, K,
        dtype=draw(st.sampled_from(list(LIMITS))),
        schedule=all_gather_matmul.fit(schedule, world=world, M=parts, N=N, K=K),
        bias=draw(st.booleans()),
        transposed=draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        integers=draw(st.booleans()) or world * sum(parts) * N < FEW,
        seed=draw(st.integers(0, 99)),
    )  # fmt: skip


@st.composite
def lanes(draw: st.DrawFn) -> list[Call]:
    """Three calls in a row."""
    world = draw(st.sampled_from([1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 8]))
    return [draw(calls(world)) for _ in range(3)]


@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(lanes(), st.integers(0, 2**16), st.integers(5, 9), st.sampled_from([1, 2, 2, 3]))
def test_any_three_calls_in_a_row_are_right(lane: list[Call], seed: int, sms: int, slots: int) -> None:
    run_and_check(*lane, seed=seed, sms=sms, slots=slots)
