"""Small worlds on the CPU: calls of all ranks with what has to come out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

K, N = 16, 24
SMALL = push.changed(gather={"count": 2, "tile": (16, 16)}, matmul={"tile": (16, 16, 16)})


class Call:
    """One call of all_gather_matmul of every rank, on whole numbers, of which all sums are exact."""

    def __init__(
        self,
        parts: Sequence[int],
        dtype: torch.dtype = torch.float32,
        schedule: Any = "push",
        seed: int = 0,
        **options: Any,
    ) -> None:
        numbers = torch.Generator().manual_seed(seed)
        whole = torch.randint(-2, 3, (sum(parts), K), generator=numbers)
        weights = [torch.randint(-2, 3, (K, N), generator=numbers) for _ in parts]
        self.parts, self.schedule, self.options = tuple(parts), schedule, options
        self.x = [part.to(dtype) for part in whole.split(list(parts))]
        self.weight = [w.to(dtype) for w in weights]
        self.expected = [(whole @ w).to(dtype) for w in weights]
        self.outs = [torch.full((sum(parts), N), float("nan"), dtype=dtype) for _ in parts]

    def on(self, group: Group) -> torch.Tensor:
        """Makes the call on a rank."""
        tensors = (t[group.rank] for t in (self.x, self.weight, self.outs))
        parts = {"M": self.parts}
        return all_gather_matmul(*tensors, schedule=self.schedule, parts=parts, group=group, **self.options)

    def check(self) -> None:
        """Raises AssertionError unless the results of all ranks are right."""
        assert all(torch.equal(a, b) for a, b in zip(self.outs, self.expected, strict=True))


def small_world(world: int, **options: Any) -> CpuWorld:
    return CpuWorld(world, **{"heap_bytes": 64 << 10, "signal_bytes": 512, "sms": 20, **options})


def check_usable(world: CpuWorld) -> None:
    """Correct calls in the same world give what they should."""
    calls = [Call((5,) * world.world, seed=s) for s in range(2)]
    world.run(lambda group: [call.on(group) for call in calls])
    for call in calls:
        call.check()


def gathered(group: Group) -> Any:
    return all_gather(torch.ones(4, K), group=group)


def line_of(file: str, marker: str) -> int:
    """The line of a file that ends with a marker."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    (found,) = [k for k, text in enumerate(lines, 1) if text.endswith(f"# {marker}")]
    return found
