"""What layers of experts need room for on a rank."""

from __future__ import annotations

from math import ceil

from tilelink.frontend.values import ITEM_SIZE
from tilelink.plans.layer_plans import is_once
from tilelink.plans.model import Experts

GATE_UP, DOWN = "experts_gate_up", "experts_down"
"""What the first and the second product of a layer of experts are called."""


def room(experts: Experts, tokens: int) -> int:
    """Rows that a rank has room for by default, where it has an even part of `tokens`: no row is ever dropped."""
    return experts.world * ceil(tokens / experts.world) * min(experts.each, experts.all // experts.spread)


def heap_bytes(experts: Experts, dtype: str, tokens: int, plan: str | None = None) -> int:
    """Bytes of a rank's slot of the symmetric heap that the program of a product takes for that room; a lane has two
    slots. Before the product there are rows; behind it what experts made, and what comes back. By plans "once", tokens
    of all ranks besides, or a sum of every rank for each token."""
    own = ceil(tokens / experts.world)
    if experts.name == GATE_UP:
        elements = (room(experts, tokens) + (own * experts.world if is_once(plan) else 0)) * experts.depth
    else:
        back = own * (experts.world if is_once(plan) else experts.each * experts.cut)
        elements = (room(experts, tokens) + back) * experts.columns
    return ITEM_SIZE[dtype] * elements


def layer_heap_bytes(gate_up: Experts, down: Experts, dtype: str, tokens: int) -> int:
    """As `heap_bytes`, of the whole layer in one kernel: rows that arrive, hidden features, results, and what comes
    back."""
    hidden = room(gate_up, tokens) * down.depth * ITEM_SIZE[dtype]
    return heap_bytes(gate_up, dtype, tokens) + hidden + heap_bytes(down, dtype, tokens)
