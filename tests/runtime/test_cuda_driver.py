"""Calls of CUDA's driver: what is asked, and how a failure is called. The driver is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilelink.errors import DriverError
from tilelink.runtime.cuda.driver import Driver


class Library:
    """Answers as libcuda does: results through pointers, a code as the value."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
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


def test_a_failure_has_its_name() -> None:
    with pytest.raises(DriverError, match=r"cuStreamWriteValue32_v2 failed with CUDA_ERROR_INVALID_HANDLE \(400\)"):
        Driver(Library(400)).write_value(0, 0, 1)


def test_an_old_driver() -> None:
    with pytest.raises(DriverError, match="no cuStreamWriteValue32_v2: one of CUDA 12 or newer"):
        Driver(SimpleNamespace()).write_value(0, 0, 1)
