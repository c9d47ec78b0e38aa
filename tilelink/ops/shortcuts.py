"""Shortcuts: calls of an operator that go from its arguments to the launch. Torch's guards compare the tensors of such
a call with those of an earlier one in one step; Python takes many times as long to look at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
import torch.distributed as dist

from tilelink.frontend.kept import Kept
from tilelink.ops.agreement import agree_again
from tilelink.ops.eager import PLAIN, is_watched
from tilelink.ops.gradients import RepeatWithGradient
from tilelink.ops.known import ALIGNED, KEPT_CALLS, SEVERAL, VARIABLES, Known, getenv
from tilelink.ops.programs import preparing
from tilelink.ops.repeated import Repeat
from tilelink.plans.names import AUTO

if TYPE_CHECKING:
    from tilelink.ops.operator import Operator

_guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""What torch.compile compares tensors with; without it there are no shortcuts."""


@dataclass(frozen=True)
class Shortcut:
    """A call that was made in full. `guards`: torch's guards of its tensors: their types, dispatch keys, dtypes,
    devices, shapes and strides, whether they require gradients, and what is active in this thread. `kinds`: the types
    of its options. `variables`: those of the environment that count, and their values. `told`: what ranks compare.
    `repeat`: makes a call without a gradient; `with_gradient`: with one, if a tensor requires it."""

    group: ref[dist.ProcessGroup]
    kinds: list[type]
    variables: tuple[bytes, ...]
    environment: list[bytes | None]
    guards: Any
    told: Mapping[str, Any]
    repeat: Repeat
    with_gradient: RepeatWithGradient | None

    def fits(self, group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], options: Iterable[Any]) -> bool:
        """Whether this is how to make a call with an equal key."""
        return (
            self.group() is group
            and self.guards.check(*tensors)
            and not sum([t.data_ptr() % ALIGNED for t in tensors])
            and list(map(type, options)) == self.kinds  # True equals 1, and is another option
            and [*map(getenv, self.variables)] == self.environment
            and not is_watched(tensors)
            and not preparing()
        )


class Shortcuts:
    """The shortcuts of an operator. A call has `given`, tensors and lists of tensors, and `options`, which can be
    hashed."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._kept: Kept[Any, Shortcut] = Kept(KEPT_CALLS)

    def results(self, group: dist.ProcessGroup, given: Iterable[Any], options: tuple[Any, ...]) -> Any:
        """The results of a call; None if it has to be made in full."""
        try:
            tensors, places = _parted(given)
            short = self._kept.get(_key(group, tensors, places, options))
        except (TypeError, RuntimeError, IndexError):  # of an option, a nested tensor, or without any tensor
            return None
        if short is None or not short.fits(group, tensors, options):
            return None
        if not tensors[0].is_cuda and group.size() > 1:
            agree_again(group.group_name, tensors[0], short.told)
        if short.with_gradient is not None and torch.is_grad_enabled():
            return short.with_gradient(tensors)
        return short.repeat(tensors)

    def add(
        self, group: dist.ProcessGroup, given: Iterable[Any], options: tuple[Any, ...],
        values: Sequence[Any], tensors: Sequence[torch.Tensor], known: Known, made: Any,
    ) -> None:  # fmt: skip
        """Keeps a call that was made in full, if it can be repeated and torch can tell calls like it. `values`: of the
        operator's arguments; `tensors`: those among them, which have to be the ones that are given, in their order;
        `known`: what is known of calls like it; `made`: its results."""
        found, places = _parted(given)
        same = [*map(id, tensors)] == [*map(id, found)] and len({*map(id, found)}) == len(found)
        if _guards is None or known.repeat is None or not same or any(t.data_ptr() % ALIGNED for t in found):
            return
        sizes, strides = [list(t.shape) for t in found], [list(t.stride()) for t in found]
        guards = _guards(*found, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        kinds, variables = list(map(type, options)), VARIABLES if AUTO in options else VARIABLES[:1]
        repeat, with_gradient = known.repeat.sharing_empty(), None
        if any(t.requires_grad for t in found):
            with_gradient = RepeatWithGradient(self._operator, repeat, values, tensors, made)
        environment = [*map(getenv, variables)]
        short = Shortcut(ref(group), kinds, variables, environment, guards, known.told, repeat, with_gradient)
        self._kept.put(_key(group, found, places, options), short)


def _key(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], places: Any, options: Any) -> Any:
    """The key of a shortcut. Calls that differ in something else, such as strides, replace each other's shortcuts."""
    return id(group), tensors[0].dtype, places, options


def _parted(given: Iterable[Any]) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """The plain tensors that are given, also in lists; and their shapes, where they are, with all other values."""
    tensors, places = list[torch.Tensor](), list[Any]()
    for value in given:
        kind = type(value)
        if kind in PLAIN:
            tensors.append(value)
            places.append(value.shape)
        elif kind in SEVERAL:
            inner, found = _parted(value)
            tensors += inner
            places.append((kind, found))
        else:
            places.append(value)
    return tensors, tuple(places)
