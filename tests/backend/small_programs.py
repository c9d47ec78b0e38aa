"""Programs with small tiles, which compile fast, and what the gates say of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification.mutants.tools import Edit
from tilelink.backend.lower import Lowered, lower_at
from tilelink.backend.targets import FORMS
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import Verdict, judge
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul import matmul

SMALL = {"M": 256, "N": 256, "K": 256}
Made = tuple[Lowered, Sizes]


def small(
    target: str = "sm_90", program: Any = matmul, schedule: Any = None, **sizes: Any
) -> tuple[Lowered, Sizes]:
    """A program with small tiles, which compile fast."""
    sizes = {**SMALL, **sizes}
    fitted = program.fit(schedule, world=4, dtypes="bf16", **sizes)
    changes = {role: {"tile": (64, 64, 64)[: len(r.tile)], "warps": 4} for role, r in fitted.tiled.items()}
    fitted = fitted.changed(**changes)
    bound = program.bind(fitted, "bf16", program.optional)
    exact = Sizes.of(bound, 4, sizes)
    return lower_at(bound, exact, FORMS[target]), exact


def lowered(target: str, schedule: str = "push") -> Made:
    return small(target, all_gather_matmul, schedule)


def verdict(made: Made, edit: Edit = lambda source: source) -> Verdict:
    """What the gates say of an edited kernel, held against the program that it was made from."""
    lowered, sizes = made
    edited = replace(lowered, source=edit(lowered.source))
    return judge(edited, compiled(edited, sizes))
