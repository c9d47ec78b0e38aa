"""What a rank does in tests, in a process of its own or beside others in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

import tilelink as tk
from tests.kernels.gather_gemm import Call
from tests.runtime.processes import SMALL, Pool, members
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import push
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.group import Group

WORLD = 4
K, N = 24, 20
TILED = push.changed(gather={"count": 2, "tile": (16, 16)}, matmul={"tile": (16, 16, 16)})


@cache
def lane(*ranks: int, **options: Any) -> Group:
    """The lane of these ranks, made once in each of their processes."""
    return tk.group(members(*ranks), **{**SMALL, **options})


def everybody(**options: Any) -> Group:
    return lane(*range(WORLD), **options)


def drawn(parts: Sequence[int] = (4,) * WORLD, **options: Any) -> Call:
    """A call of all_gather_matmul on any numbers."""
    return Call(tuple(parts), N, K, **options)


def three_calls(group: Group, parts: tuple[int, ...], schedule: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Calls in a row with other numbers each."""
    how = TILED if schedule == "tiled" else schedule
    return [drawn(parts, dtype=dtype, schedule=how, seed=seed).on(group) for seed in range(3)]


def in_processes(function: Callable[..., Any], ranks: tuple[int, ...], *arguments: Any) -> Any:
    """What a rank of the group does; the other ranks of the pool only help to make the group."""
    members(*ranks)
    if dist.get_rank() in ranks:
        return function(lane(*ranks), *arguments)
    return None


def gathered(group: Group, rows: int = 4) -> torch.Tensor:
    return all_gather(torch.full((rows, K), float(group.rank)), group=group)


def check_usable(pool: Pool, function: Callable[[], Group]) -> None:
    """The lane that `function` gives works."""
    for y in pool.results(use, function):
        assert torch.equal(y, torch.arange(WORLD).repeat_interleave(4)[:, None].expand(-1, K).float())


def use(function: Callable[[], Group]) -> torch.Tensor:
    """A call for which there is time."""
    group: Any = function()
    bounds, group.bounds = group.bounds, Bounds(300, 30)
    try:
        return gathered(group)
    finally:
        group.bounds = bounds
