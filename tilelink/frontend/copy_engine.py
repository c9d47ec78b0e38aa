"""What a role on the copy engine may do: copies between two ranks, each of which is notified, and waits for tiles of
its own rank's kernel. Checked on the tile program; `tilelink.analysis.copy_engine` checks what depends on sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilelink.errors import ScheduleError
from tilelink.frontend.expressions import RANK, Expr, to_text
from tilelink.frontend.ir import ALL_RANKS, Copy, For, If, Notify, Role, Wait, walk
from tilelink.frontend.schedule import CopyEngine, SMs
from tilelink.frontend.turns import members

CURE = "Give it SMs, or put it into the epilogue of the role that it waits for"


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
            _check_wait(role, s, roles)
        elif not isinstance(s, Copy | Notify | For | If):
            computes = "it computes, and an engine only waits, copies and notifies"
            raise ScheduleError(f"{can_not}: {computes}. Give it SMs", s.site)
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


def _check_wait(role: Role, wait: Wait, roles: Sequence[Role]) -> None:
    """An engine waits for tiles of its own rank's kernel alone: when that has ended, however it did, all their signals
    are let go. And what has to be done first is done by earlier roles, so that a rank's streams may as well be one."""
    can_not = f"{role.name} can't be on the copy engine"
    its_own = "an engine waits only for what the kernel of its own rank makes"
    for view in wait.views:
        if view.home != RANK:
            raise ScheduleError(
                f"{can_not}: it waits for {view}, which another rank makes, and {its_own}. Give it SMs, or let the "
                f"rank that makes {view.tensor} execute it",
                wait.site,
            )
        for other, home in _uses(view.tensor, roles, Notify):
            engine = not isinstance(other.resource, SMs)
            if engine or home != RANK:
                where = "on the copy engine, too" if engine else f"at {_text(home)}, too"
                raise ScheduleError(
                    f"{can_not}: it waits for {view}, which {other.name} brings, {where}, and {its_own}. {CURE}",
                    wait.site,
                )
        for other, home in _uses(view.tensor, roles, Wait):
            if home != RANK:
                raise ScheduleError(
                    f"{can_not}: it waits for {view}, and {other.name} does for tiles of {view.tensor} at "
                    f"{_text(home)}: their signals come from other ranks, and {its_own}. {CURE}",
                    wait.site,
                )
    order, needed = [r.name for r in roles], _needed(role.name, roles)
    if role.name in needed:
        cycle = " -> ".join([*needed[role.name], role.name])
        raise ScheduleError(f"{can_not}: it is in a cycle of roles, {cycle}. {CURE}", wait.site)
    for name, way in needed.items():
        if order.index(name) > order.index(role.name):
            raise ScheduleError(
                f"{can_not}: it needs {name} ({' -> '.join([*way, role.name])}), which is launched after it, and what "
                f"an engine waits for comes before it. Launch {role.name} behind {name}",
                wait.site,
            )


def _text(home: Expr | str | None) -> str:
    return to_text(home) if isinstance(home, Expr) else str(home)


def _uses(
    tensor: str, roles: Sequence[Role], kind: type[Wait] | type[Notify]
) -> Iterator[tuple[Role, Expr | str | None]]:
    """Who waits for, or notifies of, tiles of a tensor, and in whose memory they lie."""
    for role in roles:
        for s in walk(role.body):
            yield from ((role, v.home) for v in s.views if v.tensor == tensor) if isinstance(s, kind) else ()


def _needed(role: str, roles: Sequence[Role]) -> dict[str, list[str]]:
    """The roles that have to do something before a role can go on; with the shortest way from each to it, each role on
    it waiting for what the one before notifies, or for the SMs that it is on."""
    before = {role.name: [other.name for other in roles if _comes_before(other, role, roles)] for role in roles}
    found: dict[str, list[str]] = {}
    ways: list[list[str]] = [[]]
    for way in ways:
        for name in (n for n in before[(way or [role])[0]] if n not in found):
            found[name] = [name, *way]
            ways.append(found[name])
    return found


def _comes_before(other: Role, role: Role, roles: Sequence[Role]) -> bool:
    """Whether a role may have to wait for another: for its tiles, or for its SMs, which roles without a number of their
    own share, as do those that take turns."""
    if _tensors(other, Notify) & _tensors(role, Wait):
        return True
    in_kernel = tuple(r for r in roles if isinstance(r.resource, SMs))
    if role not in in_kernel or other not in in_kernel or role == other:
        return False
    shared = all(isinstance(r.resource, SMs) and r.resource.count is None for r in (other, role))
    in_turns = any(role in alike and other in alike for alike in members(in_kernel))
    return in_turns or (shared and in_kernel.index(other) < in_kernel.index(role))


def _tensors(role: Role, kind: type[Wait] | type[Notify]) -> set[str]:
    return {v.tensor for s in walk(role.body) if isinstance(s, kind) for v in s.views}
