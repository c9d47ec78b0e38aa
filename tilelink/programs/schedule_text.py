"""Schedules as text, `NAME,ROLE.FIELD=VALUE,...`: reads what a person types, and writes it back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tilelink.errors import ScheduleError, Site, TileLinkError, listed, similar
from tilelink.frontend import orders as words
from tilelink.frontend.orders import Order
from tilelink.frontend.schedule import CopyEngine, Epilogue, Resource, Schedule, SMs
from tilelink.language import launched

if TYPE_CHECKING:
    from tilelink.programs.program import Program


class Change(NamedTuple):
    """A new value for a field of a role. `role`: `matmul`, or `matmul[1]` for the second member of lists."""

    role: str
    field: str
    value: Any

    def __str__(self) -> str:
        more = ("group", "columns", "by_rank") if self.field == "order" else ()
        said = (f",{self.role}.{name}={int(getattr(self.value, name))}" for name in more)
        return f"{self.role}.{self.field}={_text(self.field, self.value)}{''.join(said)}"


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule in a program's file by name (None: the first one), with changes. The named schedule is fitted to
    sizes; the changes are not."""

    name: str | None = None
    changes: tuple[Change, ...] = ()

    def changed(self, schedule: Schedule) -> Schedule:
        """`schedule`, which is the named schedule after fitting, with the changes."""
        for change in self.changes:
            schedule = schedule.with_fields(**{change.role: {change.field: change.value}})
        return schedule

    def and_changed(self, role: str, field: str, value: Any) -> NamedSchedule:
        """This schedule with one more change. It replaces a change of the same field."""
        others = (c for c in self.changes if (c.role, c.field) != (role, field))
        return NamedSchedule(self.name, (*others, Change(role, field, value)))

    def __str__(self) -> str:
        return ",".join([*([] if self.name is None else [self.name]), *map(str, self.changes)])


def read_schedule(program: Program, text: str | None, absent: frozenset[str] | None = None) -> NamedSchedule:
    """The schedule that a person has typed: `NAME`, `NAME,ROLE.FIELD=VALUE,...` or changes alone. `absent`: parameters
    that are None. Raises ScheduleError or TileSizeError."""
    name, items = split_schedule(text)
    return read_changes(program, name, program.schedule(name, absent), items)


def read_changes(program: Program, name: str | None, schedule: Schedule, items: Sequence[str]) -> NamedSchedule:
    """A schedule by its name with changes `ROLE.FIELD=VALUE`. A field is a field of the role's resource, or `group`,
    `columns` or `by_rank` of its order. Raises ScheduleError or TileSizeError."""
    found = NamedSchedule(name)
    for item in items:
        match = re.fullmatch(r"(\w+(?:\[\d+\])?)\.(\w+)=(.+)", item)
        try:
            if match is None:
                raise ScheduleError("a change is ROLE.FIELD=VALUE, such as matmul.tile=64x64x32")
            role, key, value = match.groups()
            read = _read_field(program, schedule.of(role), key, value) if launched(role) in schedule else {}
            schedule = schedule.with_fields(**{role: read})
        except TileLinkError as e:
            raise type(e)(f"{item}: {e.message}") from e
        for field, changed in read.items():
            found = found.and_changed(role, field, changed)
    return found


def split_schedule(text: str | None) -> tuple[str | None, list[str]]:
    """The name of a schedule, or None, and the changes after it: `push,matmul.tile=64x64x32`."""
    items = [item.strip() for item in text.split(",")] if text else []
    name = items.pop(0) if items and "=" not in items[0] else None
    return name, items


def _read_field(program: Program, resource: Resource, field: str, value: str) -> dict[str, Any]:
    """The change that FIELD=VALUE makes to a role's resource. Raises ScheduleError."""

    def number(text: str) -> int:
        if not text.isdecimal():
            raise ScheduleError(f"{text!r} is not a natural number")
        return int(text)

    def optional(text: str) -> int | None:
        return None if text == "none" else number(text)

    known = _field_texts(program, resource)
    if field not in known:
        elsewhere = any(field == f.name for kind in (SMs, CopyEngine) for f in fields(kind))  # so it is not misspelt
        has = ", ".join(known) if elsewhere else listed(known, field)
        raise ScheduleError(f"a role on {type(resource).__name__} has no {field}; it has {has}")
    match field:
        case "tile":
            return {"tile": tuple(optional(n) for n in value.split("x"))}
        case "whole":
            pairs = [pair.partition(":") for pair in value.split("+")] if value != "none" else []
            if not all(colon for _, colon, _ in pairs):
                raise ScheduleError(f"whole={value} is not DIM:SIZE, or DIM:SIZE+DIM:SIZE; try whole=N:4096")
            return {"whole": tuple((dim, number(size)) for dim, _, size in pairs)}
        case "order":
            named = orders(program)
            if value not in named:
                raise ScheduleError(f"there is no order {value}; there is {listed(named, value)}")
            return {"order": named[value]}
        case "group" | "columns" | "by_rank":
            read = bool(number(value)) if field == "by_rank" else number(value)
            return {"order": replace(vars(resource)["order"], **{field: read})}
        case "at":
            return {"at": None if value == "none" else value}
        case "count" | "wave":
            return {field: optional(value)}
        case "stages" | "warps":
            return {field: number(value)}
    return {field: value}


def orders(program: Program) -> dict[str, Order]:
    """The orders that a text can name: the library's, and those in the program's file."""
    names = {**vars(words), **program.function.__globals__}
    return {n: o for n, o in names.items() if isinstance(o, Order)}


def schedule_text(program: Program, schedule: Schedule, asked: str | None) -> str:
    """The text of a schedule: its name, and the fields that differ from the schedule of this name in the program's
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
    texts = {f.name: _text(f.name, getattr(resource, f.name)) for f in fields(resource)}
    if isinstance(resource, Epilogue):
        return texts
    order = resource.order
    called = next((n for n, o in orders(program).items() if o.parts is order.parts), order.name)
    more = {name: str(int(getattr(order, name))) for name in ("group", "columns", "by_rank")}
    return {**texts, "order": called, **more}


def _text(field: str, value: Any) -> str:
    """The value of a field as `_read_field` reads it."""
    match field:
        case "tile":
            return "x".join(_text("size", size) for size in value)
        case "whole":
            return "+".join(f"{dim}:{size}" for dim, size in dict(value).items()) or "none"
        case "order":
            return str(value.name)
    return "none" if value is None else str(value)


def nearly(program: Program, absent: frozenset[str] | None) -> tuple[str, Site]:
    """Why no schedule in the program's file is for its roles, and the line to look at. It lists schedules with some of
    these roles, or with roles that have similar names."""
    roles = {launched(launch.scheduled): None for launch in program.recorded(absent or frozenset()).launches}
    near: list[tuple[bool, Site, str]] = []
    for name, schedule in program.function.__globals__.items():
        if not isinstance(schedule, Schedule):
            continue
        strange = {r: similar(r, roles) for r in sorted(schedule.launched - roles.keys())}
        if schedule.launched & roles.keys() or any(strange.values()):
            meant = "".join(strange.values())
            missing = [r for r in roles if r not in schedule.launched and f"did you mean {r}?" not in meant]
            said = [f"names {r}, which is no role{suggestion}" for r, suggestion in strange.items()]
            said += [f"does not name {', '.join(missing)}"] if missing else []
            near.append((not meant, schedule.site, f"{name} {' and '.join(said)}"))
    near.sort(key=lambda one: one[0])  # misspelled roles first
    if not near:
        none = f"{program.name} has no schedule beside it: its roles are {', '.join(roles)}"
        return f"{none}; write one, tk.Schedule(...)", program.site
    first, *others = (text for _, _, text in near)
    others = [f"{text} ({site.file}:{site.line})" for (_, site, _), text in zip(near[1:], others, strict=True)]
    message = f"{first}; the roles of {program.name} are {', '.join(roles)}"
    return "; ".join([message, *others]), near[0][1]


def check_schedule(wanted: Any) -> None:
    """Raises ScheduleError for a value that is neither a schedule nor the name of one."""
    if not (wanted is None or isinstance(wanted, (str, Schedule, NamedSchedule))):  # quickest first: every call asks
        what = f"schedule= is a {type(wanted).__name__}"
        raise ScheduleError(
            f"{what}: write tk.Schedule(role=tk.SMs(...)), or the name of one in the program's file", Site.of_user()
        )
