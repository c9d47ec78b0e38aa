"""Where the rows of experts lie: the kernels, on CPU ranks, give what plain torch gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from tests.parameters import each_once
from tilelink.ops import rows_of_experts

NOBODY_WROTE = -(2**31)
"""What is in memory that no kernel has written."""


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on one rank of a `KernelWorld`, which finds races and accesses out of bounds; results begin with
    `NOBODY_WROTE`, and workers read few choices at a time."""

    def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        world = tk.KernelWorld(1)
        world.run(lambda rank: rank.launch(kernel, grid, *given, **constants))

    def empty(like: torch.Tensor, *shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return like.new_full(shape, NOBODY_WROTE, dtype=dtype)

    monkeypatch.setattr(rows_of_experts, "_launch", launch)
    monkeypatch.setattr(rows_of_experts, "_empty", empty)
    monkeypatch.setattr(rows_of_experts, "CHOICES", 16)
    monkeypatch.setattr(rows_of_experts, "TOKENS", 4)


def chosen(tokens: int, top: int, experts: int, seed: int, wrong: int = 0, dtype: Any = torch.int32) -> torch.Tensor:
    """Experts of tokens, some of them -1, the first `wrong` of them out of range."""
    numbers = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, experts, (tokens, top), generator=numbers).to(dtype)
    beyond = [experts, -2, 2**31 - 1, -(2**31), experts + 7]
    ids.view(-1)[:wrong] = torch.tensor(beyond[:wrong], dtype=dtype)
    return ids


def assert_rows_of_one_rank(ids: torch.Tensor, experts: int, each: int, slices: int) -> torch.Tensor:
    """The kernel gives what plain torch gives. Returns the counts."""
    by_torch, by_kernels = (rows_of_experts.laid_out(ids, experts, each, slices, by) for by in (False, True))
    for right, found in zip(by_torch, by_kernels, strict=True):
        assert found.dtype == right.dtype == torch.int32
        assert torch.equal(found, right)
    return by_kernels[0]


def assert_rows_of_all_ranks(ids: torch.Tensor, experts: int, slices: int, rank: int, world: int, room: int) -> None:
    """The kernels give what plain torch gives."""
    by_torch, by_kernels = (rows_of_experts.met(ids, experts, slices, rank, world, room, by) for by in (False, True))
    for right, found in zip(by_torch, by_kernels, strict=True):
        assert found.dtype == right.dtype
        assert torch.equal(found, right)


@pytest.mark.usefixtures("on_cpu")
@each_once(
    "sizes, dtype",
    [(7, 3, 6, 2, 1, 0), (1, 1, 1, 1, 1, 0), (16, 1, 4, 4, 1, 1), (21, 2, 6, 3, 2, 5), (5, 4, 3, 3, 3, 0)],
    [torch.int32, torch.int64],
)
def test_rows_of_one_rank(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    tokens, top, experts, each, slices, wrong = sizes
    ids = chosen(tokens, top, experts, tokens, wrong, dtype)
    for given in (ids, ids.T.contiguous().T, torch.full_like(ids, -1)):
        counts = assert_rows_of_one_rank(given, experts, each, slices)
        assert given[0, 0] == -1 or not wrong or counts[0] == -wrong


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 100, 8192])
@pytest.mark.parametrize("slices", [1, 2])
def test_rows_on_a_gpu(tokens: int, slices: int) -> None:
    ids = chosen(tokens * 4, 8, 256, tokens, 3).cuda()
    assert_rows_of_one_rank(ids[:tokens].long(), 256, 64 * slices, slices)
    assert_rows_of_all_ranks(ids, 256, slices, 3, 4, tokens * 4)


@pytest.mark.usefixtures("on_cpu")
def test_experts_beyond_32_bits() -> None:
    ids = torch.tensor([[2**32, 1], [-(2**40), 2**33 + 1]])
    for by_kernels in (False, True):
        counts, order, place = rows_of_experts.laid_out(ids, 2, 2, 1, by_kernels)
        assert (counts.tolist(), order.tolist(), place.tolist()) == ([-3, 1], [0, -1, -1, -1], [[-1, 0], [-1, -1]])


@pytest.mark.usefixtures("on_cpu")
@each_once(
    "sizes, room",
    [(5, 3, 6, 1, 3, 0), (1, 1, 1, 1, 1, 0), (4, 2, 4, 2, 4, 3), (9, 2, 5, 2, 2, 0), (3, 4, 8, 1, 8, 0)],
    [0, 5, 100],
)
def test_rows_of_all_ranks(sizes: tuple[int, ...], room: int) -> None:
    tokens, top, experts, slices, world, wrong = sizes
    ids = chosen(tokens * world, top, experts, room + tokens, wrong)
    for rank in {0, world - 1}:
        assert_rows_of_all_ranks(ids, experts, slices, rank, world, room)


@pytest.mark.usefixtures("on_cpu")
def test_one_row_lies_where_a_loop_puts_it() -> None:
    """The results, by their definition."""
    experts, world, tokens, top = 4, 2, 6, 2
    ids = chosen(tokens * world, top, experts, 3)
    counts, token, at, choice, wanted = rows_of_experts.met(ids, experts, 1, 1, world, 30, True)
    rows = [(int(e), t // tokens, t, k) for t, of in enumerate(ids) for k, e in enumerate(of) if e >= 0]
    assert all(counts[e, r] == sum(row[:2] == (e, r) for row in rows) for e in range(experts) for r in range(world))
    mine = sorted(row for row in rows if row[0] >= 2)
    assert token.tolist() == [t % tokens for _, _, t, _ in mine] + [-1] * (30 - len(mine))
    found = [(int(r), t, int(k)) for t in range(len(at)) for r, k in zip(at[t], choice[t], strict=True) if r >= 0]
    assert sorted(found) == [(number, t, k) for number, (_, _, t, k) in enumerate(mine)]
    assert wanted.tolist() == [
        [0 if any(row[2] == t and row[0] // 2 == r for row in rows) else -1 for r in range(world)]
        for t in range(tokens, 2 * tokens)
    ]
