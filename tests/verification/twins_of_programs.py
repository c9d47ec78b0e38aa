"""Mistakes that can be written as tile programs: refused by the frontend, or found by the check before a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

import tilelink as tk
from examples.mistakes import odd_rows
from tests.verification import twin_programs as programs
from tests.verification.cases import Case, Tiles, twins
from tilelink.programs.program import Program

COPIES = tk.SMs(2, tile=(16, 16))
HOME = tk.SMs(2, tile=(16, 16), at="home")
PUSH = tk.Schedule(gather=HOME, double=COPIES)
PULL = PUSH.changed(gather={"at": "reader"})
SHARED = tk.Schedule(gather=tk.SMs(tile=(16, 16), at="home"), double=tk.SMs(tile=(16, 16)))
EACH = tk.Schedule(put_beside=COPIES, add_parts=COPIES)
SIZES = {"M": 40, "K": 32}
RING = {"M": 48, "K": 16}
started_first = tk.order(lambda step, rank, world: (rank - step - 1) % world)


def called(program: Program, schedule: tk.Schedule, rows: int, sizes: dict[str, int] = SIZES, **options: Any) -> Tiles:
    """A program that is called twice, with so many rows a rank."""
    x = torch.ones(rows, sizes["K"])
    return Tiles(program, schedule, sizes, lambda rank: (x,), calls=2, **options)


def ring(order: Any) -> tk.Schedule:
    return tk.Schedule(around=tk.SMs(1, tile=(16, 16), order=order))


@dataclass(frozen=True)
class Disagreeing(Tiles):
    """A program that rank 1 calls with another schedule."""

    other: tk.Schedule = PULL

    def scheduled(self, rank: int) -> tk.Schedule:
        return self.other if rank == 1 else self.schedule


GATHERED = called(programs.gathered, PUSH, 20)
SUMMED = called(programs.a_place_for_each, EACH, 40)

CASES: list[Case] = [
    *twins("one-row-too-many", "data read that the wait does not cover", "check", "unguarded read", 2,
           Tiles(odd_rows.sums_of_tiles, odd_rows.push, {"M": 66, "K": 32}),
           called(odd_rows.sums_of_tiles, odd_rows.push, 32, {"M": 64, "K": 32}),
           ("tk.copy(x[t]", "rows[pair].load()")),
    *twins("read-without-a-wait", "acquire missing", "frontend", "UnguardedReadError", 2,
           Tiles(programs.read_without_wait, tk.Schedule(gather=HOME, double_unasked=COPIES), SIZES),
           GATHERED, ("tk.copy(x[t]", "full[t].load()"), ("tk.copy(x[t]", "tk.wait(full[t]).load()")),
    *twins("store-after-the-signal", "release missing", "check", "race", 2,
           Tiles(programs.store_after_signal, tk.Schedule(gather_halves=HOME, double=COPIES), SIZES),
           GATHERED, ("there.store(", "tk.wait(full[t]).load()"), ("tk.copy(x[t]", "tk.wait(full[t]).load()")),
    *twins("consumer-before-producer", "a consumer tile ordered before its producer on the same worker",
           "check", "deadlock", 2, Tiles(programs.consumer_first, SHARED, SIZES),
           called(programs.gathered, SHARED, 20), ("tk.wait(full[t])", "tk.notify(tk.copy(")),
    *twins("ring-in-the-wrong-order", "rings whose waits come before their signals", "check", "deadlock", 3,
           Tiles(programs.ring_sum, ring(tk.own_rank_first), RING),
           called(programs.ring_sum, ring(started_first), 48, RING), ("tk.wait(passed[t])",)),
    *twins("more-workers-than-SMs", "a persistent grid larger than what is resident", "check", "ScheduleError", 2,
           replace(GATHERED, arguments=None, sms=3), replace(GATHERED, sms=4),
           says="gathered asks for 4 SMs by count; the device has 3"),
    *twins("reuse-in-the-next-step", "payload reused before the consumer has read it, within a call",
           "check", "race", 3,
           Tiles(programs.two_buffers, tk.Schedule(pass_on=COPIES, add_all=COPIES), {"M": 16, "K": 16}),
           called(programs.two_buffers_mended, tk.Schedule(pass_on_mended=COPIES, add_all_mended=COPIES), 16,
                  {"M": 16, "K": 16}),
           ("tk.copy(here", "tk.wait(turns[s, t]).load()"), ("tk.copy(here", "here.load()")),
    *twins("one-place-for-all-parts", "partial sums added into one buffer", "check", "race", 2,
           Tiles(programs.one_place_for_all, tk.Schedule(add_here=COPIES, take=COPIES), SIZES), SUMMED,
           ("sums[t].store(",), ()),
    *twins("atomics-into-a-buffer", "partial sums added with atomics into a buffer that was zeroed once",
           "frontend", "ViewError", 2,
           Tiles(programs.atomics, tk.Schedule(add_atomically=COPIES, take=COPIES), SIZES), SUMMED,
           ("tl.atomic_add(sums",), ()),
    *twins("pull-among-push", "one rank tuned to a protocol its peers do not speak",
           "execution", "RankMismatchError", 2,
           Disagreeing(programs.gathered, PUSH, SIZES, GATHERED.arguments), GATHERED,
           says="rank 0 has schedule {'gather': "),
]  # fmt: skip
