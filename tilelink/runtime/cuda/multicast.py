"""Finds the address at which a store reaches the heaps of all ranks, by reading there the sum of one word of each heap.

torch gives one address for a tensor. In some releases, such as torch 2.11, it is the address of the tensor; in others,
of the allocation that the tensor lies in. Both are mapped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from tilelink.runtime.agreement import gathered


@triton.jit
def sum_of_ranks(address, found):  # type: ignore[no-untyped-def]
    """Stores the sum of a word of 32 bits over all ranks of a multicast address."""
    asm: tl.constexpr = "multimem.ld_reduce.relaxed.sys.global.add.u32 $0, [$1];"
    total = tl.inline_asm_elementwise(asm, "=r,l,~{memory}", [address], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(found, total)


def read_sum(address: int, place: torch.device) -> int:
    """The sum of a word of 32 bits over all ranks of a multicast address."""
    found = torch.zeros(1, dtype=torch.int32, device=place)
    sum_of_ranks[(1,)](address, found, num_warps=1)
    return int(found.item())


def multicast_address(
    given: int,
    offset: int,
    memory: torch.Tensor,
    group: dist.ProcessGroup,
    read: Callable[[int, torch.device], int] = read_sum,
    near: Sequence[int] | None = None,
) -> int:
    """The multicast address of the heaps, 0 if they have none. Collective; overwrites the first word of each heap.
    `given`: the address that torch gives; `offset`: bytes from the allocation to the heap; `memory`: this rank's heap
    (uint8); `near`: the ranks whose heaps the address reaches, all by default."""
    if not all(gathered(group, bool(given))):
        return 0
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    memory[:4].view(torch.int32).copy_(torch.tensor([_word(rank)], dtype=torch.int32))
    if memory.is_cuda:
        torch.cuda.synchronize(memory.device)
    gathered(group, None)  # all words are there
    right, seen = sum(map(_word, range(world) if near is None else near)), []
    for address in (given, given + offset)[: 1 + bool(offset)]:
        found = read(address, memory.device)
        seen.append(gathered(group, found))
        if all(gathered(group, found == right)):
            return address
    if rank == 0:
        warnings.warn(
            f"no multicast: words whose sum is {right} add up to {seen} at {given:#x} and {offset} bytes behind it "
            f"(torch {torch.__version__}); stores to all ranks are made one by one",
            RuntimeWarning,
            stacklevel=2,
        )
    return 0


def _word(rank: int) -> int:
    """The number that a rank writes to its word."""
    return 1_000_003 + 7919 * rank
