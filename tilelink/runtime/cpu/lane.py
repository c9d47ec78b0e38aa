"""A lane on the CPU: heaps in memory, kernels in the interpreter, and the memory that a run may touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from tilelink.analysis.placement import shape_on
from tilelink.backend.host import ENOUGH, Fork, Join, KernelLaunch, LetGo, RegionCopy, SignalWait, SignalWrite
from tilelink.backend.parameters import TIMES
from tilelink.backend.targets import CPU, Target, portable
from tilelink.backend.targets.portable_network import FAR
from tilelink.emulator import Execution, Region, Words, engine, interpreted
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.interpreter import refuse_other_threads, suspended
from tilelink.emulator.memory import Kind
from tilelink.frontend.ir import Tensor
from tilelink.frontend.sizes import Sizes
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.lane import POISON, Lane, Report
from tilelink.runtime.launch import Run
from tilelink.runtime.layout import CONTROL, CONTROL_WORDS, SIGNALS, HeapLayout
from tilelink.runtime.prepare import Prepared

LANE = "lane"
"""The stream of a rank on which its kernels are launched."""


def engine_to(peer: int) -> str:
    """The stream of a rank's copy engine that copies from or to a peer."""
    return f"engine to rank {peer}"


class CpuLane(Lane):
    """Heaps in memory of this machine. `shared_words`: the control words of all ranks, which several processes may
    change."""

    def __init__(
        self,
        layout: HeapLayout,
        heaps: Sequence[torch.Tensor],
        sms: int,
        target: Target = CPU,
        per_node: int | None = None,
        check: bool = True,
    ) -> None:
        target = target.across_nodes() if per_node and per_node < layout.world else target
        super().__init__(layout, heaps, sms, target, per_node, check)
        self.tables = [self._table(rank) for rank in range(layout.world)]
        self.shared_words = [Words(self.words(rank)) for rank in range(layout.world)]

    def prepare(self, arguments: Arguments) -> Prepared:
        """As `Lane.prepare`. Raises WorldError on a second thread, before other ranks are told of its call."""
        refuse_other_threads()
        return super().prepare(arguments)

    def prepare_anew(self, arguments: Arguments, sms: int) -> Prepared:
        with suspended():
            return super().prepare_anew(arguments, sms)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An output filled with NaN, so that elements that nobody wrote show; with 0 if its dtype has no NaN."""
        return torch.full(shape, torch.nan, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)

    def control(self, rank: int) -> list[int]:
        words: list[int] = self.words(rank).tolist()
        if words[POISON]:
            self.shared_words[rank].load(POISON)  # acquires the mailbox that was written before it
        return words

    def poison(self, report: Report) -> None:
        for word, value in report.mailbox().items():
            self.shared_words[report.rank].store(word, value)
        finder = self.shared_words[0].compare_and_swap(POISON, 0, 1 + report.rank) or 1 + report.rank
        for words in self.shared_words:
            words.store(POISON, finder)

    def launch(self, run: Run, execution: Execution) -> None:
        """Does the steps of a rank's host for a run."""
        rank, regions = run.rank, self._regions(run)
        memory = {(r.name, r.rank): r.tensor for r in regions}
        agent = run.prepared.workers

        def on_engine(work: Callable[[Accesses], None], peer: int) -> None:
            execution.launch(work, 1, {}, regions, rank, engine_to(peer), run.label, agent + peer)

        for step in run.plan:
            match step:
                case KernelLaunch(kernel=kernel):
                    made = interpreted(getattr(run.prepared.module, kernel.name))
                    given, label = run.arguments(kernel), run.label_of(kernel)
                    execution.launch(made, step.workers, given, regions, rank, LANE, label)
                case Fork():
                    for peer in step.peers:
                        execution.follow(rank, engine_to(peer), [LANE])
                case Join():
                    execution.follow(rank, LANE, [engine_to(peer) for peer in step.peers])
                case RegionCopy():
                    source, target = (memory[p.tensor, p.rank][run.part_of(p)] for p in (step.source, step.target))
                    on_engine(partial(engine.copy, source, target), step.peer)
                case SignalWrite():
                    words = memory[SIGNALS + step.tensor, step.rank][step.cell]
                    on_engine(partial(engine.signal, words, 1), step.peer)
                case SignalWait():
                    words = memory[SIGNALS + step.tensor, rank][step.cell]
                    on_engine(partial(engine.wait, words, step.expected), step.peer)
                case LetGo():
                    for words in memory.get((SIGNALS + step.tensor, rank), ()):
                        work = partial(engine.signal, words, ENOUGH)
                        execution.launch(work, 1, {}, regions, rank, LANE, f"{run.label}, ended")

    def clear(self, rank: int) -> None:
        heap, layout = self.heaps[rank], self.layout
        control = heap[: layout.control_bytes].view(torch.int64)
        control.zero_()
        control[portable.CLOCK.value] = self.heaps[0].data_ptr() + 8 * portable.TICKS.value
        for slot in range(layout.slots):
            heap[layout.signals_at(slot) : layout.data_at(slot)] = 0

    def signals_left(self) -> list[tuple[int, int, int]]:
        """The slots with signals that are not zero, as they must be between runs: rank, slot, bytes to the first."""
        found = []
        for rank, heap in enumerate(self.heaps):
            for slot in range(self.layout.slots):
                begin = self.layout.signals_at(slot)
                left = heap[begin : self.layout.data_at(slot)].nonzero()
                found += [(rank, slot, int(left[0]))] if len(left) else []
        return found

    def _table(self, rank: int) -> torch.Tensor:
        """The addresses of all heaps, for the kernels of a rank; far ones are coded for `portable_network`."""
        bases = [h.data_ptr() for h in self.heaps]
        per_node = self.per_node or len(bases)
        near = [peer // per_node == rank // per_node for peer in range(len(bases))]
        entries = [base if n else base - bases[rank] - FAR.value for base, n in zip(bases, near, strict=True)]
        return torch.tensor(entries, dtype=torch.int64)

    # ---- regions

    def _regions(self, run: Run) -> list[Region]:
        """The regions that a run may touch: its own tensors, and its places in the heaps of all ranks."""
        layout, rank, prepared = self.layout, run.rank, run.prepared
        regions = [Region(n, rank, t, "control" if n == TIMES else "data") for n, t in run.tensors.items() if t.numel()]
        regions += [Region(n, rank, t, "control") for n, t in run.tables.items()]
        regions.append(Region("table of heaps", rank, self.tables[rank], "control"))
        for peer in range(layout.world):
            regions.append(self._region(CONTROL, peer, 0, (CONTROL_WORDS + layout.world,), torch.int64, "control"))
            for name, at in run.placement.data:
                tensor = prepared.program.tensor(name)
                if 0 not in shape_on(tensor, prepared.sizes, peer):
                    regions.append(self._shard(tensor, prepared.sizes, peer, at + layout.data_at(run.slot)))
            if peer == rank and prepared.stage_bytes:
                at = layout.data_at(run.slot) + run.placement.stage
                regions.append(self._region("send stage", rank, at, (prepared.stage_bytes,), torch.uint8, "control"))
            for name, at, cells in run.placement.signals:
                if cells:
                    at += layout.signals_at(run.slot)
                    dtype, words = getattr(torch, self.target.signal_dtype), self.target.signal_words
                    shape = (cells,) if words == 1 else (cells, words)
                    regions.append(self._region(f"{SIGNALS}{name}", peer, at, shape, dtype, "signal"))
        return regions

    def _region(
        self, name: str, rank: int, at: int, shape: tuple[int, ...], dtype: torch.dtype, kind: Kind = "data"
    ) -> Region:
        """A part of a rank's heap."""
        return Region(name, rank, self.memory(rank, at, shape, dtype), kind)

    def _shard(self, tensor: Tensor, sizes: Sizes, rank: int, at: int) -> Region:
        """A rank's tensor on its heap. All ranks lay it out for the longest part; a shorter part is its beginning."""
        shape = shape_on(tensor, sizes, None)
        whole = self._region(tensor.name, rank, at, shape, getattr(torch, tensor.dtype))
        if tensor.sharded is None:
            return whole
        length = shape_on(tensor, sizes, rank)[tensor.sharded]
        return Region(tensor.name, rank, whole.tensor.narrow(tensor.sharded, 0, length))
