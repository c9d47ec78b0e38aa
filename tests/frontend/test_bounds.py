"""Whether an integer is provably in a range: listed cases, and random ones, of which none is wrongly said to be."""

from __future__ import annotations

from itertools import product

import pytest
import sympy
from hypothesis import strategies as st

from tests.parameters import random_tries
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.bounds import below
from tilelink.frontend.expressions import (
    PER_NODE,
    RANK,
    WORLD,
    Expr,
    Min,
    floor_div,
    least,
    loop,
    modulo,
    node_of,
    place_of,
    rank_at,
    symbol,
)

NODES = floor_div(WORLD, PER_NODE)
I, J, N = loop("i"), loop("j"), symbol("N")
"""A place of a node, a rank from I on, and a size that may be 0."""
ENDS = {RANK: frozenset([WORLD]), I: frozenset([PER_NODE]), J: frozenset([WORLD, N])}
INSIDE = [
    (sympy.S.Zero, PER_NODE), (sympy.S.Zero, NODES), (RANK, WORLD), (I, PER_NODE), (I, WORLD), (J, N), (J, WORLD),
    (place_of(RANK + 5), PER_NODE), (modulo(I + 3, PER_NODE), WORLD), (node_of(RANK), NODES), (node_of(J), NODES),
    (rank_at(node_of(J), place_of(RANK)), WORLD), (rank_at(node_of(RANK), I), WORLD), (Min(I, N), PER_NODE),
    (PER_NODE - 1 - I, PER_NODE), (floor_div(I, 2), PER_NODE), (RANK + I, 2 * WORLD), (2 * J + 1, 2 * N),
    (floor_div(RANK, 2) * 2 + 1 - modulo(RANK, 2), 2 * WORLD),
]  # fmt: skip
OUTSIDE = [
    (sympy.S.One, PER_NODE), (sympy.S.Zero, symbol("M")), (RANK, PER_NODE), (J, PER_NODE), (I, NODES),
    (place_of(RANK) + 1, WORLD),
    (node_of(RANK) + 1, NODES), (modulo(I + 1, 2), PER_NODE), (RANK - 1, WORLD), (RANK - I, WORLD), (J + 1, N),
    (rank_at(node_of(RANK), I + 1), WORLD), (symbol("M"), N), (2 * I, PER_NODE),
]  # fmt: skip


def always(e: Expr, size: Expr) -> bool:
    """Whether an integer is in [0, size) in small worlds of nodes, for all values that its symbols have there."""
    for nodes, per_node, n, m in product(range(1, 4), range(1, 4), range(5), range(3)):
        world = nodes * per_node
        for rank, i, j in product(range(world), range(per_node), range(min(world, n))):
            values = {WORLD.name: world, PER_NODE.name: per_node, RANK.name: rank, I.name: i, J.name: j, "N": n, "M": m}
            if not 0 <= evaluate(e, values) < evaluate(size, values):
                return False
    return True


@pytest.mark.parametrize(("e", "size"), INSIDE, ids=str)
def test_what_is_proved(e: Expr, size: Expr) -> None:
    assert below(e, size, ENDS) and always(e, size)


@pytest.mark.parametrize(("e", "size"), OUTSIDE, ids=str)
def test_what_may_be_outside(e: Expr, size: Expr) -> None:
    assert not below(e, size, ENDS) and not always(e, size)


def combined(of: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pairs = st.tuples(of, of)
    divided = pairs.filter(lambda two: (least(two[1]) or 0) > 0)
    return st.one_of(
        pairs.map(lambda two: two[0] + two[1]),
        pairs.map(lambda two: two[0] - two[1]),
        pairs.map(lambda two: two[0] * two[1]),
        pairs.map(lambda two: Min(*two)),
        divided.map(lambda two: floor_div(*two)),
        divided.map(lambda two: modulo(*two)),
    )


LEAVES = st.sampled_from([RANK, WORLD, PER_NODE, I, J, N, *map(sympy.Integer, range(3))])


@random_tries(50, 150, st.recursive(LEAVES, combined, max_leaves=5), st.sampled_from([WORLD, PER_NODE, NODES, N]))
def test_what_is_proved_holds(e: Expr, size: Expr) -> None:
    assert not below(e, size, ENDS) or always(e, size)
