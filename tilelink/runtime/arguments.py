"""Arguments of a call: checked against the program's declarations before anything is allocated or launched."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import torch

from tilelink.backend.facts import DESCRIBED_BYTES, DESCRIBED_DIMS, Lying
from tilelink.emulator.memory import overlap
from tilelink.errors import ArgumentError, DeviceError, DtypeError, ShapeError, Site, StrideError, counted, similar
from tilelink.frontend.ir import RANKS_DIM
from tilelink.frontend.routes import Integers
from tilelink.frontend.values import dtype_name
from tilelink.language import RouteWord, TensorWord
from tilelink.programs.given import CALL_OPTIONS, Call


@dataclass(frozen=True)
class Arguments:
    """The tensors of a call by name (without optional ones left out, `absent`), and their dtypes and sizes.

    `sizes`: by dimension its size, or the lengths of its parts if it is cut over the ranks; for the rows of a route,
    the room for them.
    """

    call: Call
    tensors: dict[str, torch.Tensor]
    absent: frozenset[str]
    dtypes: dict[str, str]
    sizes: dict[str, Any]

    @property
    def lying(self) -> Lying:
        """The matrices that descriptors can describe, each with its contiguous dimension: all its rows or columns begin
        at multiples of `DESCRIBED_BYTES`."""
        return frozenset((n, k) for n, t in self.tensors.items() if (k := _contiguous(t)) is not None)

    @property
    def key(self) -> Any:
        """Calls with equal keys share one prepared program."""
        call, dtypes, sizes = self.call, tuple(self.dtypes.items()), tuple(self.sizes.items())
        return call.program, call.schedule, call.timed, dtypes, sizes, self.absent, self.lying


def _contiguous(tensor: torch.Tensor) -> int | None:
    """The dimension along which a matrix, or several, are contiguous; None if a descriptor can't describe them."""
    if tensor.dim() not in DESCRIBED_DIMS or tensor.data_ptr() % DESCRIBED_BYTES:
        return None
    steps = {k: [s for j, s in enumerate(tensor.stride()) if j != k] for k in range(tensor.dim())[::-1]}
    whole = (k for k in steps if all(s * tensor.itemsize % DESCRIBED_BYTES == 0 for s in steps[k]))
    return next((k for k in whole if tensor.stride(k) == 1), None)


def check_arguments(call: Call, *, world: int, rank: int, device: torch.device, site: Site) -> Arguments:
    """The checked arguments of a call. Raises ArgumentError, ShapeError, StrideError, DeviceError or DtypeError."""
    program, tensors = call.program, _by_name(call, site)
    absent = frozenset(n for n in program.optional if n not in tensors)
    recording = program.recorded(absent)
    declared = {t.name: t for t in recording.tensors if t.kind != "buffer"}
    for name, word in declared.items():
        if name not in tensors and word.kind == "input":
            stores = "".join(
                f"; tiles store to {output.name} ({line})"
                for launch in recording.launches
                for parameter, line in launch.function.written_parameters.items()
                for output in launch.tensors(parameter)
                if output.name in tensors
            )
            raise ArgumentError(
                f"{program.name} needs {name}: {_declaration(word)}; it is an input, since no tile stores to it"
                f"{stores}",
                site,
            )
    dtypes = {n: _check_tensor(declared[n], tensors[n], device, site) for n in tensors}
    parts = {} if call.parts is None else call.parts
    sizes = _Sizes(program.name, declared, tensors, parts, world, rank, site).all(recording.routes)
    if call.timed and recording.routes:
        raise ArgumentError(
            f"{program.name} has no timed calls: only the device knows how many tiles its workers record; simulate it, "
            "or profile it with the tools of the GPU",
            site,
        )
    if wanting := [n for n, t in tensors.items() if t.requires_grad] if torch.is_grad_enabled() else []:
        lost = "its gradient" if len(wanting) == 1 else "their gradients"
        raise ArgumentError(
            f"{program.name} has no gradient, and {', '.join(wanting)} would lose {lost}: call it under "
            "torch.no_grad(), or on detached tensors; tilelink.ops.all_gather_linear, linear_reduce_scatter and "
            "linear_all_reduce have gradients",
            site,
        )
    check_overlap([n for n in tensors if declared[n].kind == "output"], tensors)
    return Arguments(call, tensors, absent, dtypes, sizes)


def _by_name(call: Call, site: Site) -> dict[str, torch.Tensor]:
    program, given, names = call.program.name, call.tensors, list(call.program.parameters)
    if len(given) > len(names):
        raise ArgumentError(f"{program} takes {', '.join(names)}; {len(given)} tensors given", site)
    tensors = dict(zip(names, given, strict=False))
    for name, value in call.named.items():
        if name not in names:
            options = ", ".join(f"{option}=" for option in CALL_OPTIONS)
            raise ArgumentError(
                f"{program} has no parameter {name}; it takes {', '.join(names)}, and the options {options}"
                + similar(name, [*names, *CALL_OPTIONS]),
                site,
            )
        if tensors.get(name) is not None:
            raise ArgumentError(f"{program} got {name} twice", site)
        tensors[name] = value
    for name, value in tensors.items():
        if value is not None and not isinstance(value, torch.Tensor):
            hint = ": torch.from_numpy makes one" if isinstance(value, np.ndarray) else ""
            hint = ": it has some, .weight and .bias" if isinstance(value, torch.nn.Linear) else hint
            raise ArgumentError(f"{name} is a {type(value).__name__}, not a tensor{hint}", site)
    return {n: t for n, t in tensors.items() if t is not None}


def _declaration(word: TensorWord) -> str:
    return f"({', '.join(f'{d}, cut over the ranks' if k == word.sharded else d for k, d in enumerate(word.dims))})"


def _check_tensor(word: TensorWord, tensor: torch.Tensor, device: torch.device, site: Site) -> str:
    """Checks the dimensions, device, layout and dtype of one tensor; returns the name of its dtype."""
    if tensor.layout != torch.strided:
        raise StrideError(f"{word.name} has layout {tensor.layout}; only strided tensors can be used", site)
    if tensor.is_neg():
        raise StrideError(f"{word.name} is a negated view, whose memory has the opposite sign: .resolve_neg()", site)
    if tensor.dim() != len(word.dims):
        raise ShapeError(f"{word.name} has shape {tuple(tensor.shape)}; it is declared {_declaration(word)}", site)
    if tensor.device != device:
        who = "world" if tensor.device.type != device.type else "rank"
        raise DeviceError(f"{word.name} is on {tensor.device}; this {who} is on {device}", site)
    if word.kind == "output" and tensor.numel() and overlap(zip(tensor.shape, tensor.stride(), strict=True)):
        raise StrideError(
            f"{word.name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: several of its elements share "
            "memory",
            site,
        )
    if word.kind == "output" and tensor.requires_grad:
        raise ArgumentError(f"{word.name} requires a gradient; results are written without autograd", site)
    integers = word.dtype is not None and dtype_name(word.dtype) == "int32"  # counts, and integers that pick rows
    if integers and tensor.dtype not in (torch.int32, torch.int64):
        raise DtypeError(f"{word.name} has dtype {tensor.dtype}; its integers are int32 or int64", site)
    try:
        return dtype_name(tensor.dtype)
    except ValueError as e:
        raise DtypeError(f"{word.name}: {e}", site) from e


@dataclass(frozen=True)
class _Sizes:
    """The sizes that the tensors and `parts` of a call give on a rank."""

    program: str
    declared: Mapping[str, TensorWord]
    tensors: Mapping[str, torch.Tensor]
    parts: Any
    world: int
    rank: int
    site: Site

    def all(self, routes: Sequence[RouteWord]) -> dict[str, Any]:
        """The sizes of all dimensions, from the given tensors. Without `parts`, all shards are taken to be as long as
        the shard of this rank. Raises ShapeError, ArgumentError or DimensionError."""
        parts, declared = self.parts, self.declared
        if not isinstance(parts, Mapping):
            example = {"M": (5, 3)}
            raise ShapeError(f"parts are {parts!r}: lengths by dimension are needed, such as {example}", self.site)
        cut = {w.dims[w.sharded] for w in declared.values() if w.sharded is not None}
        cut |= {d for route in routes for d in route.sides}
        found: dict[str, tuple[int | tuple[int, ...], str]] = {}
        lengths_of = {d: self.lengths(d, given) for d, given in parts.items()}
        for d, lengths in lengths_of.items():
            if d not in cut:
                ways = []
                if any(d in w.dims for w in declared.values()):
                    ways.append(f"declare one of them tk.Sharded along {d}")
                if cut:
                    ways.append(f"give parts of {', '.join(sorted(cut))}")
                instead = f"; {', or '.join(ways)}" if ways else ""
                raise ShapeError(f"parts of {d}: no input or output is cut along it{instead}", self.site)
            found[d] = lengths, "parts"
        local = [(n, k) for n in self.tensors for k in range(len(declared[n].dims))]
        for name, k in sorted(local, key=lambda e: e[1] != declared[e[0]].sharded):
            word, size = declared[name], self.tensors[name].shape[k]
            d = word.dims[k]
            if d == RANKS_DIM:
                if size != self.world:
                    has = f"{name} has {counted(size, 'entry', 'entries')} along dimension {k}"
                    raise ShapeError(f"{has}: it has one a rank, {self.world}", self.site)
                continue
            if d not in found:
                found[d] = ((size,) * self.world if k == word.sharded else size), name
                continue
            known, source = found[d]
            wanted = (known[self.rank] if k == word.sharded else sum(known)) if isinstance(known, tuple) else known
            if size != wanted:
                shape = tuple(self.tensors[name].shape)
                fits = word.sharded is None and len(shape) == 2 and shape[1 - k] == wanted
                raise ShapeError(
                    f"{name} has shape {shape}, so {d} is {size} there; {source} makes it {wanted}"
                    + (f" on rank {self.rank}" if k == word.sharded else "")
                    + (f". It is declared ({', '.join(map(str, word.dims))}): pass {name}.T" if fits else "")
                    + (f" (uneven shards: say parts={{'{d}': lengths}})" if source != "parts" and d in cut else ""),
                    self.site,
                )
        for route in routes:
            self.check_route(route, found)
        for d in (d for w in declared.values() for d in w.dims if d not in found and d != RANKS_DIM):
            of = ", ".join(n for n, w in declared.items() if d in w.dims)
            what = f"the size of {d} is unknown: no tensor that is given has it, only {of}"
            raise ArgumentError(f"{self.program}: {what}; pass it, or correct the name of the dimension", self.site)
        everywhere = {route.everywhere for route in routes}
        return {d: n for d, (n, _) in found.items() if d not in everywhere}

    def check_route(self, route: RouteWord, found: dict[str, tuple[int | tuple[int, ...], str]]) -> None:
        """Checks the shape of counts. If nothing else gives the room for rows on one side of a route, every rank there
        gets room for all rows of the other side."""
        everywhere = found[route.everywhere][0]
        assert isinstance(everywhere, int)
        experts, _ = found.setdefault(route.per_rank, (everywhere // self.world, route.counts))
        if isinstance(experts, tuple) or everywhere != self.world * experts:
            raise ShapeError(
                f"{route.counts} has shape {tuple(self.tensors[route.counts].shape)}; counts are [experts of all "
                f"ranks, world], rows of each expert from each source: {route.per_rank} is {experts} on each of "
                f"{self.world} ranks",
                self.site,
            )
        for d, other in (route.sides, route.sides[::-1]):
            if d not in found and isinstance(lengths := found.get(other, (0, ""))[0], tuple):
                found[d] = (sum(lengths),) * self.world, "parts"

    def lengths(self, dim: str, given: Any) -> tuple[int, ...]:
        """The lengths of the parts of a dimension."""
        needed = f"{self.world} lengths are needed, one a rank, each an integer of 0 or more"
        try:
            lengths = given.plain if isinstance(given, Integers) else tuple(given)
        except TypeError:
            raise ShapeError(f"parts of {dim} are {given!r}: {needed}", self.site) from None
        integers = all(isinstance(n, SupportsIndex) and not isinstance(n, bool) for n in lengths)
        if not integers or len(lengths) != self.world or any(operator.index(n) < 0 for n in lengths):
            raise ShapeError(f"parts of {dim} are {lengths}: {needed}", self.site)
        return tuple(map(operator.index, lengths))


def check_overlap(
    outputs: Collection[str], tensors: Mapping[str, Any], reaches: Mapping[str, int] | None = None
) -> None:
    """Raises ArgumentError if an output shares memory with another tensor, or if it takes too long to find out.
    `reaches`: `reach` of each tensor, where it is known; tensors without it are absent."""
    reaches = {n: reach(t) for n, t in tensors.items()} if reaches is None else reaches
    begins = {n: tensors[n].data_ptr() for n in reaches}
    for out in outputs:
        first, end = begins[out], begins[out] + reaches[out]
        for other, begin in begins.items():
            if begin < end and first < begin + reaches[other] and other != out and _share(tensors[out], tensors[other]):
                why = (
                    f"both are results, and tiles store them in any order; {out} and {other} need memory of their own"
                    if other in outputs
                    else f"tiles run in any order, so one may store to {out} where another, on this rank or a peer, "
                    f"has yet to read {other}; {out} needs memory of its own"
                )
                raise ArgumentError(f"{out} shares memory with {other}: {why}", Site.of_user())


def reach(t: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last one."""
    return t.itemsize * (1 + sum([(n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)])) if t.numel() else 0


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return np.shares_memory(_addresses(a), _addresses(b), max_work=10_000)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True


def _addresses(t: torch.Tensor) -> np.ndarray:
    """An array at the addresses of the tensor, on any device; nobody reads it."""
    size = t.element_size()
    strides = tuple(s * size for s in t.stride())
    place = {"data": (t.data_ptr(), True), "shape": tuple(t.shape), "strides": strides, "typestr": f"|V{size}"}
    return np.asarray(type("Place", (), {"__array_interface__": {**place, "version": 3}})())
