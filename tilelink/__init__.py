"""TileLink: a tile-centric compiler for kernels that overlap communication with computation."""
# ruff: noqa: F405  # names in `_LATER` are in `__all__`, too

import importlib
from typing import Any

from tilelink.errors import TileLinkError
from tilelink.frontend.orders import (
    Order,
    across_parts,
    columns_first,
    grouped,
    next_rank_first,
    order,
    own_rank_first,
    ranks_first,
    ring,
)
from tilelink.frontend.schedule import CopyEngine, Epilogue, Schedule, SMs
from tilelink.language import Each, Function, Local, Route, Sharded, locals, nodes, ranks, tile, words
from tilelink.language.words import *  # noqa: F403
from tilelink.programs.program import Program, program

__version__ = "0.1.0"
__all__ = [
    "CopyEngine", "CpuWorld", "Each", "Epilogue", "Function", "KernelRank", "KernelWorld", "Local", "Order", "Program",
    "Route", "SMs", "Schedule", "Sharded", "TileLinkError", "VirtualWorld", "across_parts", "columns_first",
    "group", "grouped", "locals", "next_rank_first", "nodes", "order", "own_rank_first", "program", "ranks",
    "ranks_first", "ring", "tile",
]  # fmt: skip
__all__ += words.__all__


_LATER = {
    "CpuWorld": "runtime", "KernelRank": "emulator.kernel_world", "KernelWorld": "emulator.kernel_world",
    "VirtualWorld": "runtime.cuda.virtual_world", "group": "runtime.groups", "replace_symm_mem_ops": "ops",
}  # fmt: skip
"""The modules of names that are loaded on first use, because reading and lowering programs needs no torch."""


def __getattr__(name: str) -> Any:
    if name in ("ops", "nn"):
        return importlib.import_module(f"tilelink.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"tilelink.{_LATER[name]}"), name)
    raise AttributeError(f"module 'tilelink' has no attribute {name!r}")
