"""replace_symm_mem_ops: the cases of PyTorch's own tests of the fused operators, against what they mean.

Sizes (batch 8, M 64, N 16, K 32, three B) and the comparison of strides are those of test_symmetric_memory.py there.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import tilelink as tk
from tests.ops import on_ranks
from tests.ops.groups import on_two
from tests.runtime.processes import Pool

BATCH, M, N, K = 8, 64, 16, 32


def gathered(group: dist.ProcessGroup, dim: int, backend: str) -> None:
    """As the fallback of torch does it, in values and strides (which of one rank are those of the shard, there)."""
    world, name = dist.get_world_size(group), group.group_name
    torch.manual_seed(42 + dist.get_rank(group))
    shape = [BATCH, M, K]
    shape[dim] //= world
    shard, many = torch.rand(shape), [torch.rand(K, N) for _ in range(3)]
    right, products = symm_mem._fused_all_gather_matmul_fallback(shard, many, dim, name)
    with on_ranks.computed_by(backend, group), tk.replace_symm_mem_ops():
        full, outs = torch.ops.symm_mem.fused_all_gather_matmul(shard, many, dim, name)
        nothing, again = torch.ops.symm_mem.fused_all_gather_matmul(shard, many, dim, name, return_A=False)
    assert nothing is None
    assert torch.equal(full, right) and (world == 1 or full.stride() == right.stride())
    for y, z, want in zip(outs, again, products, strict=True):
        assert torch.allclose(y, want) and torch.equal(y, z) and (world == 1 or y.stride() == want.stride())


def scattered(group: dist.ProcessGroup, dim: int, reduce_op: str, backend: str) -> None:
    name = group.group_name
    torch.manual_seed(42 + dist.get_rank(group))
    A, B = torch.rand(BATCH, M, K), torch.rand(K, N)
    right = symm_mem._fused_matmul_reduce_scatter_fallback(A, B, reduce_op, dim, name)
    with on_ranks.computed_by(backend, group), tk.replace_symm_mem_ops():
        out = torch.ops.symm_mem.fused_matmul_reduce_scatter(A, B, reduce_op, dim, name)
    assert torch.allclose(out, right) and out.stride() == right.stride()


def all_cases(group: dist.ProcessGroup, backend: str) -> None:
    for dim in (0, 1, 2):
        gathered(group, dim, backend)
        for reduce_op in ("sum", "avg"):
            scattered(group, dim, reduce_op, backend)


def test_cases_of_torch(pool: Pool) -> None:
    pool.results(on_ranks.on_groups, [(0,), (0, 1), (0, 1, 2, 3)], all_cases, "torch")


@pytest.mark.verify
def test_cases_of_torch_by_programs(pool: Pool) -> None:
    pool.results(on_ranks.on_groups, [(0, 1), (0, 1, 2, 3)], all_cases, "interpret")


def compiled(group: dist.ProcessGroup, backend: str, dim: int) -> None:
    """As async tensor parallelism makes calls: in compiled functions, which count on the strides that torch's meta
    functions say."""
    name, world = group.group_name, dist.get_world_size(group)

    def function(x: torch.Tensor, B: torch.Tensor) -> list[torch.Tensor]:
        full, (y, z) = torch.ops.symm_mem.fused_all_gather_matmul(2 * x, [B, B + 1], dim, name)
        out = torch.ops.symm_mem.fused_matmul_reduce_scatter(y.relu(), B.T.contiguous(), "avg", dim, name)
        return [full + 1, 2 * z, 3 * out]

    shape = [4, 6, 8]
    shape[dim] //= world
    torch._dynamo.reset()
    given = torch.rand(shape), torch.rand(8, 10)
    with tk.replace_symm_mem_ops():
        found = torch.compile(function, backend=backend, fullgraph=True)(*given)
        for y, want in zip(found, function(*given), strict=True):
            assert torch.allclose(y, want) and y.stride() == want.stride()


@pytest.mark.verify
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_compiled_calls(pool: Pool, backend: str, dim: int) -> None:
    on_two(pool, compiled, backend, dim)


def switched(group: dist.ProcessGroup) -> list[str]:
    """What torch knows of an operator: before, while and after it is replaced."""
    found = []

    def there() -> None:
        found.append(torch._C._dispatch_dump("symm_mem::fused_all_gather_matmul"))

    switch = tk.replace_symm_mem_ops()
    there()
    switch.enable()
    there()
    with tk.replace_symm_mem_ops():
        there()
    there()
    switch.disable()
    there()
    gathered(group, 0, "torch")
    there()
    return found


def test_switch_is_taken_back(pool: Pool) -> None:
    for found in on_two(pool, switched):
        own, ours, *others, after, last = found
        assert "CPU: " not in own and "CPU: " in ours and "CUDA: " in own
        assert others == [ours, ours] and own == after == last


def bad_B(group: dist.ProcessGroup) -> None:
    with tk.replace_symm_mem_ops():
        torch.ops.symm_mem.fused_all_gather_matmul(torch.rand(4, K), [torch.rand(2, K, N)], 0, group.group_name)


def scaled(group: dist.ProcessGroup) -> None:
    with tk.replace_symm_mem_ops():
        torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
            torch.rand(4, K), torch.rand(K, N), torch.rand(1), torch.rand(1), "sum", 0, 0, group.group_name, [2, N]
        )


@pytest.mark.parametrize(
    "bad, kind, text",
    [(bad_B, "ShapeError", f"B has shape (2, {K}, {N})"), (scaled, "TargetError", "is not replaced")],
)
def test_what_is_not_replaced_says_so(pool: Pool, bad: object, kind: str, text: str) -> None:
    for found, message, site in on_two(pool, on_ranks.raised, bad):
        assert found == kind and text in message
        assert site.file.endswith("test_symm_mem.py")
