"""The discipline "sync" of RMARaceBench 1.2 (RWTH-HPC, its SHMEM part), carried over: what orders two accesses, and
what seems to. 12 of 24 are races."""

from __future__ import annotations

from typing import Any, Literal

from tests.verification import sync_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.cases import Case, Kernels

PAIR = "# one", "# other"


def case(
    name: str, label: Literal["racy", "clean"], ranks: int, kernel: Any, *functions: Any, **constants: Any
) -> Case:
    """A kernel with constants; `functions`: others that the lines of the pair stand in."""
    kind: Literal["local", "remote"] = "local" if name.endswith("local") else "remote"
    subject = Kernels(Calls(kernel, constants=constants), (kernel, *functions))
    return Case(f"sync-{name}", label, kind, ranks, subject, PAIR)


CASES = [
    case("009-quiet-sync-remote", "clean", 2, kernels.put_then_get_by_the_owner, SYNC=True),
    case("010-quiet-sync-remote", "racy", 2, kernels.put_then_get_by_the_owner, SYNC=False),
    case("013-lock-remote", "clean", 2, kernels.puts_under_a_lock, HELD=True),
    case("014-lock-remote", "racy", 2, kernels.puts_under_a_lock, HELD=False),
    case("015-waituntil-remote", "racy", 2, kernels.put_and_flag, WAIT=False),
    case("016-waituntil-remote", "clean", 2, kernels.put_and_flag, WAIT=True),
    case("017-putsignal-remote", "clean", 2, kernels.put_signal),
    case("018-putsignal-remote", "racy", 2, kernels.put_signal_polled_plainly),
    case("021-collective-reduce-remote", "clean", 4, kernels.put_after_reduce, kernels.sum_reduce, SYNC=True),
    case("022-collective-reduce-remote", "racy", 4, kernels.put_after_reduce, kernels.sum_reduce, SYNC=False),
    case("023-team-sync-remote", "racy", 4, kernels.put_before_team_sync, FROM=2, TO=3),
    case("024-team-sync-remote", "clean", 4, kernels.put_before_team_sync, FROM=0, TO=2),
]
