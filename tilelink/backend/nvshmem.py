"""NVSHMEM's two libraries: the bitcode that is linked into kernels across nodes, and the library of the process, which
has to initialise every kernel that is loaded. Both come with a wheel, which TileLink does not require: it looks for
them only when a program across nodes is compiled."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilelink.backend.targets import Target
from tilelink.errors import NvshmemError

WHEELS = ("nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13")
FOLDER = "nvidia/nvshmem/lib"
VARIABLE = "TILELINK_NVSHMEM"
HOST = "libnvshmem_host.so.3"
STATE = "nvshmemi_device_state_d"
"""A symbol in every kernel that NVSHMEM's bitcode is linked into: the process writes there which PE it is."""
NEWER_LLVM = (3, 8), (3, 7)
"""Bitcode of this NVSHMEM and later ones can't be read by the LLVM of Triton versions before this one."""


def libraries(target: Target) -> dict[str, str]:
    """The libraries that Triton links into kernels for a target, as name and path. Raises NvshmemError."""
    if not (target.network and target.backend):
        return {}
    return {"libnvshmem_device": str(bitcode(int(target.arch)))}


def bitcode(arch: int) -> Path:
    """The file of NVSHMEM's functions for kernels of an architecture, such as 90. It comes from the folder or file that
    $TILELINK_NVSHMEM names, else from the installed wheel. Raises NvshmemError, which says what to install."""
    folder, version = _folder()
    _check_triton(folder, version)
    if folder.is_file():
        return folder
    for name in (f"libnvshmem_device_sm_{arch}.bc", "libnvshmem_device.bc"):
        if (folder / name).is_file():
            return folder / name
    there = ", ".join(sorted(p.name for p in folder.glob("libnvshmem_device*.bc"))) or "none"
    raise NvshmemError(
        f"{folder} has no bitcode for sm_{arch}, only {there}: NVSHMEM 3.4.5 has one file for all chips; 3.8, for "
        f"Triton 3.7 or later, has one for sm_100; pip install nvidia-nvshmem-cu12, or set {VARIABLE} to its folder"
    )


def host_folder() -> Path:
    """The folder of the library of the process. Raises NvshmemError."""
    folder, _ = _folder()
    return folder.parent if folder.is_file() else folder


def _folder() -> tuple[Path, tuple[int, ...]]:
    """The folder of the libraries, and their version; () if the version is unknown."""
    given = os.environ.get(VARIABLE)
    if given:
        if not Path(given).exists():
            raise NvshmemError(f"{VARIABLE}={given}: no such file or folder")
        return Path(given), _version_beside(Path(given))
    for wheel in WHEELS:
        try:
            found = importlib.metadata.distribution(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
        return Path(str(found.locate_file(FOLDER))), _numbers(found.version)
    raise NvshmemError(
        f"a world that spans nodes needs NVSHMEM: pip install tilelink[nvshmem], or set {VARIABLE} to the folder of "
        "its libnvshmem_device.bc"
    )


def _version_beside(path: Path) -> tuple[int, ...]:
    """The version of an unpacked wheel, from the name of a folder beside it."""
    for parent in path.resolve().parents:
        for wheel in parent.glob("nvidia_nvshmem_cu*.dist-info"):
            return _numbers(wheel.name.removesuffix(".dist-info").split("-")[1])
    return ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split("+")[0].split(".")[:3] if n.isdigit())


def _check_triton(path: Path, version: tuple[int, ...]) -> None:
    import triton

    newer, from_triton = NEWER_LLVM
    if version and version >= newer and _numbers(triton.__version__) < from_triton:
        raise NvshmemError(
            f"the bitcode of NVSHMEM {'.'.join(map(str, version))} in {path} can't be read by Triton "
            f"{triton.__version__}: use NVSHMEM 3.4.5 (pip install nvidia-nvshmem-cu12==3.4.5), or Triton 3.7 or later"
        )


# ---- kernels that are loaded -------------------------------------------------------------------------------------


def initialise_kernels() -> None:
    """Makes Triton initialise kernels with NVSHMEM's functions when it loads them, which NVSHMEM requires. A world that
    launches programs across nodes calls this first; calling it again does no harm."""
    import triton

    triton.knobs.runtime.kernel_load_end_hook.add(_initialise)


def _initialise(
    module: Any, function: Any, name: str, metadata_group: Mapping[str, str], hash: str, **more: Any
) -> None:
    """A hook that Triton calls when it has loaded a kernel. `module`: its CUmodule. Raises NvshmemError."""
    if not _has_state(metadata_group):
        return
    status = host_library().nvshmemx_cumodule_init(ctypes.c_void_p(module))
    if status:
        raise NvshmemError(f"NVSHMEM could not initialise kernel {name}: nvshmemx_cumodule_init returned {status}")


def _has_state(metadata_group: Mapping[str, str]) -> bool:
    """Whether NVSHMEM's bitcode is linked into a kernel, by the symbol in its PTX."""
    return any(STATE in Path(path).read_text() for file, path in metadata_group.items() if file.endswith(".ptx"))


def host_library() -> ctypes.CDLL:
    """The NVSHMEM that this process has loaded and initialised: torch's, if its symmetric memory uses NVSHMEM. Another
    copy of the library would not know the heap. Raises NvshmemError."""
    try:
        return ctypes.CDLL(HOST, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError as e:
        raise NvshmemError(
            f"{HOST} is not loaded in this process: first make the world that spans nodes, from symmetric memory "
            "whose backend is NVSHMEM"
        ) from e
