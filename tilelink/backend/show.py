"""A program as text, at each stage of its way to a kernel: what `Program.show` and `tilelink show` print.

Imports stand in the functions, because the command line reads the names and defaults here to print its help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilelink.backend.targets import TARGETS

if TYPE_CHECKING:
    from tilelink.frontend.program import Program
    from tilelink.frontend.schedule import Schedule

STAGES = ("program", "events", "triton", "host")
WORLD, SIZE, DTYPE = 4, 512, "bfloat16"
"""What is shown where nothing is said: small enough to be read, large enough for several tiles on each rank."""


def show(
    program: Program,
    stage: str = "program",
    schedule: Schedule | str | None = None,
    *,
    target: str = "cpu",
    world: int = WORLD,
    per_node: int | None = None,
    dtypes: Mapping[str, Any] | Any = DTYPE,
    **sizes: int | Sequence[int],
) -> str:
    """The text of a stage: "program" (the tile program), "events" (one a line), "triton" (the generated module) or
    "host" (what the host of each rank launches and enqueues).

    A schedule is taken as it is, one given by name (or by default) is fitted to the sizes. `dtypes` and sizes as for
    `Program.unroll`; a size left out is `SIZE`. Raises the errors of the frontend, ValueError for an unknown stage.
    """
    from tilelink.frontend.schedule import Schedule
    from tilelink.frontend.sizes import Sizes

    for what, wanted, known in (("stage", stage, STAGES), ("target", target, TARGETS)):
        if wanted not in known:
            raise ValueError(f"there is no {what} {wanted}; there is {', '.join(known)}")
    absent = program.optional - set(dtypes) if isinstance(dtypes, Mapping) else program.optional
    sizes = with_defaults(program, sizes, absent)
    if not isinstance(schedule, Schedule):
        schedule = program.fit(schedule, world=world, dtypes=dtypes, absent=absent, **sizes)
    bound = program.bind(schedule, dtypes, absent)
    exact = Sizes.of(bound, world, sizes, per_node)
    if stage == "program":
        return str(bound)
    from tilelink.analysis.unroll import unroll

    if stage == "events":
        return unroll(bound, exact).text()
    from tilelink.backend.facts import Facts
    from tilelink.backend.host import plan_text
    from tilelink.backend.lower import lower

    lowered = lower(bound, Facts.of(bound, exact), TARGETS[target])
    return lowered.source if stage == "triton" else plan_text(lowered, unroll(bound, exact))


def with_defaults(
    program: Program, sizes: Mapping[str, int | Sequence[int]], absent: frozenset[str]
) -> dict[str, int | Sequence[int]]:
    """Sizes of all dimensions, in the order in which the tensors name them; those left out are `SIZE`, or what a block
    over the whole dimension has in a schedule of the program."""
    from tilelink.frontend.ir import RANKS_DIM

    dims = (d for t in program.recorded(absent).tensors for d in t.dims if d != RANKS_DIM)
    resources = [r for s in program.schedules_without(absent).values() for r in s.values()]
    whole = {d: n for r in resources for d, n in dict(getattr(r, "whole", ())).items()}
    return {d: sizes.get(d, whole.get(d, SIZE)) for d in (*dims, *sizes)}
