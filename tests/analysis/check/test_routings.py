"""What the structure shows for every routing, held against an enumeration: the events of each routing are checked."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations, combinations_with_replacement
from typing import Any

import pytest

import tilelink as tk
from tests.kernels.routed import ALONE, FORMS, GRADIENTS, PROGRAMS, in_tiles
from tests.kernels.whole_layer import in_tiles as in_waves
from tests.parameters import rarely
from tilelink.kernels.mixture_of_experts import mixture_of_experts

RANKS, EXPERTS, TOP, TOKENS = 2, 4, 2, 6
Counts = tuple[tuple[int, ...], ...]
EVERY = (*FORMS, *ALONE, *GRADIENTS)
SCHEDULED = [(p, in_tiles(p, s, 16)) for p, s in EVERY]
SCHEDULED += [(mixture_of_experts, in_waves("push", wave)) for wave in (1, 2)]
NAMES = [*(f"{p.name} {s}" for p, s in EVERY), "mixture_of_experts 1", "mixture_of_experts 2"]


@cache
def sent_by_a_rank(tokens: int) -> list[tuple[int, ...]]:
    """How many rows each expert may get of a rank's tokens."""
    choices = list(combinations(range(EXPERTS), TOP))
    found = set()
    for chosen in combinations_with_replacement(choices, tokens):
        found.add(tuple(sum(e in of_token for of_token in chosen) for e in range(EXPERTS)))
    return sorted(found)


def routings(most: int = TOKENS) -> Iterator[Counts]:
    """All that send the tokens of the ranks, so many in all at most, to two of four experts each."""
    for tokens in range(most + 1):
        for first in range(tokens + 1):
            for one in sent_by_a_rank(first):
                for other in sent_by_a_rank(tokens - first):
                    yield tuple(zip(one, other, strict=True))


def test_the_enumeration_is_complete() -> None:
    assert sent_by_a_rank(1) == sorted(tuple(int(e in c) for e in range(4)) for c in combinations(range(4), 2))
    every = list(routings())
    assert len(every) == len(set(every)) and {sum(map(sum, c)) for c in every} == set(range(0, 13, 2))


def assert_safe(program: Any, schedule: tk.Schedule, every: Iterable[Counts], scales: tuple[int, ...] = (1, 8)) -> None:
    """The events of these routings are safe, as the structure says. Tiles have 16 rows at least, so rows are taken
    eight times as well."""
    sizes = {d: n for d, n in (("K", 16), ("N", 16), ("tokens", TOKENS), ("top", TOP)) if d in program.recorded().dims}
    for counts in every:
        for times in scales:
            of = [[n * times for n in row] for row in counts]
            report = program.check(schedule, world=RANKS, routed=of, experts=EXPERTS // RANKS, **sizes)
            assert (report.verdict, report.proof, report.findings) == ("safe", "structural", ()), (of, str(report))


@pytest.mark.parametrize("number", [3, pytest.param(300, marks=pytest.mark.verify)])
@pytest.mark.parametrize(
    ("program", "schedule"),
    rarely(SCHEDULED, lambda program, schedule: schedule != next(s for p, s in SCHEDULED if p is program)),
    ids=NAMES,
)
def test_events_of_routings_are_safe_as_the_structure_says(program: Any, schedule: tk.Schedule, number: int) -> None:
    """So many of those of up to 6 tokens, in every run by a schedule of each program; `make verify` has all of up to 3,
    too."""
    every = random.Random(0).sample(list(routings()), number) + (list(routings(3)) if number > 100 else [])
    assert_safe(program, schedule, every)


@pytest.mark.verify
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_events_of_every_routing_are_safe(program: Any) -> None:
    """All 11,826 of up to 6 tokens, with the first schedule."""
    assert_safe(program, in_tiles(program, next(iter(program.schedules)), 16), routings(), (1,))
