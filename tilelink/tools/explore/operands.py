"""Operands of a call: small integers, of which sums are exact in any order, so that results can be compared bit for
bit."""

from __future__ import annotations

import torch

from tilelink.analysis.placement import shape_on
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.tools.explore.outcome import poison

LOW, HIGH = -2, 3


def operands(program: TileProgram, sizes: Sizes, rank: int, call: int) -> dict[str, torch.Tensor]:
    """The tensors of one call of a rank, by name: inputs, others in each call, and outputs that are poisoned."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    made = {}
    for tensor in program.tensors:
        if tensor.kind not in ("input", "output"):
            continue
        shape, dtype = shape_on(tensor, sizes, rank), getattr(torch, tensor.dtype)
        low = 0 if dtype in (torch.bool, torch.uint8) else LOW
        numbers = torch.randint(low, HIGH, shape, generator=generator)
        made[tensor.name] = poison(torch.empty(shape, dtype=dtype)) if tensor.kind == "output" else numbers.to(dtype)
    return made
