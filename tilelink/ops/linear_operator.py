"""Operators of linear layers, as users call them: with arguments that nobody has checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import ArgumentError
from tilelink.ops.agreement import agree_on_devices, raise_everywhere
from tilelink.ops.checks import cast_for, check_type, in_autocast, no_autocast
from tilelink.ops.collectives import name_of_group
from tilelink.ops.eager import only_called
from tilelink.ops.known import key, known_calls
from tilelink.ops.operator import Call, Operator
from tilelink.ops.shortcuts import Shortcuts


class LinearOperator(Operator):
    """An operator of x, of one weight and bias, or several, and of options."""

    def __init__(self, call: type[Call]) -> None:
        super().__init__(call)
        self.of_users = Shortcuts(self)

    def for_user(self, group: Any, x: Any, weights: Any, biases: Any, **options: Any) -> Any:
        """Calls the operator: checks the types of arguments, finds the group, checks devices, casts to the dtype of
        `torch.autocast`. A call like an earlier one is not checked again if that can be repeated."""
        if torch.compiler.is_compiling():
            return self._checked_call(group, x, weights, biases, options)[0]
        members: Any = dist.group.WORLD if group is None else group
        given, others = (x, weights, biases), (*options.values(),)
        results = self.of_users.results(members, given, others)
        if results is None:
            results, values = self._checked_call(group, x, weights, biases, options)
            if isinstance(members, dist.ProcessGroup) and all(type(option) in SIMPLE for option in others):
                self._remember(members, given, others, values, results)
        return results

    def _remember(
        self, members: dist.ProcessGroup, given: tuple[Any, ...], options: tuple[Any, ...], values: Sequence[Any],
        results: Any,
    ) -> None:  # fmt: skip
        """Keeps a call as a shortcut if the operator got the user's own tensors, and had nothing else to do. `values`:
        of the operator's arguments."""
        tensors = self.tensors_of(values)
        if in_autocast(tensors[0]) or not only_called(tensors):
            return
        known = known_calls(members).get(key(self.call.name, values))
        if known is not None:
            self.of_users.add(members, given, options, values, tensors, known, results)

    def _checked_call(
        self, group: Any, x: Any, weights: Any, biases: Any, options: dict[str, Any]
    ) -> tuple[Any, list[Any]]:
        """Returns the results, and the values of the operator's arguments."""
        first, second = self.names[1:3]
        self._check_types(group, {"x": x, first: weights, second: biases, **options})
        several = [weights] if isinstance(weights, torch.Tensor) else list(weights)
        added: list[torch.Tensor | None] = [None] * len(several)
        if biases is not None:
            added = [biases] if isinstance(biases, torch.Tensor) else list(biases)
        if len(added) == len(several) and any(b is not None for b in added):  # torch has no gradients for a mixed list
            added = [w.new_zeros(w.shape[0]) if b is None else b for w, b in zip(several, added, strict=True)]
        name = name_of_group(group)
        agree_on_devices(name, x, several, added)
        if in_autocast(x):
            cast = cast_for(x)
            x, several, added = cast(x), [cast(w) for w in several], [cast(b) for b in added]
        given = {**options, "x": x, "weights": several, "biases": added, "group_name": name}
        if first == "weight":
            given |= {"weight": several[0], "bias": added[0]}
        with no_autocast(x):
            return self(**given), [given[n] for n in self.names]

    def _check_types(self, group: Any, given: dict[str, Any]) -> None:
        """Checks the types of arguments, before torch does. Raises ArgumentError; the other ranks raise
        RankFailedError."""
        if torch.compiler.is_compiling():
            return
        try:
            for name, value in given.items():
                check_type(name, value, self.kinds[name])
        except ArgumentError as error:
            raise_everywhere(name_of_group(group), error, *given.values())


SIMPLE = (type(None), bool, int, str)
"""The types of options by which calls are looked up: equal ones mean the same, and none changes."""
