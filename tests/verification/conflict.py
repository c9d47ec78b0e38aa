"""The discipline "conflict" of RMARaceBench 1.2 (RWTH-HPC, its SHMEM part), carried over: two accesses to one place
that nothing orders. 35 of 49 are races.

What a tile program can say is one; the rest are Triton kernels on symmetric memory.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

import tilelink as tk
from tests.verification import conflict_programs as programs
from tests.verification.cases import Case, Tiles

M, K = 16, 16


def tiles(name: str, label: Literal["racy", "clean"], ranks: int, program: Any, first: Any, second: Any) -> Case:
    """A case that is a tile program of two roles; the racing lines are marked with their names."""
    made = program(first, second)
    roles = {launch.function.name: tk.SMs(1, tile=(M, K)) for launch in made.recorded().launches}
    x = torch.ones(ranks, 2, M, K)
    inputs = 2 if program is programs.two_writers else 1
    return Case(
        f"conflict-{name}", label, "remote", ranks,
        Tiles(made, tk.Schedule(**roles), {"M": M, "K": K}, lambda rank: tuple(x[rank, :inputs])),
        (f"# {mark(first)}", f"# {mark(second)}"),
    )  # fmt: skip


def mark(role: Any) -> str:
    """How the line of a role is marked."""
    return f"second {role.name.removesuffix('_too')}" if role.name.endswith("_too") else role.name


CASES: list[Case] = [
    tiles("016-get-load-remote", "clean", 2, programs.two_readers, programs.get, programs.load),
    tiles("017-get-get-remote", "clean", 3, programs.two_readers, programs.get, programs.get_too),
    tiles("018-get-store-remote", "racy", 2, programs.writer_and_reader, programs.store, programs.get),
    tiles("019-get-put-remote", "racy", 3, programs.writer_and_reader, programs.put, programs.get_too),
    tiles("022-put-load-remote", "racy", 2, programs.writer_and_reader, programs.put, programs.load),
    tiles("023-put-store-remote", "racy", 2, programs.two_writers, programs.put, programs.store),
    tiles("024-put-put-remote", "racy", 3, programs.two_writers, programs.put, programs.put_too),
    tiles("034-put_signal-store-remote", "racy", 2, programs.two_writers, programs.put_signal, programs.store),
    tiles(
        "035-put_signal-put_signal-remote", "racy", 3, programs.two_writers, programs.put_signal,
        programs.put_signal_too,
    ),
]  # fmt: skip
