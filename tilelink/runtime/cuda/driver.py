"""The calls of CUDA's driver that torch has no word for: how many workers of a kernel fit on an SM, a word that a
stream writes or waits for, and streams that are nobody else's (torch hands out 32 in turns, and kernels that wait for
each other may not stand in one)."""

from __future__ import annotations

from ctypes import CDLL, byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
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
        found = c_int()
        arguments = byref(found), c_void_p(function), c_int(threads), c_size_t(shared_bytes)
        self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", *arguments)
        return found.value

    def new_stream(self) -> int:
        """A stream of the current device, which does not wait for the default one. It lives as long as the process."""
        found = c_void_p()
        self._call("cuStreamCreate", byref(found), c_uint(NON_BLOCKING))
        assert found.value is not None
        return found.value

    def write_value(self, stream: int, address: int, value: int) -> None:
        """A word of 32 bits, written when the stream comes to it: all the stream did before is visible by then."""
        # cuda.h calls this cuStreamWriteValue32; the symbol without _v2 is the one before CUDA 12, off by default.
        self._call("cuStreamWriteValue32_v2", c_void_p(stream), c_uint64(address), c_uint32(value), c_uint(0))

    def fill(self, stream: int, address: int, value: int, words: int) -> None:
        """So many words of 32 bits, written when the stream comes to them."""
        self._call("cuMemsetD32Async", c_uint64(address), c_uint(value), c_size_t(words), c_void_p(stream))

    def wait_value(self, stream: int, address: int, least: int) -> None:
        """Lets a stream go on once a word of 32 bits is at least a number, `(word - least) >= 0` in 32 bits."""
        self._call("cuStreamWaitValue32_v2", c_void_p(stream), c_uint64(address), c_uint32(least), c_uint(AT_LEAST))

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise DriverError(f"this driver has no {name}: one of CUDA 12 or newer is needed")
        code = function(*arguments)
        if code != 0:
            text = c_char_p()
            self.library.cuGetErrorName(c_int(code), byref(text))
            raise DriverError(f"{name} failed with {(text.value or b'an unknown error').decode()} ({code})")


@kept()
def driver() -> Driver:
    """The driver of this machine. Raises DriverError where there is none."""
    try:
        return Driver(CDLL(LIBRARY))
    except OSError as e:
        raise DriverError(f"there is no CUDA driver: {e}") from e
