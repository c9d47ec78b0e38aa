"""Mistakes that the language can't say, in kernels written by hand: the execution finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tests.verification import twin_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.cases import Case, Kernels, twins
from tilelink.emulator.kernel_world import KernelRank, KernelWorld

PAIR = "# one", "# other"
WAIT = ("# one",)


def races(
    name: str, bug: str, calls: Calls, faulty: dict[str, Any], mended: dict[str, Any], ranks: int = 2, *inner: Any
) -> list[Case]:
    """A kernel with other constants, faulty and mended; `inner`: the function that the pair stands in, if another."""
    sides = [Kernels(replace(calls, constants=c), inner or (calls.kernel,)) for c in (faulty, mended)]
    return twins(name, bug, "execution", "race", ranks, *sides, PAIR)


def stuck(name: str, bug: str, faulty: Calls, mended: Calls, ranks: int = 2, **options: Any) -> list[Case]:
    """A wait that never ends, and one that does."""
    sides = [Kernels(calls, (calls.kernel,), options) for calls in (faulty, mended)]
    return twins(name, bug, "execution", "DeadlockError", ranks, *sides, WAIT)


def calls_of(kernel: Any, grid: int = 1, **constants: Any) -> Calls:
    return Calls(kernel, grid=grid, constants=constants)


SENDS = Calls(kernels.send_each_call, calls=2)
REPLAYED = Calls(kernels.send_each_replay, calls=3)
SLOTS = Calls(kernels.send_in_slots, calls=4)
THRESHOLD = Calls(kernels.send_with_threshold, calls=3)
MESSAGE = Calls(kernels.message)
ORDERED = dict(SET="release", LOOK="acquire", SCOPE="sys")
PUSHES = calls_of(kernels.pushes, PARTS=2, EXPECTED=2)
OTHER_ON_EACH = calls_of(kernels.pushes, PARTS=lambda rank, call: 1 + rank, EXPECTED=lambda rank, call: 1 + rank)


def zeroed(each_call: bool) -> Kernels:
    """Two calls with the same arguments have to give the same."""
    calls = Calls(kernels.add_up, calls=2, constants=dict(ZEROED=each_call), repeats=True)
    return Kernels(calls, (kernels.add_up,))


def on_streams(function: Any, launch: Callable[[KernelWorld], Callable[[KernelRank], None]]) -> Kernels:
    """Kernels on streams: `launch(world)` makes memory, and returns what each rank does."""
    return Kernels(lambda world: world.run(launch(world)), function if isinstance(function, tuple) else (function,))


def counting(scope: str) -> Kernels:
    return Kernels(calls_of(kernels.count_under_a_lock, SCOPE=scope), (kernels.count_under_a_lock,))


def barriers(apart: bool) -> Kernels:
    """Two streams of each rank meet those of its peers, at one barrier or at one each."""

    def launch(world: KernelWorld) -> Callable[[KernelRank], None]:
        data, words = world.symmetric("data", (64,), torch.int32), world.signals("words", world.world)
        others = world.signals("others", world.world) if apart else words

        def on_rank(rank: KernelRank) -> None:
            out = torch.zeros(64, dtype=torch.int32)
            for stream, met in enumerate((words, others)):
                given = data.table, met.table, out, rank.rank, stream, world.world
                rank.launch(kernels.read_on_a_stream, 1, *given, stream=stream)

        return on_rank

    return on_streams(kernels.read_on_a_stream, launch)


def grids(same_order: bool) -> Kernels:
    """Two grids that fill a rank, ours and a collective's, which rank 1 launches in another order or in the same."""

    def launch(world: KernelWorld) -> Callable[[KernelRank], None]:
        ours, theirs = (world.signals(name) for name in ("ours", "theirs"))

        def on_rank(rank: KernelRank) -> None:
            first, second = (ours, theirs) if same_order or rank.rank == 0 else (theirs, ours)
            for stream, words in enumerate((first, second)):
                given = words.table, rank.rank, world.world, 4
                rank.launch(kernels.programs_of_all_ranks_meet, 4, *given, stream=stream)

        return on_rank

    return replace(on_streams(kernels.programs_of_all_ranks_meet, launch), options={"resident": 4})


def budgets(behind: bool) -> Kernels:
    """The budget is cleared beside the replay that reads it, or behind it."""

    def launch(world: KernelWorld) -> Callable[[KernelRank], None]:
        budget = world.signals("ready")

        def on_rank(rank: KernelRank) -> None:
            rank.launch(kernels.spend, 1, budget[rank.rank], torch.zeros(1, dtype=torch.int32), stream="replay")
            rank.launch(kernels.clear, 1, budget[rank.rank], stream="replay" if behind else "host")

        return on_rank

    return on_streams((kernels.spend, kernels.clear), launch)


CASES: list[Case] = [
    *races("reuse-in-the-next-call", "payload reused before the consumer has read it, in the next call",
           SENDS, dict(CREDIT=False), dict(CREDIT=True), 3),
    *races("reuse-in-the-next-replay", "payload reused before the consumer has read it, in the next graph replay",
           REPLAYED, dict(CREDIT=False), dict(CREDIT=True), 3, kernels.send_each_call),
    *races("signal-never-reset", "a signal never reset: the second use does not wait",
           THRESHOLD, dict(RESET=False, GROWS=False), dict(RESET=True, GROWS=False)),
    *races("fixed-threshold", "a signal that counts on, waited for with a fixed threshold: the second does not wait",
           THRESHOLD, dict(RESET=False, GROWS=False), dict(RESET=False, GROWS=True)),
    *races("slot-chosen-by-the-host", "slot parity chosen on the host: wrong under graph replay",
           SLOTS, dict(slot=0, COUNTED=False), dict(slot=0, COUNTED=True)),
    *races("no-release", "release missing", MESSAGE, ORDERED | dict(SET="relaxed"), ORDERED),
    *races("no-acquire", "acquire missing", MESSAGE, ORDERED | dict(LOOK="relaxed"), ORDERED),
    *races("gpu-scope", "release and acquire at GPU scope, where the other side is a peer",
           MESSAGE, ORDERED | dict(SCOPE="gpu"), ORDERED),
    *races("flag-by-plain-store", "a flag set by a plain store", MESSAGE, ORDERED | dict(SET="plain"), ORDERED),
    *races("polling-by-plain-load", "polling by a plain load", MESSAGE, ORDERED | dict(LOOK="plain"), ORDERED),
    *races("polling-by-volatile-load", "polling by a volatile load, which orders nothing",
           MESSAGE, ORDERED | dict(LOOK="volatile"), ORDERED),
    *races("pad-zeroed-early", "the signal pad zeroed after a peer may have signalled",
           Calls(kernels.zero_then_exchange, calls=2), dict(MEET=False), dict(MEET=True)),
    *races("barrier-of-a-subset", "a barrier that joins a subset",
           Calls(kernels.read_after_barrier), dict(JOINS=2), dict(JOINS=3), 3),
    *races("source-reused", "a source buffer reused before a non-blocking put has read it",
           Calls(kernels.reuse_the_source), dict(QUIET=False), dict(QUIET=True)),
    *races("fence-for-quiet", "puts that a fence orders but does not complete",
           Calls(kernels.tell_another), dict(QUIET=False), dict(QUIET=True), 3),
    *races("wrong-context", "a put ordered on the wrong context",
           Calls(kernels.tell_in_a_context), dict(CONTEXT=0), dict(CONTEXT=1)),
    *stuck("wait-for-equality", "wait for equality where several notifies can pass it by",
           calls_of(kernels.one_after_the_other, AT_LEAST=False), calls_of(kernels.one_after_the_other, AT_LEAST=True),
           3),
    *stuck("grid-larger-than-resident", "a persistent grid larger than what is resident, waiting for programs that "
           "were never scheduled", calls_of(kernels.all_programs_meet, 6, programs=6),
           calls_of(kernels.all_programs_meet, 4, programs=4), 1, resident=4),
    *stuck("ring-that-waits-ahead", "rings whose waits run ahead of their signals",
           calls_of(kernels.ring, AHEAD=True), calls_of(kernels.ring, AHEAD=False), 3),
    *stuck("other-protocol-on-one-rank", "one rank using another protocol than its peers", OTHER_ON_EACH, PUSHES),
    *stuck("failing-on-one-rank", "one rank failing in a configuration while its peers poll",
           replace(PUSHES, absent=(1,)), PUSHES),
    *races("parity-of-each-handle", "two handles on one slot, with a parity each",
           SLOTS, dict(slot=lambda rank, call: call // 2 % 2, COUNTED=False),
           dict(slot=lambda rank, call: call % 2, COUNTED=False)),
    *races("offsets-differ-by-rank", "window offsets that differ by rank, as graphs captured them",
           SLOTS, dict(slot=lambda rank, call: (rank + call) % 2, COUNTED=False),
           dict(slot=lambda rank, call: call % 2, COUNTED=False)),
    *races("groups-on-one-pad", "two groups on one signal pad",
           Calls(kernels.groups_on_one_pad), dict(APART=False), dict(APART=True), 3),
    *twins("barrier-of-two-streams", "one barrier used from two streams", "execution", "race", 2,
           barriers(False), barriers(True), PAIR),
    *twins("grids-in-other-orders", "a grid that fills a rank and a collective's grid, launched in another order on "
           "some ranks", "execution", "DeadlockError", 2, grids(False), grids(True), WAIT),
    *twins("lock-not-atomic-to-peers", "a compare-and-swap that is not atomic to a peer", "execution", "race", 2,
           counting("gpu"), counting("sys"), WAIT),
    *races("proxy-erases-a-flag", "a proxy that sets a flag which a kernel counts up",
           Calls(kernels.told_by_kernel_and_proxy), dict(APART=False), dict(APART=True), 3),
    *twins("budget-cleared-early", "a budget cleared on the host that a replay still needs", "execution", "race", 2,
           budgets(False), budgets(True), PAIR),
    *twins("zeroed-once", "partial sums added by atomics into a buffer that was zeroed once and not per call",
           "execution", "OtherResultError", 2, zeroed(False), zeroed(True),
           says="two calls with the same arguments gave other results"),
]  # fmt: skip
