"""What makes a tile program of a recording, one after the other: each is a function from tile program to tile program.

A pass fills what a later one reads, or rewrites roles. A new one is a file here and a line in `PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilelink.frontend.ir import TileProgram
from tilelink.frontend.passes.elaborate import Binding, elaborate
from tilelink.frontend.passes.fold import drop_unread, fold
from tilelink.frontend.passes.multicast import multicast
from tilelink.frontend.passes.publish import publish
from tilelink.frontend.passes.resources import check_resources
from tilelink.frontend.passes.signals import derive_signals
from tilelink.frontend.passes.split import split_waits

Pass = Callable[[TileProgram, Binding], TileProgram]

PASSES: tuple[Pass, ...] = (
    elaborate, multicast, fold, drop_unread, check_resources, publish, derive_signals, split_waits,
)  # fmt: skip
