"""Routings of tokens to experts in predictions: evenly, or by a power law; and what programs are told of a routing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilelink.frontend.kept import kept
from tilelink.plans.model import Experts

ROUTINGS = EVEN, POWER_LAW = "even", "power-law"
EXPONENT = 1.2
"""The exponent of the power law: the expert that is k-th in demand is asked for k ** -1.2 times as often as the first,
by no more tokens than there are. NVIDIA's aiconfigurator measures layers of experts in this way (`power_law_1.2`)."""
DRAWN = 4096
"""The number of tokens whose experts are drawn; more tokens repeat these."""


def rows_of_experts(experts: Experts, tokens: int, routing: str) -> int | list[list[int]]:
    """Rows of each expert, and of each slice of one, from each rank, as programs take them; a single number is dealt
    out evenly. `routing`: one of `ROUTINGS`."""
    if routing == EVEN:
        return tokens * experts.each * experts.cut
    each, law = experts.all // experts.spread, power_law(experts, tokens)
    groups = [law[first : first + each] for first in range(0, experts.all, each)]
    return [rows for group in groups for _ in range(experts.cut) for rows in group]


def power_law(experts: Experts, tokens: int) -> list[list[int]]:
    """Rows of each expert from each rank, for `tokens` that go to experts by the power law. Which experts are asked for
    most is drawn, always in the same way."""
    asked = _demand(experts)
    rows, left = np.zeros(experts.all), float(tokens * experts.each)
    while left > 0.5:  # an expert that has all tokens gives what is left to others
        free = rows < tokens
        rows[free] += left * asked[free] / asked[free].sum()
        left = float((rows - tokens).clip(0).sum())
        rows = rows.clip(max=tokens)
    ends = np.rint(np.cumsum(rows)).astype(int)
    whole = np.diff(ends, prepend=0).tolist()
    _shuffle(whole)
    ranks = range(experts.world)
    return [[n * (s + 1) // experts.world - n * s // experts.world for s in ranks] for n in whole]


def tokens_of_ranks(experts: Experts, tokens: int, routing: str) -> dict[str, np.ndarray]:
    """`wanted` and `at` of programs that send a token once to a rank, for tokens whose experts are drawn, always in the
    same way. `at` only tells how many rows a token has. Empty if all tokens go to all ranks, with all their rows."""
    if experts.spread == 1:
        return {}
    homes = np.resize(_homes(experts, routing), (tokens, experts.each))
    each = [(homes == rank // experts.cut).sum(1) for rank in range(experts.world)]
    at = np.stack([np.where(np.arange(experts.each) < rows[:, None], 0, -1) for rows in each])
    return {"wanted": np.where(np.stack(each, 1) > 0, 0, -1), "at": at}


@kept()
def _homes(experts: Experts, routing: str) -> np.ndarray:
    """The group of ranks that each expert of each drawn token is on. The experts of a token are drawn one after the
    other, and never twice."""
    demand = np.ones(experts.all) if routing == EVEN else _demand(experts)
    shuffled = demand.tolist()
    _shuffle(shuffled)
    uniform = np.random.default_rng(0).random((DRAWN, experts.all))
    asked = np.log(shuffled) - np.log(-np.log(uniform))  # Gumbel's trick
    chosen = np.argpartition(-asked, experts.each - 1, axis=1)[:, : experts.each]
    return chosen // (experts.all // experts.spread)


def _demand(experts: Experts) -> Any:
    """How often each expert is asked for, by the power law."""
    return np.arange(1, experts.all + 1) ** -EXPONENT


def _shuffle(of_experts: Sequence[Any]) -> None:
    """Shuffles the experts' demand, always in the same way."""
    random.Random(0).shuffle(of_experts)  # type: ignore[arg-type]  # a list
