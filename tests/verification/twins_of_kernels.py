"""Mistakes that the language can't say, in kernels written by hand: the execution finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification import twin_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.cases import Case, Kernels, twins

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
    *stuck("other-protocol-on-one-rank", "one rank tuned to a protocol its peers do not speak", OTHER_ON_EACH, PUSHES),
    *stuck("failing-on-one-rank", "one rank failing in a configuration while its peers spin",
           replace(PUSHES, absent=(1,)), PUSHES),
    *twins("zeroed-once", "partial sums added by atomics into a buffer that was zeroed once and not per call",
           "execution", "OtherResultError", 2, zeroed(False), zeroed(True),
           says="two calls with the same arguments gave other results"),
]  # fmt: skip
