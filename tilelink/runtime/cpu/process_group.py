"""One process a rank on the CPU: heaps lie in shared memory, and each process interprets the workers of its rank."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from tilelink.emulator import DeadlockError, Execution, KernelError
from tilelink.errors import RankDiedError, RankFailedError, Site, StuckError
from tilelink.runtime.board import Board
from tilelink.runtime.bounds import Bounds, Stillness, wait_until
from tilelink.runtime.cpu.lane import CpuLane
from tilelink.runtime.lane import Reason, entered, left
from tilelink.runtime.launch import Record, Run
from tilelink.runtime.process_group import ProcessGroup
from tilelink.runtime.stuck import explain, first_wait, told_of


class CpuProcessGroup(ProcessGroup):
    """A rank on the CPU in its own process. A call returns when it has left the run; its outputs are then complete."""

    lane: CpuLane
    board: Board

    def __init__(self, process_group: dist.ProcessGroup, lane: CpuLane, seed: int, bounds: Bounds) -> None:
        self.seed = seed
        lane.clear(dist.get_rank(process_group))
        super().__init__(process_group, lane, bounds)

    def launch(self, run: Run) -> None:
        record = run.record()
        self.remember(run.number, record)
        peers = _Peers(self, record)
        execution = Execution(self.world, self.seed, races=False, ranks=(self.rank,), elsewhere=peers)
        try:
            execution.run(lambda rank: self.lane.launch(run, execution))
        except (StuckError, RankDiedError, RankFailedError):
            raise
        except KernelError as e:
            said = told_of(e, {(self.rank, run.label): record.counted})
            self.fail(run.number, said)
            raise said from e.__cause__
        except BaseException as e:
            self.fail(run.number, e)
            raise
        self.raise_if_refused()

    def synchronize(self) -> None:
        """Raises the error that ended the lane on another rank. It need not wait, because no run outlasts its call."""
        self.site = Site.of_user()
        self.raise_if_poisoned()


class _Peers:
    """The other processes during a run, for the execution of this one: see `Elsewhere`."""

    def __init__(self, group: CpuProcessGroup, run: Record) -> None:
        self.group, self.run = group, run
        self.heartbeat = group.board.heartbeat
        self.still = Stillness(group.board.heartbeats)

    def wait(self, changed: Callable[[], bool], deadlock: Callable[[], DeadlockError]) -> None:
        """Waits until another process has written to memory that a worker of this rank polls."""
        wait_until(changed, lambda: self._check(deadlock))

    def _check(self, deadlock: Callable[[], DeadlockError]) -> None:
        """Raises if the run was aborted, or has to be."""
        group, run = self.group, self.run

        def here() -> list[str]:
            lines = explain(deadlock(), {(group.rank, run.label): run.counted}).splitlines()[1:]
            return ["on this rank:", *lines]

        if group.report() is not None:
            group.raise_if_poisoned(here())
        progress = dict(enumerate(group.progress()))
        group.raise_if_dead([r for r, n in progress.items() if n < left(run.number)], f"in {run.label}")
        late = [r for r, n in progress.items() if n < entered(run.number)]
        if self.still.seconds() > (group.bounds.enter if late else group.bounds.stuck):
            report = group.late(late[0], run.number) if late else first_wait(deadlock(), run, Reason.STUCK)
            group.give_up(report, here())
