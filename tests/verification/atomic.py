"""The discipline "atomic" of RMARaceBench 1.2 (RWTH-HPC, its SHMEM part), carried over: which atomics are atomic to
each other. 5 of 9 are races.

Contexts have the atomicity domain of their team. That of all ranks is the network here, and that of the ranks which
share memory is atomics through mapped memory; the two are not atomic to each other.
"""

from __future__ import annotations

from typing import Any

from tests.verification import atomic_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.cases import Case, Kernels, Label

PAIR = "# one", "# other"


def case(name: str, label: Label, kernel: Any, **constants: Any) -> Case:
    """A kernel with constants, on three ranks."""
    return Case(f"atomic-{name}", label, "remote", 3, Kernels(Calls(kernel, constants=constants), (kernel,)), PAIR)


CASES: list[Case] = [
    case("001-different-ctx-remote", "racy", kernels.additions_on_two_ways),
    case("002-same-ctx-remote", "clean", kernels.additions, FIRST=1, SECOND=1),
    case("003-same-domain-remote", "clean", kernels.additions, FIRST=1, SECOND=2),
    case("004-int-int-remote", "clean", kernels.addition_and_fetch, SECOND=2),
    case("005-int-int-sameorigin-remote", "clean", kernels.addition_and_fetch, SECOND=0),
    case("006-double-long-remote", "racy", kernels.set_as_double_and_long),
    case("007-int-long-remote", "racy", kernels.add_as_int_and_long),
    case("008-int-float-remote", "racy", kernels.set_as_int_and_float, SECOND=2),
    case("009-int-float-sameorigin-remote", "racy", kernels.set_as_int_and_float, SECOND=0),
]
