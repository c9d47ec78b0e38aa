"""A machine without a GPU on which Triton and TileLink load and launch kernels all the same: CUDA's driver is a library
of ours (no_cuda.c), which does nothing. All code above the driver runs as on a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from ctypes import CDLL, RTLD_GLOBAL, c_size_t
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget

from tilelink.backend.targets import TARGETS, Target
from tilelink.runtime.cuda.device import CudaDevice, Kernel, load
from tilelink.runtime.cuda.driver import LIBRARY, Driver
from tilelink.runtime.cuda.probed import Probed
from tilelink.runtime.prepare import Prepared

HOPPER = TARGETS["sm_90"]
BYTES = re.compile(r"\.param (?:\.align \d+ )?\.([a-z])(\d+) [^,\n]*?(?:\[(\d+)\])?,?\n")


def missing() -> str:
    """What `in_place_of_cuda` needs and this machine lacks, or ""."""
    lacks = [] if shutil.which("cc") else ["a C compiler (cc)"]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return " and ".join([*lacks, *([] if headers.exists() else ["Python's headers (Python.h)"])])


def in_place_of_cuda() -> CDLL:
    """Builds the library with the C compiler, and loads it in this process in place of CUDA's; Triton's driver is then
    active. For a process of its own: nothing here can be taken back. Raises CalledProcessError."""
    folder = Path(tempfile.mkdtemp())
    built, source = folder / LIBRARY, Path(__file__).with_suffix(".c")
    headers = Path(nvidia.__path__[0]) / "include"
    options = "-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}", f"-I{headers}"
    subprocess.run(["cc", *options, str(source), "-o", str(built)], check=True)
    (folder / "libcuda.so").symlink_to(built)
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    library = CDLL(str(built), RTLD_GLOBAL)  # who opens a library of this name later, gets this one
    from triton.backends.nvidia.driver import CudaDriver

    class NoGpu(CudaDriver):
        def __init__(self) -> None:
            super().__init__()
            self.get_current_device = lambda: 0
            self.get_current_stream = lambda device: 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget(HOPPER.backend, HOPPER.arch, HOPPER.warp_size)

    triton.runtime.driver.set_active(NoGpu())
    return library


def parameter_sizes(ptx: str) -> list[int]:
    """The bytes of each parameter of the first kernel in PTX."""
    declared = ptx[ptx.index(".entry") :]
    found = BYTES.findall(declared[: declared.index("\n)") + 1])
    return [int(bits) // 8 * int(count or 1) for _, bits, count in found]


class NoDevice(CudaDevice):
    """A device whose kernels are compiled for Hopper, and whose memory is host memory."""

    def __init__(self, library: CDLL, target: Target = HOPPER) -> None:
        self.library, self.place, self.target, self.sms = library, torch.device("cpu"), target, 132
        self.name, self.stack, self.queues, self.probed = "none", "none", 32, Probed()
        self._stream = SimpleNamespace(cuda_stream=0)

    def seen_by_host(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        return loaded(self.library, getattr(prepared.module, kernel), arguments, **prepared.lowered.options)

    def stream(self) -> Any:
        return self._stream

    def current(self) -> Any:
        return self._stream

    def on(self, stream: Any) -> Any:
        return nullcontext()

    def follow(self, stream: Any, before: Any) -> None:
        pass

    def capturing(self) -> bool:
        return False

    def synchronize(self, stream: Any) -> None:
        pass


def loaded(library: CDLL, jit: Any, arguments: Mapping[str, Any], **options: Any) -> Kernel:
    """Compiles a kernel, and tells the library the sizes of its parameters, which CUDA knows from the binary."""
    warm = {n: v for n, v in options.items() if n != "warp_size"}
    sizes = parameter_sizes(jit.warmup(*arguments.values(), grid=(1,), **warm).asm["ptx"])
    library.no_cuda_expect(len(sizes), (c_size_t * len(sizes))(*sizes))
    return load(jit, arguments, Driver(library), **options)
