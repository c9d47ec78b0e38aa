"""Mistakes that can be written as tile programs: refused by the frontend, or found by the check before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tilelink as tk
from examples.mistakes import odd_rows
from tests.programs import reducing, unsafe
from tests.programs import ring_attention as rings
from tests.programs.exchanges import readers_first, shared_workers
from tests.programs.gathered import gathered
from tests.verification import twin_programs as programs
from tests.verification.cases import Case, Tiles, twins
from tilelink.programs.program import Program

COPIES = tk.SMs(2, tile=(16, 16))
HOME = tk.SMs(2, tile=(16, 16), at="home")
PUSH = tk.Schedule(gather=HOME, take=COPIES)
PULL = PUSH.changed(gather={"at": "reader"})
EACH = tk.Schedule(put_beside=COPIES, add_parts=COPIES)
SIZES = {"M": 40, "K": 32}
RING = {"M": 48, "N": 16, "K": 16}
TURNS = {"Q": 16, "T": 16, "D": 16}
started_first = tk.order(lambda step, rank, world: (rank - step - 1) % world)


def called(
    program: Program, schedule: tk.Schedule, shapes: Sequence[tuple[int, int]], sizes: dict[str, int] = SIZES
) -> Tiles:
    """A program that each rank calls twice, with ones in these shapes."""
    given = tuple(torch.ones(shape) for shape in shapes)
    return Tiles(program, schedule, sizes, lambda rank: given, calls=2)


def ring(order: Any) -> tk.Schedule:
    return tk.Schedule(matmul=tk.SMs(1, tile=(16, 16, 16)), ring=tk.SMs(1, tile=(16, 16), order=order))


def turns(pass_on: str, attend: str) -> tk.Schedule:
    return tk.Schedule(**{pass_on: COPIES, attend: tk.SMs(2, tile=(16, 16, 16))})


@dataclass(frozen=True)
class Disagreeing(Tiles):
    """A program that rank 1 calls with another schedule."""

    other: tk.Schedule = PULL

    def scheduled(self, rank: int) -> tk.Schedule:
        return self.other if rank == 1 else self.schedule


GATHERED = called(gathered, PUSH, [(20, 32)])
SUMMED = called(reducing.a_place_for_each, EACH, [(40, 32)])

CASES: list[Case] = [
    *twins("one-row-too-many", "data read that the wait does not cover", "check", "unguarded read", 2,
           Tiles(odd_rows.sums_of_tiles, odd_rows.push, {"M": 66, "K": 32}),
           called(odd_rows.sums_of_tiles, odd_rows.push, [(32, 32)], {"M": 64, "K": 32}),
           ("tk.copy(x[t]", "rows[pair].load()")),
    *twins("read-without-a-wait", "acquire missing", "frontend", "UnguardedReadError", 2,
           Tiles(programs.read_without_wait, tk.Schedule(gather=HOME, take_unasked=COPIES), SIZES),
           GATHERED, ("tk.copy(x[t]", "full[t].load()"), ("tk.copy(x[t]", "tk.wait(full[t]).load()")),
    *twins("store-after-the-signal", "release missing", "check", "race", 2,
           Tiles(unsafe.stores_after_notify, tk.Schedule(store_after_notify=HOME, take=COPIES), SIZES),
           GATHERED, ("there.store(", "tk.wait(full[t]).load()"), ("tk.copy(x[t]", "tk.wait(full[t]).load()")),
    *twins("consumer-before-producer", "a consumer tile ordered before its producer on the same worker",
           "check", "deadlock", 2, Tiles(readers_first, shared_workers, SIZES),
           called(gathered, shared_workers, [(20, 32)]), ("tk.wait(full[t])", "tk.notify(tk.copy(")),
    *twins("ring-in-the-wrong-order", "rings whose waits come before their signals", "check", "deadlock", 3,
           Tiles(reducing.ring_reduce_scatter, ring(tk.own_rank_first), RING),
           called(reducing.ring_reduce_scatter, ring(started_first), [(48, 16), (16, 16)], RING),
           ("tk.wait(passed[t])",)),
    *twins("more-workers-than-SMs", "a persistent grid larger than what is resident", "check", "ScheduleError", 2,
           replace(GATHERED, arguments=None, sms=3), replace(GATHERED, sms=4),
           says="gathered asks for 4 SMs by count; the device has 3"),
    *twins("reuse-in-the-next-step", "payload reused before the consumer has read it, within a call",
           "check", "race", 3,
           Tiles(rings.ring_attention_unasked, turns("pass_on_unasked", "attend_unsaid"), TURNS),
           called(rings.ring_attention, turns("pass_on", "attend"), [(16, 16), (16, 16)], TURNS),
           ("tk.copy(here", "tk.wait(ring[s, j])[:, t.cols].load()"), ("tk.copy(here", "keys[:, t.cols].load()")),
    *twins("one-place-for-all-parts", "partial sums added into one buffer", "check", "race", 2,
           Tiles(reducing.one_place_for_all, tk.Schedule(add_here=COPIES, take_sum=COPIES), SIZES), SUMMED,
           ("sums[t].store(",), ()),
    *twins("atomics-into-a-buffer", "partial sums added with atomics into a buffer that was zeroed once",
           "frontend", "ViewError", 2,
           Tiles(programs.atomics, tk.Schedule(add_atomically=COPIES, take_sum=COPIES), SIZES), SUMMED,
           ("tl.atomic_add(sums",), ()),
    *twins("pull-among-push", "one rank using another protocol than its peers",
           "execution", "RankMismatchError", 2,
           Disagreeing(gathered, PUSH, SIZES, GATHERED.arguments), GATHERED,
           says="rank 0 has schedule {'gather': "),
]  # fmt: skip
