"""The lanes that are enumerated, in families."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from tests.runtime.protocol_model.enumeration import explore
from tests.runtime.protocol_model.kinds import (
    ENGINES,
    KINDS,
    Kind,
    causal,
    decode,
    engine_send,
    gather,
    partials,
    pull,
    relay,
    rowless,
)
from tests.runtime.protocol_model.rules import PROTOCOL, Case, Rules


def lane(*kinds: Kind, world: int, slots: Iterable[int] = (), workers: int = 1) -> Case:
    """A lane of these kinds of runs, in slot 0 unless told."""
    return Case(world, tuple(zip(kinds, tuple(slots) or (0,) * len(kinds), strict=True)), workers)


@dataclass(frozen=True)
class Family:
    """Lanes that are enumerated together."""

    name: str
    cases: tuple[Case, ...]

    def row(self, rules: Rules = PROTOCOL) -> str:
        """What was found, as a row of a table."""
        verdicts = [explore(case, rules) for case in self.cases]
        states = [verdict.states for verdict in verdicts]
        safe = sum(verdict.outcome == "safe" for verdict in verdicts)
        return f"| {self.name} | {len(verdicts)} | {safe} | {sum(states):,} | {max(states):,} |"


PICKS = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1))  # of two slots for three runs, up to the slots' names

PAIRS = tuple(lane(*kinds, world=3) for kinds in product((*KINDS, relay), repeat=2))
TWO = tuple(lane(*kinds, world=2) for kinds in product((*KINDS, *ENGINES), repeat=2) if set(kinds) & set(ENGINES))
MIXED = ((pull, rowless, gather), (partials, decode, causal))

FAMILIES = (
    Family("every 2 kinds, 1 slot, 3 ranks", PAIRS),
    Family(
        "every 3 kinds but relay, every pick of 2 slots, 2 ranks",
        tuple(lane(*kinds, world=2, slots=p) for kinds in product(KINDS, repeat=3) for p in PICKS),
    ),
    Family(
        "every 2 kinds but relay, 1 slot, 2 ranks of 2 workers",
        tuple(lane(*kinds, world=2, workers=2) for kinds in product(KINDS, repeat=2)),
    ),
    Family(
        "decode, rowless or pull twice, 1 slot, 3 ranks of 2 workers",
        tuple(lane(kind, kind, world=3, workers=2) for kind in (decode, rowless, pull)),
    ),
    Family(
        "any kind 4 times, 1 slot, 3 ranks",
        tuple(lane(kind, kind, kind, kind, world=3) for kind in (*KINDS, relay)),
    ),
    Family(
        "any kind but relay 6 times, slots 0 1 0 captured and played twice, 2 ranks",
        tuple(lane(*[kind] * 6, world=2, slots=(0, 1, 0) * 2) for kind in KINDS),
    ),
    Family(
        "pull, rowless, gather or partials, decode, causal, every pick of 2 slots, 3 ranks",
        tuple(lane(*kinds, world=3, slots=p) for kinds in MIXED for p in PICKS),
    ),
    Family("every 2 kinds but relay, one with engines, 1 slot, 2 ranks", TWO),
    Family(
        "engines 3 times, every pick of 2 slots, 2 ranks",
        tuple(lane(*kinds, world=2, slots=p) for kinds in product(ENGINES, repeat=3) for p in PICKS),
    ),
    Family("an engine that waits, 1 slot, 2 ranks of 2 workers", (lane(engine_send, engine_send, world=2, workers=2),)),
    Family("engines, 1 slot, 3 ranks", tuple(lane(kind, world=3) for kind in ENGINES)),
    Family(
        "any kind but relay 3 times, 1 slot, a world of 1",
        tuple(lane(kind, kind, kind, world=1) for kind in KINDS),
    ),
)


# Credits that ask fewer ranks, in the lanes of two runs.
WEAKER = (
    Family("home", PAIRS),
    Family("everyone, for what peers read", PAIRS),
)
