"""What layers of experts take at least on a machine. No plan computes them, so nothing more is predicted."""

from __future__ import annotations

from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate.costs import GB_S, TFLOP_S
from tilelink.frontend.values import ITEM_SIZE
from tilelink.plans.model import Experts

REASON = (
    "no plan computes experts (programs do: dispatch_matmul, matmul_combine), so neither form is predicted; the bound "
    "is that of products and of reading weights, where tokens are spread evenly over the experts"
)


def experts_bound_us(experts: Experts, machine: Machine, dtype: str, tokens: int) -> float:
    """Microseconds that no form is faster than, where each expert gets as many tokens as any: the longer of its
    products at the rate of all SMs, and of reading the weights of experts that have a token."""
    rows = tokens * experts.each / experts.spread
    reached = min(experts.all / experts.spread, rows)
    products = 2 * rows * experts.columns * experts.depth / (machine.matmul_rate(dtype) * TFLOP_S)
    weights = reached * experts.columns * experts.depth * ITEM_SIZE[dtype] / (machine.memory_rate * GB_S)
    return max(products, weights)
