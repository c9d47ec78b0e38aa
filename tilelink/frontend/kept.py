"""Values that took long to make, kept by key: those that were used last, so that memory is bounded."""

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
    """At most `most` values by key. Where there is one too many, that which was not used for the longest time goes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self._lock = most, Lock()  # ranks may be threads

    def get(self, key: K) -> V | None:  # type: ignore[override]
        """The value of a key, which is used by that; None where there is none, or no longer."""
        with self._lock:
            value = super().get(key)
            if value is not None:
                self.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> list[V]:
        """Keeps a value; those that go for it, the oldest first."""
        with self._lock:
            self[key] = value
            self.move_to_end(key)
            return [self.popitem(last=False)[1] for _ in range(len(self) - self.most)]


def kept(most: int = 1024) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """A decorator of a function whose arguments say all: the results of the last `most` different calls are kept."""
    return cast(Any, lru_cache(most))


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
