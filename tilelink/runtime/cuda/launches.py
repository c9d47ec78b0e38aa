"""Launches of a loaded kernel, again and again, with other tensors of the caller.

Triton's launcher runs Python for a kernel with tensor descriptors, and encodes each of them in each launch. `Direct`
calls CUDA itself. The parameters of the kernel lie in memory of the host as CUDA takes them, and a launch only writes
the addresses of the caller's tensors there. Their order is Triton's: all arguments but constants, a descriptor as its
map, shape and strides; then two addresses of scratch memory, which our kernels do not have. `fits` says for which
kernels that is known to be right; Triton launches all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, c_uint64, c_void_p, create_string_buffer, memmove, string_at
from functools import partial
from typing import Any

import torch
import triton

from tilelink.runtime.cuda.driver import Driver

Launch = Callable[[Sequence[torch.Tensor], int], None]
"""Launches a kernel with these tensors of the caller, on the stream with this handle."""
BYTES = {"i32": 4, "u32": 4, "i64": 8, "u64": 8}
MAP_BYTES, ALIGNED = 128, 64
"""Bytes of a tensor map, which is what the TMA reads of a descriptor, and the multiple at which its memory begins."""


def through_triton(compiled: Any, workers: int, values: Sequence[Any], places: Sequence[int]) -> Launch:
    """A launch by Triton. `values`: of all parameters; a launch replaces those at `places` by tensors of the caller, or
    by descriptors of them."""
    run = compiled[workers, 1, 1]

    def launch(tensors: Sequence[torch.Tensor], stream: int) -> None:
        given = list(values)
        for at, tensor in zip(places, tensors, strict=True):
            known, given[at] = values[at], tensor
            if hasattr(known, "block_shape"):
                given[at] = object.__new__(type(known))  # copy() takes many times as long
                given[at].__dict__.update(known.__dict__, base=tensor)
        run(*given, stream=stream)

    return launch


class Direct:
    """A launch by CUDA; parameters as for `through_triton`. `device`: its number."""

    def __init__(
        self, driver: Driver, device: int, compiled: Any, workers: int, values: Sequence[Any], places: Sequence[int]
    ) -> None:
        words, maps, number_of = list[int](), dict[int, _Map](), dict[int, int]()
        for at, kind, value, meta in _passed(compiled, values):
            number_of[at] = len(words)
            if meta is None:
                words.append(0 if at in places else _address(value) if kind.startswith("*") else value)
                continue
            maps[len(words)] = made = _Map(driver, value, meta)
            words += 0, *value.shape, *value.strides
            if at not in places:
                made.point_to(_address(value.base))
        words += 0, 0
        self._words, self._maps = (c_uint64 * len(words))(*words), maps  # the parameters point there
        first = addressof(self._words)
        begins = (maps[k].begin if k in maps else first + 8 * k for k in range(len(words)))
        self._parameters = (c_void_p * len(words))(*begins)
        numbers = [number_of[at] for at in places]
        self._plain = [(k, n) for k, n in enumerate(numbers) if n not in maps]
        self._described = [(k, maps[n]) for k, n in enumerate(numbers) if n in maps]
        threads, shared = 32 * compiled.metadata.num_warps, compiled.metadata.shared
        self._launch = driver.launches(compiled.function, workers, threads, shared, self._parameters)
        self._have_context = partial(driver.have_context, device)

    def __call__(self, tensors: Sequence[torch.Tensor], stream: int) -> None:
        words = self._words
        for k, n in self._plain:
            words[n] = tensors[k].data_ptr()
        for k, tensor_map in self._described:
            if (address := tensors[k].data_ptr()) != tensor_map.address:
                tensor_map.point_to(address)
        self._have_context()
        self._launch(stream)


def fits(driver: Driver, compiled: Any, values: Sequence[Any]) -> bool:
    """Whether `Direct` may launch a loaded kernel: CUDA names the same parameters, and maps are as Triton makes them. A
    kernel with clusters of workers, scratch memory or instruments does not fit."""
    metadata, sizes, maps = compiled.metadata, list[int](), list[tuple[Any, Any]]()
    if metadata.num_ctas != 1 or metadata.launch_cooperative_grid or metadata.launch_pdl:
        return False
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        return False
    for _, kind, value, meta in _passed(compiled, values):
        if meta is None:
            sizes.append(8 if kind.startswith("*") else BYTES.get(kind, 0))
        else:
            sizes += MAP_BYTES, *[4] * len(value.shape), *[8] * len(value.strides)
            maps.append((value, meta))
    return driver.parameter_sizes(compiled.function) == (*sizes, 8, 8) and all(
        _Map(driver, value, meta).is_understood() for value, meta in maps
    )


def _passed(compiled: Any, values: Sequence[Any]) -> Iterator[tuple[int, str, Any, Any]]:
    """Yields the arguments that are not constants: the place, Triton's name of the type, the value, and what Triton
    knows of the map of a descriptor."""
    metas = iter(compiled.metadata.tensordesc_meta or ())
    for at, (kind, value) in enumerate(zip(compiled.src.signature.values(), values, strict=True)):
        if kind != "constexpr":
            yield at, kind, value, next(metas, None) if kind.startswith("tensordesc") else None


def _address(value: Any) -> int:
    return value if isinstance(value, int) else int(value.data_ptr())


class _Map:
    """The tensor map of a descriptor, in memory of the host. Triton makes it once; then only its address changes."""

    def __init__(self, driver: Driver, value: Any, meta: Any) -> None:
        self._driver, self._value, self._meta = driver, value, meta
        self._memory = create_string_buffer(MAP_BYTES + ALIGNED)
        self.begin = -(-addressof(self._memory) // ALIGNED) * ALIGNED
        self.address: int | None = None

    def point_to(self, address: int) -> None:
        """Makes it the map of a tensor at this address."""
        if self.address is None:
            made = _encoded(self._value, self._meta, address)
            memmove(self.begin, id(made) + type(made).__basicsize__ - MAP_BYTES, MAP_BYTES)  # it ends the object
        else:
            self._driver.replace_address(self.begin, address)
        self.address = address

    def is_understood(self) -> bool:
        """Whether a map whose address was replaced is the one that Triton makes for that address."""
        here = _address(self._value.base)
        there = here + MAP_BYTES
        other = _Map(self._driver, self._value, self._meta)
        other.point_to(there)
        self.point_to(here)
        before = string_at(self.begin, MAP_BYTES)
        self.point_to(there)
        return before != string_at(self.begin, MAP_BYTES) == string_at(other.begin, MAP_BYTES)


def _encoded(value: Any, meta: Any, address: int) -> Any:
    """Triton's object with the map of a descriptor like `value` of a tensor at an address."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST  # here: it needs no GPU, but CUDA's headers

    utils = triton.runtime.driver.active.utils
    encode = getattr(utils, "fill_tma_descriptor_tiled", None) or utils.fill_tma_descriptor  # before Triton 3.7
    assert value.padding == "zero", value
    kind = TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]
    about = meta["swizzle"], meta["elem_size"], kind, meta["block_size"], value.shape, value.strides, 0
    return encode(address, *about)
