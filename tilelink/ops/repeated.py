"""Calls of operators that do nothing on the host but allocate results, take views, and call one program. The first call
of a kind is watched; calls like it then go from the tensors to the launch, without the operator's code between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from tilelink.programs.given import Call
from tilelink.runtime.arguments import reach
from tilelink.runtime.group import Again, Group


class View(NamedTuple):
    """A view of the tensor with this number: its shape, its strides, and where it begins there, in elements."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    begin: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.begin)


@dataclass(frozen=True)
class Repeat:
    """A call of an operator, to be repeated with other tensors. Its tensors have numbers: first those of the operator,
    then those that it allocates (`made`, shapes and dtypes), then `views` of these. `given`: the tensors of the
    program, by name; `results`: the results, in tuples and lists."""

    allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
    again: Again
    made: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    views: tuple[View, ...]
    given: tuple[tuple[str, int], ...]
    results: Any

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns the results for these tensors of the operator, none of them a view; None if nothing was done."""
        every = [*tensors, *[self.allocate(*like) for like in self.made]]
        whole = len(every)
        every += [view.of(every[view.number]) for view in self.views]
        if not self.again({name: every[number] for name, number in self.given}):
            return None
        return each(lambda number: every[number] if number < whole else every[number].data, self.results)


class Watch(TorchDispatchMode):
    """Inside, what torch and programs do is written down. `tensors`: those of the operator."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.tensors, self.made = tensors, list[torch.Tensor]()
        self.calls: list[tuple[Group, Call]] = []
        self.computed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket == torch.ops.aten.new_empty:
            self.made.append(found)
        elif not func.is_view:
            self.computed = True
        return found

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Inside, what torch does counts for nothing."""
        before = self.computed, list(self.made)
        yield
        self.computed, self.made = before

    def repeat(self, results: Any) -> Repeat | None:
        """How to repeat the call that gave these results; None if it did anything else than to call one program."""
        if self.computed or len(self.calls) != 1:
            return None
        ((group, call),) = self.calls
        every, views = [*self.tensors, *self.made], list[View]()

        def number(tensor: torch.Tensor) -> int:
            """The number of a tensor, or of a new view. Raises LookupError if it is given several times."""
            at = [k for k, other in enumerate(every) if other is tensor]
            if len(at) > 1:
                raise LookupError
            views.extend([] if at else [_view(tensor, every)])
            return at[0] if at else len(every) + len(views) - 1

        try:
            given = tuple((n, number(t)) for n, t in call.by_name().items() if t is not None)
            found = each(number, results)
        except LookupError:
            return None
        again = group.repeated(call)
        if again is None or not all(t.is_contiguous() for t in self.made):
            return None
        return Repeat(group.allocate, again, tuple((t.shape, t.dtype) for t in self.made), tuple(views), given, found)


def computing() -> None:
    """Tells a `Watch` that a call computes something by a kernel that is no program."""
    watch = _get_current_dispatch_mode()
    if isinstance(watch, Watch):
        watch.computed = True


def called(group: Group, call: Call) -> None:
    """Calls a program, also for a `Watch`."""
    watch = _get_current_dispatch_mode()
    if isinstance(watch, Watch):
        watch.calls.append((group, call))
        with watch.looking_away():
            group.call(call)
    else:
        group.call(call)


def allocated(group: Group, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns memory for a result, also for a `Watch`."""
    watch = _get_current_dispatch_mode()
    if not isinstance(watch, Watch):
        return group.allocate(shape, dtype)
    with watch.looking_away():
        found = group.allocate(shape, dtype)
    watch.made.append(found)
    return found


def _view(tensor: torch.Tensor, every: Sequence[torch.Tensor]) -> View:
    """The tensor as a view of one of these. Raises LookupError if it is a view of none, or may be one of several."""
    found = [k for k, other in enumerate(every) if _is_within(tensor, other)]
    if len(found) != 1:
        raise LookupError
    begin = tensor.storage_offset() - every[found[0]].storage_offset()
    return View(found[0], tensor.shape, tensor.stride(), int(begin))


def _is_within(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory of a tensor is part of the memory that another one spans."""
    begin, end = tensor.data_ptr(), tensor.data_ptr() + reach(tensor)
    return tensor.dtype == other.dtype and other.data_ptr() <= begin < end <= other.data_ptr() + reach(other)


def each(function: Callable[[Any], Any], nested: Any) -> Any:
    """The same nesting of tuples and lists, with the function of each value."""
    if type(nested) in (tuple, list):
        return type(nested)(each(function, value) for value in nested)
    return function(nested)
