"""Caches of values that take long to make. A cache is bounded: the least recently used value goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from threading import Lock
from typing import Any, ParamSpec, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
Class = TypeVar("Class", bound=type)


class Kept(OrderedDict[K, V]):
    """At most `most` values by key. If there is one too many, the least recently used value goes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self._lock = most, Lock()  # ranks may be threads

    def get(self, key: K) -> V | None:  # type: ignore[override]
        """The value of a key, which counts as a use; None if it was not kept, or is gone."""
        with self._lock:
            value = super().get(key)
            if value is not None:
                self.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> list[V]:
        """Keeps a value. Returns the values that go for it, the oldest first."""
        with self._lock:
            self[key] = value
            self.move_to_end(key)
            return [self.popitem(last=False)[1] for _ in range(len(self) - self.most)]


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
