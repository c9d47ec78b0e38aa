"""The library of operators: each file has one program and its schedules, and can be read on a page.

`operator = "linear_reduce_scatter"` in a file names the operator of `tilelink.ops`, or its backward, that the program
computes: its schedules are plans of this operator. A second program of the same operator has a name for plans, such as
`plan = "ring"`. If a program has other dimensions, `sizes` converts K, and `given` converts a matrix (..., K).

The declarations of a program give the shapes of its tensors, in elements. What is multiplied has one dtype: float32,
float16 or bfloat16. Biases and results of sums may have another of these, a copy keeps the dtype, and sums are made in
float32. A result that the call allocates has the dtype of the first tensor. Rows are numbered by int32 or int64.

A call raises ArgumentError if a tensor is missing or requires a gradient, ShapeError, StrideError or DeviceError for a
tensor that does not fit, DtypeError for a dtype that a program does not take, and ScheduleError or TileSizeError for
its schedule: all before anything is launched. A program with a route raises CapacityError after the run, for rows
without room.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilelink.programs.program import Program


def operators() -> dict[str, Program]:
    """Returns the programs of this package by name, sorted. There is no list: any file in the package takes part."""
    from tilelink.programs.program import Program

    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    programs = [value for module in modules for value in vars(module).values() if isinstance(value, Program)]
    return {p.name: p for p in sorted(programs, key=lambda p: p.name)}
