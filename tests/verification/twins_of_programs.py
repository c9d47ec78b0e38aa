"""Mistakes that can be written as tile programs: refused by the frontend, or found by the check before a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import tilelink as tk
from tests.verification import odd_rows
from tests.verification import twin_programs as programs
from tests.verification.twins import Found, Twin, lines_of
from tilelink.errors import RankMismatchError, ResidencyError, StuckError, TileLinkError
from tilelink.frontend.program import Program
from tilelink.runtime.cpu import RaceError


@dataclass(frozen=True)
class Tiles:
    """A program that is checked and, where nothing is found, called twice on CPU ranks: on rank 1 with `other`, where
    there is one."""

    program: Program
    schedule: tk.Schedule
    sizes: Mapping[str, int] = field(default_factory=lambda: {"M": 40, "K": 32})
    world: int = 2
    sms: int = 8
    other: tk.Schedule | None = None

    def __call__(self, seed: int) -> list[Found]:
        try:
            report = self.program.check(self.schedule, world=self.world, sms=self.sms, **self.sizes)
        except TileLinkError as e:
            return [Found("frontend", type(e).__name__, lines_of(e.site) if e.site else ())]
        if report.findings:
            return [Found("check", f.kind, f.lines) for f in report.findings]
        try:
            tk.CpuWorld(self.world, seed=seed, sms=self.sms, heap_bytes=4 << 20).run(self.on_rank)
        except RaceError as e:
            return [Found("execution", "race", lines_of(r.first.site, r.second.site)) for r in e.races]
        except (StuckError, ResidencyError):
            return [Found("execution", "deadlock")]
        except RankMismatchError as e:
            return [Found("agreement", "mismatch", lines_of(e.site) if e.site else ())]
        return []

    def on_rank(self, group: Any) -> None:
        schedule = self.other if self.other and group.rank == 1 else self.schedule
        tensor = self.program.recorded().tensors[0]
        rows = self.sizes["M"] // (self.world if tensor.sharded else 1)
        for _ in range(2):
            self.program(torch.ones(rows, self.sizes["K"]), schedule=schedule, group=group)


COPIES = tk.SMs(2, tile=(16, 16))
HOME = tk.SMs(2, tile=(16, 16), at="home")
READER = tk.SMs(2, tile=(16, 16), at="reader")
PUSH = tk.Schedule(gather=HOME, double=COPIES)
PULL = tk.Schedule(gather=READER, double=COPIES)
SHARED = tk.Schedule(gather=tk.SMs(tile=(16, 16), at="home"), double=tk.SMs(tile=(16, 16)))
started_first = tk.order(lambda step, rank, world: (rank - step - 1) % world)


def ring(order: Any) -> tk.Schedule:
    return tk.Schedule(around=tk.SMs(1, tile=(16, 16), order=order))


TWINS = [
    Twin("one row too many", "data read that the wait does not cover", "check", "unguarded read",
         Tiles(odd_rows.sums_of_tiles, odd_rows.push, {"M": 66, "K": 32}),
         Tiles(odd_rows.sums_of_tiles, odd_rows.push, {"M": 64, "K": 32}), ("tk.copy(x[t]", "rows[pair].load()")),
    Twin("read without a wait", "acquire missing", "frontend", "UnguardedReadError",
         Tiles(programs.read_without_wait, tk.Schedule(gather=HOME, double_unasked=COPIES)),
         Tiles(programs.gathered, PUSH), ("full[t].load()",)),
    Twin("store after the signal", "release missing", "check", "race",
         Tiles(programs.store_after_signal, tk.Schedule(gather_halves=HOME, double=COPIES)),
         Tiles(programs.gathered, PUSH), ("there.store(", "tk.wait(full[t]).load()")),
    Twin("consumer before producer", "a consumer tile ordered before its producer on the same worker", "check",
         "deadlock", Tiles(programs.consumer_first, SHARED), Tiles(programs.gathered, SHARED),
         ("tk.wait(full[t])", "tk.notify(tk.copy(")),
    Twin("ring in the wrong order", "rings whose waits come before their signals", "check", "deadlock",
         Tiles(programs.ring_sum, ring(tk.own_rank_first), {"M": 48, "K": 16}, world=3),
         Tiles(programs.ring_sum, ring(started_first), {"M": 48, "K": 16}, world=3), ("tk.wait(passed[t])",)),
    Twin("more workers than SMs", "a persistent grid larger than what is resident", "frontend", "ScheduleError",
         Tiles(programs.gathered, PUSH, sms=3), Tiles(programs.gathered, PUSH, sms=4), ("def gathered",)),
    Twin("reuse in the next step", "payload reused before the consumer has read it, within a call", "check", "race",
         Tiles(programs.two_buffers, tk.Schedule(pass_on=COPIES, add_all=COPIES), {"M": 16, "K": 16}, world=3),
         Tiles(programs.two_buffers_mended, tk.Schedule(pass_on_mended=COPIES, add_all_mended=COPIES),
               {"M": 16, "K": 16}, world=3), ("tk.copy(here", "tk.wait(turns[s, t])")),
    Twin("one place for all parts", "partial sums added into one buffer", "check", "race",
         Tiles(programs.one_place_for_all, tk.Schedule(add_here=COPIES, take=COPIES)),
         Tiles(programs.a_place_for_each, tk.Schedule(put_beside=COPIES, add_parts=COPIES)), ("sums[t].store(",)),
    Twin("atomics into a buffer", "partial sums added with atomics into a buffer that was zeroed once", "frontend",
         "ViewError", Tiles(programs.atomics, tk.Schedule(add_atomically=COPIES, take=COPIES)),
         Tiles(programs.a_place_for_each, tk.Schedule(put_beside=COPIES, add_parts=COPIES)), ("tl.atomic_add(sums",)),
    Twin("pull among push", "one rank tuned to a protocol its peers do not speak", "agreement", "mismatch",
         Tiles(programs.gathered, PUSH, other=PULL), Tiles(programs.gathered, PUSH, other=PUSH)),
]  # fmt: skip
