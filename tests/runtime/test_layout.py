"""The symmetric heap: alike on all ranks, aligned, nothing upon anything else; too small ones say what is enough."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilelink.analysis.placement import ALIGNMENT, Placement, aligned, shape_on
from tilelink.backend.targets import portable
from tilelink.errors import HeapError
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import cell_count
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.values import ITEM_SIZE
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.layout import CONTROL_WORDS, MAX_SLOTS, HeapLayout, place

WORLDS = (1, 2, 3, 8)
DTYPES = ("float32", "float16", "bfloat16")

layouts = st.builds(
    HeapLayout,
    world=st.sampled_from(WORLDS),
    heap_bytes=st.integers(80_000, 1 << 20),
    slots=st.integers(1, MAX_SLOTS),
    signal_bytes=st.integers(1, 32).map(lambda n: n * ALIGNMENT),
)


def bound(program: Program, parts: tuple[int, ...], dtype: str = "float32") -> tuple[TileProgram, Sizes]:
    """A program, bound to its default schedule, fitted; and its sizes."""
    sizes: dict[str, Any] = {"M": parts, "K": 40, "N": 24} if program is all_gather_matmul else {"M": parts, "K": 40}
    return program.bound_at(world=len(parts), sizes=sizes, dtypes=dtype)


def check_apart(spans: list[tuple[int, int]], end: int) -> None:
    """Whether (beginning, end) are aligned, follow one another and stay before `end`."""
    assert all(begin % ALIGNMENT == 0 for begin, _ in spans)
    assert all(a_end <= b for (_, a_end), (b, _) in pairwise(sorted(spans)))
    assert all(0 <= begin <= stop <= end for begin, stop in spans)


@given(layouts)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_zones(layout: HeapLayout) -> None:
    zones = [(0, 8 * (CONTROL_WORDS + layout.world))]
    for slot in range(layout.slots):
        zones.append((layout.signals_at(slot), layout.signals_at(slot) + layout.signal_bytes))
        zones.append((layout.data_at(slot), layout.data_at(slot) + layout.data_bytes))
    check_apart(zones, layout.heap_bytes)
    assert all(begin < end for begin, end in zones)
    lost = layout.heap_bytes - layout.control_bytes - layout.slots * (layout.signal_bytes + layout.data_bytes)
    assert 0 <= lost < layout.slots * ALIGNMENT


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [(5,), (8, 8), (5, 0, 33), (1, 0, 0, 0, 0, 0, 0, 64)], ids=str)
@pytest.mark.parametrize("program", [all_gather, all_gather_matmul], ids=lambda p: p.name)
def test_what_a_run_has_on_the_heap(program: Program, parts: tuple[int, ...], dtype: str) -> None:
    tile_program, sizes = bound(program, parts, dtype)
    layout = HeapLayout(len(parts), 1 << 20, 2, 4096)
    placement = place(tile_program, sizes, layout)

    assert [n for n, _ in placement.data] == [t.name for t in tile_program.on_heap]
    data = [(at, at + bytes_of(tile_program, sizes, name)) for name, at in placement.data]
    check_apart(data, layout.data_bytes)

    assert [n for n, _, _ in placement.signals] == [s.tensor for s in tile_program.signals]
    cells = [int(evaluate(cell_count(s), sizes.values)) for s in tile_program.signals]
    assert [n for _, _, n in placement.signals] == cells
    check_apart([(at, at + 4 * n) for _, at, n in placement.signals], layout.signal_bytes)


def bytes_of(program: TileProgram, sizes: Sizes, name: str) -> int:
    """Of the longest part of a tensor."""
    tensor = program.tensor(name)
    return max(prod(shape_on(tensor, sizes, rank)) for rank in range(sizes.world)) * ITEM_SIZE[tensor.dtype]


@pytest.mark.parametrize("program", [all_gather, all_gather_matmul], ids=lambda p: p.name)
def test_all_ranks_lay_a_run_out_alike(program: Program) -> None:
    """What a rank computes from its own call, and what it computes a second time."""
    parts = (5, 0, 33)
    world = CpuWorld(3, heap_bytes=64 << 10, signal_bytes=512, sms=20)
    placements: dict[int, list[Placement]] = {r: [] for r in range(3)}

    def rank(group):  # type: ignore[no-untyped-def]
        tensors = [torch.ones(parts[group.rank], 40)] + [torch.ones(40, 24)] * (program is all_gather_matmul)
        for _ in range(2):
            program(*tensors, group=group, parts={"M": parts})
            (prepared,) = world.lane.prepared.values()
            placements[group.rank].append(place(prepared.program, prepared.sizes, world.layout))

    world.run(rank)
    assert len({p for of_rank in placements.values() for p in of_rank}) == 1
    assert len({h.data_ptr() % ALIGNMENT for h in world.lane.heaps}) == 1
    assert world.lane.tables[0].tolist() == [h.data_ptr() for h in world.lane.heaps]


def test_shapes_of_ranks() -> None:
    tile_program, sizes = bound(all_gather_matmul, (5, 0, 33))
    x, full = tile_program.tensor("x"), tile_program.tensor("full")
    assert [shape_on(x, sizes, r) for r in range(3)] == [(5, 40), (0, 40), (33, 40)]
    assert shape_on(x, sizes, None) == (33, 40)
    assert {shape_on(full, sizes, r) for r in (0, 1, 2, None)} == {(38, 40)}


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("world", WORLDS)
def test_recommended_sizes_are_enough_and_hardly_more(world: int, slots: int) -> None:
    parts = tuple(128 + 16 * r for r in range(world))
    tile_program, sizes = bound(all_gather_matmul, parts)
    small = HeapLayout(world, 16 << 10, slots, ALIGNMENT)
    with pytest.raises(HeapError) as e:
        place(tile_program, sizes, small)
    wanted = recommended(e.value)
    place(tile_program, sizes, HeapLayout(world, wanted, slots, ALIGNMENT))
    with pytest.raises(HeapError):
        place(tile_program, sizes, HeapLayout(world, wanted - 2 * slots * ALIGNMENT, slots, ALIGNMENT))


def recommended(error: HeapError, option: str = "heap_bytes") -> int:
    (number,) = re.findall(rf"{option}=(\d+)", str(error))
    return int(number)


def test_too_many_signals() -> None:
    tile_program, sizes = bound(all_gather_matmul, (16 * 70,))  # fitted tiles of 128 rows
    many = tile_program, Sizes.of(tile_program, 1, {"M": 128 * 100, "K": 40, "N": 24})
    small = HeapLayout(1, 32 << 20, 1, ALIGNMENT)
    place(tile_program, sizes, small)
    with pytest.raises(HeapError, match=r"512 for signals; it has \d+ and 256") as e:
        place(*many, small)
    wanted = recommended(e.value, "signal_bytes")
    assert wanted == 512
    place(*many, HeapLayout(1, recommended(e.value), 1, wanted))


@pytest.mark.parametrize("slots", [1, 2, MAX_SLOTS])
def test_least_heap(slots: int) -> None:
    with pytest.raises(HeapError, match=r"a heap of 100 bytes is too small") as e:
        HeapLayout(2, 100, slots, 1024)
    (least,) = map(int, re.findall(r"at least (\d+)", str(e.value)))
    assert HeapLayout(2, least, slots, 1024).data_bytes == ALIGNMENT
    with pytest.raises(HeapError, match="is too small"):
        HeapLayout(2, least - 1, slots, 1024)


@pytest.mark.parametrize("slots", [-1, 0, MAX_SLOTS + 1])
def test_no_such_slots(slots: int) -> None:
    with pytest.raises(HeapError, match=rf"test_layout.py:\d+: slots={slots}; it must be from 1 to {MAX_SLOTS}"):
        CpuWorld(2, slots=slots)


@pytest.mark.parametrize("signal_bytes", [-256, 0, 100, 257])
def test_zone_of_signals_keeps_the_alignment(signal_bytes: int) -> None:
    with pytest.raises(HeapError, match=rf"test_layout.py:\d+: signal_bytes={signal_bytes}; it must be a multiple"):
        CpuWorld(2, signal_bytes=signal_bytes)


@pytest.mark.parametrize(("n", "up"), [(0, 0), (1, 256), (255, 256), (256, 256), (257, 512)])
def test_aligned(n: int, up: int) -> None:
    assert aligned(n) == up


def test_heaps_begin_with_nothing_that_looks_like_data() -> None:
    """Control words but the address of the clock, and signals, are zero; data is NaN in every dtype."""
    world = CpuWorld(2, heap_bytes=8 << 10, slots=3, signal_bytes=512)
    layout = world.layout
    for heap in world.lane.heaps:
        assert heap.numel() == 8 << 10
        control = heap[: layout.control_bytes].view(torch.int64)
        assert control.nonzero().flatten().tolist() == [portable.CLOCK.value]
        for slot in range(layout.slots):
            assert not heap[layout.signals_at(slot) : layout.data_at(slot)].any()
            data = heap[layout.data_at(slot) : layout.data_at(slot) + layout.data_bytes]
            assert all(data.view(getattr(torch, dtype)).isnan().all() for dtype in DTYPES)
