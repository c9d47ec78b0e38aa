"""Compares the operations of a lowered kernel with the events of the unrolled program, so that they can't drift apart.

Every read, write, notification and wait of every worker has to be one of its events, in order. Accesses between two
synchronisations of a worker may come in any order and in any number of pieces. In this alignment, each operation
belongs to a tile, which gives the timeline of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NoReturn

import numpy as np

from tilelink.analysis.events import DOT, NOTIFY, READ, WAIT, WRITE, Events
from tilelink.analysis.timeline import EXECUTED, MEMORY_OPERATIONS, Timeline, Transfer, of_tiles
from tilelink.backend.targets.portable import PROGRESS
from tilelink.emulator import Box, Operation
from tilelink.errors import TraceMismatchError
from tilelink.frontend.expressions import parts_of
from tilelink.runtime.layout import CONTROL, SIGNALS

_STRONGER = {"gpu": ("gpu", "sys"), "sys": ("sys",)}


@dataclass(frozen=True)
class Trace:
    """The operations of a run, by the event they belong to: (index of the event, its operations)."""

    events: Events
    done: tuple[tuple[int, tuple[Operation, ...]], ...]


def align(events: Events, operations: Iterable[Operation], name: str) -> Trace:
    """Gives each operation of the launches called `name` to its event. Raises TraceMismatchError at a difference."""
    theirs: dict[tuple[int, int], list[Operation]] = {}
    words: list[Operation] = []
    publishing, *protocol = (_beside(name, kernel) for kernel in ("publish", "enter", "leave"))
    for o in operations:
        if o.name == name and o.region.kind != "control":
            theirs.setdefault((o.rank, o.program), []).append(o)
        elif o.name in (name, *protocol) and o.region.name == CONTROL:
            words.append(o)
        elif o.name == publishing and o.region.rank != o.rank and o.kind == "store":
            raise TraceMismatchError(
                f"rank {o.rank} of {events.program.name} publishes inputs on its own heap; the kernel did a store to "
                f"{o.region.name}@rank{o.region.rank} {list(o.box)} ({o.site})"
            )
    _check_progress(events, words)
    done: list[tuple[int, tuple[Operation, ...]]] = []
    for rank, worker in sorted(set(theirs) | set(events.workers)):
        done += _Worker(events, rank, worker, theirs.get((rank, worker), [])).align()
    return Trace(events, tuple(done))


def _beside(name: str, kernel: str) -> str:
    """The name of another kernel's launch in the run whose persistent kernel has the launch `name`."""
    program, _, run = name.partition(" ")
    return f"{program}_{kernel} {run}"


def _check_progress(events: Events, words: Iterable[Operation]) -> None:
    """Checks that every rank tells every rank once that it has entered the run, and later once that it has left it
    (with copy engines, separate kernels may tell it), and that it touches no other control word of a peer."""
    told: dict[tuple[int, int], list[int]] = {}
    for o in words:
        if o.box == ((PROGRESS.value + o.rank, PROGRESS.value + o.rank + 1),) and o.semantic in ("release", "acq_rel"):
            told.setdefault((o.rank, o.region.rank), []).append(int(o.new or 0))
        elif o.region.rank != o.rank:
            raise TraceMismatchError(
                f"rank {o.rank} worker {o.program} of {events.program.name}: it may write no control word of rank "
                f"{o.region.rank} but its own progress there; the kernel did {o.kind} of {list(o.box)} "
                f"({o.site})"
            )
    world = events.sizes.world
    for rank, peer in ((r, p) for r in range(world) for p in range(world)):
        progress = told.get((rank, peer), [])
        if len(progress) != 2 or progress[1] % 2 or progress[0] != progress[1] - 1:
            raise TraceMismatchError(
                f"rank {rank} of {events.program.name}: it tells rank {peer} once that it has entered, and then that "
                f"it has left; the kernel told {progress}"
            )


class _Worker:
    """The alignment of one worker."""

    def __init__(self, events: Events, rank: int, worker: int, operations: Sequence[Operation]) -> None:
        self.events, self.rank, self.worker, self.operations = events, rank, worker, operations
        self.next = 0

    def align(self) -> list[tuple[int, tuple[Operation, ...]]]:
        done: list[tuple[int, tuple[Operation, ...]]] = []
        open_accesses: list[int] = []
        for k in map(int, self.events.of_worker(self.rank, self.worker)):
            op = self.events.op[k]
            if op in (READ, WRITE):
                open_accesses.append(k)
            elif op != DOT:
                done += self.accesses(open_accesses)
                open_accesses = []
                done.append((k, self.wait(k) if op == WAIT else self.notify(k)))
        done += self.accesses(open_accesses)
        for o in self.operations[self.next :]:  # the last worker out drains the signals and zeroes them
            if o.region.kind != "signal" or (o.kind != "store" and o.semantic != "acquire"):
                self.fail("nothing more", o)
        return done

    def accesses(self, wanted: list[int]) -> list[tuple[int, tuple[Operation, ...]]]:
        """Aligns the reads and writes between two synchronisations. The pieces within an event must add up to it. An
        event on rows that integers pick, or that they say are moved, takes any pieces."""
        left = {k: self.volume(k) for k in wanted if not self.events.picked[k]}
        pieces: dict[int, list[Operation]] = {k: [] for k in wanted}
        while any(left.values()) or self.picks(wanted):
            o = self.take(" or ".join(self.events.describe(k) for k in wanted if left.get(k, 1)))
            box = global_box(self.events, o.region.name, o.region.rank, o.box)
            size = prod(b - a for a, b in box)
            k = next((k for k in wanted if left.get(k, size) >= size and self.fits(k, o, box)), None)
            if k is None:
                self.fail(" or ".join(self.events.describe(k) for k in wanted if left.get(k, 1)), o)
            if k in left:
                left[k] -= size
            pieces[k].append(o)
        return [(k, tuple(pieces[k])) for k in wanted]

    def picks(self, wanted: list[int]) -> bool:
        """Whether the next operation is on rows that integers pick, or that they say are moved."""
        picked = [k for k in wanted if self.events.picked[k]]
        if not picked or self.next == len(self.operations):
            return False
        o = self.operations[self.next]
        box = global_box(self.events, o.region.name, o.region.rank, o.box)
        return any(self.fits(k, o, box) for k in picked)

    def wait(self, k: int) -> tuple[Operation, ...]:
        """Takes polls of all words of a signal, one after the other, until they add up to the expected value."""
        polls = []
        seen: dict[Box, int | float] = {}
        while True:
            o = self.take(self.events.describe(k))
            if not self.is_signal(k, o) or o.old is None or o.new != o.old or o.semantic not in ("acquire", "acq_rel"):
                self.fail(self.events.describe(k), o)
            polls.append(o)
            seen[o.box] = o.old
            words = prod(o.region.tensor.shape[1:])
            if len(polls) % words == 0 and sum(seen.values()) >= self.events.expected[k]:
                return tuple(polls)

    def notify(self, k: int) -> tuple[Operation, ...]:
        o = self.take(self.events.describe(k))
        counted = o.old is not None and o.new == o.old + 1
        if not self.is_signal(k, o) or not counted or o.semantic not in ("release", "acq_rel"):
            self.fail(self.events.describe(k), o)
        return (o,)

    # ---- the next operation, and whether it fits an event

    def take(self, wanted: str) -> Operation:
        if self.next == len(self.operations):
            self.fail(wanted, None)
        self.next += 1
        return self.operations[self.next - 1]

    def fits(self, k: int, o: Operation, box: tuple[tuple[int, int], ...]) -> bool:
        events = self.events
        return (
            o.kind == ("load" if events.op[k] == READ else "store")
            and o.region.name == events.program.tensors[events.tensor[k]].name
            and o.region.rank == events.home[k]
            and all(lo <= a and b <= hi for lo, hi, (a, b) in zip(events.lo[k], events.hi[k], box, strict=False))
        )

    def is_signal(self, k: int, o: Operation) -> bool:
        tensor = self.events.program.tensors[self.events.tensor[k]].name
        scope = self.events.program.signals_of(tensor).scope
        return (
            o.region.name == SIGNALS + tensor
            and o.region.rank == (self.rank if self.events.op[k] == WAIT else self.events.home[k])
            and o.box[0] == (int(self.events.cell[k]), int(self.events.cell[k]) + 1)
            and o.scope in _STRONGER[scope]
        )

    def volume(self, k: int) -> int:
        dims = len(self.events.program.tensors[self.events.tensor[k]].dims)
        return prod(int(b - a) for a, b in zip(self.events.lo[k][:dims], self.events.hi[k][:dims], strict=True))

    def fail(self, wanted: str, o: Operation | None) -> NoReturn:
        did = "nothing more"
        if o is not None:
            did = f"{o.kind} {o.semantic} {o.scope} of {o.region.name}@rank{o.region.rank} {list(o.box)}"
        where = f" ({o.site})" if o else ""
        raise TraceMismatchError(
            f"rank {self.rank} worker {self.worker} of {self.events.program.name}: the program says {wanted}; "
            f"the kernel did {did}{where}"
        )


def global_box(events: Events, region: str, rank: int, box: Box) -> Box:
    """A box of a rank's region, in global coordinates."""
    tensor = next((t for t in events.program.tensors if t.name == region), None)
    if tensor is None or tensor.sharded is None:
        return box
    first = int(events.sizes.values[parts_of(tensor.dims[tensor.sharded])][rank])
    return tuple((a + first, b + first) if k == tensor.sharded else (a, b) for k, (a, b) in enumerate(box))


def timeline(trace: Trace, title: str) -> Timeline:
    """The timeline of an executed run, in logical time: every memory operation of a worker takes one, and a wait ends
    no earlier than the notification that it saw. The overlap is real; the durations are not."""
    events = trace.events
    start, stop = (np.full(len(events.heads), np.nan) for _ in range(2))
    clock: dict[tuple[int, int], float] = {}  # of workers: when their last tile stopped
    notified: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    waits: list[tuple[int, float, Operation]] = []
    transfers: list[Transfer] = []
    for k, operations in trace.done:
        if not operations:
            continue
        tile, worker, last = int(events.tile_at[k]), (int(events.rank[k]), int(events.worker[k])), operations[-1]
        if np.isnan(start[tile]):
            start[tile] = clock[worker] = clock.get(worker) or operations[0].time - 1
        if events.op[k] == WAIT:
            waits.append((k, clock[worker], last))
        elif events.op[k] == NOTIFY:
            notified.setdefault(_signal(last), []).append((last.sequence, tile))
        elif events.home[k] != events.rank[k]:
            times = operations[0].time - 1.0, float(last.time)
            transfers.append(Transfer(*events.way(k), float(events.amount[k]), *times))
        stop[tile] = clock[worker] = max(clock[worker], *(o.time for o in operations))

    def giver(poll: Operation) -> int | None:
        before = [tile for sequence, tile in notified.get(_signal(poll), ()) if sequence < poll.sequence]
        return before[-1] if before else None

    ended = ((k, since, float(poll.time), giver(poll)) for k, since, poll in waits)
    return of_tiles(events, (title, MEMORY_OPERATIONS, EXECUTED), (start, stop), ended, transfers)


def _signal(o: Operation) -> tuple[str, int, int]:
    return o.region.name, o.region.rank, o.box[0][0]
