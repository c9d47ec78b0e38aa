"""One process a rank: a lane of the processes of a `torch.distributed` group, on CPUs or GPUs.

    dist.init_process_group("gloo")  # under torchrun
    group = tilelink.group()
    y = all_gather_matmul(x, weight, group=group)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from tilelink import errors
from tilelink.analysis.machine import NCCL_SMS
from tilelink.analysis.timeline import Timeline
from tilelink.errors import Site, TileLinkError, public
from tilelink.frontend.sizes import check_nodes
from tilelink.programs.given import Call
from tilelink.runtime.agreement import gathered, mismatch, together
from tilelink.runtime.board import ROW_BYTES, Board, Post, share
from tilelink.runtime.bounds import Bounds, Processes, Stillness, wait_until
from tilelink.runtime.cpu.world import DEFAULT_HEAP, DEFAULT_SIGNALS, DEFAULT_SMS
from tilelink.runtime.group import Group
from tilelink.runtime.lane import HOST, Lane, Reason, Report, entered
from tilelink.runtime.launch import Run
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout
from tilelink.runtime.stuck import of_report
from tilelink.runtime.timestamps import timeline_of

CUDA_HEAP = 512 << 20
CUDA_SIGNALS = 4 << 20
DEFAULT_ENTER = 300.0
DEFAULT_STUCK = 30.0


@public
def group(
    process_group: dist.ProcessGroup | None = None,
    *,
    device: Literal["cpu", "cuda"] | None = None,
    heap_bytes: int | None = None,
    slots: int = 2,
    signal_bytes: int | None = None,
    sms: int = DEFAULT_SMS,
    reserved: int | None = None,
    seed: int = 0,
    enter_timeout: float = DEFAULT_ENTER,
    stuck_timeout: float = DEFAULT_STUCK,
    per_node: int | None = None,
) -> ProcessGroup:
    """Makes a lane of all processes of a `torch.distributed` group (all processes by default), and returns the calling
    process's rank in it. Collective: all of them call it with the same options. One group or several may have several
    lanes. A process in several lanes must call programs on them in an order that does not make ranks wait in a circle.

    `device`: where the ranks are. By default each is on its current CUDA device, if this process sees one and the group
    has a backend other than gloo for it, else on the CPU. `heap_bytes`, `slots`, `signal_bytes`: as in `CpuWorld`.
    `reserved`: SMs that are left to others, on CUDA devices; by default the SMs of NCCL, if the group has it
    (`sms_of_nccl`), else 0. `sms`, `seed`, on the CPU, and `per_node`: as in `CpuWorld`. `enter_timeout`,
    `stuck_timeout`: seconds, see `Bounds`. Raises, on every rank if one does, WorldError, RankError, DeviceError,
    HeapError, SymmetricMemoryError, NvshmemError, RankMismatchError.
    """
    site = Site.of_user()
    members = _members(process_group, site)
    device = device_of(members) if device is None else device
    on_cpu = device == "cpu"
    if on_cpu and "cpu" not in backends_of(members):
        backends = dist.get_backend_config(members)
        raise errors.DeviceError(f"the group's backends are {backends}: ranks on the CPU need gloo", site)
    if reserved is None:
        reserved = 0 if on_cpu else reserved_by_default(members)
    if heap_bytes is None:
        heap_bytes = DEFAULT_HEAP if on_cpu else CUDA_HEAP
    if signal_bytes is None:
        signal_bytes = DEFAULT_SIGNALS if on_cpu else CUDA_SIGNALS
    options = {
        "device": device, "reserved": reserved,
        "heap_bytes": heap_bytes, "slots": slots, "signal_bytes": signal_bytes, "sms": sms,
        "enter_timeout": enter_timeout, "stuck_timeout": stuck_timeout, "per_node": per_node,
    }  # fmt: skip
    if difference := mismatch("this lane", dict(enumerate(gathered(members, options)))):
        raise errors.RankMismatchError(difference, site)
    world = dist.get_world_size(members)
    check_nodes(world, per_node)
    layout = HeapLayout(world, heap_bytes, slots, signal_bytes)
    bounds = Bounds(enter_timeout, stuck_timeout)
    if on_cpu:
        from tilelink.runtime.cpu.lane import CpuLane
        from tilelink.runtime.cpu.process_group import CpuProcessGroup

        lane = CpuLane(layout, share(members, heap_bytes), sms, per_node=per_node)
        return CpuProcessGroup(members, lane, seed, bounds)
    if per_node is not None and per_node < world:
        from tilelink.runtime.cuda.nodes import nodes_group

        return nodes_group(members, layout, reserved, bounds, per_node)
    from tilelink.runtime.cuda.process_group import cuda_process_group

    return cuda_process_group(members, layout, reserved, bounds)


def _members(process_group: dist.ProcessGroup | None, site: Site) -> dist.ProcessGroup:
    """The processes of a lane, all processes by default. Raises WorldError and RankError."""
    if not dist.is_available() or not dist.is_initialized():
        call = 'call torch.distributed.init_process_group("gloo")'
        raise errors.WorldError(f"there are no processes to group: {call}", site)
    members = dist.group.WORLD if process_group is None else process_group
    if not isinstance(members, dist.ProcessGroup):
        raise errors.RankError("this process is no rank of the group: only its members make a lane of it", site)
    return members


def backends_of(members: dist.ProcessGroup) -> dict[str, str]:
    """The backends of a group, by device."""
    return dict(one.split(":") for one in dist.get_backend_config(members).split(","))


def device_of(members: dist.ProcessGroup) -> Literal["cpu", "cuda"]:
    """The default device of a group's ranks. A group made as "gloo" has gloo for CUDA tensors, too."""
    return "cuda" if backends_of(members).get("cuda", "gloo") != "gloo" and torch.cuda.is_available() else "cpu"


def reserved_by_default(members: dist.ProcessGroup) -> int:
    """The SMs that a lane on GPUs leaves to others by default: as many as NCCL takes, if the group has it, else 0."""
    return sms_of_nccl() if backends_of(members).get("cuda") == "nccl" else 0


def sms_of_nccl() -> int:
    """The SMs that a collective of NCCL takes, one a block: the lesser of NCCL_MAX_CTAS and NCCL_MAX_NCHANNELS."""
    said = (os.environ.get(name, "") for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"))
    return min([int(n) for n in said if n.isdecimal() and int(n)], default=NCCL_SMS)


class ProcessGroup(Group):
    """A rank that is one process: the work that its host does together with the hosts of its peers. See `group`.

    Calls are compared before anything is launched, through a board. If a rank dies, fails or never enters, every other
    rank reports its number.
    """

    def __init__(self, process_group: dist.ProcessGroup, lane: Lane, bounds: Bounds) -> None:
        super().__init__(lane, dist.get_rank(process_group))
        self.bounds, self.members = bounds, process_group
        self.board: Any = self.make_board(process_group)
        self.processes = self.watched(process_group)
        self.calls = self.phase = 0
        self.site = Site.of_user()
        weakref.finalize(self, _end, os.getpid(), self.board, self.processes)

    def make_board(self, process_group: dist.ProcessGroup) -> Any:
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
        self.calls = self.runs = 0
        self.recent.clear()
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


def _end(pid: int, board: Any, processes: Processes) -> None:
    """Tells the other ranks not to wait, when a group is dropped or its process ends in order; not in a fork of it."""
    if os.getpid() == pid:
        board.end()
        processes.close()
