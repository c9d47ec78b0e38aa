"""The library of operators: one a file, readable on a page, each a program with its schedules beside it.

A file that says `operator = "linear_reduce_scatter"` computes that operator of `tilelink.ops`, or the backward of one:
its schedules are plans of it. Another program of the same operator says what plans call it, `plan = "ring"`. A program
whose dimensions are not those of the operator says how it takes them: `sizes`, of K, and `given`, of a matrix (..., K).
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilelink.programs.program import Program


def operators() -> dict[str, Program]:
    """The programs of the modules in this package by name, sorted: a file put here is an operator, nothing lists it."""
    from tilelink.programs.program import Program

    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    programs = [value for module in modules for value in vars(module).values() if isinstance(value, Program)]
    return {p.name: p for p in sorted(programs, key=lambda p: p.name)}
