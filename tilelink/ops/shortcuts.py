"""Shortcuts: calls of an operator that go from its arguments to the launch. Torch compares the tensors of such a call
with those of an earlier one in one step, which takes a twentieth of the time that Python takes to look at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import CDLL, c_char_p
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from tilelink.frontend.kept import Kept
from tilelink.ops.agreement import agree_again
from tilelink.ops.eager import PLAIN, is_watched
from tilelink.ops.known import ALIGNED, BACKEND, KEPT_CALLS, MACHINE, SEVERAL, Known
from tilelink.ops.programs import preparing
from tilelink.ops.repeated import Repeat

_said = CDLL(None).getenv  # os.environ takes ten times as long for a variable that is not set
_said.argtypes, _said.restype = [c_char_p], c_char_p
_VARIABLES = BACKEND.encode(), MACHINE.encode()
_TENSOR = object()
"""What stands for a tensor among the arguments of a call."""


@dataclass(frozen=True)
class Shortcut:
    """A call that was made in full. `alike`: torch's guards of its tensors: their types, dispatch keys, dtypes,
    devices, shapes and strides, whether they have gradients, and what is active in this thread. `others`: its other
    arguments' types; `said`: the environment."""

    group: ref[dist.ProcessGroup]
    kinds: list[type]
    said: list[bytes | None]
    alike: Any
    known: Known
    repeat: Repeat

    def fits(self, group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], others: Iterable[Any]) -> bool:
        """Whether this is how to make a call that compares equal in all but its tensors."""
        return (
            self.group() is group
            and self.alike.check(*tensors)
            and not sum([t.data_ptr() % ALIGNED for t in tensors])
            and list(map(type, others)) == self.kinds  # True is no 1
            and self.said == list(map(_said, _VARIABLES))
            and not is_watched(tensors)
            and not preparing()
        )


class Shortcuts:
    """The shortcuts of an operator, by the arguments that are no tensors, and the shape of the first one that is."""

    def __init__(self) -> None:
        self._kept: Kept[Any, Shortcut] = Kept(KEPT_CALLS)

    def results(self, group: dist.ProcessGroup, values: Sequence[Any]) -> Any:
        """The results of a call with these arguments; None if it has to be made in full."""
        tensors, others = _parted(values)
        try:
            short = self._kept.get(_key(group, tensors, others))
        except (TypeError, RuntimeError):  # a value that can't be hashed, or a nested tensor, which has no shape
            return None
        if short is None or not short.fits(group, tensors, others):
            return None
        if not tensors[0].is_cuda and group.size() > 1:
            agree_again(group.group_name, tensors[0], short.known.told)
        return short.repeat(tensors)

    def add(self, group: dist.ProcessGroup, values: Sequence[Any], known: Known | None) -> None:
        """Keeps a call that was made in full, if it can be repeated, and torch can tell calls like it."""
        if known is None or known.repeat is None:
            return
        tensors, others = _parted(values)
        one_each = len({*map(id, tensors)}) == len(tensors)
        if not one_each or any(t.data_ptr() % ALIGNED for t in tensors):
            return
        sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        guards: Any = torch._C._dynamo.guards.TensorGuards
        alike = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        said = list(map(_said, _VARIABLES))
        short = Shortcut(ref(group), list(map(type, others)), said, alike, known, known.repeat.sharing_empty())
        self._kept.put(_key(group, tensors, others), short)


def _key(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], others: tuple[Any, ...]) -> Any:
    return id(group), tensors[0].shape if tensors else None, others


def _parted(values: Iterable[Any]) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """The plain tensors among the values of arguments, also in lists; and all other values, with the places of both."""
    tensors, others = list[torch.Tensor](), list[Any]()
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            tensors.append(value)
            others.append(_TENSOR)
        elif kind in SEVERAL:
            others += kind, len(value)
            for v in value:
                if type(v) in PLAIN:
                    tensors.append(v)
                    others.append(_TENSOR)
                else:
                    others.append(v)
        else:
            others.append(value)
    return tensors, tuple(others)
