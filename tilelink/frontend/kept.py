"""Values that took long to make, kept by key: those that were used last, so that memory is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """At most `most` values by key. Where there is one too many, that which was not used for the longest time goes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value of a key, which is used by that; None where there is none, or no longer."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> list[V]:
        """Keeps a value; those that go for it, the oldest first."""
        self._values[key] = value
        self._values.move_to_end(key)
        return [self._values.popitem(last=False)[1] for _ in range(len(self._values) - self.most)]

    def values(self) -> Iterator[V]:
        """All that are kept, the one that goes next first."""
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values
