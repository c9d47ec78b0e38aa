"""Roles of the specialised form, in Gluon."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tilelink.backend.emit import RoleEmitter
from tilelink.backend.kernel import call
from tilelink.backend.parameters import CONTROL
from tilelink.frontend import ir
from tilelink.frontend.ir import Statement

ALIVE = call("alive", CONTROL)


class GluonEmitter(RoleEmitter):
    """Writes a role in Gluon. Nothing is stored or notified where the lane is poisoned: there, waits are in vain. A
    bias lies along the sums of its tile, and what is stored does not, so each has a mask."""

    store = "store"
    one_layout = False

    def statement(self, s: Statement) -> None:
        if isinstance(s, ir.Write | ir.Notify):
            with self.write.branch(ALIVE):
                super().statement(s)
        else:
            super().statement(s)

    def loop(self, s: ir.For) -> AbstractContextManager[None]:
        """A loop as it stands: nothing pipelines it."""
        return self.write.loop(self.local(s.name), self.text(s.start), self.text(s.stop), s.step)
