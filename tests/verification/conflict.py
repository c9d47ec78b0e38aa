"""The discipline "conflict" of RMARaceBench 1.2 (RWTH-HPC, its SHMEM part), carried over: two accesses to one place
that nothing orders. 35 of 49 are races.

What a tile program can say is one; the rest are Triton kernels on symmetric memory, by the operations of SHMEM.
"""

from __future__ import annotations

from typing import Any

import torch

import tilelink as tk
from tests.verification import conflict_kernels as kernels
from tests.verification import conflict_programs as programs
from tests.verification.cases import Case, Kernels, Label, Tiles

M, K = 16, 16


def local(number: int, first: str, second: str, label: Label) -> Case:
    """Two operations of one rank meet in its own buffer."""

    def host(world: tk.KernelWorld) -> None:
        run(world, kernels.at_the_origin, FIRST=first, SECOND=second)

    name = f"conflict-{number:03}-{first}-{second}-local"
    return Case(name, label, "local", 2, Kernels(host, (kernels.access,)), pair(first, second))


def remote(number: int, first: str, second: str, label: Label) -> Case:
    """An operation of a rank meets another one's in the data of a third, or the owner's own."""
    own = second in ("load", "store")

    def host(world: tk.KernelWorld) -> None:
        run(world, kernels.at_the_target, FIRST=first, SECOND=second, OTHER=0 if own else 2)

    name = f"conflict-{number:03}-{first}-{second}-remote"
    return Case(name, label, "remote", 2 if own else 3, Kernels(host, (kernels.access,)), pair(first, second))


def pair(first: str, second: str) -> tuple[str, ...]:
    """The marks of two operations, one where they are the same."""
    return tuple(dict.fromkeys(f"# {operation}\n" for operation in (first, second)))


def run(world: tk.KernelWorld, kernel: Any, **operations: Any) -> None:
    """Launches a kernel on every rank."""
    data = world.symmetric("data", (2 * kernels.N.value,), torch.int32)
    buffer = world.symmetric("buffer", (kernels.N.value,), torch.int32)
    signal = world.signals("signal")

    def on_rank(rank: tk.KernelRank) -> None:
        r, out = rank.rank, torch.zeros(kernels.N.value, dtype=torch.int32)
        rank.launch(kernel, 1, data[r], buffer[r], out, signal[r], **operations)

    world.run(on_rank)


def tiles(
    name: str, label: Label, ranks: int, program: Any, first: Any, second: Any, discipline: str = "conflict"
) -> Case:
    """A tile program of two roles; the lines that meet are marked with what the roles do."""
    made = program(first, second)
    roles = {launch.function.name: tk.SMs(1, tile=(M, K)) for launch in made.recorded().launches}
    x = torch.ones(ranks, 2, M, K)
    inputs = 2 if program is programs.two_writers else 1
    subject = Tiles(made, tk.Schedule(**roles), {"M": M, "K": K}, lambda rank: tuple(x[rank, :inputs]))
    return Case(f"{discipline}-{name}-remote", label, "remote", ranks, subject, pair(mark(first), mark(second)))


def mark(role: Any) -> str:
    """How the line of a role is marked."""
    return f"second {role.name.removesuffix('_too')}" if role.name.endswith("_too") else role.name


CASES: list[Case] = [
    local(1, "putnbi", "load", "clean"),
    local(2, "putnbi", "store", "racy"),
    local(3, "putnbi", "putnbi", "clean"),
    local(4, "getnbi", "load", "racy"),
    local(5, "getnbi", "store", "racy"),
    local(6, "getnbi", "putnbi", "racy"),
    local(7, "getnbi", "getnbi", "racy"),
    local(8, "put_signal_nbi", "store", "racy"),
    local(9, "put_signal_nbi", "load", "clean"),
    local(10, "atomicfetchnbi", "store", "racy"),
    local(11, "atomicfetchnbi", "load", "racy"),
    local(12, "atomicfetchincnbi", "store", "racy"),
    local(13, "atomicfetchincnbi", "load", "racy"),
    local(14, "atomiccompareswapnbi", "load", "racy"),
    local(15, "atomiccompareswapnbi", "store", "racy"),
    tiles("016-get-load", "clean", 2, programs.two_readers, programs.get, programs.load),
    tiles("017-get-get", "clean", 3, programs.two_readers, programs.get, programs.get_too),
    tiles("018-get-store", "racy", 2, programs.writer_and_reader, programs.store, programs.get),
    tiles("019-get-put", "racy", 3, programs.writer_and_reader, programs.put, programs.get_too),
    remote(20, "get", "atomicfetch", "clean"),
    remote(21, "get", "atomicset", "racy"),
    tiles("022-put-load", "racy", 2, programs.writer_and_reader, programs.put, programs.load),
    tiles("023-put-store", "racy", 2, programs.two_writers, programs.put, programs.store),
    tiles("024-put-put", "racy", 3, programs.two_writers, programs.put, programs.put_too),
    remote(25, "put", "atomicfetch", "racy"),
    remote(26, "put", "atomicset", "racy"),
    remote(27, "atomicset", "load", "racy"),
    remote(28, "atomicset", "store", "racy"),
    remote(29, "atomicset", "atomicset", "clean"),
    remote(30, "atomicset", "atomicfetch", "clean"),
    remote(31, "atomicfetch", "atomicfetch", "clean"),
    remote(32, "atomicfetch", "load", "clean"),
    remote(33, "atomicfetch", "store", "racy"),
    tiles("034-put_signal-store", "racy", 2, programs.two_writers, programs.put_signal, programs.store),
    tiles("035-put_signal-put_signal", "racy", 3, programs.two_writers, programs.put_signal, programs.put_signal_too),
    remote(36, "g", "store", "racy"),
    remote(37, "g", "put", "racy"),
    remote(38, "p", "load", "racy"),
    remote(39, "p", "get", "racy"),
    remote(40, "iput", "store", "racy"),
    remote(41, "iput", "put", "racy"),
    remote(42, "iget", "store", "racy"),
    remote(43, "iget", "put", "racy"),
    remote(44, "atomicfetchnbi", "atomicfetchnbi", "clean"),
    remote(45, "atomicfetchnbi", "load", "clean"),
    remote(46, "atomicfetchinc", "atomicfetchinc", "clean"),
    remote(47, "atomicfetchnbi", "store", "racy"),
    remote(48, "atomiccompareswapnbi", "store", "racy"),
    remote(49, "atomiccompareswapnbi", "atomicfetchnbi", "clean"),
]
