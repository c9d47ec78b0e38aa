"""The heaps of a lane on CUDA devices, as one process sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tilelink.backend.targets import portable
from tilelink.frontend.kept import Kept
from tilelink.frontend.schedule import CopyEngine, Schedule
from tilelink.programs.program import Program
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import Device
from tilelink.runtime.cuda.kernels import Kernel
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout
from tilelink.runtime.poison import POISON, Report
from tilelink.runtime.prepare import KEPT_PROGRAMS, Prepared, prepare


class CudaLane:
    """The heaps of all ranks (uint8 tensors) on a device, and programs prepared for `sms` SMs of it. `bounds`: how long
    kernels wait. `multicast`: the address at which all heaps lie one over the other; 0 where the fabric maps none, and
    kernels loop over the ranks. `loaded`: the kernels that were loaded last, by name."""

    def __init__(
        self,
        device: Device,
        layout: HeapLayout,
        heaps: Sequence[torch.Tensor],
        sms: int,
        bounds: Bounds,
        multicast: int = 0,
    ) -> None:
        self.device, self.layout, self.heaps, self.sms, self.bounds = device, layout, list(heaps), sms, bounds
        self.multicast = multicast
        self.target = device.target if multicast else replace(device.target, multicast=False)
        self.table = torch.tensor([h.data_ptr() for h in heaps], dtype=torch.int64).to(device.place)
        self.prepared: Kept[Any, Prepared] = Kept(KEPT_PROGRAMS)
        self.loaded: dict[str, Kernel] = {}
        self.aside = device.stream()  # the host looks and writes while kernels wait
        device.synchronize(device.current())  # what makes the heaps is not on that stream

    def prepare(self, program: Program, arguments: Arguments, schedule: Schedule | str | None) -> Prepared:
        """The program, made once for a schedule, dtypes and sizes. Beside a copy engine it leaves an SM free: a copy
        inside one device may take one, and the workers that wait for it would not let it begin."""
        dtypes, sizes = tuple(arguments.dtypes.items()), tuple(arguments.sizes.items())
        key = program, schedule, dtypes, sizes, arguments.absent, arguments.described, arguments.timed
        prepared = self.prepared.get(key)
        if prepared is None:
            resources = program.schedule(schedule, arguments.absent).values()
            sms = self.sms - any(isinstance(r, CopyEngine) for r in resources)
            prepared = prepare(program, arguments, schedule, self.layout.world, sms, self.target)
            self.prepared.put(key, prepared)
        return prepared

    def clear(self, rank: int, flag: torch.Tensor) -> None:
        """Control words and signals of a rank are as in the beginning. `flag`: the word its host looks at."""
        layout = self.layout
        words = [0] * (layout.control_bytes // 8)
        words[portable.ENTER_NS.value] = int(self.bounds.enter * 1e9)
        words[portable.STUCK_NS.value] = int(self.bounds.stuck * 1e9)
        words[portable.HEAPS.value] = self.table.data_ptr()
        words[portable.HOST.value] = flag.data_ptr()
        words[portable.RANKS.value] = layout.world
        words[portable.RANK.value] = rank
        with self.device.on(self.aside):
            self._clear(self.heaps[rank], torch.tensor(words, dtype=torch.int64))
        self.device.synchronize(self.aside)
        flag.zero_()

    def _clear(self, heap: torch.Tensor, control: torch.Tensor) -> None:
        layout = self.layout
        for slot in range(layout.slots):
            heap[layout.signals_at(slot) : layout.data_at(slot)] = 0
        heap[: layout.control_bytes].view(torch.int64).copy_(control)

    def control(self, rank: int) -> list[int]:
        """The control words of a rank, now."""
        with self.device.on(self.aside):
            words: list[int] = self._words(rank).tolist()
        return words

    def poison(self, report: Report) -> None:
        """Ends all waits of the lane, unless somebody was faster: see docs/protocol.md."""
        with self.device.on(self.aside):
            own = self._words(report.rank)
            for word, value in report.mailbox().items():
                own[word] = value
            name = int(self._words(0)[POISON].item()) or 1 + report.rank
            for rank in range(self.layout.world):
                self._words(rank)[POISON] = name
        self.device.synchronize(self.aside)

    def _words(self, rank: int) -> torch.Tensor:
        return self.heaps[rank][: 8 * (CONTROL_WORDS + self.layout.world)].view(torch.int64)

    def report(self, rank: int) -> Report | None:
        """Why the lane ended, as far as a rank knows; None if it goes on."""
        name = self.control(rank)[POISON]
        return Report.of(name - 1, self.control(name - 1)) if name else None
