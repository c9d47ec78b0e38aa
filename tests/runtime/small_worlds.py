"""Calls on small worlds, on whole numbers, with what has to come out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.kernels.gather_gemm import Call, in_tiles, run_and_check
from tilelink.kernels.all_gather import all_gather
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

K, N = 16, 24
SMALL = {s: in_tiles(s, (16, 16), (16, 16, 16)) for s in ("push", "pull", "multicast", "engine")}
SMALL |= {s: SMALL[s].changed(gather={"count": 1}) for s in ("push", "pull", "multicast")}
SMALL |= {f"{s}, own rows copied": SMALL[s].changed(gather={"own": "copied"}) for s in ("push", "engine")}
"""In these a world of one rank copies, too."""
SMALL["engine at the reader"] = SMALL["engine"].changed(gather={"at": "reader", "streams": "peers"})


def whole(
    parts: Sequence[int], dtype: torch.dtype = torch.float32, schedule: Any = SMALL["push"], seed: int = 0,
    **options: Any,
) -> Call:  # fmt: skip
    """A call of all_gather_matmul on whole numbers."""
    return Call(tuple(parts), N, K, dtype, schedule, integers=True, seed=seed, **options)


def check_usable(world: CpuWorld) -> None:
    """Correct calls in the same world give what they should."""
    run_and_check(*(whole((5,) * world.world, schedule="push", seed=s) for s in range(2)), world=world)


def gathered(group: Group) -> Any:
    return all_gather(torch.ones(4, K), group=group)


def line_of(file: str, marker: str) -> int:
    """The line of a file that ends with a marker."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    (found,) = [k for k, text in enumerate(lines, 1) if text.endswith(f"# {marker}")]
    return found
