"""One process a rank: a `torch.distributed` group whose ranks share symmetric memory on one machine.

    dist.init_process_group("gloo")  # under torchrun
    group = tilelink.group()
    y = all_gather_matmul(x, weight, group=group)
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import (
    DeviceError,
    NeverEnteredError,
    RankDiedError,
    RankError,
    RankFailedError,
    RankMismatchError,
    Site,
    StuckError,
    TileLinkError,
    WorldError,
)
from tilelink.frontend.program import Program
from tilelink.frontend.schedule import Schedule
from tilelink.runtime.arguments import Arguments, mismatch
from tilelink.runtime.board import ROW_BYTES, Board, Post
from tilelink.runtime.bounds import Bounds, Processes, wait_until
from tilelink.runtime.cpu import DeadlockError, Execution, Words
from tilelink.runtime.cpu_lane import CpuLane, poisoned
from tilelink.runtime.cpu_world import DEFAULT_HEAP, DEFAULT_SIGNALS, DEFAULT_SMS
from tilelink.runtime.group import Group
from tilelink.runtime.launch import Lane, Record, Run
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout
from tilelink.runtime.poison import HOST, POISON, Reason, Report, entered, left
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.shared import gathered, share
from tilelink.runtime.stuck import explain, first_wait, of_report

DEFAULT_ENTER = 300.0
DEFAULT_STUCK = 30.0
KEPT_RUNS = 8
"""So many of the last runs can be named in a report."""


def group(
    process_group: dist.ProcessGroup | None = None,
    *,
    heap_bytes: int = DEFAULT_HEAP,
    slots: int = 2,
    signal_bytes: int = DEFAULT_SIGNALS,
    sms: int = DEFAULT_SMS,
    seed: int = 0,
    enter_timeout: float = DEFAULT_ENTER,
    stuck_timeout: float = DEFAULT_STUCK,
) -> ProcessGroup:
    """The calling process's rank in a lane of all processes of a `torch.distributed` group, by default of all there
    are. Collective: all of them call it, with the same options. Several lanes may exist, of one group or of several; a
    process that has more than one calls programs on them in an order that does not make ranks wait in a circle.

    `heap_bytes`, `slots`, `signal_bytes`, `sms`, `seed`: as in `CpuWorld`. `enter_timeout`, `stuck_timeout`: seconds,
    see `Bounds`. Raises WorldError, RankError, DeviceError, HeapError, RankMismatchError; on every rank, if one does.
    """
    site = Site.of_user()
    if not dist.is_available() or not dist.is_initialized():
        raise WorldError('there are no processes to group: call torch.distributed.init_process_group("gloo")', site)
    members = dist.group.WORLD if process_group is None else process_group
    if not isinstance(members, dist.ProcessGroup):
        raise RankError("this process is no rank of the group: only its members make a lane of it", site)
    backends = dist.get_backend_config(members)
    if "cpu:" not in backends:
        raise DeviceError(f"the group's backends are {backends}: ranks on the CPU need gloo", site)
    options = {
        "heap_bytes": heap_bytes, "slots": slots, "signal_bytes": signal_bytes, "sms": sms,
        "enter_timeout": enter_timeout, "stuck_timeout": stuck_timeout,
    }  # fmt: skip
    if difference := mismatch("this lane", dict(enumerate(gathered(members, options)))):
        raise RankMismatchError(difference, site)
    layout = HeapLayout(dist.get_world_size(members), heap_bytes, slots, signal_bytes)
    return ProcessGroup(members, layout, sms, seed, Bounds(enter_timeout, stuck_timeout))


class ProcessGroup(Group):
    """A rank that is a process of its own. A call returns when this rank has left the run. See `group`."""

    def __init__(
        self, process_group: dist.ProcessGroup, layout: HeapLayout, sms: int, seed: int, bounds: Bounds
    ) -> None:
        rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.seed, self.bounds = seed, bounds
        heaps = share(process_group, layout.heap_bytes)
        self.cpu = CpuLane(layout, heaps, sms)
        self.lane = Lane(rank, world, layout, self.cpu.table)
        self.control = [Words(h[: 8 * (CONTROL_WORDS + world)].view(torch.int64)) for h in heaps]
        self.board = Board(share(process_group, ROW_BYTES), rank)
        self.heartbeat = self.board.heartbeat
        self.processes = Processes(gathered(process_group, os.getpid()))
        self.calls = self.phase = 0
        self.recent: dict[int, Record] = {}
        self._moved = self._began = 0.0
        self._heartbeats: tuple[int, ...] = ()
        weakref.finalize(self, _end, self.board, self.processes)

    # ---- a call

    def call(
        self, program: Program, tensors: tuple[Any, ...], schedule: Schedule | str | None, options: dict[str, Any]
    ) -> Any:
        """As `Group.call`; then the outputs are complete. Raises StuckError, NeverEnteredError, RankMismatchError,
        RankDiedError and RankFailedError on every rank that takes part; after all but RankMismatchError, `reset`."""
        self._raise_if_poisoned()
        before = self.calls
        try:
            return super().call(program, tensors, schedule, options)
        except Exception as e:
            if self.calls == before:  # the others wait for this call
                self._post({"raised": f"{type(e).__name__}: {e.message if isinstance(e, TileLinkError) else e}"})
            raise

    def prepare(self, program: Program, arguments: Arguments, schedule: Schedule | str | None) -> Prepared:
        return self.cpu.prepare(program, arguments, schedule)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return poisoned(shape, dtype)

    def compare(self, call: dict[str, Any], site: Site) -> None:
        number = self._post(call)
        self._began = time.monotonic()
        wait_until(
            lambda: all(self.board.posted(r, number) for r in range(self.world)), lambda: self._check_call(number)
        )
        posts = {r: self.board.read(r, number) for r in range(self.world)}
        for rank, post in posts.items():
            if "raised" in post.values:
                raise RankFailedError(f"call {number} of this group: rank {rank} raised {post.values['raised']}", site)
        if len({(post.number, post.digest) for post in posts.values()}) > 1:
            calls = {r: {"number": post.number, **post.values} for r, post in posts.items()}
            raise RankMismatchError(mismatch(f"call {number} of this group", calls) or "", site)

    def _post(self, call: dict[str, Any]) -> int:
        """Tells the others what this rank calls; the number of the call."""
        number, self.calls = self.calls, self.calls + 1
        self.board.post(Post.of(number, call))
        return number

    def launch(self, run: Run, site: Site) -> None:
        self.recent[run.number] = run.record()
        self.recent.pop(run.number - KEPT_RUNS, None)
        self._began = self._moved = time.monotonic()
        execution = Execution(self.world, self.seed, races=False, ranks=(self.rank,), elsewhere=self)
        try:
            execution.run(lambda rank: self.cpu.launch(run, execution))
        except (StuckError, RankDiedError, RankFailedError):
            raise
        except BaseException as e:
            self.board.note(f"{type(e).__name__}: {e}")
            self._poison(Report(self.rank, run.number, HOST, 0, 0, 0, Reason.FAILED))
            raise

    def synchronize(self) -> None:
        """Nothing is under way between calls. Raises what ended the lane on another rank."""
        self._raise_if_poisoned()

    # ---- waits

    def wait(self, changed: Callable[[], bool], deadlock: Callable[[], DeadlockError]) -> None:
        """Until another process has written what a worker of this rank polls: see `Elsewhere`."""
        wait_until(changed, lambda: self._check_run(deadlock))

    def _check_run(self, deadlock: Callable[[], DeadlockError]) -> None:
        """Raises where the run is over for this rank, or has to be."""
        run = self.recent[self.runs - 1]
        self._raise_if_poisoned(deadlock)
        for rank in self.processes.gone():
            if self._progress(rank) < left(run.number):
                raise RankDiedError(f"{self._who(rank)} in {run.label}, which it has not left")
        now, heartbeats = time.monotonic(), self.board.heartbeats()
        if heartbeats != self._heartbeats:
            self._heartbeats, self._moved = heartbeats, now
        late = [r for r in range(self.world) if self._progress(r) < entered(run.number)]
        if late and now - self._began > self.bounds.enter:
            self._give_up(self._late(late[0], run.number, Reason.NEVER_ENTERED), deadlock)
        if not late and now - self._moved > self.bounds.stuck:
            self._give_up(first_wait(deadlock(), run, Reason.STUCK), deadlock)

    def _check_call(self, number: int) -> None:
        """Raises where not all ranks will make the call."""
        self._raise_if_poisoned()
        missing = [r for r in range(self.world) if not self.board.posted(r, number)]
        for rank in missing:
            calls = f"{self.board.calls(rank)} calls"
            if self.board.ended(rank):
                raise RankMismatchError(
                    f"call {number} of this group: rank {rank} ended after {calls}, rank {self.rank} makes one more; "
                    "the ranks of a group make the same calls",
                    Site.of_user(),
                )
            if rank in self.processes.gone():
                raise RankDiedError(f"{self._who(rank)} before call {number}: it made {calls}", Site.of_user())
        if missing and time.monotonic() - self._began > self.bounds.enter:
            self._give_up(self._late(missing[0], self.runs, Reason.NEVER_ENTERED))

    def _who(self, rank: int) -> str:
        return f"rank {rank} has died: its process, {self.processes.pids[rank]}, is gone"

    def _progress(self, rank: int) -> int:
        """How far a rank is, as far as this rank was told."""
        return self.control[self.rank].peek(CONTROL_WORDS + rank)

    def _late(self, rank: int, run: int, reason: Reason) -> Report:
        return Report(self.rank, run, HOST, 8 * (CONTROL_WORDS + rank), entered(run), self._progress(rank), reason)

    # ---- the end of a lane

    def _give_up(self, report: Report, deadlock: Callable[[], DeadlockError] | None = None) -> None:
        self._poison(report)
        self._raise_if_poisoned(deadlock)

    def _poison(self, report: Report) -> None:
        """Ends all waits of the lane, unless somebody was faster: see docs/protocol.md."""
        own, arbiter = self.control[self.rank], self.control[0]
        for word, value in report.mailbox().items():
            own.store(word, value)
        name = arbiter.compare_and_swap(POISON, 0, 1 + self.rank) or 1 + self.rank
        for control in self.control:
            control.store(POISON, name)

    def _raise_if_poisoned(self, deadlock: Callable[[], DeadlockError] | None = None) -> None:
        if not self.control[self.rank].peek(POISON):
            return
        finder = self.control[self.rank].load(POISON) - 1
        report = Report.of(finder, self.control[finder].tensor.tolist())
        run = self.recent.get(report.run)
        if report.reason == Reason.FAILED:
            raise RankFailedError(f"rank {finder} raised {self.board.note_of(finder)}", Site.of_user())
        lines = [of_report(report, self.lane.layout, run)]
        if deadlock is not None:
            here = explain(deadlock(), {(self.rank, run.label): run.prepared} if run else {})
            lines += ["on this rank:", *here.splitlines()[1:]]
        if report.reason == Reason.NEVER_ENTERED:
            bound = f"a rank did not come within {self.bounds.enter:g} s (it may still compile, or it does not call):"
            raise NeverEnteredError("\n  ".join([bound, *lines]), Site.of_user())
        bound = f"no rank can go on, nothing moved for {self.bounds.stuck:g} s:"
        raise StuckError("\n  ".join([bound, *lines]), Site.of_user())

    def reset(self) -> None:
        """Collective: the lane is as new, whatever ended it. Raises RankDiedError, NeverEnteredError."""
        self._meet()
        self.cpu.clear(self.rank)
        self.board.forget_calls()
        self.calls = self.runs = 0
        self.recent.clear()
        self._meet()

    def _meet(self) -> None:
        """Until all ranks are here."""
        self.phase += 1
        self.board.enter_phase(self.phase)
        began = time.monotonic()

        def missing() -> list[int]:
            return [r for r in range(self.world) if not self.board.in_phase(r, self.phase)]

        def check() -> None:
            for rank in self.processes.gone().intersection(missing()):
                raise RankDiedError(f"{self._who(rank)}: the lane can't be reset", Site.of_user())
            if missing() and time.monotonic() - began > self.bounds.enter:
                raise NeverEnteredError(f"rank {missing()[0]} does not take part in the reset", Site.of_user())

        wait_until(lambda: not missing(), check)


def _end(board: Board, processes: Processes) -> None:
    """When a group is let go, or the process ends in order: the other ranks need not wait."""
    board.end()
    processes.close()
