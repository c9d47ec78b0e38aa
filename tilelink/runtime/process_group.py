"""A rank that is one process: what its host does together with the hosts of its peers, on CPUs or GPUs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from tilelink import errors
from tilelink.analysis.timeline import Timeline
from tilelink.errors import Site, TileLinkError
from tilelink.programs.given import Call
from tilelink.runtime.agreement import gathered, mismatch, together
from tilelink.runtime.board import ROW_BYTES, Board, Post, share
from tilelink.runtime.bounds import Bounds, Processes, Stillness, wait_until
from tilelink.runtime.group import Group
from tilelink.runtime.lane import HOST, Lane, Reason, Report, entered
from tilelink.runtime.launch import Run
from tilelink.runtime.layout import CONTROL_WORDS
from tilelink.runtime.store_board import StoreBoard
from tilelink.runtime.stuck import of_report
from tilelink.runtime.timestamps import timeline_of


class ProcessGroup(Group):
    """A rank that is one process: the work that its host does together with the hosts of its peers. See `group`.

    Calls are compared before anything is launched, through a `board`. If a rank dies, fails or never enters, every
    other rank reports its number.
    """

    board: Board | StoreBoard

    def __init__(self, process_group: dist.ProcessGroup, lane: Lane, bounds: Bounds) -> None:
        super().__init__(lane, dist.get_rank(process_group))
        self.bounds, self.members = bounds, process_group
        self.board = self.make_board(process_group)
        self.processes = self.watched(process_group)
        self.calls = self.phase = 0
        self.site = Site.of_user()
        weakref.finalize(self, _end, os.getpid(), self.board, self.processes)

    def make_board(self, process_group: dist.ProcessGroup) -> Board | StoreBoard:
        """Makes the board on which the hosts of all ranks tell each other what they do. Collective."""
        return Board(share(process_group, ROW_BYTES), dist.get_rank(process_group))

    def watched(self, process_group: dist.ProcessGroup) -> Processes:
        """Watches the processes of all ranks. Collective."""
        pids = gathered(process_group, os.getpid())
        watch = " can't watch the processes of its peers"
        return together(process_group, watch, lambda: Processes(pids), refused=(OSError,))

    def progress(self) -> list[int]:
        """The progress of all ranks, as far as this rank was told."""
        return self.lane.control(self.rank)[CONTROL_WORDS : CONTROL_WORDS + self.world]

    def report(self) -> Report | None:
        """The report that poisoned the lane; None if this rank knows of none."""
        return self.lane.report(self.rank)

    # ---- a call

    def make(self, call: Call) -> Run:
        """As `Group.make`. Raises StuckError, NeverEnteredError, RankDiedError and RankFailedError on every rank that
        takes part; the lane then needs a `reset`. Raises RankMismatchError on every rank, and RankFailedError if a peer
        could not make the call; then nothing was launched, and the lane goes on."""
        self.site = Site.of_user()
        self.raise_if_poisoned()
        before = self.calls
        try:
            return super().make(call)
        except Exception as e:
            if self.calls == before:  # the others wait for this call
                self._post({"raised": f"{type(e).__name__}: {e.message if isinstance(e, TileLinkError) else e}"})
            raise

    def compare(self, call: dict[str, Any], site: Site) -> None:
        number, still = self._post(call), Stillness(self.board.heartbeats)
        ranks = range(self.world)
        wait_until(
            lambda: all(self.board.posted(r, number) for r in ranks), lambda: self._check_call(number, still)
        )
        posts = {r: self.board.read(r, number) for r in ranks}
        for rank, post in posts.items():
            if "raised" in post.values:
                raised = f"rank {rank} raised {post.values['raised']}"
                raise errors.RankFailedError(f"call {number} of this group: {raised}", site)
        calls = {r: {"number": post.number, **post.values} for r, post in posts.items()}
        if difference := mismatch(f"call {number} of this group", calls):
            raise errors.RankMismatchError(difference, site)

    def _post(self, call: dict[str, Any]) -> int:
        """Tells the other ranks what this rank calls; returns the number of the call."""
        number, self.calls = self.calls, self.calls + 1
        self.board.post(Post.of(number, call))
        return number

    def _check_call(self, number: int, still: Stillness) -> None:
        """Raises if some rank will not make the call."""
        self.raise_if_poisoned()
        missing = [r for r in range(self.world) if not self.board.posted(r, number)]
        for rank in missing:
            if self.board.ended(rank) and not self.board.posted(rank, number):  # it may have posted, then ended
                raise errors.RankMismatchError(
                    f"call {number} of this group: rank {rank} has ended ({self._calls()}); the ranks of a group make "
                    "the same calls",
                    self.site,
                )
        self.raise_if_dead(missing, f"before call {number}")
        if missing and still.seconds() > self.bounds.enter:
            self.give_up(self.late(missing[0], self.runs))

    def timeline(self) -> Timeline:
        """The timeline of the last run that was called with `timed=True`, the same on every rank. Collective. Every GPU
        has its own clock; the signals align these clocks. Raises WorldError."""
        self.synchronize()
        mine = self.timed
        recorded = enumerate(gathered(self.members, None if mine is None else mine.stamps.cpu()))
        runs = [None if s is None or mine is None else replace(mine, rank=r, stamps=s) for r, s in recorded]
        return timeline_of(runs, clocks="each" if self.lane.place.type == "cuda" else "one")

    # ---- the end of a lane

    def raise_if_dead(self, needed: Iterable[int], when: str) -> None:
        """Raises RankDiedError if the process of one of these ranks is gone."""
        for rank in self.processes.gone().intersection(needed):
            process = self.processes.named(rank)
            raise errors.RankDiedError(
                f"rank {rank} has died: its process, {process}, is gone, {when} ({self._calls()})", self.site
            )

    def late(self, rank: int, run: int) -> Report:
        """The host's report about a rank that does not come to a run."""
        word = 8 * (CONTROL_WORDS + rank)
        return Report(self.rank, run, HOST, word, entered(run), self.progress()[rank], Reason.NEVER_ENTERED)

    def give_up(self, report: Report, here: Iterable[str] = ()) -> None:
        """Poisons the lane, and raises the error that all ranks raise."""
        self.lane.poison(report)
        self.raise_if_poisoned(here)

    def fail(self, run: int, error: BaseException) -> None:
        """Ends a run of the lane with an error of this rank."""
        self.board.note(f"{type(error).__name__}: {error}")
        self.lane.poison(Report(self.rank, run, HOST, 0, 0, 0, Reason.FAILED))

    def raise_if_poisoned(self, here: Iterable[str] = ()) -> None:
        """Raises the error in the report of the lane, if there is one. `here`: lines about the workers of this rank."""
        report = self.report()
        if report is None:
            return
        if report.reason == Reason.FAILED:
            raise errors.RankFailedError(f"rank {report.rank} raised {self.board.note_of(report.rank)}", self.site)
        lines = [of_report(report, self.lane.layout, self.named(report)), *here]
        if report.reason == Reason.NEVER_ENTERED:
            head = f"a rank did not come within {self.bounds.enter:g} s; it may still compile, or it does not call:"
            lines.insert(1, f"calls so far: {self._calls()}")
            raise errors.NeverEnteredError("\n  ".join([head, *lines]), self.site)
        if report.reason == Reason.DIED:
            raise errors.RankDiedError("\n  ".join(["a rank has died:", *lines]), self.site)
        head = f"no rank can go on, nothing moved for {self.bounds.stuck:g} s:"
        raise errors.StuckError("\n  ".join([head, *lines]), self.site)

    def _calls(self) -> str:
        """The number of calls that each rank of this group has made, as a text."""
        numbers = [self.board.calls(r) for r in range(self.world)]
        return ", ".join(f"rank {r} made {n} call{'s' * (n != 1)}" for r, n in enumerate(numbers))

    def reset(self) -> None:
        """Collective: makes the lane usable again, whatever ended it. Raises RankDiedError, NeverEnteredError."""
        self.site = Site.of_user()
        self._meet()
        self.lane.clear(self.rank)
        self.board.forget_calls()
        self.calls = 0
        self.forget_runs()
        self._meet()

    def _meet(self) -> None:
        """Waits until all ranks are here."""
        self.phase += 1
        self.board.enter_phase(self.phase)
        still = Stillness(self.board.heartbeats)

        def missing() -> list[int]:
            return [r for r in range(self.world) if not self.board.in_phase(r, self.phase)]

        def check() -> None:
            self.raise_if_dead(missing(), "and the lane can't be reset")
            if missing() and still.seconds() > self.bounds.enter:
                raise errors.NeverEnteredError(f"rank {missing()[0]} does not take part in the reset", self.site)

        wait_until(lambda: not missing(), check)


def _end(pid: int, board: Board | StoreBoard, processes: Processes) -> None:
    """Tells the other ranks not to wait, when a group is dropped or its process ends in order; not in a fork of it."""
    if os.getpid() == pid:
        board.end()
        processes.close()
