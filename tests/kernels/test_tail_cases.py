"""Programs on which a careless compiler goes wrong in silence: bounds, dtypes, schedules, ranks that differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl

import tilelink as tk
from tilelink.errors import NotUnderstoodError, RankMismatchError, ScheduleError

# mypy: disable-error-code="no-untyped-def, valid-type, name-defined"


@tk.tile
def causal(t, x, out):
    """Sums what stands left of the diagonal block: the last step is cut off by a bound, not by the tensor's end."""
    acc = tl.zeros((16, 32), tl.float32)
    for k in tk.steps(x.cols, stop=t.rows.start):
        acc += x[t.rows, k].load()
    out[t].store(tl.sum(acc, 1)[:, None] + tl.zeros((16, 16), tl.float32))


@tk.program
def prefix(x: tk.Local("M", "K"), out: tk.Local("M", "N")):
    causal[tk.tiles(out)](x, out)


@tk.tile
def paired(t, x, out):
    pair = (x[t].load(), 1)
    out[t].store(pair[0])


@tk.program
def pairs(x: tk.Local("M", "N"), out: tk.Local("M", "N")):
    paired[tk.tiles(out)](x, out)


@tk.tile
def gather(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def use(t, full, out):
    out[t].store(tk.wait(full[t]).load())


@tk.program
def gathered(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K", dtype=tl.int8)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    use[tk.tiles(out)](full, out)


@tk.tile
def summed(t, x, out):
    """Peers' columns are read inside the loop: that they have entered is awaited once a tile, before it."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(t.cols):
        acc += tl.sum(x[t.rows, k].load(), 1)[:, None]
    out[t].store(acc)


@tk.program
def column_sums(x: tk.Sharded("M", "K", axis=1), out: tk.Local("M", "K")):
    summed[tk.tiles(out)](x, out)


@tk.tile
def whole_numbers(t, x, weight, out):
    """Eight bits by eight, added up in 32."""
    acc = tl.zeros(t.shape, tl.int32)
    for k in tk.steps(x.cols, by=32):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc + tk.rank() * tk.rank() - (tk.world() - 3) ** 2 // 2)


@tk.program
def whole_products(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    whole_numbers[tk.tiles(out)](x, weight, out)


eight_bits = tk.Schedule(whole_numbers=tk.SMs(tile=(16, 16)))
prefixed = tk.Schedule(causal=tk.SMs(tile=(16, 16, 32)))
plain = tk.Schedule(paired=tk.SMs(tile=(16, 16)))
push = tk.Schedule(gather=tk.SMs(2, tile=(16, 16), at="home"), use=tk.SMs(tile=(16, 16)))
stepped = tk.Schedule(summed=tk.SMs(tile=(16, 32, 16)))


def test_a_bound_inside_a_block_is_masked() -> None:
    x = torch.ones(64, 64)
    (out,) = tk.CpuWorld(1).run(lambda g: prefix(x, schedule=prefixed, out=torch.zeros(64, 16), group=g))
    assert out[::16, 0].tolist() == [0, 16, 32, 48]


def test_products_of_eight_bits_and_powers_of_integers() -> None:
    x, weight = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((20, 70), (70, 18)))
    dtypes = {"x": "int8", "weight": "int8", "out": "int32"}

    def rank(group: Any) -> torch.Tensor:
        out = torch.zeros(20, 18, dtype=torch.int32)
        whole_products(x, weight, out=out, schedule=eight_bits, group=group)
        return out

    for k, out in enumerate(tk.CpuWorld(2).run(rank)):
        assert torch.equal(out, x.int() @ weight.int() + k * k - (2 - 3) ** 2 // 2)
    assert "tl.range(0, K, 32" in whole_products.show("triton", eight_bits, world=2, dtypes=dtypes, M=20, K=70, N=18)
    assert ".target sm_90" in whole_products.show("ptx", eight_bits, world=1, dtypes=dtypes, M=20, K=70, N=18)


def test_a_tuple_of_blocks_has_no_name() -> None:
    with pytest.raises(NotUnderstoodError, match="give each block its own"):
        pairs.bind(plain)


@pytest.mark.parametrize("schedule", ["push", push], ids=["by name", "as an object"])
def test_a_schedule_by_name_is_fitted_with_the_dtypes_of_the_call(schedule: tk.Schedule | str) -> None:
    x = torch.arange(32, dtype=torch.int8).reshape(2, 16)
    outs = tk.CpuWorld(2).run(lambda g: gathered(x[g.rank : g.rank + 1], schedule=schedule, group=g))
    assert all(torch.equal(out, x) for out in outs)


def test_ranks_with_other_signal_grids_are_noticed() -> None:
    other = tk.Schedule(cells={"full": (32, None)}, **push.roles)
    x = torch.ones(64, 16, dtype=torch.int8)
    with pytest.raises(RankMismatchError, match="kernel"):
        tk.CpuWorld(2).run(lambda g: gathered(x, schedule=(push, other)[g.rank], group=g))


def test_peers_are_awaited_before_the_loop_that_reads_them() -> None:
    x = torch.randn(2, 20, 48)
    outs = tk.CpuWorld(2).run(lambda g: column_sums(x[g.rank], schedule=stepped, group=g))
    source = column_sums.show("triton", stepped, world=2, M=20, K=96)
    assert source.index("= entered(") < source.index("for k in ")
    for out in outs:
        torch.testing.assert_close(out[:, 0], x[0, :, :32].sum(1))


def test_one_kernel_has_one_number_of_warps() -> None:
    with pytest.raises(ScheduleError, match="gather: 4, use: 8"):
        gathered.bind(push.changed(gather={"warps": 4}), {"x": "int8", "out": "int8"})


def test_stages_of_the_schedule_are_in_the_kernel() -> None:
    from tilelink.kernels.all_gather_matmul import all_gather_matmul

    schedule = all_gather_matmul.fit("push", M=64, N=64, K=64).changed(matmul={"stages": 5})
    assert "num_stages=5" in all_gather_matmul.show("triton", schedule, M=64, N=64, K=64)
