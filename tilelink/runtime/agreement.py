"""Compares the calls of a group's ranks, gathered or noted: the ranks call alike, or all of them raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch.distributed as dist

from tilelink.errors import RankMismatchError, Site, TileLinkError, WorldError

T = TypeVar("T")
ALIKE = "the ranks of a group call the same programs with the same schedules and sizes, in the same order"
TOKENS = "tokens="
ADVICE = {
    "sizes": f"{ALIKE}; if shards differ in length, pass their lengths on every rank, such as parts={{'M': (8, 7)}}",
    TOKENS: "pass the most tokens of any rank as tokens=, on every rank",
}
"""Advice for a difference between ranks, by the name of the value that differs; `ALIKE` for all other names."""


def mismatch(what: str, calls: Mapping[int, Mapping[str, Any]]) -> str | None:
    """A message about the first difference between ranks, None without one. `calls`: values to compare, by rank."""
    (first, known), *others = calls.items()
    for rank, call in others:
        for name, mine in call.items():
            theirs = known.get(name)
            if theirs != mine:
                if isinstance(mine, dict) and isinstance(theirs, dict):
                    both = [k for k in mine if k in theirs and mine[k] != theirs[k]]
                    mine, theirs = ({k: d[k] for k in both} or d for d in (mine, theirs))
                said = _lengths(rank, mine, first, theirs) if name == "sizes" else None
                given = name if name == TOKENS else f"{name} "
                said = said or f"rank {rank} has {given}{mine}, rank {first} {theirs}"
                return f"{what}: {said}; {ADVICE.get(name, ALIKE)}"
    return None


def _lengths(rank: int, mine: Any, first: int, theirs: Any) -> str | None:
    """A message for ranks that each took all shards to be as long as their own; None for other differences."""
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return None
    for dim in mine.keys() & theirs.keys():
        both = mine[dim], theirs[dim]
        if all(isinstance(lengths, tuple) and len(set(lengths)) == 1 for lengths in both) and both[0] != both[1]:
            return f"rank {first} gives a shard of {both[1][0]} along {dim}, rank {rank} one of {both[0][0]}"
    return None


class CallLog:
    """The calls of ranks in one process, compared without a barrier. It forgets a call once all ranks have made it."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.calls: dict[int, tuple[Mapping[str, Any], list[int]]] = {}

    def compare(self, number: int, rank: int, call: Mapping[str, Any]) -> None:
        """Notes or compares the call with this number. Raises RankMismatchError."""
        known, ranks = self.calls.setdefault(number, (call, []))
        if ranks and (difference := mismatch(f"call {number} of this group", {ranks[0]: known, rank: call})):
            raise RankMismatchError(difference, Site.of_user())
        ranks.append(rank)
        if len(ranks) == self.world:
            del self.calls[number]


def gathered(group: dist.ProcessGroup, mine: Any) -> list[Any]:
    """The values that the ranks give, by rank. Collective."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found


def together(
    group: dist.ProcessGroup,
    what: str,
    function: Callable[[], T],
    error: type[TileLinkError] = WorldError,
    *,
    refused: tuple[type[Exception], ...] = (),
) -> T:
    """Returns `function()`. Collective: if it raises `error` or one of `refused` on any rank, every rank raises `error`
    with that rank and `what` it can't do."""
    found: list[T] = []
    trouble = ""
    try:
        found.append(function())
    except (error, *refused) as e:
        trouble = e.message if isinstance(e, TileLinkError) else str(e)
    refuse(group, what, trouble, error)
    return found[0]


def refuse(group: dist.ProcessGroup, what: str, trouble: str | None, error: type[TileLinkError]) -> None:
    """Collective: if any rank has trouble, every rank raises `error`, with that rank and `what` it can't do."""
    wrong = [f"rank {rank}{what}: {theirs}" for rank, theirs in enumerate(gathered(group, trouble)) if theirs]
    if wrong:
        raise error("; ".join(wrong), Site.of_user())
