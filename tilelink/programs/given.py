"""What a call, or a look at a program, gives for parameters that are lists or functions: which variant that is of the
program, and the tensors and sizes as the variant has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilelink.errors import ArgumentError, DimensionError, Site
from tilelink.frontend.routes import Integers
from tilelink.language import Each, Function, own_dims

if TYPE_CHECKING:
    from tilelink.programs.program import Program

CALL_OPTIONS = ("schedule", "group", "parts", "slot", "timed")
"""What a call of a program takes beside the tensors."""


@dataclass(frozen=True)
class Call:
    """A call as one of an ordinary program, with tensors by position and by name. `parts`: lengths or counts by
    dimension, see `normal_parts`; `slot`: which copy of buffers and signals; `timed`: whether workers record times;
    `listed`: lists were given, so that lists are returned."""

    program: Program
    tensors: tuple[Any, ...]
    named: dict[str, Any]
    schedule: Any = None
    parts: Any = None
    slot: int | None = None
    timed: bool = False
    listed: bool = False

    @classmethod
    def of(cls, program: Program, tensors: tuple[Any, ...], schedule: Any, options: Mapping[str, Any]) -> Call:
        """Raises ArgumentError for lists of different lengths, and for a function that is none."""
        named, listed = dict(options), False
        parts, slot, timed = normal_parts(named.pop("parts", None)), named.pop("slot", None), named.pop("timed", False)
        if program.varies:
            program, tensors, named, listed = _variant(program, tensors, named)
        return cls(program, tensors, named, schedule, parts, slot, bool(timed), listed)

    def results(self, made: Any) -> Any:
        """The results of the call: those that belong to a list in a list."""
        if not self.listed:
            return made
        program, left = self.program, iter(made if isinstance(made, tuple) else (made,))
        given = dict(zip(program.parameters, self.tensors, strict=False)) | self.named
        present = {n for n, value in given.items() if value is not None}
        kinds = {t.name: t.kind for t in program.recorded(program.optional - present).tensors}
        found: list[Any] = []
        for name, tensors in program.flattened.items():
            if not any(kinds.get(n) == "output" for n, _ in tensors):
                continue
            members = [next(left) if n in kinds else None for n, _ in tensors]
            found.append(members if isinstance(program.declared[name], Each) else members[0])
        return found[0] if len(found) == 1 else tuple(found)


def normal_parts(parts: Any) -> Any:
    """Parts with what they say as `Integers`, which are compared and hashed by value whatever was given. What can be
    none is left, for the check of arguments to refuse."""
    if not isinstance(parts, Mapping):
        return parts
    made = {d: Integers.of(given) for d, given in parts.items()}
    plain = {d: given.tolist() if hasattr(given, "tolist") else given for d, given in parts.items() if made[d] is None}
    return made | plain


def _variant(
    program: Program, tensors: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Program, tuple[Any, ...], dict[str, Any], bool]:
    """The variant that is called, its tensors by position and by name, and whether lists were given."""
    declared, site = program.declared, Site.of_user()
    names = list(declared)
    by_position = dict(zip(names, tensors, strict=False))
    given = by_position | {n: v for n, v in named.items() if n in declared}
    for name in (n for n in by_position if n in named):
        raise ArgumentError(f"{program.name} got {name} twice", site)
    lists = {n: v for n, v in given.items() if isinstance(declared[n], Each) and v is not None}
    members = {n: list(v) if isinstance(v, list | tuple) else [v] for n, v in lists.items()}
    counts = {n: len(v) for n, v in members.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        said = ", ".join(f"{n} has {k}" for n, k in counts.items())
        raise ArgumentError(f"{program.name} takes lists of one length, of 1 member or more: {said}", site)
    count = next(iter(counts.values()), program.variant.members)
    made = program.of(count, **{n: v for n, v in given.items() if declared[n] == Function})
    members |= {n: [None] * count if isinstance(declared[n], Each) else [v] for n, v in given.items() if n not in lists}
    flat = tuple(v for n in by_position if n in made.flattened for v in members[n]) + tensors[len(names) :]
    more = {n: v for n, v in named.items() if n not in declared}
    for name in (n for n in named if n in made.flattened):  # in the order of the call, on every rank
        more |= dict(zip([n for n, _ in made.flattened[name]], members[name], strict=True))
    return made, flat, more, any(isinstance(v, list | tuple) for v in lists.values())


def by_dimension(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that are given as keywords, `M=512`, or as `sizes={"M": 512}`: a dimension may be called like an option."""
    named = sizes.get("sizes")
    return {d: n for d, n in sizes.items() if n is not named} | dict(named) if isinstance(named, Mapping) else {**sizes}


def at_sizes(program: Program, sizes: Mapping[str, Any]) -> tuple[Program, dict[str, Any]]:
    """The variant that has members of these sizes (as `by_dimension` takes them), and the sizes as it has them:
    `N=(1024, 256, 256)` for three members with an N of their own; one number is for all members. Raises
    DimensionError."""
    sizes = by_dimension(sizes)
    if not program.varies:
        return program, sizes
    own = own_dims(program.declared) & sizes.keys()
    lists = {d: tuple(sizes[d]) for d in sorted(own) if isinstance(sizes[d], Sequence)}
    counts = {d: len(n) for d, n in lists.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        said = ", ".join(f"{d}={n}" for d, n in lists.items())
        raise DimensionError(f"{program.name} has lists of one length: {said}", Site.of_user())
    made = program.of(next(iter(counts.values()), program.variant.members))
    flat = {d: n for d, n in sizes.items() if d not in own}
    for d in own:
        names = made.variant.names(d)
        flat |= dict(zip(names, lists.get(d, (sizes[d],) * len(names)), strict=True))
    return made, {d: flat[d] for name in sizes for d in (made.variant.names(name) if name in own else (name,))}
