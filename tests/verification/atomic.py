"""The discipline "atomic" of RMARaceBench 1.2 (RWTH-HPC, its SHMEM part), carried over: which atomics are atomic to
each other. 5 of 9 are races.

An atomicity domain, which a team of SHMEM has, is a scope here: of one GPU, or of all.
"""

from __future__ import annotations

from typing import Any, Literal

from tests.verification import atomic_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.cases import Case, Kernels

PAIR = "# one", "# other"


def case(name: str, label: Literal["racy", "clean"], kernel: Any, **constants: Any) -> Case:
    """A kernel with constants, on three ranks."""
    return Case(f"atomic-{name}", label, "remote", 3, Kernels(Calls(kernel, constants=constants), (kernel,)), PAIR)


CASES = [
    case("001-different-ctx-remote", "racy", kernels.addition_in_scope, SCOPE="gpu"),
    case("002-same-ctx-remote", "clean", kernels.two_additions),
    case("003-same-domain-remote", "clean", kernels.addition_in_scope, SCOPE="sys"),
    case("004-int-int-remote", "clean", kernels.addition_and_fetch, SECOND=2),
    case("005-int-int-sameorigin-remote", "clean", kernels.addition_and_fetch, SECOND=0),
    case("007-int-long-remote", "racy", kernels.int_and_long),
]
