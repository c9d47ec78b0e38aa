"""torch's symmetric memory behind our adapter: where heaps lie, and what is in the way. torch is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilelink.errors import SymmetricMemoryError
from tilelink.runtime.cuda import symmetric
from tilelink.runtime.cuda.multicast import multicast_address, sum_of_ranks
from tilelink.runtime.cuda.symmetric import OVERLAPPING, _Place, _unreachable, heap_of, symmetric_heap

MEMORY = torch.empty(4096, dtype=torch.uint8)
HERE = SimpleNamespace(data_ptr=lambda: 0x7000_0000_0400, shape=(4096,), dtype=torch.uint8)
THERE = 0x7100_0000_0400


def handle(**changes: Any) -> Any:
    """As torch gives it to rank 1 of 2: bases of allocations, and the tensor's offset in its own."""
    fields = {"rank": 1, "offset": 0x400, "buffer_ptrs": [0x7100_0000_0000, 0x7000_0000_0000], "multicast_ptr": 0}
    fields["get_buffer"] = lambda peer, shape, dtype, first: SimpleNamespace(data_ptr=lambda: THERE - 0x400 + first)
    return SimpleNamespace(**(fields | changes))


def addresses(made: symmetric.SymmetricHeap) -> list[int]:
    return [m.data_ptr() for m in made.memories]


def heap(**changes: Any) -> symmetric.SymmetricHeap:
    return heap_of(handle(**changes), HERE, 1, 2)  # type: ignore[arg-type]  # it has an address, and that is asked


def test_addresses_are_bases_and_the_offset() -> None:
    assert addresses(heap()) == [THERE, 0x7000_0000_0400]
    assert heap().multicast == 0
    assert heap(multicast_ptr=0x7800_0000_0400).multicast == 0x7800_0000_0400, "what it counts from is probed"


def test_a_torch_that_counts_from_the_tensor_or_elsewhere() -> None:
    at = {"first": THERE}
    known = heap(get_buffer=lambda peer, shape, dtype, first: SimpleNamespace(data_ptr=lambda: at["first"] + first))
    assert addresses(known) == [THERE, 0x7000_0000_0400]
    at["first"] += 64
    with pytest.raises(SymmetricMemoryError, match=r"rank 0 is at 0x710000000400, .* a tensor of it at 0x710000000840"):
        heap(get_buffer=lambda peer, shape, dtype, first: SimpleNamespace(data_ptr=lambda: at["first"] + first))


def test_a_torch_that_means_something_else_by_its_fields() -> None:
    """The address of the own heap is known: so a base that holds the offset already is noticed."""
    with pytest.raises(SymmetricMemoryError, match=r"rank 1 is at 0x700000000400, and torch .* says 0x700000000800"):
        heap(buffer_ptrs=[0x7100_0000_0400, 0x7000_0000_0400])


@pytest.mark.parametrize("base", [0, 0x7100_0000_0010])
def test_a_peer_that_is_not_mapped_or_not_aligned(base: int) -> None:
    with pytest.raises(SymmetricMemoryError, match=r"heap of rank 0 is mapped at .* a multiple of 256 is needed"):
        heap(buffer_ptrs=[base, 0x7000_0000_0000])


def test_another_group_than_was_asked_for() -> None:
    with pytest.raises(SymmetricMemoryError, match="torch maps 3 heaps for rank 1; the group has 2 ranks"):
        heap(buffer_ptrs=[0x7100_0000_0000, 0x7000_0000_0000, 0x7200_0000_0000])


# ---- who reaches whom


def places(**second: Any) -> list[_Place]:
    fields = {"host": "a", "device": 1, "uuid": "GPU-1"} | second
    return [_Place("a", 0, "GPU-0"), _Place(**fields)]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) != (0, 7))
    monkeypatch.setattr(symmetric, "driver", lambda: SimpleNamespace(has_native_atomics=lambda a, b: (a, b) != (0, 5)))
    monkeypatch.delenv(OVERLAPPING, raising=False)


@pytest.mark.usefixtures("peers")
def test_who_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _unreachable(places(), 0) is None
    assert "rank 1 is on node b, rank 0 on a" in str(_unreachable(places(host="b"), 0))
    assert "cuda:0 can't access the memory of cuda:7, where rank 1 is" in str(_unreachable(places(device=7), 0))
    assert "atomics of cuda:0 on the memory of cuda:5, where rank 1 is" in str(_unreachable(places(device=5), 0))
    assert _unreachable(places(device=0, uuid="GPU-1"), 0) is None, "each process sees its own GPU as the first"
    assert f"set {OVERLAPPING}=1 to share it" in str(_unreachable(places(uuid="GPU-0"), 1))
    monkeypatch.setenv(OVERLAPPING, "1")
    assert _unreachable(places(uuid="GPU-0"), 1) is None


# ---- the collective, on this machine and with a stand-in for torch


def test_a_torch_without_cuda(alone: dist.ProcessGroup) -> None:
    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built with CUDA")
    with pytest.raises(SymmetricMemoryError, match=r"rank 0 can't have symmetric memory: torch .* without CUDA"):
        symmetric_heap(4096, alone, torch.device("cuda", 0))


def test_a_torch_that_is_too_old(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(SymmetricMemoryError, match=r"torch 2.9.1\+cu128: symmetric memory is used from 2.11 on"):
        symmetric_heap(4096, alone, torch.device("cuda", 0))


@pytest.fixture
def torch_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "obstacle", lambda device: None)
    monkeypatch.setattr(symmetric, "_places", lambda group, device: [_Place("a", 0, "GPU-0")])


@pytest.mark.usefixtures("torch_with_cuda")
def test_what_torch_is_asked_for(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed._symmetric_memory as theirs

    asked: list[Any] = []

    def empty(*size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append((size, dtype, device))
        whole = torch.empty(size[0] + 256, dtype=dtype)
        return whole[-whole.data_ptr() % 256 :][: size[0]]

    def rendezvous(tensor: torch.Tensor, group: Any) -> Any:
        asked.append(group)
        return handle(rank=0, offset=256, buffer_ptrs=[tensor.data_ptr() - 256])

    monkeypatch.setattr(theirs, "empty", empty)
    monkeypatch.setattr(theirs, "rendezvous", rendezvous)
    made = symmetric_heap(4096, alone, torch.device("cuda", 0))
    assert [m.shape for m in made.memories] == [(4096,)]
    assert asked == [((4096,), torch.uint8, torch.device("cuda", 0)), alone.group_name]


@pytest.mark.usefixtures("torch_with_cuda")
def test_what_torch_says_is_passed_on(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed._symmetric_memory as theirs

    def empty(*size: int, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA driver error: out of memory")

    monkeypatch.setattr(theirs, "empty", empty)
    with pytest.raises(SymmetricMemoryError, match="rank 0 could not allocate its heap: CUDA driver error: out of m"):
        symmetric_heap(4096, alone, torch.device("cuda", 0))


@pytest.mark.usefixtures("torch_with_cuda")
def test_a_rank_without_memory_leaves_nobody_in_the_rendezvous(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer tells of its trouble before this rank goes to meet it."""
    import torch.distributed._symmetric_memory as theirs

    def gathered(group: dist.ProcessGroup, mine: Any) -> list[Any]:
        return [mine, "CUDA driver error: out of memory"] if mine == "" else [mine, mine]

    monkeypatch.setattr(theirs, "empty", lambda *size, **options: torch.empty(*size, dtype=torch.uint8))
    monkeypatch.setattr(theirs, "rendezvous", lambda tensor, group: pytest.fail("nobody comes"))
    monkeypatch.setattr("tilelink.runtime.agreement.gathered", gathered)
    with pytest.raises(SymmetricMemoryError, match="rank 1 could not allocate its heap: CUDA driver error: out of mem"):
        symmetric_heap(4096, alone, torch.device("cuda", 0))


# ---- the multicast address


def found(alone: dist.ProcessGroup, begin: int, given: int, offset: int) -> int:
    """What is found where the heap of a group of one lies at `begin` of the fabric."""
    memory = torch.zeros(256, dtype=torch.uint8)

    def read(address: int, place: torch.device) -> int:
        return int(memory.view(torch.int32)[0]) if address == begin else 77

    return multicast_address(given, offset, memory, alone, read)


def test_torch_counts_from_the_heap_or_from_its_allocation(alone: dist.ProcessGroup) -> None:
    assert found(alone, 0x7800_0000_0400, given=0x7800_0000_0400, offset=0x400) == 0x7800_0000_0400
    assert found(alone, 0x7800_0000_0400, given=0x7800_0000_0000, offset=0x400) == 0x7800_0000_0400
    assert found(alone, 0x7800_0000_0000, given=0x7800_0000_0000, offset=0) == 0x7800_0000_0000
    assert found(alone, 0, given=0, offset=0x400) == 0


def test_an_address_at_which_the_heaps_are_not(alone: dist.ProcessGroup) -> None:
    said = r"no multicast: words whose sum is 1000003 add up to \[\[77\], \[77\]\] at 0x78"
    with pytest.warns(RuntimeWarning, match=said):
        assert found(alone, 0x9000_0000_0000, given=0x7800_0000_0000, offset=0x400) == 0


def test_the_sum_is_read_by_the_fabric() -> None:
    signature = {"address": "i64", "found": "*i32"}
    made = triton.compile(
        ASTSource(sum_of_ranks, signature), target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}
    )
    assert "multimem.ld_reduce.relaxed.sys.global.add.u32" in made.asm["ptx"] and made.asm["cubin"]
