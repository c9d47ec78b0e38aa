"""Parameters of a program that are lists of tensors, or functions. A call's lists and functions make a variant.

A list may have any number of members, the same number for all lists of a program. A variant has a tensor for each
member, `weight_0`, `weight_1`, or `weight` if there is only one. It is an ordinary program for all later stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import triton

from tilelink.errors import ArgumentError, DimensionError, NotUnderstoodError, Site, public_class, similar
from tilelink.language.declarations import Declared


@public_class
@dataclass(frozen=True)
class Each:
    """A list of tensors with one declaration: `tk.Each(tk.Local("K", "N"))`. If only lists have a dimension, each
    member has another size along it, such as N. A single tensor is a list with one member."""

    declared: Declared

    def __post_init__(self) -> None:
        if not isinstance(self.declared, Declared) or self.declared.route is not None:
            raise DimensionError(
                f"tk.Each({self.declared!r}): a list of tensors, tk.Local(...) or tk.Sharded(...)", Site.of_user()
            )

    def __repr__(self) -> str:
        return f"tk.Each({self.declared!r})"


@dataclass(frozen=True)
class FunctionWord:
    """`tk.Function`: a parameter that is a user's function with @triton.jit, `epilogue: tk.Function = None`."""


Function = FunctionWord()
Parameters = Mapping[str, Declared | Each | FunctionWord]


@dataclass(frozen=True)
class Variant:
    """The number of members of a program's lists, and its functions."""

    members: int = 1
    functions: tuple[tuple[str, Any], ...] = ()

    def check(self, program: str, parameters: Parameters, site: Site) -> None:
        """Raises ArgumentError if the program does not take these members or functions."""
        if not isinstance(self.members, int) or self.members < 1:
            raise ArgumentError(f"{program}: lists of {self.members!r} members; at least 1", site)
        if self.members > 1 and not any(isinstance(p, Each) for p in parameters.values()):
            raise ArgumentError(f"{program} takes no lists", site)
        self._check_names(program, parameters, site)
        for name, function in self.functions:
            if parameters.get(name) != Function:
                known = ", ".join(n for n, p in parameters.items() if p == Function) or "none"
                known += similar(name, parameters)
                raise ArgumentError(f"{program} takes no function {name}; it takes {known}", site)
            if not isinstance(function, triton.runtime.JITFunction | None):
                raise no_function(name, type(function), site)

    def _check_names(self, program: str, parameters: Parameters, site: Site) -> None:
        """Raises ArgumentError if the name of a member, or of its dimension, has another meaning, too."""
        shared = {d for p in parameters.values() if isinstance(p, Declared) for d in p.dims if isinstance(d, str)}
        tensors = {n for n, p in parameters.items() if not isinstance(p, Each)}
        for what, lists, others in (
            ("tensor", [n for n, p in parameters.items() if isinstance(p, Each)], tensors),
            ("dimension", sorted(own_dims(parameters)), shared),
        ):
            for name, member in ((n, m) for n in lists for m in self.names(n)):
                if self.members > 1 and member in others:
                    raise ArgumentError(
                        f"{program}: {member} is the name of {name} of one of {self.members} members and of another "
                        f"{what}: rename one",
                        site,
                    )

    def names(self, name: str) -> tuple[str, ...]:
        """The names of a list's members, or of the dimension in which they differ."""
        return (name,) if self.members == 1 else tuple(member_name(name, k) for k in range(self.members))

    def flattened(self, parameters: Parameters) -> dict[str, tuple[tuple[str, Declared], ...]]:
        """The tensors of each parameter, without functions: names, and declarations with the dimensions of the members.
        """
        own = own_dims(parameters)
        made: dict[str, tuple[tuple[str, Declared], ...]] = {}
        for name, parameter in parameters.items():
            if isinstance(parameter, Each):
                declared = parameter.declared
                dims = [self.names(str(d)) if d in own else (d,) * self.members for d in declared.dims]
                each = [replace(declared, dims=tuple(names[k] for names in dims)) for k in range(self.members)]
                made[name] = tuple(zip(self.names(name), each, strict=True))
            elif isinstance(parameter, Declared):
                made[name] = ((name, parameter),)
        return made


def member_name(name: str, k: int) -> str:
    """The name of member k of several."""
    return f"{name}_{k}"


def launched(role: str) -> str:
    """The role that has the member "matmul[1]"."""
    return role.partition("[")[0]


def own_dims(parameters: Parameters) -> frozenset[str]:
    """The dimensions that only lists have: each member has another size along them."""
    shared = {d for p in parameters.values() if isinstance(p, Declared) for d in p.dims}
    lists = {d for p in parameters.values() if isinstance(p, Each) for d in p.declared.dims}
    return frozenset(d for d in lists - shared if isinstance(d, str))


def check_lists(program: str, parameters: Parameters, site: Site) -> None:
    """Raises DimensionError if a dimension in which members differ is cut over the ranks."""
    own = own_dims(parameters)
    for name, p in parameters.items():
        if isinstance(p, Each) and p.declared.sharded is not None:
            dim = p.declared.dims[p.declared.sharded]
            if dim in own:
                raise DimensionError(
                    f"{name} of {program} is cut along {dim}, but each member has another {dim}; a dimension that is "
                    "cut over the ranks must also belong to a tensor that is not in a list",
                    site,
                )


def lists_of(*lists: Any, site: Site) -> list[tuple[Any, ...]]:
    """The members of lists, side by side. Raises NotUnderstoodError."""
    lengths = {len(v) if isinstance(v, tuple) else None for v in lists}
    if len(lengths) != 1 or None in lengths:
        given = ", ".join(repr(v) for v in lists) or "nothing"
        raise NotUnderstoodError(
            f"tk.each goes through lists of one length, parameters that are declared tk.Each(...); given: {given}", site
        )
    return list(zip(*lists, strict=True))


def no_function(name: str, given: type, site: Site) -> ArgumentError:
    """The error for a value that is not a function with @triton.jit."""
    return ArgumentError(f"{name} is of type {given.__name__}; it must be a function with @triton.jit", site)
