"""One process a rank on the CPU: heaps in shared memory, each process interprets the workers of its own rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from tilelink.emulator import DeadlockError, Execution, Words
from tilelink.errors import RankDiedError, RankFailedError, Site, StuckError
from tilelink.frontend.schedule import Schedule
from tilelink.programs.program import Program
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.bounds import Bounds, Stillness, wait_until
from tilelink.runtime.cpu.lane import CpuLane, poisoned
from tilelink.runtime.launch import Lane, Record, Run
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout
from tilelink.runtime.poison import POISON, Reason, Report, entered, left
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.process_group import ProcessGroup
from tilelink.runtime.shared import share
from tilelink.runtime.stuck import explain, first_wait


class CpuProcessGroup(ProcessGroup):
    """A call returns when this rank has left the run: then its outputs are complete."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        layout: HeapLayout,
        sms: int,
        seed: int,
        bounds: Bounds,
        per_node: int | None,
    ) -> None:
        heaps = share(process_group, layout.heap_bytes)
        self.cpu, self.seed = CpuLane(layout, heaps, sms, per_node=per_node), seed
        rank = dist.get_rank(process_group)
        self.cpu.clear(rank)
        super().__init__(process_group, Lane(rank, layout.world, layout, self.cpu.tables[rank], heaps[rank]), bounds)
        self.control = [Words(h[: 8 * (CONTROL_WORDS + layout.world)].view(torch.int64)) for h in heaps]

    def prepare(self, program: Program, arguments: Arguments, schedule: Schedule | str | None) -> Prepared:
        return self.cpu.prepare(program, arguments, schedule)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return poisoned(shape, dtype)

    def launch(self, run: Run, site: Site) -> None:
        peers = _Peers(self, self.remember(run))
        execution = Execution(self.world, self.seed, races=False, ranks=(self.rank,), elsewhere=peers)
        try:
            execution.run(lambda rank: self.cpu.launch(run, execution))
        except (StuckError, RankDiedError, RankFailedError):
            raise
        except BaseException as e:
            self.fail(run.number, e)
            raise

    def synchronize(self) -> None:
        """Nothing is under way between calls. Raises what ended the lane on another rank."""
        self.site = Site.of_user()
        self.raise_if_poisoned()

    # ---- control words

    def progress(self, rank: int) -> int:
        return self.control[self.rank].peek(CONTROL_WORDS + rank)

    def report(self) -> Report | None:
        own = self.control[self.rank]
        if not own.peek(POISON):
            return None
        finder = own.load(POISON) - 1
        return Report.of(finder, self.control[finder].tensor.tolist())

    def poison(self, report: Report) -> None:
        for word, value in report.mailbox().items():
            self.control[self.rank].store(word, value)
        finder = self.control[0].compare_and_swap(POISON, 0, 1 + self.rank) or 1 + self.rank
        for control in self.control:
            control.store(POISON, finder)

    def clear(self) -> None:
        self.cpu.clear(self.rank)


class _Peers:
    """The other processes during a run, for the execution of this one: see `Elsewhere`."""

    def __init__(self, group: CpuProcessGroup, run: Record) -> None:
        self.group, self.run = group, run
        self.heartbeat = group.board.heartbeat
        self.still = Stillness(group.board.heartbeats)

    def wait(self, changed: Callable[[], bool], deadlock: Callable[[], DeadlockError]) -> None:
        """Until another process has written what a worker of this rank polls."""
        wait_until(changed, lambda: self._check(deadlock))

    def _check(self, deadlock: Callable[[], DeadlockError]) -> None:
        """Raises where the run is over for this rank, or has to be."""
        group, run = self.group, self.run

        def here() -> list[str]:
            lines = explain(deadlock(), {(group.rank, run.label): run.prepared}).splitlines()[1:]
            return ["on this rank:", *lines]

        if group.report() is not None:
            group.raise_if_poisoned(here())
        ranks = range(group.world)
        group.raise_if_dead([r for r in ranks if group.progress(r) < left(run.number)], f"in {run.label}")
        late = [r for r in ranks if group.progress(r) < entered(run.number)]
        if self.still.seconds() > (group.bounds.enter if late else group.bounds.stuck):
            report = group.late(late[0], run.number) if late else first_wait(deadlock(), run, Reason.STUCK)
            group.give_up(report, here())
