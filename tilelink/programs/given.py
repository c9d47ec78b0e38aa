"""Turns what a call gives for lists and functions into a call of a variant: which variant of the program it is, and the
tensors and sizes as the variant has them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from triton.runtime import JITFunction

from tilelink.errors import ArgumentError, DimensionError, Site
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import Integers
from tilelink.language import Each, Function, no_function, own_dims

if TYPE_CHECKING:
    from tilelink.programs.program import Program

CALL_OPTIONS = ("schedule", "group", "parts", "slot", "timed")
"""The options of every call of a program, besides the tensors."""


class Call(NamedTuple):
    """A call of a program, with what was given by position and by name. `parts`: lengths or counts by dimension, see
    `normal_parts`. `slot`: which copy of buffers and signals. `timed`: whether workers record times."""

    program: Program
    tensors: tuple[Any, ...]
    named: Mapping[str, Any]
    schedule: Any = None
    parts: Any = None
    slot: int | None = None
    timed: bool = False

    @classmethod
    def of(cls, program: Program, tensors: tuple[Any, ...], schedule: Any, options: Mapping[str, Any]) -> Call:
        """The call with these options, some of which are tensors."""
        if not options:  # quickest first: every call comes here
            return cls(program, tensors, options, schedule)
        named = dict(options)
        parts, slot, timed = normal_parts(named.pop("parts", None)), named.pop("slot", None), named.pop("timed", False)
        return cls(program, tensors, named, schedule, parts, slot, bool(timed))

    @property
    def values(self) -> tuple[Any, ...]:
        """What was given, by position and then by name."""
        return *self.tensors, *self.named.values()

    def of_variant(self) -> Call:
        """The same call of the ordinary program for the lists and functions that were given, with tensors alone. Raises
        ArgumentError for lists of different lengths, and for a wrong function."""
        if not self.program.varies:
            return self
        values, flat = self.values, self._flat()
        found = tuple(_at(place, values) for place in flat.tensors)
        return self._replace(
            program=flat.program, tensors=found, named={n: _at(place, values) for n, place in flat.named}
        )

    def places(self) -> dict[str, Place]:
        """Where the tensors of the ordinary program, by name, are among the `values`."""
        if not self.program.varies:
            names = (*list(self.program.parameters)[: len(self.tensors)], *self.named)
            return {n: (k, None) for k, n in enumerate(names)}
        flat = self._flat()
        return dict(zip(flat.program.parameters, flat.tensors, strict=False)) | dict(flat.named)

    def by_name(self) -> dict[str, Any]:
        """The tensors of the ordinary program, by name; None for one that is absent."""
        values = self.values
        return {n: _at(place, values) for n, place in self.places().items()}

    def results(self, made: Any) -> Any:
        """The results of the call, from those of the ordinary program. If lists were given, results that belong to a
        list are in a list."""
        return arranged(made, self.arrangement())

    def arrangement(self) -> Arrangement:
        """Where the results of the call are among those of the ordinary program."""
        if not self.program.varies or not any(isinstance(v, list | tuple) for v in self.values):
            return None
        program, tensors, named, *_ = self.of_variant()
        given = dict(zip(program.parameters, tensors, strict=False)) | dict(named)
        present = {n for n, value in given.items() if value is not None}
        kinds = {t.name: t.kind for t in program.recorded(program.optional - present).tensors}
        found, left = list[int | tuple[int | None, ...]](), itertools.count()
        for name, members in program.flattened.items():
            if any(kinds.get(n) == "output" for n, _ in members):
                of_list = tuple(next(left) if n in kinds else None for n, _ in members)
                one = of_list[0]
                found.append(one if one is not None and not isinstance(program.declared[name], Each) else of_list)
        return tuple(found)

    def _flat(self) -> _Flat:
        return _flattened(self.program, len(self.tensors), tuple(self.named), tuple(map(_kind, self.values)))


Arrangement = tuple[int | tuple[int | None, ...], ...] | None
"""The places of a call's results among those of the ordinary program: a number, or for a list a number for each member,
None for one that is absent. None if the results are the same."""


def arranged(made: Any, arrangement: Arrangement) -> Any:
    """The results of a call, from those of the ordinary program."""
    if arrangement is None:
        return made
    all_made = made if isinstance(made, tuple) else (made,)
    found = tuple(
        all_made[at] if isinstance(at, int) else [None if k is None else all_made[k] for k in at] for at in arrangement
    )
    return found[0] if len(found) == 1 else found


def normal_parts(parts: Any) -> Any:
    """Parts as `Integers`, which are compared and hashed by value, whatever they were given as. Values that can't be
    integers are left for the check of arguments to refuse."""
    if parts is None or not isinstance(parts, Mapping):  # quickest first: most calls give none
        return parts
    made = {d: Integers.of(given) for d, given in parts.items()}
    plain = {d: given.tolist() if hasattr(given, "tolist") else given for d, given in parts.items() if made[d] is None}
    return made | plain


Kind = Any
"""The property of a value that decides how it is given to a variant: the length and type of a list or tuple, a function
itself, the type of any other value; or None."""


Place = tuple[int, int | None]
"""The place of a tensor among the given values: which value, and which member of the value, if it is a list."""


@dataclass(frozen=True)
class _Flat:
    """A plan that turns given values into arguments of the variant `program`: the places of its tensors, by position
    and by name."""

    program: Program
    tensors: tuple[Place, ...]
    named: tuple[tuple[str, Place], ...]


def _at(place: Place, values: Sequence[Any]) -> Any:
    """The tensor at a place among given values."""
    number, member = place
    return values[number] if member is None else values[number][member]


def _kind(value: Any) -> Kind:
    if value is None or isinstance(value, JITFunction):
        return value
    return (len(value), type(value)) if isinstance(value, list | tuple) else type(value)


@kept()
def _flattened(program: Program, positions: int, names: tuple[str, ...], kinds: tuple[Kind, ...]) -> _Flat:
    """The plan for values of these kinds: `positions` of them are given by position, the others by name."""
    declared, site = program.declared, Site.of_user()
    at = dict(zip(declared, range(positions), strict=False))
    for name in (n for n in at if n in names):
        raise ArgumentError(f"{program.name} got {name} twice", site)
    at |= {n: positions + k for k, n in enumerate(names) if n in declared}
    lists = {n: kinds[k] for n, k in at.items() if isinstance(declared[n], Each) and kinds[k] is not None}
    counts = {n: kind[0] if isinstance(kind, tuple) else 1 for n, kind in lists.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        said = ", ".join(f"{n} has {k}" for n, k in counts.items())
        raise ArgumentError(f"{program.name} takes lists of one length, of 1 member or more: {said}", site)
    count = next(iter(counts.values()), program.variant.members)
    functions = {n: kinds[k] for n, k in at.items() if declared[n] == Function}
    for name, kind in functions.items():
        if kind is not None and not isinstance(kind, JITFunction):
            raise no_function(name, kind[1] if isinstance(kind, tuple) else kind, site)
    made = program.of(count, **functions)
    members: dict[str, list[Place]] = {}
    for n, k in at.items():
        of_list = isinstance(lists.get(n), tuple)
        several = isinstance(declared[n], Each)
        members[n] = [(k, m if of_list else None) for m in range(count if several else 1)]
    by_position = list(at)[:positions]
    flat = [v for n in by_position if n in made.flattened for v in members[n]]
    flat += [(k, None) for k in range(len(declared), positions)]
    more: list[tuple[str, Place]] = [(n, (positions + k, None)) for k, n in enumerate(names) if n not in declared]
    for name in (n for n in names if n in made.flattened):  # in the order of the call, on every rank
        more += zip([n for n, _ in made.flattened[name]], members[name], strict=True)
    return _Flat(made, tuple(flat), tuple(more))


def by_dimension(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes by dimension, given as `M=512` or as `sizes={"M": 512}` (for a dimension with the name of an option)."""
    named = sizes.get("sizes")
    return {d: n for d, n in sizes.items() if n is not named} | dict(named) if isinstance(named, Mapping) else {**sizes}


def at_sizes(program: Program, sizes: Mapping[str, Any]) -> tuple[Program, dict[str, Any]]:
    """The variant with members of these sizes (as `by_dimension` takes them), and the sizes as it has them. For three
    members that differ in N, give `N=(1024, 256, 256)`; one number is for all members. Raises DimensionError."""
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
