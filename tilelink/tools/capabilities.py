"""Capabilities of this machine and its installation. Each is tried out, if that is cheap.

A probe returns a sentence about what it saw, or raises what is in the way. Nothing is kept and nothing is changed.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from tilelink.backend.cache import cache_folder
from tilelink.backend.nvshmem import bitcode
from tilelink.errors import TileLinkError

SUPPORTED = {"torch": ((2, 11), None), "triton": ((3, 6), (3, 10))}
"""The first supported version, and the first unsupported one after it, as in pyproject.toml."""


class MissingError(TileLinkError):
    """Something that a capability needs is not there."""


@dataclass(frozen=True)
class Capability:
    """`needed`: nothing of TileLink works without it; others widen what can be run. `why`: what was seen."""

    name: str
    needed: bool
    ok: bool
    why: str


def versions() -> dict[str, str]:
    """Versions of the packages that TileLink uses; optional packages only if they are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    for package in ("numpy", "sympy", "nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def gpus() -> list[str]:
    """Names of the GPUs that torch sees."""
    return [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]


def capabilities() -> list[Capability]:
    """All capabilities, the needed ones first."""
    return [_try(name, probe, True) for name, probe in NEEDED.items()] + [
        _try(name, probe, False) for name, probe in WIDER.items()
    ]


def _try(name: str, probe: Callable[[], str], needed: bool) -> Capability:
    try:
        return Capability(name, needed, True, probe())
    except Exception as e:  # a probe may meet anything, and says what
        return Capability(name, needed, False, str(e) or type(e).__name__)


# ---- needed ------------------------------------------------------------------------------------------------------


def _versions() -> str:
    for package, (first, end) in SUPPORTED.items():
        version = importlib.metadata.version(package)
        number = tuple(int(n) for n in version.split("+")[0].split(".")[:2])
        if number < first or (end and number >= end):
            until = f", before {'.'.join(map(str, end))}" if end else ""
            raise MissingError(f"{package} {version}: supported is {'.'.join(map(str, first))} or newer{until}")
    return ", ".join(f"{n} {v}" for n, v in versions().items())


def _cache() -> str:
    folder = cache_folder()
    if not os.access(folder, os.W_OK):
        raise MissingError(f"{folder} can't be written to; set TILELINK_CACHE")
    return f"generated modules go to {folder}"


def _cpu_ranks() -> str:
    """Tries all layers at once: elaborates, unrolls and lowers a program, and runs it on two ranks."""
    from tilelink.runtime.cpu.world import CpuWorld

    return _two_ranks(CpuWorld(2, heap_bytes=1 << 20, signal_bytes=1 << 12), torch.device("cpu"), "CPU")


def _two_ranks(world: Any, place: torch.device, kind: str) -> str:
    from tilelink.kernels.all_gather_matmul import all_gather_matmul

    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-3, 4, (32, 32), generator=generator).float().to(place) for _ in range(2))

    def on_rank(group: Any) -> torch.Tensor:
        y: torch.Tensor = all_gather_matmul(x.chunk(2)[group.rank].contiguous(), weight, group=group)
        group.synchronize()
        return y

    for rank, y in enumerate(world.run(on_rank)):
        if not torch.equal(y, x @ weight):
            raise MissingError(f"all_gather_matmul ran on 2 {kind} ranks, and its result is wrong on rank {rank}")
    return f"all_gather_matmul ran on 2 {kind} ranks, its result is exact"


# ---- wider -------------------------------------------------------------------------------------------------------


def _process_groups() -> str:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise MissingError("this torch is built without gloo")
    memory = os.memfd_create("tilelink")
    try:
        os.close(os.open(f"/proc/{os.getpid()}/fd/{memory}", os.O_RDWR))
        os.close(os.pidfd_open(os.getpid()))
    finally:
        os.close(memory)
    return "gloo, and the kernel's anonymous shared memory"


def _compiles(backend: str, tool: str | None) -> Callable[[], str]:
    def probe() -> str:
        from triton.backends import backends

        if backend not in backends:
            raise MissingError(f"this Triton is built without its {backend} backend; it has {', '.join(backends)}")
        if tool is None:
            return f"Triton's {backend} backend"
        path = Path(triton.__file__).parent / "backends" / backend / "bin" / tool
        if not path.is_file():
            raise MissingError(f"Triton's wheel has no {path}")
        return f"Triton's {backend} backend and its {tool}"

    return probe


def _across_nodes() -> str:
    return f"kernels for sm_90 link {bitcode(90)}"


def _gpu() -> str:
    if not torch.backends.cuda.is_built():
        raise MissingError("this torch is built without CUDA")
    if not torch.cuda.is_available():
        raise MissingError("torch sees no CUDA device")
    return ", ".join(gpus())


def _peers() -> str:
    _gpu()
    count = torch.cuda.device_count()
    if count < 2:
        raise MissingError("one GPU: ranks on it are virtual, and nothing crosses a link")
    reach = torch.cuda.can_device_access_peer
    blind = [(a, b) for a in range(count) for b in range(count) if a != b and not reach(a, b)]
    if blind:
        raise MissingError(f"GPU {blind[0][0]} can't reach the memory of GPU {blind[0][1]} ({len(blind)} pairs can't)")
    return f"each of {count} GPUs reaches the memory of all others"


def _symmetric_memory() -> str:
    from torch.distributed import _symmetric_memory as symmetric

    from tilelink.runtime.cuda.symmetric import obstacle

    place = torch.device("cuda", 0)
    if why := obstacle(place):
        raise MissingError(why)
    if not (backend := symmetric.get_backend(place)):
        raise MissingError("torch has no backend of symmetric memory for CUDA")
    return f"torch's symmetric memory, by its backend {backend}"


def _multicast() -> str:
    from tilelink.runtime.cuda.symmetric import has_multicast

    _gpu()
    if not has_multicast(torch.device("cuda", 0)):
        raise MissingError("the fabric of cuda:0 has no multicast that torch knows of")
    return "cuda:0 stores to all ranks of a node at once"


def _copy_engine() -> str:
    from tilelink.runtime.cuda.device import CudaDevice

    _gpu()
    device = CudaDevice(0)
    stream, word = device.stream(), torch.zeros(1, dtype=torch.int32, device=device.place)
    torch.cuda.synchronize(device.place)
    device.write_signal(stream, word.data_ptr())
    device.synchronize(stream)
    if word.item() != 1:
        raise MissingError(f"a stream wrote 1, and the word is {word.item()}")
    return "streams write signals"


def _gpu_ranks() -> str:
    from tilelink.runtime.cuda.virtual_world import VirtualWorld

    _gpu()
    world = VirtualWorld(2, heap_bytes=1 << 20, signal_bytes=1 << 12)
    return _two_ranks(world, world.device.place, "virtual")


NEEDED: dict[str, Callable[[], str]] = {"versions": _versions, "cache": _cache, "cpu_ranks": _cpu_ranks}
WIDER: dict[str, Callable[[], str]] = {
    "process_groups": _process_groups,
    "compile_sm_90": _compiles("nvidia", "ptxas"),
    "compile_sm_100": _compiles("nvidia", "ptxas-blackwell"),
    "compile_gfx942": _compiles("amd", None),
    "across_nodes": _across_nodes,
    "gpu": _gpu,
    "gpu_ranks": _gpu_ranks,
    "copy_engine": _copy_engine,
    "symmetric_memory": _symmetric_memory,
    "multicast": _multicast,
    "peer_memory": _peers,
}
