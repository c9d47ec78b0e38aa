"""The discrete-event engine: workers go through their steps, and share links, device memory and signals.

Servers are the links (with a switch, a rank's way out and its way in) and the device memory of each rank. A server
serves in order of arrival, and is never idle while somebody waits. Work begins in order of time, so servers see it in
that order. Waits and notifications only carry times, and are settled as soon as these are known.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from tilelink.analysis.lanes import Tell, silent
from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate.costs import GB_S, Costs, way
from tilelink.analysis.simulate.steps import NOTIFYING, WAITING, WORK, Steps
from tilelink.errors import StuckError


@dataclass(frozen=True, eq=False)
class Times:
    """Times of a simulated run, in microseconds. Each tile: start, stop, and how long its transfers kept it beyond its
    own work. Each wait that took any time: its step, begin and end, the tile whose notification ended it, and when that
    tile notified. Each transfer: start and stop."""

    tile_start: np.ndarray
    tile_stop: np.ndarray
    tile_moving: np.ndarray
    wait_step: np.ndarray
    wait_start: np.ndarray
    wait_stop: np.ndarray
    wait_cause: np.ndarray
    wait_sent: np.ndarray
    transfer_start: np.ndarray
    transfer_stop: np.ndarray

    @property
    def stop(self) -> float:
        """When the last tile is done and the last store has arrived."""
        return float(max(self.tile_stop.max(initial=0.0), self.transfer_stop.max(initial=0.0)))


TOLD = 1 << 16
"""Pieces of work between two calls of `Tell`."""


def run(steps: Steps, costs: Costs, machine: Machine, starts: np.ndarray, tell: Tell = silent) -> Times:
    """Runs all workers; the workers of rank r start at starts[r]. Raises StuckError if no worker can go on."""
    engine = _Engine(steps, costs, machine)
    engine.go(starts, tell)
    return engine.result()


def compact(column: np.ndarray) -> array[Any]:
    """A column as a Python array of integers or doubles."""
    made = array("d" if column.dtype == np.float64 else "q")
    made.frombytes(column.astype(np.float64 if made.typecode == "d" else np.int64).tobytes())
    return made


class _Engine:
    """The state of a run. It is in Python's arrays: a loop over scalars reads these ten times as fast as numpy's."""

    def __init__(self, steps: Steps, costs: Costs, machine: Machine) -> None:
        self.steps, self.machine = steps, machine
        self.kind = compact(steps.kind)
        self.tile = compact(steps.tile)
        self.cell = compact(steps.cell)
        self.far = compact(steps.far)
        self.alone, self.refill = compact(costs.alone), compact(costs.refill)
        self.memory = compact(costs.memory / (machine.memory_rate * GB_S))
        wires = way(steps, costs, machine)
        counts = np.bincount(steps.transfer_step, minlength=len(steps))
        self.moves = compact(np.concatenate([[0], np.cumsum(counts)]))
        self.source, self.target = (compact(wires.servers + rank) for rank in (steps.source, steps.target))
        self.out, self.into = compact(wires.out), compact(wires.into)
        self.leaving, self.entering = compact(wires.leaving), compact(wires.entering)
        self.own, self.setup = compact(wires.own), compact(wires.setup)
        self.waited_for = compact(wires.waited_for)
        self.through = compact(steps.size / (machine.memory_rate * GB_S))

        self.next = steps.first.tolist()
        self.last = steps.last.tolist()
        self.rank = steps.worker_rank.tolist()
        self.stored, self.waited = [0.0] * len(self.next), [False] * len(self.next)
        self.free = [0.0] * (wires.servers + steps.events.sizes.world)  # of links, and of each rank's memory
        self.memory_of = [wires.servers + rank for rank in self.rank]
        self.missing = np.bincount(steps.cell[steps.kind == NOTIFYING], minlength=steps.cells).tolist()
        self.seen = [0.0] * steps.cells
        self.giver = [-1] * steps.cells
        self.told = [0.0] * steps.cells  # when the giver notified
        self.parked: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.heap: list[tuple[float, int]] = []

        tiles = len(steps.tile_event)
        self.start, self.stop = array("d", [-1.0]) * tiles, array("d", [0.0]) * tiles
        self.moving = array("d", [0.0]) * tiles
        self.waits = array("d")  # step, begin, end, cause of each, and when the cause notified
        self.began, self.ended = (array("d", [0.0]) * len(self.source) for _ in range(2))

    def go(self, starts: np.ndarray, tell: Tell) -> None:
        pieces, done = self.kind.count(WORK), 0
        for worker, rank in enumerate(self.rank):
            self.settle(worker, float(starts[rank]))
        while self.heap:
            if not done % TOLD:
                tell(f"simulating, {done:,} of {pieces:,} pieces of work")
            done += 1
            time, worker = heappop(self.heap)
            step = self.next[worker]
            self.next[worker] = step + 1
            self.settle(worker, self.work(step, worker, time))
        if any(n < m for n, m in zip(self.next, self.last, strict=True)):
            self.stuck()

    def settle(self, worker: int, time: float) -> None:
        """Takes a worker through waits and notifications, up to its next work or a wait that is not over yet."""
        step, last = self.next[worker], self.last[worker]
        while step < last:
            kind, tile = self.kind[step], self.tile[step]
            if self.start[tile] < 0:
                self.start[tile] = time
            if kind == WORK:
                self.next[worker] = step
                heappush(self.heap, (time, worker))
                return
            cell = self.cell[step]
            if kind == WAITING:
                if self.missing[cell]:
                    self.next[worker] = step
                    self.parked[cell].append((worker, time))
                    return
                if (until := self.seen[cell]) > time:
                    self.waits.extend((step, time, until, self.giver[cell], self.told[cell]))
                    time = until
                    self.waited[worker] = True
            else:
                time = self.notified(step, worker, time)
            self.stop[tile] = time
            step += 1
        self.next[worker] = step

    def notified(self, step: int, worker: int, time: float) -> float:
        """When a notification is made: after the worker's stores have arrived. Its waiters see it later, by polling."""
        machine, cell = self.machine, self.cell[step]
        time = max(time, self.stored[worker])
        if self.far[step]:
            time += machine.fence_us
            seen = time + machine.flight_us + machine.poll_us
        else:
            seen = time + machine.signal_us
        self.missing[cell] -= 1
        if seen > self.seen[cell]:
            self.seen[cell], self.giver[cell], self.told[cell] = seen, self.tile[step], time
        if not self.missing[cell]:
            for other, since in self.parked.pop(cell, ()):
                self.settle(other, since)
        return time

    def work(self, step: int, worker: int, time: float) -> float:
        """When work that begins now is over."""
        done = time + self.alone[step]
        if self.waited[worker]:
            done += self.refill[step]
            self.waited[worker] = False
        if self.memory[step]:
            done = max(done, self.serve(self.memory_of[worker], time, self.memory[step]))
        computed = done
        busy = time  # the end of its transfers, one after the other, at the worker's own rate
        for k in range(self.moves[step], self.moves[step + 1]):
            busy += self.own[k]
            done = max(done, self.move(k, worker, time, busy))
        self.moving[self.tile[step]] += done - computed
        self.stop[self.tile[step]] = done
        return done

    def move(self, k: int, worker: int, time: float, busy: float) -> float:
        """When the worker may go on after a transfer that begins now: once it has what it pulls, or has sent what it
        pushes, and not before `busy`. Pushed bytes arrive later; notifications wait for their arrival."""
        out, into = self.out[k], self.into[k]
        sent = self.serve(out, time, self.leaving[k])
        arrived = self.serve(into, time, self.entering[k]) if into != out else sent
        sent = max(sent, busy)
        arrived = max(arrived, sent) + self.setup[k]
        for memory in (self.source[k], self.target[k]):
            arrived = max(arrived, self.serve(memory, time, self.through[k]))
        self.began[k], self.ended[k] = time, arrived
        if self.waited_for[k]:
            return arrived
        if arrived > self.stored[worker]:
            self.stored[worker] = arrived
        return sent

    def serve(self, server: int, time: float, takes: float) -> float:
        """When a server is done with what comes now, behind all that came before."""
        free = self.free[server]
        self.free[server] = done = (free if free > time else time) + takes
        return done

    def result(self) -> Times:
        waits = np.array(self.waits, float).reshape(-1, 5)
        start = np.array(self.start)
        return Times(
            start, np.array(self.stop), np.array(self.moving), waits[:, 0].astype(np.int64), waits[:, 1], waits[:, 2],
            waits[:, 3].astype(np.int64), waits[:, 4], np.array(self.began), np.array(self.ended),
        )  # fmt: skip

    def stuck(self) -> None:
        """Raises StuckError, which names the first worker that can't go on."""
        worker = next(k for k, (n, m) in enumerate(zip(self.next, self.last, strict=True)) if n < m)
        events, step = self.steps.events, self.next[worker]
        event = int(self.steps.event[step])
        observed = events.expected[event] - self.missing[self.cell[step]]
        raise StuckError(
            f"no rank can go on: {events.describe(event)}, observed {observed}. Let roles that share workers be "
            "launched in the order in which they wait for each other",
            events.sites[events.site[event]],
        )
