"""A CUDA device as worlds use it: memory, streams, kernels. Tests put a device in its place that is none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from tilelink.backend.targets import TARGETS, Target
from tilelink.errors import DeviceError, Site
from tilelink.runtime.cuda.driver import driver
from tilelink.runtime.cuda.kernels import Kernel, load
from tilelink.runtime.prepare import Prepared

Stream = Any
"""A stream of torch."""
DEFAULT_QUEUES = 8
"""Of a CUDA device, where CUDA_DEVICE_MAX_CONNECTIONS says nothing else."""


class Device(Protocol):
    """What a world needs of a device. `place`: where its tensors are. `sms`: its SMs. `queues`: so many streams go on
    without one waiting for what stands before it on another."""

    place: torch.device
    target: Target
    sms: int
    queues: int

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for which torch's allocator waits, in the order of the current stream."""

    def seen_by_host(self) -> torch.Tensor:
        """A word (int64, zero) that the host reads and kernels write, at its `data_ptr`."""

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        """A kernel of a prepared program for arguments like these, compiled, and loaded on the device."""

    def stream(self) -> Stream:
        """A stream of its own."""

    def current(self) -> Stream:
        """The stream on which this thread launches."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Makes a stream the current one."""

    def follow(self, stream: Stream, before: Stream) -> None:
        """What comes on `stream` comes after what is on `before`."""

    def capturing(self) -> bool:
        """Whether a graph is captured on the current stream."""

    def synchronize(self, stream: Stream) -> None:
        """Waits until a stream is done."""

    def copy(self, stream: Stream, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies memory to memory, when the stream comes to it; of the same shape, but for dimensions of 1."""

    def write_signal(self, stream: Stream, address: int) -> None:
        """Writes 1 to a word of 32 bits when the stream comes to it, after all that it did before."""

    def wait_for_signal(self, stream: Stream, address: int, least: int) -> None:
        """What comes on the stream comes after a word of 32 bits is at least a number, and after what released it."""

    def fill(self, stream: Stream, words: torch.Tensor, value: int) -> None:
        """Writes a number to words of 32 bits when the stream comes to it. No kernel is loaded for that."""


class CudaDevice:
    """A CUDA device. Raises DeviceError where there is none, or one for which no kernels are lowered."""

    def __init__(self, index: int | None = None) -> None:
        site = Site.of_user()
        if not torch.cuda.is_available():
            built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
            raise DeviceError(f"there is no CUDA device: torch {torch.__version__} {built} and sees none", site)
        if index is not None and not 0 <= index < torch.cuda.device_count():
            raise DeviceError(f"there is no cuda:{index}: torch sees {torch.cuda.device_count()} CUDA devices", site)
        self.place = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        properties = torch.cuda.get_device_properties(self.place)
        name = f"sm_{properties.major}{properties.minor}"
        if name not in TARGETS:
            known = ", ".join(n for n, t in TARGETS.items() if t.backend == "cuda")
            raise DeviceError(f"{self.place} is a {properties.name} ({name}): kernels are made for {known}", site)
        self.name: str = properties.name
        self.target = TARGETS[name]
        self.sms: int = properties.multi_processor_count
        self.queues = int(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", DEFAULT_QUEUES))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.place)

    def seen_by_host(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64, pin_memory=True)  # its address is one of the device, too

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        with torch.cuda.device(self.place):
            return load(getattr(prepared.module, kernel), arguments, driver(), **prepared.lowered.options)

    def stream(self) -> Stream:
        with torch.cuda.device(self.place):
            torch.cuda.current_stream()  # so that there is a context
            return torch.cuda.ExternalStream(driver().new_stream(), self.place)

    def current(self) -> Stream:
        return torch.cuda.current_stream(self.place)

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def follow(self, stream: Stream, before: Stream) -> None:
        stream.wait_stream(before)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self, stream: Stream) -> None:
        stream.synchronize()

    def copy(self, stream: Stream, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source.view(target.shape), non_blocking=True)

    def write_signal(self, stream: Stream, address: int) -> None:
        driver().write_value(stream.cuda_stream, address, 1)

    def wait_for_signal(self, stream: Stream, address: int, least: int) -> None:
        driver().wait_value(stream.cuda_stream, address, least)

    def fill(self, stream: Stream, words: torch.Tensor, value: int) -> None:
        driver().fill(stream.cuda_stream, words.data_ptr(), value, words.numel())


