"""Schedules on a command line: reading them, and writing them back."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tilelink.cli.command import UsageError
from tilelink.cli.program import Shape
from tilelink.errors import Site, TileLinkError

if TYPE_CHECKING:
    from tilelink.frontend.program import Program
    from tilelink.frontend.schedule import Order, Resource, Schedule


def read_schedule(
    program: Program, text: str | None, world: int, sizes: Shape, largest: int | None = None
) -> Schedule:
    """`NAME`, `NAME,ROLE.FIELD=VALUE,...` or `ROLE.FIELD=VALUE,...`, which changes the program's default schedule.

    The named schedule is fitted to the sizes, and its tiles are at most `largest` along each dimension where that is
    given; what is changed is taken as it is. A field is one of its resource, or `group` for that of its order; ROLE is
    also `matmul[1]`, for the second member of lists. Raises UsageError, ScheduleError or TileSizeError.
    """
    from tilelink.frontend.schedule import CopyEngine, SMs, launched

    items = [item.strip() for item in text.split(",")] if text else []
    name = items.pop(0) if items and "=" not in items[0] else None
    whole: dict[str, Any] = dict(sizes)
    schedule = program.fit(name, world=world, **whole)
    if largest is not None:
        tiled = {role: r for role, r in schedule.items() if isinstance(r, SMs | CopyEngine)}
        smaller = {role: tuple(n and min(n, largest) for n in r.tile) for role, r in tiled.items()}
        schedule = schedule.changed(**{role: {"tile": tile} for role, tile in smaller.items()})
    for item in items:
        match = re.fullmatch(r"(\w+(?:\[\d+\])?)\.(\w+)=(.+)", item)
        try:
            if match is None:
                raise UsageError("a change is ROLE.FIELD=VALUE, such as matmul.tile=64x64x32")
            role, key, value = match.groups()
            changes = _read_field(program, schedule.of(role), key, value) if launched(role) in schedule else {}
            schedule = schedule.changed(**{role: changes})
        except TileLinkError as e:
            raise type(e)(f"--schedule {item}: {e.message}") from e
    if items:
        schedule.site = Site(f"--schedule {text}", 0)
    return schedule


def _read_field(program: Program, resource: Resource, field: str, value: str) -> dict[str, Any]:
    """The change that FIELD=VALUE makes to a role's resource. Raises UsageError."""

    def number(text: str) -> int:
        if not text.isdecimal():
            raise UsageError(f"{text!r} is not a natural number")
        return int(text)

    def optional(text: str) -> int | None:
        return None if text == "none" else number(text)

    known = _field_texts(program, resource)
    if field not in known:
        raise UsageError(f"a role on {type(resource).__name__} has no {field}; it has {', '.join(known)}")
    match field:
        case "tile":
            return {"tile": tuple(optional(n) for n in value.split("x"))}
        case "whole":
            pairs = [pair.partition(":") for pair in value.split("+")] if value != "none" else []
            return {"whole": {dim: number(size) for dim, _, size in pairs}}
        case "order":
            named = orders(program)
            if value not in named:
                raise UsageError(f"there is no order {value}; there is {', '.join(named)}")
            return {"order": named[value]}
        case "group":
            return {"order": replace(vars(resource)["order"], group=number(value))}
        case "at":
            return {"at": None if value == "none" else value}
        case "count":
            return {"count": optional(value)}
        case "stages" | "warps":
            return {field: number(value)}
    return {field: value}


def orders(program: Program) -> dict[str, Order]:
    """The orders that a command line can name: ours, and those in the file of the program."""
    from tilelink.frontend import schedule

    names = {**vars(schedule), **program.function.__globals__}
    return {n: o for n, o in names.items() if isinstance(o, schedule.Order)}


def schedule_text(program: Program, schedule: Schedule, asked: str | None) -> str:
    """A schedule as `read_schedule` reads it: its name, and the fields in which it differs from what stands in the
    file, because they were fitted or changed."""
    named = (asked or "=").split(",")[0].strip()
    name = named if "=" not in named else next(iter(program.schedules))
    text = [name]
    for role, resource in schedule.items():
        was = _field_texts(program, program.schedule(name).of(role))
        text += [f"{role}.{f}={v}" for f, v in _field_texts(program, resource).items() if v != was[f]]
    return ",".join(text)


def _field_texts(program: Program, resource: Resource) -> dict[str, str]:
    """The fields of a resource as `_read_field` reads them."""
    from tilelink.frontend.schedule import Epilogue

    def word(value: Any) -> str:
        return "none" if value is None else str(value)

    texts = {f.name: word(getattr(resource, f.name)) for f in fields(resource)}
    if isinstance(resource, Epilogue):
        return texts
    if "whole" in texts:
        texts["whole"] = "+".join(f"{d}:{n}" for d, n in dict(resource.whole).items()) or "none"
    tile = "x".join(map(word, resource.tile))
    order = resource.order
    called = next((n for n, o in orders(program).items() if o.parts is order.parts), order.name)
    return {**texts, "tile": tile, "order": called, "group": str(order.group)}
