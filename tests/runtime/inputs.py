"""Calls of all_gather_matmul on virtual ranks, on whole numbers, with what has to come out."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.kernels.all_gather_matmul import all_gather_matmul, engine, multicast, pull, push
from tilelink.runtime.cuda.group import CudaGroup

K, N = 16, 24
SMALL = {
    s: schedule.changed(gather={"count": 1, "tile": (16, 16)}, matmul={"tile": (16, 16, 16)})
    for s, schedule in {"push": push, "pull": pull, "multicast": multicast}.items()
}
SMALL["engine"] = engine.changed(gather={"tile": (16, None)}, matmul={"tile": (16, 16, 16)})
SMALL["engine at the reader"] = SMALL["engine"].changed(gather={"at": "reader", "streams": "peers"})


class Inputs:
    """Whole numbers, of which all sums are exact."""

    def __init__(self, world: int, rows: int = 16, seed: int = 0, parts: tuple[int, ...] | None = None) -> None:
        random = torch.Generator().manual_seed(seed)
        self.lengths = parts or (rows,) * world
        self.x = [torch.randint(-3, 4, (m, K), generator=random).float() for m in self.lengths]
        self.weight = [torch.randint(-3, 4, (K, N), generator=random).float() for _ in range(world)]

    def call(self, group: CudaGroup, schedule: Any = SMALL["push"], **options: Any) -> torch.Tensor:
        out: torch.Tensor = all_gather_matmul(
            self.x[group.rank], self.weight[group.rank], schedule=schedule, group=group, **options
        )
        return out

    def right(self, rank: int) -> torch.Tensor:
        return torch.cat(self.x) @ self.weight[rank]

    def check(self, outs: list[torch.Tensor]) -> None:
        for rank, out in enumerate(outs):
            torch.testing.assert_close(out, self.right(rank), rtol=0, atol=0)
