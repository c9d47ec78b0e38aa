import numpy as np
import pytest
import torch

from tilelink.emulator.memory import Outside, Region, RegionMap, bytes_at
from tilelink.emulator.shadow import ShadowMemory


def _pointers(region: Region, rows, columns) -> np.ndarray:
    offsets = np.asarray(rows)[:, None] * region.strides[0] + np.asarray(columns)[None, :] * region.strides[1]
    return (region.base + offsets * region.itemsize).astype(np.uint64)


@pytest.fixture
def region() -> Region:
    return Region("x", 2, torch.arange(12 * 10, dtype=torch.float32).view(12, 10))


def test_a_tile_is_located_as_a_box(region):
    (access,) = RegionMap([region]).locate(_pointers(region, range(2, 6), range(4, 8)), None, 4)
    assert access.box == ((2, 6), (4, 8))
    assert (access.values(np.dtype(np.float32)) == region.tensor[2:6, 4:8].numpy().reshape(-1)).all()


def test_strides_make_a_box_that_holds_the_tile(region):
    (access,) = RegionMap([region]).locate(_pointers(region, range(1, 9, 2), range(0, 9, 3)), None, 4)
    assert access.box == ((1, 8), (0, 7))


def test_masks_cut_the_box(region):
    pointers = _pointers(region, range(4), range(4))
    mask = np.zeros((4, 4), bool)
    mask[:3, :2] = True
    (access,) = RegionMap([region]).locate(pointers, mask, 4)
    assert access.box == ((0, 3), (0, 2))
    assert access.lanes.tolist() == [0, 1, 4, 5, 8, 9]
    mask[3, 3] = True
    (access,) = RegionMap([region]).locate(pointers, mask, 4)
    assert access.box == ((0, 4), (0, 4))
    assert RegionMap([region]).locate(pointers, np.zeros((4, 4), bool), 4) == []


def test_masked_lanes_may_point_anywhere(region):
    pointers = _pointers(region, range(10, 14), range(4))
    mask = np.zeros((4, 4), bool)
    mask[:2] = True
    assert RegionMap([region]).locate(pointers, mask, 4)[0].box == ((10, 12), (0, 4))
    with pytest.raises(Outside) as outside:
        RegionMap([region]).locate(pointers, None, 4)
    assert outside.value.address == region.end


def test_rows_that_wrap_around_give_whole_rows(region):
    pointers = (region.base + 4 * np.arange(8, 14)).astype(np.uint64)
    assert RegionMap([region]).locate(pointers, None, 4)[0].box == ((0, 2), (0, 10))


def test_gaps_between_rows_are_outside():
    padded = torch.zeros(4, 16)
    region = Region("x", 0, padded[:, :10])
    assert RegionMap([region]).locate(_pointers(region, range(4), range(6, 10)), None, 4)[0].box == ((0, 4), (6, 10))
    with pytest.raises(Outside):
        RegionMap([region]).locate(_pointers(region, range(4), range(8, 12)), None, 4)


def test_pointers_into_several_regions_give_an_access_for_each():
    words = [Region("w", rank, torch.zeros(4, dtype=torch.int32), "signal") for rank in range(3)]
    pointers = np.array([word.base + 8 for word in words], np.uint64)
    accesses = RegionMap(words).locate(pointers, None, 4)
    assert sorted((a.region.rank, a.box) for a in accesses) == [(rank, ((2, 3),)) for rank in range(3)]


def test_elements_that_are_not_aligned_are_read_and_written(region):
    pointers = (region.base + np.array([2, 6, 14])).astype(np.uint64)
    (access,) = RegionMap([region]).locate(pointers, None, 4)
    access.write(np.array([7, 8, 9], np.int32))
    assert access.values(np.dtype(np.int32)).tolist() == [7, 8, 9]
    assert bytes_at(region.base + 2, 4).view(np.int32).tolist() == [7]


def test_of_regions_that_overlap_a_tile_is_in_the_one_that_holds_it(region):
    regions = [Region("head", 0, region.tensor[:1]), region, Region("tail", 0, region.tensor[1:])]
    tile = RegionMap(regions).locate(_pointers(region, range(2), range(4)), None, 4)
    assert [access.region.name for access in tile] == ["x"]
    row = RegionMap(regions).locate(_pointers(region, range(1, 2), range(4)), None, 4)
    assert [access.region.name for access in row] == ["tail"]


def test_an_address_is_that_of_an_element(region):
    assert (region.end, region.strides, region.dense) == (region.base + 4 * 120, (10, 1), True)
    assert region.index(region.base + 4 * 37) == (3, 7)


def test_shadows_are_of_memory_and_are_refined():
    memory = torch.zeros(64, dtype=torch.uint8)
    wide, narrow = Region("wide", 0, memory.view(torch.float32)), Region("narrow", 0, memory[6:26].view(torch.bfloat16))
    shadows = ShadowMemory()
    shadows.add(wide)
    shadows.add(narrow)

    def cells(region: Region, low: int, high: int):
        pointers = (region.base + region.itemsize * np.arange(low, high)).astype(np.uint64)
        return shadows.cells(RegionMap([region]).locate(pointers, None, region.itemsize)[0])

    cells(wide, 2, 3).fill("written", 9)
    assert cells(narrow, 0, 5).distinct("written") == [0, 9]
    assert cells(narrow, 1, 3).distinct("written") == [9]
    cells(narrow, 3, 4).fill("written", 4)
    assert cells(wide, 3, 4).distinct("written") == [0, 4]
    assert list(cells(wide, 0, 16).addresses("written", 4) - memory.data_ptr()) == [12]


def test_shadows_of_overlapping_blocks_are_merged():
    memory = torch.zeros(64, dtype=torch.uint8)
    shadows = ShadowMemory()
    half = Region("half", 0, torch.frombuffer(bytes_at(memory.data_ptr(), 32), dtype=torch.float32))
    shadows.add(half)
    (access,) = RegionMap([half]).locate(np.array([half.base + 4], np.uint64), None, 4)
    shadows.cells(access).fill("written", 3)
    shadows.add(Region("all", 0, memory))
    assert shadows.cells(access).distinct("written") == [3]
