"""The body of a role on a target whose fabric multicasts: what the schedule sends to all ranks by `via="multicast"` is
stored, and notified, once, at an address where the heaps of all ranks lie one over the other.

A store takes 16 bytes, so this needs rows of whole 16 bytes; for others, and for all roles of other schedules, a loop
over the ranks stays.
"""

from __future__ import annotations

import sympy

from tilelink.backend.addresses import along, fills
from tilelink.backend.emit import RoleEmitter
from tilelink.backend.facts import vector_of
from tilelink.frontend.expressions import symbol
from tilelink.frontend.ir import ALL_RANKS, Range, View
from tilelink.frontend.schedule import SMs
from tilelink.frontend.signals import recipient


class MulticastEmitter(RoleEmitter):
    """Writes a role for a target with multicast."""

    def put(self, view: View, block: str) -> None:
        if not self.at_once(view):
            super().put(view, block)
            return
        offsets, here = self.vectors(view)
        self.write(f"multicast_store(multicast, {view.tensor}_at, {offsets}, {block}, {here})")

    def notify(self, view: View) -> None:
        if not self.at_once(view):
            super().notify(view)
            return
        signals = self.program.signals_of(view.tensor)
        cell = self.text(self.cell(signals, view, symbol("other")))
        self.write(f"multicast_notify(multicast, {view.tensor}_signals, {cell})")

    def at_once(self, view: View) -> bool:
        """Whether a view is stored and notified for all ranks at once: each of them waits for its own."""
        resource = self.role.resource
        if view.home != ALL_RANKS or not isinstance(resource, SMs) or resource.via != "multicast":
            return False
        last, width = view.index[-1], vector_of(self.program.tensor(view.tensor))
        if not isinstance(last, Range) or last.bounded or len(view.ranges) > 2:
            return False
        if width is None or (last.dim, width) not in self.facts.exact or (last.extent or width) % width:
            return False
        if view.tensor not in {s.tensor for s in self.program.signals}:
            return True
        return recipient(self.program.signals_of(view.tensor), view, symbol("other")) == (symbol("other"), sympy.true)

    def vectors(self, view: View) -> tuple[str, str]:
        """Where each 16 bytes of a block lie, in elements from the beginning of the tensor, and which of them exist."""
        tensor, ranges = self.program.tensor(view.tensor), view.ranges
        width, strides = vector_of(tensor), self.addresses.strides(tensor)
        assert width is not None
        offsets: list[str] = []
        here: list[str] = []
        for i, stride in zip(view.index, strides, strict=True):
            at = self.text(i.start if isinstance(i, Range) else i)
            if isinstance(i, Range):
                assert i.extent is not None
                k = ranges.index(i)
                wide = width if k == len(ranges) - 1 else 1
                elements = f"tl.arange(0, {i.extent // wide})" + (f" * {wide}" if wide > 1 else "")
                at = elements if at == "0" else f"{at} + {elements}"
                if not fills(i, self.facts):
                    here.append(f"({at} < {self.text(i.limit)}){along(k, len(ranges))}")
                at = f"({at}){along(k, len(ranges))}" if len(ranges) > 1 else at
            if at != "0":
                offsets.append(self.addresses.offset(at, stride))
        return " + ".join(offsets), " & ".join(here) or "True"
