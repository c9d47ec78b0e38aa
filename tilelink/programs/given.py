"""What a call, or a look at a program, gives for parameters that are lists or functions: which variant that is of the
program, and the tensors and sizes as the variant has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilelink.errors import ArgumentError, DimensionError, Site
from tilelink.language import Each, Function, own_dims

if TYPE_CHECKING:
    from tilelink.programs.program import Program


@dataclass(frozen=True)
class Given:
    """A call as one of an ordinary program. `listed`: lists were given, so that lists are returned; `absent`: tensors
    that were not given and may be left out."""

    program: Program
    tensors: tuple[Any, ...]
    options: dict[str, Any]
    listed: bool
    absent: frozenset[str]

    @classmethod
    def of(cls, program: Program, tensors: tuple[Any, ...], options: dict[str, Any]) -> Given:
        """Raises ArgumentError for lists of different lengths, and for a function that is none."""
        if not program.varies:
            return cls(program, tensors, options, False, frozenset())
        declared, site = program.declared, Site.of_user()
        names = list(declared)
        by_position = dict(zip(names, tensors, strict=False))
        given = by_position | {n: v for n, v in options.items() if n in declared}
        for name in (n for n in by_position if n in options):
            raise ArgumentError(f"{program.name} got {name} twice", site)
        lists = {n: v for n, v in given.items() if isinstance(declared[n], Each) and v is not None}
        listed = any(isinstance(v, list | tuple) for v in lists.values())
        members = {n: list(v) if isinstance(v, list | tuple) else [v] for n, v in lists.items()}
        counts = {n: len(v) for n, v in members.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            said = ", ".join(f"{n} has {k}" for n, k in counts.items())
            raise ArgumentError(f"{program.name} takes lists of one length, of 1 member or more: {said}", site)
        functions = {n: v for n, v in given.items() if declared[n] == Function}
        count = next(iter(counts.values()), program.variant.members)
        made = program.of(count, **functions)

        def values(name: str) -> Sequence[Any]:
            if isinstance(declared[name], Each):
                return members.get(name, [None] * count)
            return [] if declared[name] == Function else [given[name]]

        flat = tuple(v for n in by_position for v in values(n)) + tensors[len(names) :]
        more = {n: v for n, v in options.items() if n not in declared}
        for name in given:  # in the order of the call, on every rank
            if name not in by_position and declared[name] != Function:
                more |= dict(zip([n for n, _ in made.flattened[name]], values(name), strict=True))
        present = {n for n, v in (*zip(made.parameters, flat, strict=False), *more.items()) if v is not None}
        return cls(made, flat, more, listed, made.optional - present)

    def results(self, made: Any) -> Any:
        """The results of the call: those that belong to a list in a list."""
        if not self.listed:
            return made
        left = iter(made if isinstance(made, tuple) else (made,))
        kinds = {t.name: t.kind for t in self.program.recorded(self.absent).tensors}
        found: list[Any] = []
        for name, tensors in self.program.flattened.items():
            if not any(kinds.get(n) == "output" for n, _ in tensors):
                continue
            members = [next(left) if n in kinds else None for n, _ in tensors]
            found.append(members if isinstance(self.program.declared[name], Each) else members[0])
        return found[0] if len(found) == 1 else tuple(found)


def at_sizes(program: Program, sizes: Mapping[str, Any]) -> tuple[Program, dict[str, Any]]:
    """The variant that has members of these sizes, and the sizes as it has them: `N=(1024, 256, 256)` for three members
    with an N of their own; one number is for all members. Raises DimensionError."""
    if not program.varies:
        return program, dict(sizes)
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
