"""What is kept by key: so many values, those that were used last."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

from tilelink.frontend.kept import Kept, hashed_once, kept


def test_the_oldest_goes() -> None:
    kept: Kept[str, int] = Kept(2)
    assert kept.put("a", 1) == kept.put("b", 2) == []
    assert kept.put("c", 3) == [1]
    assert "a" not in kept and kept.get("a") is None
    assert kept.values() == [2, 3] and len(kept) == 2


def test_what_is_used_stays() -> None:
    kept: Kept[str, int] = Kept(2)
    kept.put("a", 1), kept.put("b", 2)
    assert kept.get("a") == 1
    assert kept.put("c", 3) == [2]
    assert kept.put("a", 4) == [] and sorted(kept.values()) == [3, 4]


def test_a_function_is_called_once_for_the_same_arguments() -> None:
    calls: list[tuple[int, int]] = []

    @kept(2)
    def added(a: int, b: int = 1) -> int | None:
        """The sum."""
        calls.append((a, b))
        return a + b if a else None

    assert [added(1), added(1), added(1, b=3), added(1, b=3)] == [2, 2, 4, 4]
    assert calls == [(1, 1), (1, 3)] and added.__doc__ == "The sum."
    assert [added(0), added(0)] == [None, None] and len(calls) == 3, "None is a result, too"
    assert added(1, b=3) == 4 and len(calls) == 3, "the two used last are kept"
    assert added(1) == 2 and len(calls) == 4, "the oldest went"


def test_a_hash_is_made_once_and_stays_in_its_process() -> None:
    hashes = []

    class Part:
        def __hash__(self) -> int:
            hashes.append(self)
            return 7

    value = Whole(Part())
    assert hash(value) == hash(value) and len(hashes) == 1
    named = Whole("M")
    assert hash(named) == hash(Whole("M")) and named == Whole("M")
    assert pickle.loads(pickle.dumps(named)).__dict__ == {"part": "M"}
    assert replace(named, part="N").__dict__ == {"part": "N"}


@hashed_once
@dataclass(frozen=True)
class Whole:
    part: object
