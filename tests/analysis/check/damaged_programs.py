"""Events of small programs with random damage, by seed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import tilelink as tk
from tests.analysis.check.damage import damaged, tangled
from tests.programs.attention import gathered_attention
from tests.programs.gathered import lower_rows
from tests.programs.notifying import NOTIFYING
from tests.programs.reducing import ring_reduce_scatter
from tests.programs.ring_attention import ring_attention
from tilelink.analysis.events import Events
from tilelink.analysis.unroll import unroll
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

backwards = tk.order(lambda step, rank, world: (rank - step - 1) % world)


def one(tile: tuple[int | None, ...], at: str | None = None, **options: Any) -> tk.SMs:
    return tk.SMs(1, tile=tile, at=at, **options)


SMALL: tuple[tuple[Program, tk.Schedule, dict[str, Any]], ...] = (
    (
        all_gather_matmul,
        tk.Schedule(gather=one((16, 16), "home"), matmul=tk.SMs(2, tile=(16, 16, 16))),
        {"M": 32, "K": 16, "N": 16},
    ),
    (
        all_gather_matmul,
        tk.Schedule(gather=one((16, 16), "reader"), matmul=one((16, 16, 16))),
        {"M": (16, 9), "K": 32, "N": 16},
    ),
    (
        matmul_reduce_scatter,
        tk.Schedule(
            matmul=one((16, 16, 16)), send=one((16, 16), "source"), reduce=one((16, 16))
        ),
        {"M": 32, "K": 16, "N": 16},
    ),
    (
        ring_reduce_scatter,
        tk.Schedule(matmul=one((16, 16, 16)), ring=one((16, 16), order=backwards)),
        {"M": 32, "K": 16, "N": 16},
    ),
    (
        gathered_attention,
        tk.Schedule(gather_kv=one((16,), "home"), attend=one((16, 16, 16))),
        {"S": 32, "D": 16},
    ),
    (
        ring_reduce_scatter,
        tk.Schedule(matmul=tk.SMs(tile=(16, 16, 16)), ring=tk.SMs(tile=(16, 16), order=backwards)),
        {"M": 32, "K": 16, "N": 16},
    ),
    (
        ring_attention,
        tk.Schedule(pass_on=one((16, 16)), attend=tk.SMs(2, tile=(16, 16, 16))),
        {"Q": 32, "T": 16, "D": 16},
    ),
    (lower_rows, tk.Schedule(gather=one((16, 16), "home"), lower=one((16, 16))), {"M": 32, "K": 16}),
)  # fmt: skip


@cache
def small(k: int, world: int) -> Events:
    program, schedule, sizes = SMALL[k]
    bound = program.bind(schedule, absent=program.optional)
    if world != 2:
        sizes = sizes | dict.fromkeys(bound.cut, 16 * world + 3)
    return unroll(bound, Sizes.of(bound, world, sizes), sms=8)


BUFFER = NOTIFYING[0].unroll(tk.Schedule(later=one((16, 16), "home")), world=2, M=48, K=16)
"""A run without outputs, whose columns are replaced."""


def events_of(seed: int) -> Events:
    """The events of a small program, damaged or not, or a tangle."""
    rng = random.Random(seed)
    events = small(rng.randrange(len(SMALL)), rng.choice([2, 2, 3]))
    return tangled(BUFFER, rng) if seed % 2 else damaged(events, rng)
