"""Conditions that are known before the run, as arguments of Triton's functions: of constants, ranks and coordinates."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import tilelink as tk
from tilelink.backend.targets import FORMS
from tilelink.inspect.compile import compiled


@triton.jit
def negated(a, known: tl.constexpr):  # type: ignore[no-untyped-def]
    return -a if known else a


@tk.tile
def conditions(t, x, out):  # type: ignore[no-untyped-def]
    tl.static_assert(len(t.M) == 16)
    tl.assume(t.M.start >= 0)
    a = x[t].load()
    a = negated(a, len(t.M) > 8) + tl.max(a, 1, keep_dims=len(t.M) == 16)
    out[t].store(tl.where(t.M.start > 0 and tk.rank() == 0, a, 2.0) * (t.M.start < 32))


@tk.program
def program(x: tk.Local("M", "N"), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def]
    conditions[tk.tiles(out)](x, out)


schedule = tk.Schedule(conditions=tk.SMs(tile=(16, 32)))


def test_they_mean_what_they_mean_in_python() -> None:
    x = torch.randint(-4, 5, (48, 32)).float()
    for rank, (out,) in enumerate(tk.CpuWorld(2).run(lambda group: (program(x, schedule=schedule, group=group),))):
        want = x.amax(1, keepdim=True) - x if rank == 0 else torch.full_like(x, 2.0)
        want[:16] = 2.0
        want[32:] = 0.0
        assert torch.equal(out, want)


def test_they_compile() -> None:
    lowered, sizes = program.lowered_at(
        schedule, target=FORMS["sm_90"], world=2, sizes={"M": 48, "N": 32}, dtypes="float32"
    )
    assert compiled(lowered, sizes)[0].spill_bytes == 0
