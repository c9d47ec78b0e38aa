"""Values that took long to make, kept by key: those that were used last, so that memory is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import update_wrapper
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
Class = TypeVar("Class", bound=type)


class Kept(Generic[K, V]):
    """At most `most` values by key. Where there is one too many, that which was not used for the longest time goes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()  # ranks may be threads

    def get(self, key: K) -> V | None:
        """The value of a key, which is used by that; None where there is none, or no longer."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> list[V]:
        """Keeps a value; those that go for it, the oldest first."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            return [self._values.popitem(last=False)[1] for _ in range(len(self._values) - self.most)]

    def clear(self) -> None:
        """Lets all go."""
        with self._lock:
            self._values.clear()

    def values(self) -> Iterator[V]:
        """All that are kept, the one that goes next first."""
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values


class Remembering(Generic[P, V]):
    """A function whose results are kept, see `kept`. `results`: by arguments; `made`: how many it has made."""

    def __init__(self, function: Callable[P, V], most: int) -> None:
        update_wrapper(self, function)
        self._function = function
        self.results: Kept[Any, tuple[V]] = Kept(most)
        self.made = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        key = (args, tuple(kwargs.items())) if kwargs else args
        found = self.results.get(key)
        if found is None:
            self.made += 1
            found = (self._function(*args, **kwargs),)
            self.results.put(key, found)
        return found[0]


def kept(most: int = 1024) -> Callable[[Callable[P, V]], Remembering[P, V]]:
    """A decorator of a function whose arguments say all: the results of the last `most` different calls are kept."""
    return lambda function: Remembering(function, most)


def hashed_once(cls: Class) -> Class:
    """A decorator of a frozen dataclass: its hash is made once. Those of expressions take long. It does not leave the
    process, where hashes of texts are others."""
    made: Any = cls.__hash__

    def known(self: Any) -> Any:
        values = self.__dict__
        if "_hash" not in values:
            values["_hash"] = made(self)
        return values["_hash"]

    def state(self: Any) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n != "_hash"}

    setattr(cls, "__hash__", known)  # noqa: B010  # mypy takes no assignment
    setattr(cls, "__getstate__", state)  # noqa: B010
    return cls
