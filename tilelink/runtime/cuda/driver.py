"""The calls of CUDA's driver that torch has no word for: how many workers of a kernel fit on an SM, a word that a
stream writes or waits for, and streams that are nobody else's (torch hands out 32 in turns, and kernels that wait for
each other may not stand in one)."""

from __future__ import annotations

import ctypes
from typing import Any

from tilelink.errors import DriverError
from tilelink.frontend.kept import kept

LIBRARY = "libcuda.so.1"
NON_BLOCKING = 1
AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ."""


class Driver:
    """CUDA's driver; each method is one call of it. `library`: what answers, by ctypes. Raises DriverError."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def workers_per_sm(self, function: int, threads: int, shared_bytes: int) -> int:
        """How many workers of a loaded kernel an SM holds at a time."""
        found = ctypes.c_int()
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(found),
            ctypes.c_void_p(function),
            ctypes.c_int(threads),
            ctypes.c_size_t(shared_bytes),
        )
        return found.value

    def new_stream(self) -> int:
        """A stream of the current device, which does not wait for the default one. It lives as long as the process."""
        found = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(found), ctypes.c_uint(NON_BLOCKING))
        assert found.value is not None
        return found.value

    def write_value(self, stream: int, address: int, value: int) -> None:
        """A word of 32 bits, written when the stream comes to it: all the stream did before is visible by then."""
        # cuda.h calls this cuStreamWriteValue32; the symbol without _v2 is the one before CUDA 12, off by default.
        self._call(
            "cuStreamWriteValue32_v2",
            ctypes.c_void_p(stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(value),
            ctypes.c_uint(0),
        )

    def fill(self, stream: int, address: int, value: int, words: int) -> None:
        """So many words of 32 bits, written when the stream comes to them."""
        self._call(
            "cuMemsetD32Async",
            ctypes.c_uint64(address),
            ctypes.c_uint(value),
            ctypes.c_size_t(words),
            ctypes.c_void_p(stream),
        )

    def wait_value(self, stream: int, address: int, least: int) -> None:
        """Lets a stream go on once a word of 32 bits is at least a number, `(word - least) >= 0` in 32 bits."""
        self._call(
            "cuStreamWaitValue32_v2",
            ctypes.c_void_p(stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(least),
            ctypes.c_uint(AT_LEAST),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise DriverError(f"this driver has no {name}: one of CUDA 12 or newer is needed")
        code = function(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise DriverError(f"{name} failed with {(text.value or b'an unknown error').decode()} ({code})")


@kept()
def driver() -> Driver:
    """The driver of this machine. Raises DriverError where there is none."""
    try:
        return Driver(ctypes.CDLL(LIBRARY))
    except OSError as e:
        raise DriverError(f"there is no CUDA driver: {e}") from e
