"""Caches of values that take long to make. A cache is bounded: the least recently used value goes first."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import count
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
Class = TypeVar("Class", bound=type)


class Kept(Generic[K, V]):
    """At most `most` values by key. If there is one too many, the least recently used value goes."""

    def __init__(self, most: int) -> None:
        self.most, self._lock = most, Lock()  # ranks may be threads
        self._uses = count()
        self._values: dict[K, tuple[V, list[int]]] = {}  # with the number of the last use

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        """Whether a value is kept. This is no use of it."""
        return key in self._values

    def clear(self) -> None:
        """Forgets all values."""
        self._values.clear()

    def values(self) -> list[V]:
        """All values, in the order in which they were first kept."""
        return [value for value, _ in self._values.values()]

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as a use; None if it was not kept, or is gone. Hashes the key only once:
        that takes most of the time for keys of calls."""
        found = self._values.get(key)
        if found is None:
            return None
        found[1][0] = next(self._uses)
        return found[0]

    def put(self, key: K, value: V) -> list[V]:
        """Keeps a value. Returns the values that go for it, the oldest first."""
        with self._lock:
            self._values[key] = value, [next(self._uses)]
            last_use = {k: use[0] for k, (_, use) in self._values.items()} if len(self._values) > self.most else {}
            gone = sorted(last_use, key=last_use.__getitem__)[: len(self._values) - self.most]
            return [self._values.pop(k)[0] for k in gone]


def kept(most: int = 1024) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Decorates a function that depends on its arguments alone: the results of the last `most` calls are kept."""
    return cast(Any, lru_cache(most))


def hashed_once(cls: Class) -> Class:
    """Decorates a frozen dataclass: its hash is made once, because hashes of expressions take long. The hash does not
    leave the process, because other processes hash texts differently."""
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
