"""The flag --schedule: the schedule that it names, and how it is written back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilelink.errors import ScheduleError, Site, TileSizeError
from tilelink.tools.cli.program import Shape

if TYPE_CHECKING:
    from tilelink.frontend.schedule import Schedule
    from tilelink.programs.program import Program


def read_schedule(
    program: Program, text: str | None, world: int, sizes: Shape, largest: int | None = None, dtypes: Any = "float32"
) -> Schedule:
    """`NAME`, `NAME,ROLE.FIELD=VALUE,...` or `ROLE.FIELD=VALUE,...`, which changes the program's default schedule.

    The named schedule is one of the program with the tensors that `dtypes` names, fitted to the sizes; its tiles are at
    most `largest` along each dimension where that is given. What is changed is taken as it is; see
    `tilelink.programs.schedule_text`. Raises ScheduleError or TileSizeError.
    """
    from tilelink.frontend.schedule import CopyEngine, SMs
    from tilelink.programs.schedule_text import read_changes, split_schedule

    name, items = split_schedule(text)
    whole: dict[str, Any] = dict(sizes)
    schedule = program.fit(name, world=world, dtypes=dtypes, **whole)
    if largest is not None:
        tiled = {role: r for role, r in schedule.items() if isinstance(r, SMs | CopyEngine)}
        smaller = {role: tuple(n and min(n, largest) for n in r.tile) for role, r in tiled.items()}
        schedule = schedule.changed(**{role: {"tile": tile} for role, tile in smaller.items()})
    try:
        schedule = read_changes(program, name, schedule, items).changed(schedule)
    except (ScheduleError, TileSizeError) as e:
        raise type(e)(f"--schedule {e.message}") from e
    if items:
        schedule.site = Site(f"--schedule {text}", 0)
    return schedule


def schedule_text(program: Program, schedule: Schedule, asked: str | None) -> str:
    """A schedule as `read_schedule` reads it."""
    from tilelink.programs import schedule_text as text

    return text.schedule_text(program, schedule, asked)
