"""Mistakes that the language can't say, in kernels written by hand; the execution finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification import twin_kernels as kernels
from tests.verification.calls import Calls
from tests.verification.twins import Kernel, Tool, Twin

PAIR = "# one", "# other"


def twin(
    name: str,
    bug: str,
    kernel: Kernel,
    faulty: dict[str, Any],
    mended: dict[str, Any],
    *,
    kind: str = "race",
    tool: Tool = "execution",
    pair: tuple[str, ...] = PAIR,
    every_seed: bool = True,
) -> Twin:
    """A kernel with other constants, faulty and mended."""
    sides = [replace(kernel, calls=replace(kernel.calls, constants=constants)) for constants in (faulty, mended)]
    return Twin(name, bug, tool, kind, *sides, pair=pair, every_seed=every_seed)


def meeting(programs: int, resident: int) -> Kernel:
    """So many programs, all of which meet."""
    calls = Calls(kernels.all_programs_meet, grid=programs, constants=dict(programs=programs))
    return Kernel(calls, world=1, resident=resident)


SENDS = Kernel(Calls(kernels.send_each_call, calls=2), world=3)
REPLAYED = Kernel(Calls(kernels.send_each_replay, calls=3), world=3)
SLOTS = Kernel(Calls(kernels.send_in_slots, calls=4))
THRESHOLD = Kernel(Calls(kernels.send_with_threshold, calls=2))
MESSAGE = Kernel(Calls(kernels.message))
ORDERED = dict(SET="release", LOOK="acquire", SCOPE="sys")
PUSHES = Calls(kernels.pushes, constants=dict(PARTS=2, EXPECTED=2))
STUCK: dict[str, Any] = dict(kind="deadlock", pair=("# one",))

TWINS = [
    twin("reuse in the next call", "payload reused before the consumer has read it, in the next call",
         SENDS, dict(CREDIT=False), dict(CREDIT=True)),
    twin("reuse in the next replay", "payload reused before the consumer has read it, in the next graph replay",
         REPLAYED, dict(CREDIT=False), dict(CREDIT=True)),
    twin("signal never reset", "a signal never reset: the second use does not wait",
         THRESHOLD, dict(RESET=False, GROWS=False), dict(RESET=True, GROWS=False), every_seed=False),
    twin("fixed threshold", "a signal that counts on, waited for with a fixed threshold: the second use does not wait",
         THRESHOLD, dict(RESET=False, GROWS=False), dict(RESET=False, GROWS=True), every_seed=False),
    twin("slot chosen by the host", "slot parity chosen on the host: wrong under graph replay",
         SLOTS, dict(slot=0, COUNTED=False), dict(slot=0, COUNTED=True)),
    twin("no release", "release missing", MESSAGE, ORDERED | dict(SET="relaxed"), ORDERED),
    twin("no acquire", "acquire missing", MESSAGE, ORDERED | dict(LOOK="relaxed"), ORDERED),
    twin("gpu scope", "release and acquire at GPU scope, where the other side is a peer",
         MESSAGE, ORDERED | dict(SCOPE="gpu"), ORDERED),
    twin("flag by a plain store", "a flag set by a plain store", MESSAGE, ORDERED | dict(SET="plain"), ORDERED),
    twin("polling by a plain load", "polling by a plain load", MESSAGE, ORDERED | dict(LOOK="plain"), ORDERED),
    twin("polling by a volatile load", "polling by a volatile load, which orders nothing",
         MESSAGE, ORDERED | dict(LOOK="volatile"), ORDERED),
    twin("pad zeroed too early", "the signal pad zeroed after a peer may have signalled",
         Kernel(Calls(kernels.zero_then_exchange, calls=2)), dict(MEET=False), dict(MEET=True)),
    twin("wait for equality", "wait for equality where several notifies can pass it by",
         Kernel(Calls(kernels.one_after_the_other), world=3), dict(AT_LEAST=False), dict(AT_LEAST=True),
         every_seed=False, **STUCK),
    Twin("grid larger than resident", "a persistent grid larger than what is resident, waiting for programs that were "
         "never scheduled", "execution", "deadlock",
         meeting(6, resident=4), meeting(4, resident=4),
         ("# one",)),
    Twin("failing on one rank", "one rank failing in a configuration while its peers spin", "execution", "deadlock",
         Kernel(replace(PUSHES, absent=(1,))), Kernel(PUSHES), ("# one",)),
    twin("ring that waits ahead", "rings whose waits run ahead of their signals",
         Kernel(Calls(kernels.ring), world=3), dict(AHEAD=True), dict(AHEAD=False), **STUCK),
    twin("other protocol on one rank", "one rank tuned to a protocol its peers do not speak",
         Kernel(PUSHES), dict(PARTS=lambda rank, call: 1 + rank, EXPECTED=lambda rank, call: 1 + rank),
         dict(PARTS=2, EXPECTED=2), **STUCK),
    twin("barrier of a subset", "a barrier that joins a subset",
         Kernel(Calls(kernels.read_after_barrier), world=3), dict(JOINS=2), dict(JOINS=3)),
    twin("zeroed once", "partial sums added by atomics into a buffer that was zeroed once and not per call",
         Kernel(Calls(kernels.add_up, calls=2), repeats=True), dict(ZEROED=False), dict(ZEROED=True),
         tool="repetition", kind="other result", pair=()),
]  # fmt: skip
