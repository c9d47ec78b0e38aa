"""Many that are stuck in one way are told as one, with their number."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One of a rank that is stuck: in which way (`how`), what it is one of ("worker of matmul", "program of push"), and
    what there is to say of it."""

    rank: int
    how: Hashable
    one_of: str
    text: str


def folded(entries: Iterable[Entry], most: int) -> list[str]:
    """For those of a rank that are stuck in one way a line for the first, and one for how many more there are; at most
    so many ways are told."""
    ways: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        ways.setdefault((entry.rank, entry.how), []).append(entry)
    lines = []
    for first, *more in list(ways.values())[:most]:
        word, _, of = first.one_of.partition(" ")
        lines.append(first.text)
        lines += [f"and {len(more)} more {word}{'s' * (len(more) > 1)} {of}"] if more else []
    left = sum(map(len, list(ways.values())[most:]))
    return lines + ([f"and {left} more"] if left else [])
