"""The calls of CUDA's driver that torch does not offer: how many workers of a kernel fit on an SM, words that a stream
writes or waits for, copies that need no kernel, and streams that nothing else uses. (torch hands out 32 streams in
turns, and kernels that wait for each other must not be on one stream.)"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import CDLL, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, NoReturn

from tilelink.errors import DriverError
from tilelink.frontend.kept import kept

LIBRARY = "libcuda.so.1"
NON_BLOCKING = 1
AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ."""
UNIFIED = 4
"""CU_MEMORYTYPE_UNIFIED: the address alone says which memory it is in."""
STACK_SIZE = 0
"""CU_LIMIT_STACK_SIZE."""
LOCAL_BYTES = 3
"""CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES."""
NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""


class Rows(Structure):
    """CUDA_MEMCPY2D: `height` rows of `width` bytes, `pitch` bytes apart, from one place to another."""

    _fields_: ClassVar = [
        (end + name, kind)
        for end in ("source_", "target_")
        for name, kind in (
            ("x", c_size_t), ("y", c_size_t), ("memory", c_uint), ("host", c_void_p), ("device", c_uint64),
            ("array", c_void_p), ("pitch", c_size_t),
        )
    ] + [("width", c_size_t), ("height", c_size_t)]  # fmt: skip


class LaunchConfig(Structure):
    """CUlaunchConfig: workers and their threads along three dimensions, and no attributes."""

    _fields_: ClassVar = [
        *((f"{what}_{d}", c_uint) for what in ("workers", "threads") for d in "xyz"),
        ("shared_bytes", c_uint), ("stream", c_void_p), ("attributes", c_void_p), ("attribute_count", c_uint),
    ]  # fmt: skip


class Driver:
    """CUDA's driver; each method makes one call of it. `library`: its library in ctypes. Raises DriverError."""

    def __init__(self, library: Any) -> None:
        self.library, self._thread = library, threading.local()

    def workers_per_sm(self, function: int, threads: int, shared_bytes: int) -> int:
        """How many workers of a loaded kernel an SM holds at a time."""
        found = c_int()
        arguments = byref(found), c_void_p(function), c_int(threads), c_size_t(shared_bytes)
        self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", *arguments)
        return found.value

    def parameter_sizes(self, function: int) -> tuple[int, ...] | None:
        """The bytes of each parameter of a loaded kernel; None if the driver is older than CUDA 12.4."""
        ask, found = getattr(self.library, "cuFuncGetParamInfo", None), list[int]()
        offset, size = c_size_t(), c_size_t()
        while ask and ask(c_void_p(function), c_size_t(len(found)), byref(offset), byref(size)) == 0:
            found.append(size.value)
        return tuple(found) if ask else None

    def launches(
        self, function: int, workers: int, threads: int, shared_bytes: int, parameters: Any
    ) -> Callable[[int], None]:
        """A function that launches a loaded kernel on a stream. `parameters`: an array with the address of each. CUDA
        copies them at each launch."""
        config = LaunchConfig(workers, 1, 1, threads, 1, 1, shared_bytes)
        given = byref(config), c_void_p(function), parameters, None
        ask = self._function("cuLaunchKernelEx")

        def launch(stream: int) -> None:
            config.stream = stream
            if code := ask(*given):
                self._fail("cuLaunchKernelEx", code)

        return launch

    def replace_address(self, tensor_map: int, address: int) -> None:
        """Makes a tensor map, which lies in memory of the host, the map of a tensor at another address."""
        self._call("cuTensorMapReplaceAddress", c_void_p(tensor_map), c_void_p(address))

    def new_stream(self) -> int:
        """A stream of the current device that does not wait for the default one. It lives as long as the process."""
        found = c_void_p()
        self._call("cuStreamCreate", byref(found), c_uint(NON_BLOCKING))
        assert found.value is not None
        return found.value

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Writes a word of 32 bits when the stream comes to it. All earlier work of the stream is visible by then."""
        # cuda.h calls this cuStreamWriteValue32; the symbol without _v2 is the one before CUDA 12, off by default.
        self._call("cuStreamWriteValue32_v2", c_void_p(stream), c_uint64(address), c_uint32(value), c_uint(0))

    def fill(self, stream: int, address: int, value: int, words: int) -> None:
        """Writes a number of words of 32 bits when the stream comes to them."""
        self._call("cuMemsetD32Async", c_uint64(address), c_uint(value), c_size_t(words), c_void_p(stream))

    def wait_value(self, stream: int, address: int, least: int) -> None:
        """Lets a stream go on once a word of 32 bits is at least a number, `(word - least) >= 0` in 32 bits."""
        self._call("cuStreamWaitValue32_v2", c_void_p(stream), c_uint64(address), c_uint32(least), c_uint(AT_LEAST))

    def copy(self, stream: int, source: int, target: int, size: int) -> None:
        """Copies `size` bytes from address to address."""
        self._call("cuMemcpyAsync", c_uint64(target), c_uint64(source), c_size_t(size), c_void_p(stream))

    def copy_rows(
        self, stream: int, source: int, source_pitch: int, target: int, target_pitch: int, width: int, height: int
    ) -> None:
        """Copies `height` rows of `width` bytes each; pitches are bytes from row to row."""
        rows = Rows(width=width, height=height)
        rows.source_memory = rows.target_memory = UNIFIED
        rows.source_device, rows.source_pitch = source, source_pitch
        rows.target_device, rows.target_pitch = target, target_pitch
        self._call("cuMemcpy2DAsync_v2", byref(rows), c_void_p(stream))

    def have_context(self, device: int) -> None:
        """Gives the calling thread a context if it has none: the primary one of a device, which torch uses, too. The
        driver's calls need a context. Neither torch.cuda.current_stream nor memory that torch's allocator has kept
        makes one. A thread that had one is not asked again."""
        if hasattr(self._thread, "context"):
            return
        self._thread.context = context = c_void_p()
        self._call("cuCtxGetCurrent", byref(context))
        if not context.value:
            self._call("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
            self._call("cuCtxSetCurrent", context)

    def room_for_stack(self, function: int) -> None:
        """Gives threads of the device the local memory that a kernel needs. If it grew at a launch instead, the launch
        would wait for the device, where kernels may be waiting for this launch."""
        needed, have = c_int(), c_size_t()
        self._call("cuFuncGetAttribute", byref(needed), c_int(LOCAL_BYTES), c_void_p(function))
        self._call("cuCtxGetLimit", byref(have), c_int(STACK_SIZE))
        if needed.value > have.value:
            self._call("cuCtxSetLimit", c_int(STACK_SIZE), c_size_t(needed.value))

    def has_native_atomics(self, device: int, peer: int) -> bool:
        """Whether atomics of a device on the memory of a peer are atomic to atomics of the peer."""
        found = c_int()
        self._call("cuDeviceGetP2PAttribute", byref(found), c_int(NATIVE_ATOMICS), c_int(device), c_int(peer))
        return bool(found.value)

    def version(self) -> int:
        """The newest CUDA that the driver knows: 12080 for 12.8."""
        found = c_int()
        self._call("cuDriverGetVersion", byref(found))
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        if code := self._function(name)(*arguments):
            self._fail(name, code)

    def _function(self, name: str) -> Callable[..., int]:
        function: Callable[..., int] | None = getattr(self.library, name, None)
        if function is None:
            raise DriverError(f"this driver has no {name}: one of CUDA 12 or newer is needed")
        return function

    def _fail(self, name: str, code: int) -> NoReturn:
        text = c_char_p()
        self.library.cuGetErrorName(c_int(code), byref(text))
        raise DriverError(f"{name} failed with {(text.value or b'an unknown error').decode()} ({code})")


@kept()
def driver() -> Driver:
    """The driver of this machine. Raises DriverError if there is none."""
    try:
        return Driver(CDLL(LIBRARY))
    except OSError as e:
        raise DriverError(f"there is no CUDA driver: {e}") from e
