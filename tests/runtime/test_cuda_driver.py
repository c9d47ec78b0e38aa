"""Calls of CUDA's driver: what is asked, and how a failure is called. The driver is a stand-in."""

from __future__ import annotations

import ctypes
import struct
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.errors import DriverError
from tilelink.runtime.cuda.copies import row_copies
from tilelink.runtime.cuda.driver import Driver


class Library:
    """Answers as libcuda does: results through pointers, a code as the value."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.context: int | None = None
        self.calls: list[tuple[Any, ...]] = []

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, *arguments: Any) -> int:
        found._obj.value = 3
        self.calls.append(tuple(a.value for a in arguments))
        return self.code

    def cuStreamWriteValue32_v2(self, *arguments: Any) -> int:
        self.calls.append(tuple(a.value for a in arguments))
        return self.code

    def cuStreamCreate(self, found: Any, flags: Any) -> int:
        found._obj.value = 0x5550_0000_1000
        self.calls.append((flags.value,))
        return self.code

    def cuMemcpyAsync(self, *arguments: Any) -> int:
        self.calls.append(tuple(a.value for a in arguments))
        return self.code

    def cuMemcpy2DAsync_v2(self, rows: Any, stream: Any) -> int:
        """Carries it out, from the bytes of the structure as cuda.h lays them out."""
        at = struct.unpack("@NNIQQQNNNIQQQNNN", bytes(rows._obj))  # 128 bytes
        kinds, (source, pitch), (target, target_pitch) = (at[2], at[9]), at[4:7:2], at[11:14:2]
        width, height = at[14:]
        assert kinds == (4, 4) and stream.value == 0x10
        for k in range(height):
            ctypes.memmove(target + k * target_pitch, source + k * pitch, width)
        return self.code

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.context
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 0x5550_0000_2000 + device.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.context = context.value
        self.calls.append((context.value,))
        return 0

    def cuDeviceGetP2PAttribute(self, found: Any, attribute: Any, device: Any, peer: Any) -> int:
        found._obj.value = int((attribute.value, device.value, peer.value) == (3, 0, 1))
        return 0

    def cuDriverGetVersion(self, found: Any) -> int:
        found._obj.value = 13000
        return 0

    def cuGetErrorName(self, code: Any, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_INVALID_HANDLE"
        return 0


def test_workers_of_an_sm() -> None:
    library = Library()
    assert Driver(library).workers_per_sm(0x7F0000000010, 256, 232_448) == 3
    assert library.calls == [(0x7F0000000010, 256, 232_448)]


def test_a_word_that_a_stream_writes() -> None:
    library = Library()
    Driver(library).write_value(0x10, 2**47 + 4, 1)
    assert library.calls == [(0x10, 2**47 + 4, 1, 0)]


def test_a_stream_of_its_own() -> None:
    library = Library()
    assert Driver(library).new_stream() == 0x5550_0000_1000
    assert library.calls == [(1,)], "one that does not wait for the default stream"


def test_a_context_is_made_once_a_thread() -> None:
    library = Library()
    for _ in range(2):
        Driver(library).have_context(3)
    assert library.calls == [(0x5550_0000_2003,)]


def test_atomics_of_peers_and_the_version() -> None:
    driver = Driver(Library())
    assert driver.has_native_atomics(0, 1) and not driver.has_native_atomics(0, 2) and driver.version() == 13000


@pytest.mark.parametrize("height", [1, 3])
def test_copies_of_bytes_and_of_rows(height: int) -> None:
    library, source, target = Library(), torch.randint(256, (3, 9), dtype=torch.uint8), torch.zeros(3, 7).byte()
    Driver(library).copy(0x10, 2**47, 2**46, 5)
    assert library.calls == [(2**46, 2**47, 5, 0x10)], "to, from, bytes, stream"
    Driver(library).copy_rows(0x10, source.data_ptr(), 9, target.data_ptr(), 7, 5, height)
    right = torch.zeros(3, 7).byte()
    right[:height, :5] = source[:height, :5]
    assert torch.equal(target, right)


# ---- copies of regions


def carried_out(source: torch.Tensor, target: torch.Tensor) -> int:
    """Carries out the copies of a region, row by row; how many there were."""
    copies = list(row_copies(source, target))
    for c in copies:
        for k in range(c.height):
            ctypes.memmove(c.target + k * c.target_pitch, c.source + k * c.source_pitch, c.width)
    return len(copies)


WHOLE = torch.arange(2 * 6 * 8 * 5, dtype=torch.float32).view(2, 6, 8, 5)
REGIONS = {
    "all of it": (lambda t: t, 1),
    "rows": (lambda t: t[1, 2:5], 1),
    "columns": (lambda t: t[0, 0, :, 1:4], 1),
    "blocks of two dimensions": (lambda t: t[1, 1:4, 2:7, :3], 3),
    "by columns": (lambda t: t[0, 0].T, 1),
    "one column": (lambda t: t[0, 0, :, 2], 1),
    "every second row": (lambda t: t[0, 1, ::2], 1),
    "one element": (lambda t: t[1, 1, 1, 1], 1),
    "nothing": (lambda t: t[:, 2:2], 0),
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_is_copied_by_rows(name: str) -> None:
    region, count = REGIONS[name]
    target = torch.full_like(WHOLE, torch.nan)
    right = target.clone()
    region(right).copy_(region(WHOLE))  # type: ignore[no-untyped-call]
    assert carried_out(region(WHOLE), region(target)) == count  # type: ignore[no-untyped-call]
    assert torch.equal(target.nan_to_num(-1), right.nan_to_num(-1))


def test_regions_that_lie_otherwise_than_each_other() -> None:
    block, flat = WHOLE[0, 1:4, 2:4], torch.zeros(3, 2, 5)
    assert carried_out(block, flat) == 1 and torch.equal(flat, block)
    turned = torch.zeros(5, 8).T
    assert carried_out(WHOLE[0, 0], turned) == 5 and torch.equal(turned, WHOLE[0, 0])


def test_a_failure_has_its_name() -> None:
    with pytest.raises(DriverError, match=r"cuStreamWriteValue32_v2 failed with CUDA_ERROR_INVALID_HANDLE \(400\)"):
        Driver(Library(400)).write_value(0, 0, 1)


@pytest.mark.parametrize(("code", "said"), [(0, None), (700, "cuLaunchKernelEx failed with .*700")])
def test_a_launch(code: int, said: str | None) -> None:
    """The layout of the configuration is the one of cuda.h: seven numbers, the stream, no attributes."""
    got = list[bytes]()

    class Launching(Library):
        def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:
            got.append(bytes(config._obj))
            assert (function.value, parameters, extra) == (0x7000, "parameters", None)
            return code

    launch = Driver(Launching(code)).launches(0x7000, 5, 64, 1024, "parameters")
    with pytest.raises(DriverError, match=said) if said else nullcontext():
        launch(0x10)
    assert struct.unpack("@7I4xQQI4x", got[0]) == (5, 1, 1, 64, 1, 1, 1024, 0x10, 0, 0)


@pytest.mark.parametrize("sizes", [(), (8, 4, 128)])
def test_the_sizes_of_parameters(sizes: tuple[int, ...]) -> None:
    class Asked(Library):
        def cuFuncGetParamInfo(self, function: Any, number: Any, offset: Any, size: Any) -> int:
            if number.value >= len(sizes):
                return 1
            size._obj.value = sizes[number.value]
            return 0

    assert Driver(Asked()).parameter_sizes(0x7000) == sizes
    assert Driver(Library()).parameter_sizes(0x7000) is None, "CUDA before 12.4"


def test_a_thread_asks_once_for_its_context() -> None:
    library = Library()
    driver = Driver(library)
    driver.have_context(3)
    library.context = None
    driver.have_context(3)
    assert library.context is None, "it was not made again"
    other = threading.Thread(target=driver.have_context, args=(3,))
    other.start(), other.join()
    assert library.context is not None, "another thread has its own"


def test_an_old_driver() -> None:
    with pytest.raises(DriverError, match="no cuStreamWriteValue32_v2: one of CUDA 12 or newer"):
        Driver(SimpleNamespace()).write_value(0, 0, 1)
