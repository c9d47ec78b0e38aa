"""What a role on the copy engine may do: copies between two ranks, each of which is notified. Checked on the tile
program; `tilelink.analysis.copy_engine` checks what depends on sizes."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.errors import ScheduleError
from tilelink.frontend.ir import ALL_RANKS, Copy, For, If, Notify, Role, Wait, walk
from tilelink.frontend.schedule import CopyEngine


def check_copy_engine(roles: Sequence[Role]) -> None:
    """Raises ScheduleError for a role on the copy engine that does what an engine can't."""
    for role in roles:
        if isinstance(role.resource, CopyEngine):
            _check(role, roles)


def _check(role: Role, roles: Sequence[Role]) -> None:
    can_not = f"{role.name} can't be on the copy engine"
    statements = list(walk(role.body))
    notified = [v for s in statements if isinstance(s, Notify) for v in s.views]
    for s in statements:
        if isinstance(s, Wait):
            cycle = _cycle(role.name, roles)
            why = f"it is in a cycle of roles, {' -> '.join(cycle)}" if cycle else f"it waits for {s.views[0]}"
            raise ScheduleError(
                f"{can_not}: {why}; an engine starts once its rank has entered, before the kernel, and waits for no "
                "tile. Give it SMs, or put it into the epilogue of the role that it waits for",
                s.site,
            )
        if not isinstance(s, Copy | Notify | For | If):
            raise ScheduleError(f"{can_not}: it computes, and an engine only copies and notifies. Give it SMs", s.site)
        if isinstance(s, Copy) and s.target.home == ALL_RANKS:
            raise ScheduleError(
                f"{can_not}: it copies to all ranks at once, and a copy of an engine is between two. Give its space a "
                "rank axis, reader=tk.ranks, and copy to .at(t.reader)",
                s.site,
            )
        if isinstance(s, Copy) and s.target not in notified:
            raise ScheduleError(
                f"{can_not}: it notifies nobody of its copy to {s.target}, so nobody would know when that is done. "
                "Notify what tk.copy returns",
                s.site,
            )


def _cycle(role: str, roles: Sequence[Role]) -> list[str]:
    """The roles from a role to itself, each waiting for what the one before notifies; [] where there is no such way."""
    notified = {r.name: _tensors(r, Notify) for r in roles}
    awaited = {r.name: _tensors(r, Wait) for r in roles}
    ways = [[role]]
    seen: set[str] = set()
    for way in ways:
        for name in (n for n in awaited if n not in seen and notified[way[-1]] & awaited[n]):
            if name == role:
                return [*way, name]
            seen.add(name)
            ways.append([*way, name])
    return []


def _tensors(role: Role, kind: type[Wait] | type[Notify]) -> set[str]:
    return {v.tensor for s in walk(role.body) if isinstance(s, kind) for v in s.views}
