"""Arguments of a call: checked against the program's declarations before anything is allocated or launched."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import torch

from tilelink.backend.facts import DESCRIBED_BYTES
from tilelink.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    RankMismatchError,
    ShapeError,
    Site,
    StrideError,
    similar,
)
from tilelink.frontend.ir import RANKS_DIM
from tilelink.frontend.names import CALL_OPTIONS
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.values import dtype_name
from tilelink.language import RouteWord, TensorWord
from tilelink.programs.program import Program

Parts = Mapping[str, Any]
"""What a call says of parts by dimension: lengths, one a rank; of the rows of a route, counts."""


@dataclass(frozen=True)
class Arguments:
    """The tensors of a call by name (without those left out), and what they say of dtypes and sizes.

    `sizes`: a number by dimension, or the lengths of the parts of a dimension that is cut over the ranks; of the rows
    of a route, the counts (`Routing`). `timed`: whether workers record times.
    """

    tensors: dict[str, torch.Tensor]
    absent: frozenset[str]
    dtypes: dict[str, str]
    sizes: dict[str, Any]
    timed: bool = False

    @property
    def described(self) -> frozenset[str]:
        """Tensors that lie as descriptors want it: rows contiguous, all beginning at multiples of so many bytes."""
        return frozenset(n for n, t in self.tensors.items() if _describable(t))


def normal_parts(parts: Any) -> Any:
    """Parts with what they say as `Integers`, which are compared and hashed by value whatever was given. What can be
    none is left, for `check_arguments` to refuse."""
    if not isinstance(parts, Mapping):
        return parts
    made = {d: Integers.of(given) for d, given in parts.items()}
    plain = {d: given.tolist() if hasattr(given, "tolist") else given for d, given in parts.items() if made[d] is None}
    return made | plain


def _describable(tensor: torch.Tensor) -> bool:
    rows = [s * tensor.itemsize % DESCRIBED_BYTES for s in tensor.stride()[:-1]]
    return tensor.stride()[-1:] == (1,) and not any(rows) and tensor.data_ptr() % DESCRIBED_BYTES == 0


def check_arguments(
    program: Program,
    given: Sequence[Any],
    named: Mapping[str, Any],
    *,
    world: int,
    rank: int,
    device: torch.device,
    parts: Parts | None,
    site: Site,
) -> Arguments:
    """Checks a call of a rank; `parts` as `normal_parts` makes them.

    Raises ArgumentError, ShapeError, StrideError, DeviceError or DtypeError."""
    tensors = _by_name(program, given, named, site)
    absent = frozenset(n for n in program.optional if n not in tensors)
    recording = program.recorded(absent)
    declared = {t.name: t for t in recording.tensors if t.kind != "buffer"}
    for name, word in declared.items():
        if name not in tensors and word.kind == "input":
            raise ArgumentError(
                f"{program.name} needs {name}: {_declaration(word)}; it is an input, since no tile stores to it", site
            )
    dtypes = {n: _check_tensor(declared[n], tensors[n], device, site) for n in tensors}
    sizes = _sizes(declared, recording.routes, tensors, world, rank, parts or {}, program, site)
    if wanting := ", ".join(n for n, t in tensors.items() if t.requires_grad) if torch.is_grad_enabled() else "":
        raise ArgumentError(
            f"{program.name} has no gradient, and {wanting} would lose theirs: call it under torch.no_grad(), or on "
            "detached tensors; tilelink.ops.all_gather_linear, linear_reduce_scatter and linear_all_reduce have "
            "gradients",
            site,
        )
    check_overlap([n for n in tensors if declared[n].kind == "output"], tensors, site)
    return Arguments(tensors, absent, dtypes, sizes)


def _by_name(program: Program, given: Sequence[Any], named: Mapping[str, Any], site: Site) -> dict[str, torch.Tensor]:
    names = list(program.parameters)
    if len(given) > len(names):
        raise ArgumentError(f"{program.name} takes {', '.join(names)}; {len(given)} tensors given", site)
    tensors = dict(zip(names, given, strict=False))
    for name, value in named.items():
        if name not in names:
            options = ", ".join(f"{option}=" for option in CALL_OPTIONS)
            raise ArgumentError(
                f"{program.name} has no parameter {name}; it takes {', '.join(names)}, and the options {options}"
                + similar(name, [*names, *CALL_OPTIONS]),
                site,
            )
        if tensors.get(name) is not None:
            raise ArgumentError(f"{program.name} got {name} twice", site)
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
    """Rank, device, layout and dtype of one tensor; its dtype's name."""
    if tensor.layout != torch.strided:
        raise StrideError(f"{word.name} has layout {tensor.layout}; only strided tensors can be used", site)
    if tensor.dim() != len(word.dims):
        raise ShapeError(f"{word.name} has shape {tuple(tensor.shape)}; it is declared {_declaration(word)}", site)
    if tensor.device.type != device.type:
        raise DeviceError(f"{word.name} is on {tensor.device}; this world is on {device}", site)
    if word.kind == "output" and _repeats(tensor):
        raise StrideError(
            f"{word.name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: several of its elements are "
            "one in memory",
            site,
        )
    if word.kind == "output" and tensor.requires_grad:
        raise ArgumentError(f"{word.name} requires a gradient; results are written without autograd", site)
    try:
        return dtype_name(tensor.dtype)
    except ValueError as e:
        raise DtypeError(f"{word.name}: {e}", site) from e


def _sizes(
    declared: Mapping[str, TensorWord],
    routes: Sequence[RouteWord],
    tensors: Mapping[str, torch.Tensor],
    world: int,
    rank: int,
    parts: Parts,
    program: Program,
    site: Site,
) -> dict[str, Any]:
    """Sizes of all dimensions, from the tensors that are given. Where shards are given without `parts`, all ranks are
    taken to have shards of one length."""
    cut = {w.dims[w.sharded] for w in declared.values() if w.sharded is not None}
    found: dict[str, tuple[int | tuple[int, ...], str]] = {}
    counts = {r: _routing(r, declared, tensors, world, parts, program, site) for r in routes}
    for route, routing in counts.items():
        found |= {d: (lengths, "parts") for d, lengths in routing.parts(route).items()}
        parts = {d: n for d, n in parts.items() if d not in (route.rows, route.sent)}
    for d, lengths in _lengths(parts, world, site).items():
        if d not in cut:
            spread = ", ".join(sorted(cut)) or "nothing"
            raise ShapeError(f"parts of {d}: it is not spread over the ranks; {spread} is", site)
        found[d] = lengths, "parts"
    local = [(n, k) for n in tensors for k in range(len(declared[n].dims))]
    for name, k in sorted(local, key=lambda e: e[1] != declared[e[0]].sharded):
        word, size = declared[name], tensors[name].shape[k]
        d = word.dims[k]
        if d == RANKS_DIM:
            if size != world:
                raise ShapeError(f"{name} has {size} entries along dimension {k}: it has one a rank, {world}", site)
            continue
        if d not in found:
            found[d] = ((size,) * world if k == word.sharded else size), name
            continue
        known, source = found[d]
        wanted = (known[rank] if k == word.sharded else sum(known)) if isinstance(known, tuple) else known
        if size != wanted:
            raise ShapeError(
                f"{name} has shape {tuple(tensors[name].shape)}, so {d} is {size} there; {source} makes it {wanted}"
                + (f" on rank {rank}" if k == word.sharded else "")
                + (f" (uneven shards: say parts={{'{d}': lengths}})" if source != "parts" and d in cut else ""),
                site,
            )
    missing = [d for w in declared.values() for d in w.dims if d not in found and d != RANKS_DIM]
    if missing:
        raise ArgumentError(f"{program.name}: the size of {missing[0]} can't be told from what is given", site)
    return {d: n for d, (n, _) in found.items()} | {r.rows: routing for r, routing in counts.items()}


def _routing(
    route: RouteWord,
    declared: Mapping[str, TensorWord],
    tensors: Mapping[str, torch.Tensor],
    world: int,
    parts: Parts,
    program: Program,
    site: Site,
) -> Routing:
    """How many rows of a route go where, which every rank says. Raises ShapeError, ArgumentError, DimensionError."""
    if route.rows not in parts:
        raise ShapeError(
            f"{program.name} needs to know how many rows each expert gets from each rank: parts={{{route.rows!r}: "
            f"counts}}, the same on every rank, with counts[expert][source] for the experts of all ranks",
            site,
        )
    of = next((n for n in tensors if route.per_rank in declared[n].dims), None)
    if of is None:
        raise ArgumentError(f"{program.name}: the size of {route.per_rank} can't be told from what is given", site)
    experts = tensors[of].shape[declared[of].dims.index(route.per_rank)]
    routing = Routing.of(parts[route.rows], route, world, experts, site)
    lengths = routing.parts(route)[route.sent]
    if route.sent in parts and _plain(parts[route.sent]) != lengths:
        raise ShapeError(f"parts of {route.sent} are {parts[route.sent]}; those of {route.rows} say {lengths}", site)
    return routing


def _plain(given: Any) -> tuple[Any, ...]:
    """What is given of a dimension, as a tuple. Raises TypeError for what can be none."""
    return given.plain if isinstance(given, Integers) else tuple(given)


def _lengths(parts: Any, world: int, site: Site) -> dict[str, tuple[int, ...]]:
    """The lengths of parts, as numbers."""
    if not isinstance(parts, Mapping):
        raise ShapeError(f"parts are {parts!r}: lengths by dimension are needed, such as {{'M': (5, 3)}}", site)
    found = {}
    for d, given in parts.items():
        try:
            lengths = _plain(given)
        except TypeError:
            raise ShapeError(f"parts of {d} are {given!r}: {world} lengths are needed, one a rank", site) from None
        integers = all(isinstance(n, SupportsIndex) and not isinstance(n, bool) for n in lengths)
        if not integers or len(lengths) != world or any(operator.index(n) < 0 for n in lengths):
            raise ShapeError(f"parts of {d} are {lengths}: {world} lengths are needed, one a rank", site)
        found[d] = tuple(map(operator.index, lengths))
    return found


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements may be one in memory: whether a dimension steps into what the finer ones span."""
    spanned = 0
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1:
            if stride <= spanned:
                return tensor.numel() > 0
            spanned += (n - 1) * stride
    return False


def check_overlap(outputs: Iterable[str], tensors: Mapping[str, torch.Tensor], site: Site) -> None:
    """Raises ArgumentError where an output shares memory with anything else."""
    for out in outputs:
        for other in tensors:
            if other != out and _share(tensors[out], tensors[other]):
                raise ArgumentError(
                    f"{out} shares memory with {other}: it would be overwritten while peers read it", site
                )


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share memory (or it takes too long to tell)."""
    if not a.numel() or not b.numel():
        return False
    (first, end), (other_first, other_end) = _span(a), _span(b)
    if end <= other_first or other_end <= first:
        return False
    try:
        return np.shares_memory(_addresses(a), _addresses(b), max_work=10_000)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True


def _span(t: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor's elements, and the one after the last."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))  # strides of torch are not negative
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def _addresses(t: torch.Tensor) -> np.ndarray:
    """An array where the tensor lies, on whatever device: nobody reads it."""
    size = t.element_size()
    strides = tuple(s * size for s in t.stride())
    place = {"data": (t.data_ptr(), True), "shape": tuple(t.shape), "strides": strides, "typestr": f"|V{size}"}
    return np.asarray(type("Place", (), {"__array_interface__": {**place, "version": 3}})())


def mismatch(what: str, calls: Mapping[int, Mapping[str, Any]]) -> str | None:
    """What ranks have differently, None if nothing. `calls`: what they have to agree on, by rank."""
    (first, known), *others = calls.items()
    for rank, call in others:
        for name, mine in call.items():
            theirs = known.get(name)
            if theirs != mine:
                if isinstance(mine, dict) and isinstance(theirs, dict):
                    both = [k for k in mine if k in theirs and mine[k] != theirs[k]]
                    mine, theirs = ({k: d[k] for k in both} or d for d in (mine, theirs))
                uneven = "; shards of different lengths are told to every rank, by parts=" if name == "sizes" else ""
                return (
                    f"{what}: rank {rank} has {name} {mine}, rank {first} {theirs}; the ranks of a group call the "
                    f"same programs with the same schedules and sizes, in the same order{uneven}"
                )
    return None


class CallLog:
    """What the ranks called: the ranks of a group have to call alike. Compared without a barrier; a call is forgotten
    once all ranks have made it."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.calls: dict[int, tuple[Mapping[str, Any], list[int]]] = {}

    def compare(self, number: int, rank: int, call: Mapping[str, Any], site: Site) -> None:
        """Notes or compares the call with this number. Raises RankMismatchError."""
        known, ranks = self.calls.setdefault(number, (call, []))
        if ranks and (difference := mismatch(f"call {number} of this group", {ranks[0]: known, rank: call})):
            raise RankMismatchError(difference, site)
        ranks.append(rank)
        if len(ranks) == self.world:
            del self.calls[number]
