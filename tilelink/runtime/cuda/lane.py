"""The heaps of a lane on CUDA devices, as one process sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tilelink.backend.targets import portable
from tilelink.frontend.schedule import CopyEngine
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import CudaDevice, Kernel
from tilelink.runtime.lane import POISON, Lane, Report
from tilelink.runtime.layout import HeapLayout
from tilelink.runtime.prepare import Prepared


class CudaLane(Lane):
    """Heaps on a device. `bounds`: how long kernels wait. `multicast` is 0 if the fabric maps none; kernels then loop
    over the ranks. `flags`: for each rank, a word that its host reads. `loaded`: the kernels that were loaded last, by
    name. `mappings` keeps memory of peers mapped."""

    mappings: Any = None

    def __init__(
        self,
        device: CudaDevice,
        layout: HeapLayout,
        heaps: Sequence[torch.Tensor],
        sms: int,
        bounds: Bounds,
        multicast: int = 0,
    ) -> None:
        target = device.target if multicast else replace(device.target, multicast=False)
        super().__init__(layout, heaps, sms, target)
        self.device, self.bounds, self.multicast = device, bounds, multicast
        self.tables = self.tables_of([h.data_ptr() for h in heaps])
        self.flags: dict[int, torch.Tensor] = {}
        self.loaded: dict[str, Kernel] = {}
        self.aside = device.stream()  # the host looks and writes while kernels wait
        device.synchronize(device.current())  # the heaps are made on another stream

    def tables_of(self, addresses: Sequence[int]) -> list[torch.Tensor]:
        """A table of the heaps' addresses, shared by the kernels of all ranks."""
        return [torch.tensor(addresses, dtype=torch.int64).to(self.device.place)] * self.layout.world

    def prepare_anew(self, arguments: Arguments, sms: int) -> Prepared:
        """As `Lane.prepare_anew`. A program with a copy engine leaves an SM free, unless a probe has shown that it need
        not: a copy inside one device may take an SM, and could not begin while the waiting workers hold all of them."""
        call = arguments.call
        resources = call.program.unchanged(call.schedule, arguments.absent).values()
        engines = any(isinstance(r, CopyEngine) for r in resources)
        free = engines and not self.device.probed.allows("copies_beside_all_sms")
        return super().prepare_anew(arguments, sms - free)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.device.empty(shape, dtype)

    def clear(self, rank: int) -> None:
        layout, heap, flag = self.layout, self.heaps[rank], self.flags[rank]
        words = [0] * (layout.control_bytes // 8)
        words[portable.ENTER_NS.value] = int(self.bounds.enter * 1e9)
        words[portable.STUCK_NS.value] = int(self.bounds.stuck * 1e9)
        words[portable.HEAPS.value] = self.tables[rank].data_ptr()
        words[portable.HOST.value] = flag.data_ptr()
        words[portable.RANKS.value] = layout.world
        words[portable.RANK.value] = rank
        with self.device.on(self.aside):
            for slot in range(layout.slots):
                heap[layout.signals_at(slot) : layout.data_at(slot)] = 0
            heap[: layout.control_bytes].view(torch.int64).copy_(torch.tensor(words, dtype=torch.int64))
        self.device.synchronize(self.aside)
        flag.zero_()

    def control(self, rank: int) -> list[int]:
        with self.device.on(self.aside):
            words: list[int] = self.words(rank).tolist()
        return words

    def poison(self, report: Report) -> None:
        """As `Lane.poison`. The host copies the words, because a kernel that wrote them would wait for an SM, and the
        kernels that are to be ended have all of them."""

        def put(rank: int, word: int, value: int) -> None:
            self.words(rank)[word : word + 1].copy_(torch.tensor([value]))

        with self.device.on(self.aside):
            for word, value in report.mailbox().items():
                put(report.rank, word, value)
            name = int(self.words(self.reached()[0])[POISON].item()) or 1 + report.rank
            for rank in self.reached():
                put(rank, POISON, name)
        self.device.synchronize(self.aside)

    def reached(self) -> list[int]:
        """The ranks whose words the host can write."""
        return list(range(self.layout.world))
