"""The discipline "sync" of RMARaceBench 1.2 (RWTH-HPC, its SHMEM part), carried over: what orders two accesses, and
what seems to. 12 of 24 are races.

What a tile program can say is one; the rest are Triton kernels, on symmetric memory or by the operations of SHMEM.
"""

from __future__ import annotations

from typing import Any

from tests.verification import conflict_programs as programs
from tests.verification import sync_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.cases import Case, Kernels, Label
from tests.verification.conflict import tiles

PAIR = "# one", "# other"


def case(name: str, label: Label, ranks: int, kernel: Any, *functions: Any, **constants: Any) -> Case:
    """A kernel with constants; `functions`: others that the lines of the pair stand in."""
    subject = Kernels(Calls(kernel, constants=constants), (kernel, *functions))
    return Case(f"sync-{name}", label, "local" if name.endswith("local") else "remote", ranks, subject, PAIR)


CASES: list[Case] = [
    case("001-barrierall-local", "racy", 2, kernels.get_and_load, ENDS="barrier", FIRST=False),
    case("002-barrierall-local", "clean", 2, kernels.get_and_load, ENDS="barrier", FIRST=True),
    case("003-quiet-local", "racy", 2, kernels.get_and_load, ENDS="quiet", FIRST=False),
    case("004-quiet-local", "clean", 2, kernels.get_and_load, ENDS="quiet", FIRST=True),
    case("005-waituntil-local", "clean", 2, kernels.ping_and_pong, ANSWERS=True),
    case("006-waituntil-local", "racy", 2, kernels.ping_and_pong, ANSWERS=False),
    case("007-barrierall-remote", "racy", 2, kernels.put_and_get, SYNC=False),
    case("008-barrierall-remote", "clean", 2, kernels.put_and_get, SYNC=True),
    case("009-quiet-sync-remote", "clean", 2, kernels.put_quiet_get, SYNC=True),
    case("010-quiet-sync-remote", "racy", 2, kernels.put_quiet_get, SYNC=False),
    case("011-fence-put-put-remote", "clean", 2, kernels.put_fence_put),
    case("012-fence-getnbi-put-remote", "racy", 2, kernels.get_fence_put),
    case("013-lock-remote", "clean", 2, kernels.puts_under_a_lock, HELD=True),
    case("014-lock-remote", "racy", 2, kernels.puts_under_a_lock, HELD=False),
    tiles("015-waituntil", "racy", 2, programs.writer_and_reader, programs.put, programs.load, "sync"),
    tiles("016-waituntil", "clean", 2, programs.writer_and_reader, programs.put, programs.collect, "sync"),
    tiles("017-putsignal", "clean", 2, programs.writer_and_reader, programs.put_signal, programs.collect, "sync"),
    case("018-putsignal-remote", "racy", 2, kernels.put_signal_polled_plainly),
    case("019-ctx-remote", "clean", 2, kernels.puts_in_a_context, QUIET=1),
    case("020-ctx-remote", "racy", 2, kernels.puts_in_a_context, QUIET=0),
    case("021-collective-reduce-remote", "clean", 4, kernels.put_after_reduce, kernels.sum_reduce, SYNC=True),
    case("022-collective-reduce-remote", "racy", 4, kernels.put_after_reduce, kernels.sum_reduce, SYNC=False),
    case("023-team-sync-remote", "racy", 4, kernels.put_before_team_sync, FROM=2, TO=3),
    case("024-team-sync-remote", "clean", 4, kernels.put_before_team_sync, FROM=0, TO=2),
]
