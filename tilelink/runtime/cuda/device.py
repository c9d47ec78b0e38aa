"""A CUDA device as worlds use it: memory, streams, and kernels. Triton compiles kernels for the arguments of a launch;
they are loaded, and launched with little host time.

At every launch, Triton looks up which compiled kernel the arguments need. Here the lookup is done once. The caller must
launch a kernel only with arguments that are alike in everything that Triton looks at: dtypes, values of 1, and
multiples of 16.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton

from tilelink.backend.targets import SPECIALISED, TARGETS
from tilelink.errors import DeviceError, ResidencyError, ScheduleError, Site
from tilelink.inspect.compile import CompileError
from tilelink.programs.compiling import placed_errors, texts_of
from tilelink.runtime.cuda import probed
from tilelink.runtime.cuda.copies import row_copies
from tilelink.runtime.cuda.driver import Driver, driver
from tilelink.runtime.cuda.launches import Direct, Launch, fits, through_triton
from tilelink.runtime.prepare import Prepared

Stream = Any
"""A stream of torch."""
DEFAULT_QUEUES = 8
"""The queues of a CUDA device, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise."""


class CudaDevice:
    """A CUDA device. `place`: where its tensors are. `sms`: its SMs. `queues`: the number of streams that go on without
    waiting for work on another. `stack`: GPU, driver, torch and Triton; `probed`: the answers of probes about them.
    `specialised`: whether kernels have the specialised form where they can; by default, if a probe has shown that it is
    right. Raises DeviceError if there is no device, or none for which kernels can be lowered, and TargetError if it has
    no specialised form. Tests replace the device by a stand-in."""

    def __init__(self, index: int | None = None, *, specialised: bool | None = None) -> None:
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
        self.sms: int = properties.multi_processor_count
        self.queues = int(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", DEFAULT_QUEUES))
        versions = f"driver of CUDA {driver().version()}, torch {torch.__version__}, Triton {triton.__version__}"
        self.stack = f"{self.name}, {versions}"
        self.probed = probed.read(self.stack)
        if specialised is None:
            specialised = name in SPECIALISED and self.probed.allows("own_warps")
        self.target = TARGETS[name].with_own_warps() if specialised else TARGETS[name]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of torch's allocator, which hands it out in the order of the current stream."""
        return torch.empty(shape, dtype=dtype, device=self.place)

    def allocates(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """A function for `empty` memory, which takes little of the host's time."""
        strides = torch.empty(shape, device="meta").stride()
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=self.place)

    def seen_by_host(self) -> torch.Tensor:
        """A word (int64, zero) that the host reads and kernels write, at its `data_ptr`."""
        return torch.zeros(1, dtype=torch.int64, pin_memory=True)  # its address is one of the device, too

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        """Compiles a kernel of a prepared program for arguments like these, and loads it on the device. Raises
        CompileError at the user's line."""
        with torch.cuda.device(self.place), placed_errors(prepared.lowered):
            options = prepared.lowered.options
            return load(getattr(prepared.module, kernel), arguments, self._driver(), self.place.index, **options)

    def stream(self) -> Stream:
        """A new stream, which nothing else uses."""
        with torch.cuda.device(self.place):
            return torch.cuda.ExternalStream(self._driver().new_stream(), self.place)

    def current(self) -> Stream:
        """The stream on which this thread launches."""
        return torch.cuda.current_stream(self.place)

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Makes a stream the current one."""
        return torch.cuda.stream(stream)

    def follow(self, stream: Stream, before: Stream) -> None:
        """Makes later work on `stream` follow everything that is on `before` now."""
        stream.wait_stream(before)

    def capturing(self) -> bool:
        """Whether a graph is captured on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self, stream: Stream) -> None:
        """Waits until a stream is done."""
        stream.synchronize()

    def copy(self, stream: Stream, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies a tensor to another one, when the stream comes to it. Shapes may differ in dimensions of 1."""
        for rows in row_copies(source.view(target.shape), target):
            if rows.height == 1:
                self._driver().copy(stream.cuda_stream, rows.source, rows.target, rows.width)
            else:
                self._driver().copy_rows(stream.cuda_stream, **vars(rows))

    def write_signal(self, stream: Stream, address: int) -> None:
        """Writes 1 to a word of 32 bits when the stream comes to it, after all its earlier work."""
        self._driver().write_value(stream.cuda_stream, address, 1)

    def wait_for_signal(self, stream: Stream, address: int, least: int) -> None:
        """Makes later work on the stream wait until a word of 32 bits is at least a number, and follow its release."""
        self._driver().wait_value(stream.cuda_stream, address, least)

    def fill(self, stream: Stream, words: torch.Tensor, value: int) -> None:
        """Writes a number to words of 32 bits when the stream comes to it, without loading a kernel."""
        self._driver().fill(stream.cuda_stream, words.data_ptr(), value, words.numel())

    def _driver(self) -> Driver:
        """The driver, with a context on this thread."""
        found = driver()
        found.have_context(self.place.index)
        return found


@dataclass(frozen=True)
class Kernel:
    """A kernel on a device. `registers` of a thread, `spills` in words of it, `shared_bytes` of a worker, and how many
    workers an SM holds. `names`: its parameters, in the order in which launches take their values. `directly`: makes a
    launch past Triton, if the kernel fits one."""

    name: str
    names: tuple[str, ...]
    registers: int
    spills: int
    shared_bytes: int
    warps: int
    workers_per_sm: int
    compiled: Any
    directly: Callable[..., Launch] | None = None

    def launch(self, workers: int, values: Sequence[Any], places: Sequence[int]) -> Launch:
        """A launch on a number of workers, to be repeated; `values` and `places` as in `through_triton`."""
        if self.directly is not None:
            return self.directly(self.compiled, workers, values, places)
        return through_triton(self.compiled, workers, values, places)

    def check_resident(self, workers: int, sms: int, site: Site) -> None:
        """Raises ResidencyError if not all workers fit on `sms` SMs at a time, since they wait for each other."""
        most = self.workers_per_sm * sms
        if workers > most:
            raise ResidencyError(
                f"{self.name} has {workers} workers that wait for each other; {most} fit on the {sms} SMs it has: "
                f"{self.workers_per_sm} on each, with {self.registers} registers of {32 * self.warps} threads and "
                f"{self.shared_bytes} bytes of shared memory. Use fewer workers, a smaller tile or fewer stages",
                site,
            )


def load(
    jit: Any,
    arguments: Mapping[str, Any],
    driver: Driver,
    device: int = 0,
    *,
    num_warps: int,
    warp_size: int = 32,
    **options: Any,
) -> Kernel:
    """Compiles a `triton.jit` function for arguments like these and loads it on the current device, which has the
    number `device`, if it isn't yet.

    CUDA loads code late, and may then wait for an idle device. Call this before a kernel runs that others wait for.
    Raises CompileError, and ScheduleError for a kernel that fits on no SM.
    """
    try:
        compiled = jit.warmup(*arguments.values(), grid=(1,), num_warps=num_warps, **options)
        if hasattr(compiled, "result"):  # Triton compiles it on another thread, if it is told to
            compiled = compiled.result()
    except (triton.CompilationError, RuntimeError) as e:
        raise CompileError(texts_of(e)) from e
    try:
        compiled[1, 1, 1]  # this loads it
    except triton.OutOfResources as e:
        raise ScheduleError(f"{jit.fn.__name__} fits on no SM: {e}") from None
    driver.room_for_stack(compiled.function)
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps  # all warps of the specialised form
    return Kernel(
        jit.fn.__name__,
        tuple(arguments),
        compiled.n_regs,
        compiled.n_spills,
        shared,
        warps,
        driver.workers_per_sm(compiled.function, warps * warp_size, shared),
        compiled,
        partial(Direct, driver, device) if fits(driver, compiled, tuple(arguments.values())) else None,
    )
