"""Calls of operators that do nothing on the host but allocate results, take views, and call one program. The first call
of a kind is watched; calls like it then go from the tensors to the launch, without the operator's code between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from tilelink.programs.given import Call
from tilelink.runtime.arguments import reach
from tilelink.runtime.group import Group


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
    then those that it allocates (by `made`), then `views` of these. `given`: the tensors of the program, by name;
    `results`: takes the results from all tensors."""

    again: Callable[[Mapping[str, torch.Tensor]], bool]
    made: tuple[Callable[[], torch.Tensor], ...]
    views: tuple[View, ...]
    given: tuple[tuple[str, int], ...]
    results: Callable[[Sequence[torch.Tensor]], Any]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns the results for these tensors of the operator, none of them a view; None if nothing was done."""
        every = [*tensors, *[make() for make in self.made]]
        for view in self.views:
            every.append(view.of(every[view.number]))
        if not self.again({name: every[number] for name, number in self.given}):
            return None
        return self.results(every)

    def sharing_empty(self) -> Repeat:
        """The same for callers that drop results without elements: such a tensor is made once, for all calls."""
        return replace(self, made=tuple(map(_shared_if_empty, self.made)))


class Watch(TorchDispatchMode):
    """A context that records torch's operations and calls of programs. `tensors`: those of the operator."""

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
        """A context in which torch's operations are not recorded."""
        before = self.computed, list(self.made)
        yield
        self.computed, self.made = before

    def repeat(self, results: Any) -> Repeat | None:
        """How to repeat the call that gave these results; None if it did anything else than to call one program."""
        if self.computed or len(self.calls) != 1:
            return None
        ((group, call),) = self.calls
        again = group.repeated(call)
        if again is None or not all(t.is_contiguous() for t in self.made):
            return None
        every, views = [*self.tensors, *self.made], list[View]()
        made, shown = [(t.shape, t.dtype) for t in self.made], list[torch.Tensor]()
        each(shown.append, results)

        def number(tensor: torch.Tensor) -> int:
            """The number of a tensor, or of a new view. Raises LookupError if it is given several times."""
            at = [k for k, other in enumerate(every) if other is tensor]
            if len(at) > 1:
                raise LookupError
            views.extend([] if at else [_view(tensor, every)])
            return at[0] if at else len(every) + len(views) - 1

        def place(tensor: torch.Tensor) -> int:
            """The number of a tensor that begins where this one does, if that is all that counts."""
            found = number(tensor)
            if not again.by_address or found < len(every) or views[-1].begin:
                return found
            return views.pop().number

        def result(tensor: torch.Tensor) -> int:
            """The number of a result. If it is all of a tensor that the operator allocated, that gets its shape."""
            found = number(tensor)
            at = views[-1].number - len(self.tensors) if found >= len(every) and again.by_address else -1
            if at < 0 or not _is_all(tensor, self.made[at]):
                return found
            if made[at][0] != self.made[at].shape or any(other is self.made[at] for other in shown):
                return found  # it is shown in its own shape, or in a third one
            made[at] = tensor.shape, tensor.dtype
            return views.pop().number

        try:
            given = tuple((n, place(t)) for n, t in call.by_name().items() if t is not None)
            found = each(result, results)
        except LookupError:
            return None
        taken = taking(found, whole=len(self.tensors) + len(made))
        return Repeat(again.make, tuple(again.allocates(*like) for like in made), tuple(views), given, taken)


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


def taking(numbers: Any, whole: float = inf) -> Callable[[Sequence[Any]], Any]:
    """A function that takes values by number, in these tuples and lists, in a tenth of the time of a walk through them.
    Tensors from number `whole` on are views, which results can't be."""
    taken: Callable[[Sequence[Any]], Any] = eval(f"lambda every: {_taken(numbers, whole)}")
    return taken


def _taken(numbers: Any, whole: float) -> str:
    """Python's text for what `taking` takes."""
    if isinstance(numbers, int):
        return f"every[{numbers}]" if numbers < whole else f"every[{numbers}].data"
    inside = "".join(f"{_taken(n, whole)}, " for n in numbers)
    return f"[{inside}]" if isinstance(numbers, list) else f"({inside})"


def _shared_if_empty(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A function that allocates a tensor; if that has no elements, it always returns the same one."""
    made = make()
    return make if made.numel() else lambda: made


def _view(tensor: torch.Tensor, every: Sequence[torch.Tensor]) -> View:
    """The tensor as a view of one of these. Raises LookupError if it is a view of none, or may be one of several."""
    found = [k for k, other in enumerate(every) if _is_within(tensor, other)]
    if len(found) != 1:
        raise LookupError
    begin = tensor.storage_offset() - every[found[0]].storage_offset()
    return View(found[0], tensor.shape, tensor.stride(), int(begin))


def _is_all(tensor: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether a view of a tensor is all of it, in another shape."""
    return tensor.is_contiguous() and tensor.numel() == made.numel()


def _is_within(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory of a tensor is part of the memory that another one spans."""
    begin, end = tensor.data_ptr(), tensor.data_ptr() + reach(tensor)
    return tensor.dtype == other.dtype and other.data_ptr() <= begin < end <= other.data_ptr() + reach(other)


def each(function: Callable[[Any], Any], nested: Any) -> Any:
    """The same nesting of tuples and lists, with the function of each value."""
    if type(nested) in (tuple, list):
        return type(nested)([each(function, value) for value in nested])
    return function(nested)
