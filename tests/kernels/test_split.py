"""A product whose sum is made in pieces: right, the same bits in every run, and shown safe for all sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF
from tests.kernels.gather_gemm import small_world
from tilelink.errors import ShapeError
from tilelink.kernels.all_gather_split_matmul import all_gather_split_matmul, in_pieces, pieces_of, split

SMALL = split.changed(
    gather={"count": 4, "tile": (1, 16, 16)}, matmul={"tile": (1, 16, 16, 16)}, add={"tile": (16, 16)}
)


@pytest.mark.parametrize(
    ("parts", "N"),
    [
        ((17, 0), (16, 5)),
        pytest.param((33,), (16, 5), marks=pytest.mark.verify),
        pytest.param((7, 9), (20,), marks=pytest.mark.verify),
        pytest.param((16, 0, 9), (5,), marks=pytest.mark.verify),
        pytest.param((5, 0, 9, 2), (5,), marks=pytest.mark.verify),
        pytest.param((5, 0, 9, 2), (16, 5), marks=pytest.mark.verify),
        pytest.param((1, 0, 2, 17, 3, 3, 9, 4), (20,), marks=pytest.mark.verify),
    ],
    ids=str,
)
def test_pieces_of_uneven_shards(parts: tuple[int, ...], N: tuple[int, ...]) -> None:
    """Twice in a row; outputs are poisoned."""
    K, M = 60, sum(parts)
    x, weight = torch.randn(M, K), [[torch.randn(n, K) for n in N] for _ in parts]
    bias = [[torch.randn(n) for n in N] for _ in parts]

    def on_rank(group: Any) -> list[Any]:
        own, mine = group.rank, in_pieces(x.split(parts)[group.rank])
        made = []
        for _ in range(2):
            outs = [torch.full((M, n), torch.nan) for n in N]
            pieces = [in_pieces(w).mT for w in weight[own]]
            all_gather_split_matmul(mine, pieces, outs, bias[own], schedule=SMALL, group=group, parts={"M": parts})
            made.append(outs)
        return made

    found = [small_world(len(parts)).run(on_rank, seed=seed) for seed in (0, 1)]
    for rank, runs in enumerate(zip(*found, strict=True)):
        for k, w in enumerate(weight[rank]):
            one, *others = (outs[k] for made in runs for outs in made)
            assert all(torch.equal(one, other) for other in others), "each run gives the same bits"
            right = x.double() @ w.double().T + bias[rank][k].double()
            assert (one - right).norm() / right.norm() <= LIMIT_OF[torch.float32]


def test_the_structure_shows_that_it_is_safe() -> None:
    report = all_gather_split_matmul.check(world=4, M=(5, 0, 9, 2), N=20, splits=3, depth=20)
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_pieces_have_one_length() -> None:
    assert pieces_of(4096) == {"splits": 4, "depth": 1024}
    with pytest.raises(ShapeError, match="K is 37: a sum in 4 pieces needs a multiple of 4"):
        pieces_of(37)
