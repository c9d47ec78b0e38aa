"""How an operator is made known to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def operator(
    schema: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    setup: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Registers `tilelink::name(arguments) -> results`, opaque to compilers, for all devices. `fake`: results as torch
    traces them; `setup` and `backward`: its gradient."""
    name, bracket, rest = f"tilelink::{schema}".partition("(")
    make = torch.library.custom_op(
        name, mutates_args=(), schema=bracket + rest, tags=[torch.Tag.needs_fixed_stride_order]
    )
    made = make(forward)
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=setup)
    return made
