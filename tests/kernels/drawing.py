"""Calls of all_gather_matmul, and sizes, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import HealthCheck
from hypothesis import strategies as st

import tilelink as tk
from bench.check import FEW, LIMIT_OF
from bench.operands import LAYOUTS
from tests.kernels.gather_gemm import ENGINES, NAMED, Call, in_tiles
from tilelink.kernels.all_gather_matmul import all_gather_matmul


@tk.order
def backwards(step, rank, world):  # type: ignore[no-untyped-def]
    """An order of a user: from the last rank to the first, on all ranks alike."""
    return world - 1 - step


ORDERS = [tk.own_rank_first, tk.next_rank_first, tk.ring, tk.grouped(2), tk.grouped(3, tk.ring), backwards]
TILES = (16, 32, 64)
SLOW = [HealthCheck.too_slow]


def lengths(tile: int, most: int) -> st.SearchStrategy[int]:
    """Sizes of up to `most` tiles, those around whole tiles often."""
    largest = min(100, most * tile)
    near = [n for k in range(most + 1) for n in (k * tile - 1, k * tile, k * tile + 1) if 0 < n <= largest]
    return st.one_of(st.integers(1, largest), st.sampled_from(near))


def tile_for(size: int) -> st.SearchStrategy[int]:
    """Tiles of which few are needed: every memory operation of the interpreter costs half a millisecond."""
    return st.sampled_from([t for t in TILES if 2 * t >= size] or [TILES[-1]])


@st.composite
def calls(draw: st.DrawFn, world: int) -> Call:
    """One call: any sizes, any schedule."""
    tiles = draw(st.tuples(*[st.sampled_from(TILES)] * 3))
    few = 2 if world < 3 else 1
    rows = st.one_of(st.just(0), lengths(tiles[0], few))
    even = rows.map(lambda m: (m,) * world)
    uneven = st.tuples(*[rows] * world)
    decode = st.integers(0, world - 1).map(lambda r: tuple(int(r == k) for k in range(world)))
    parts = draw(st.one_of(even, uneven, decode))
    N, K = draw(lengths(tiles[1], few)), draw(lengths(tiles[2], few + 1))
    name, tile = draw(st.sampled_from(list(NAMED))), (draw(tile_for(max(parts))), draw(tile_for(K)))
    own = {"at": draw(st.sampled_from(list(ENGINES)))} if name == "engine" else {"count": draw(st.integers(1, 4))}
    schedule = in_tiles(name, tile, tiles).changed(
        gather={"order": draw(st.sampled_from(ORDERS)), **own}, matmul={"order": draw(st.sampled_from(ORDERS))}
    )
    return Call(
        parts, N, K,
        dtype=draw(st.sampled_from(list(LIMIT_OF))),
        schedule=all_gather_matmul.fit(schedule, world=world, M=parts, N=N, K=K),
        bias=draw(st.booleans()),
        transposed=draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        integers=draw(st.booleans()) or world * sum(parts) * N < FEW,
        seed=draw(st.integers(0, 99)),
    )  # fmt: skip
