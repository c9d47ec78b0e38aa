"""Where the scripts for a GPU run in tests: on virtual ranks of a device that stands in for one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from bench.gpu.place import Place, by_host, dry
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tilelink.runtime.cuda.probed import Probed
from tilelink.runtime.cuda.virtual_world import VirtualWorld


class OnStandIn:
    """Virtual ranks of a stand-in, as a place that takes itself for a GPU."""

    def __init__(self) -> None:
        self.device = StandIn(sms=48)

    def world(self, n: int, device: StandIn | None = None, **options: Any) -> VirtualWorld:
        self.device = device or StandIn(sms=48)
        return virtual_world(n, self.device, **options)

    def capture(self, group: Any) -> AbstractContextManager[Any]:
        return self.device.capture()

    def settle(self) -> None:
        self.device.synchronize(self.device.current())

    def clock(self, call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
        us = by_host(call, before)
        self.settle()
        return us

    def place(self) -> Place:
        mine: dict[str, Any] = {"probed": Probed()}  # nobody has asked it
        mine |= {"world": self.world, "capture": self.capture, "clock": self.clock, "settle": self.settle}
        return replace(dry(), on_gpu=True, gemms={"tiny, gate": (64, 32, 32)}, **mine)
