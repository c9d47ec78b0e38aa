"""Programs for the gates of lowering: with edited primitives, or compiled wrongly by Triton. Compiled only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.backend.small_programs import small, verdict
from tests.modules import importable, text_of
from tests.programs.alone import gemm, two_dots
from tests.verification.mutants.tools import Edit
from tilelink.backend.targets import TARGETS
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge
from tilelink.kernels.all_gather_matmul import all_gather_matmul


@dataclass(frozen=True)
class Primitives:
    """AllGather-GEMM by push, compiled for Hopper with edited primitives; `edit` None: as they are."""

    edit: Edit | None = None

    functions = ()

    def judged(self) -> tuple[str, ...]:
        """What the gates find."""
        return _judged(self.edit)


@dataclass(frozen=True)
class TwoDots:
    """Two dots into one sum in a loop, compiled for sm_100: pipelined, which Triton compiles wrongly before 3.9, or as
    our lowering has it there."""

    pipelined: bool

    functions = ()

    def judged(self) -> tuple[str, ...]:
        """What the gates find."""
        schedule, target = gemm.changed(twice={"tile": (128, 64, 64)}), TARGETS["sm_100"]
        target = replace(target, one_dot_a_sum=not self.pipelined)
        sizes = {"M": 256, "N": 256, "K": 512}
        return verdict(two_dots.lowered_at(schedule, target=target, world=1, sizes=sizes, dtypes="bfloat16")).findings


@cache
def _judged(edit: Edit | None) -> tuple[str, ...]:
    made, sizes = small("sm_90", all_gather_matmul, "push")
    with edited(made.target.module, edit) as module:
        source = made.source.replace(made.target.module, module)
        made = replace(made, source=source, target=replace(made.target, module=module))
        return judge(made, compiled(made, sizes)).findings


@contextmanager
def edited(name: str, edit: Edit | None) -> Iterator[str]:
    """The name of an edited copy of a module."""
    if edit is None:
        yield name
        return
    with TemporaryDirectory() as folder:
        copy = importable(Path(folder), edit(text_of(name)))
        sys.path.insert(0, folder)
        try:
            yield copy
        finally:
            sys.path.remove(folder)
            sys.modules.pop(copy, None)
