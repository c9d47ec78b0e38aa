"""Programs on which a careless compiler goes wrong in silence: bounds, dtypes, schedules, ranks that differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from tests.programs.alone import column_sums, pairs, prefix, whole_products
from tests.programs.exchanges import gathered_bytes, own_workers
from tilelink.errors import NotUnderstoodError, RankMismatchError, ScheduleError

push = own_workers.changed(gather={"count": 2}, take={"count": None})


def test_a_bound_inside_a_block_is_masked() -> None:
    x = torch.ones(64, 64)
    (out,) = tk.CpuWorld(1).run(lambda g: prefix(x, out=torch.zeros(64, 16), group=g))
    assert out[::16, 0].tolist() == [0, 16, 32, 48]


def test_products_of_eight_bits_and_powers_of_integers() -> None:
    x, weight = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((20, 70), (70, 18)))
    dtypes = {"x": "int8", "weight": "int8", "out": "int32"}

    def rank(group: Any) -> torch.Tensor:
        out = torch.zeros(20, 18, dtype=torch.int32)
        whole_products(x, weight, out=out, group=group)
        return out

    for k, out in enumerate(tk.CpuWorld(2).run(rank)):
        assert torch.equal(out, x.int() @ weight.int() + k * k - (2 - 3) ** 2 // 2)
    assert "tl.range(0, K, 32" in whole_products.show("triton", world=2, dtypes=dtypes, M=20, K=70, N=18)
    assert ".target sm_90" in whole_products.show("ptx", world=1, dtypes=dtypes, M=20, K=70, N=18)


def test_a_tuple_of_blocks_has_no_name() -> None:
    with pytest.raises(NotUnderstoodError, match="give each block its own"):
        pairs.bind()


@pytest.mark.parametrize("schedule", ["own_workers", push], ids=["by name", "as an object"])
def test_a_schedule_by_name_is_fitted_with_the_dtypes_of_the_call(schedule: tk.Schedule | str) -> None:
    x = torch.arange(32, dtype=torch.int8).reshape(2, 16)
    outs = tk.CpuWorld(2).run(lambda g: gathered_bytes(x[g.rank : g.rank + 1], schedule=schedule, group=g))
    assert all(torch.equal(out, x) for out in outs)


def test_ranks_with_other_signal_grids_are_noticed() -> None:
    other = tk.Schedule(cells={"full": (32, None)}, **push.roles)
    x = torch.ones(64, 16, dtype=torch.int8)
    with pytest.raises(RankMismatchError, match="kernel"):
        tk.CpuWorld(2).run(lambda g: gathered_bytes(x, schedule=(push, other)[g.rank], group=g))


def test_peers_are_awaited_before_the_loop_that_reads_them() -> None:
    x = torch.randn(2, 20, 48)
    outs = tk.CpuWorld(2).run(lambda g: column_sums(x[g.rank], group=g))
    source = column_sums.show("triton", world=2, M=20, K=96)
    assert source.index("= entered(") < source.index("for k in ")
    for out in outs:
        torch.testing.assert_close(out[:, 0], x[0, :, :32].sum(1))


def test_one_kernel_has_one_number_of_warps() -> None:
    with pytest.raises(ScheduleError, match=r"gather has 4 warps, take has 8 warps: .* so write warps=4 for take, too"):
        gathered_bytes.bind(push.changed(gather={"warps": 4}), {"x": "int8", "out": "int8"})


def test_stages_of_the_schedule_are_in_the_kernel() -> None:
    from tilelink.kernels.all_gather_matmul import all_gather_matmul

    schedule = all_gather_matmul.fit("push", M=64, N=64, K=64).changed(matmul={"stages": 5})
    assert "num_stages=5" in all_gather_matmul.show("triton", schedule, M=64, N=64, K=64)
