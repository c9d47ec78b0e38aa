"""Binding: from what a program recorded, a schedule and dtypes to a tile program.

Each launch is elaborated into a role, folded into the epilogue of another or multicast as the schedule says; then
signals are derived, and loops that wait are split.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilelink.errors import (
    DtypeError,
    HomeError,
    NotUnderstoodError,
    RoleWithoutScheduleError,
    ScheduleError,
    ScheduleWithoutRoleError,
    Site,
    similar,
)
from tilelink.frontend.copy_engine import check_copy_engine
from tilelink.frontend.elaboration import Context, Elaborator
from tilelink.frontend.folding import fold, without_unread
from tilelink.frontend.ir import RANKS_DIM, Copy, Role, Tensor, TileProgram, View, token_name, walk
from tilelink.frontend.multicast import multicast
from tilelink.frontend.names import Names
from tilelink.frontend.routes import EXPERT
from tilelink.frontend.schedule import CopyEngine, Epilogue, Resource, Schedule, SMs, launched
from tilelink.frontend.signals import derive_signals
from tilelink.frontend.splitting import split_waits
from tilelink.frontend.turns import members, turns
from tilelink.frontend.values import TileValue, dtype_name
from tilelink.frontend.verify import verify
from tilelink.frontend.walk import make_walk, rank_axes, step_size
from tilelink.language import Launch, Recording, RouteWord, TensorWord


def bind(
    recording: Recording, schedule: Schedule, given: Mapping[str, Any], parameters: Collection[str], site: Site
) -> TileProgram:
    """The tile program of a recording. `given`: dtypes by name, of tensors of the recording and of `parameters` that it
    leaves out; `site`: of the program. Raises the errors of the frontend."""
    _check_roles(recording, schedule, site)
    dtypes = _dtypes(recording, given, parameters, site)
    cut = frozenset(t.dims[t.sharded] for t in recording.tensors if t.sharded is not None)
    names = _names(recording, site)
    names.check()
    tensors = tuple(Tensor(t.name, t.dims, t.sharded, t.kind, dtypes[t.name], t.buffers) for t in recording.tensors)
    tensors += tuple(t.token for t in tensors if t.buffers)
    elaboration = _Elaboration(recording, dtypes, cut, names)
    made: dict[str, Role] = {}
    for launch in recording.launches:
        resource, name = _resource(schedule, launch), launch.function.name
        if isinstance(resource, Epilogue):
            producer = _producer(launch, resource, schedule, made)
            made[producer.name] = fold(producer, elaboration.ways(launch, producer), tensors)
            verify([made[producer.name]], tensors, "folding")
            continue
        made[name] = elaboration.role(launch, resource)
        verify([made[name]], tensors, "elaboration")
        if isinstance(resource, SMs) and resource.via == "multicast":
            made[name] = multicast(made[name], launch.space, cut)
            verify([made[name]], tensors, "multicast")
    tensors, roles = without_unread(tensors, tuple(made.values()))
    check_copy_engine(roles)
    _check_outputs(tensors, roles)
    signals = derive_signals(tensors, roles, cut, recording.routes, schedule.cells, schedule.site)
    roles = tuple(split_waits(role, signals, names) for role in roles)
    verify(roles, tensors, "splitting")
    for together in members(roles):
        turns(together)
    return TileProgram(
        name=recording.name,
        tensors=tensors,
        cut=tuple(d for d in dict.fromkeys(d for t in tensors for d in t.dims) if d in cut),
        roles=roles,
        signals=signals,
        published=_published(tensors, roles),
        functions=tuple(elaboration.functions.items()),
        slots=schedule.slots,
        site=site,
        schedule_site=schedule.site,
        routes=tuple(recording.routes),
    )


def _dtypes(
    recording: Recording, given: Mapping[str, Any], parameters: Collection[str], site: Site
) -> dict[str, str]:
    """The dtype of every tensor: what is given, or declared, or else that of the first tensor that has one."""
    for name in given:
        if all(t.name != name for t in recording.tensors) and name not in parameters:
            known = ", ".join(t.name for t in recording.tensors)
            meant = similar(name, [t.name for t in recording.tensors])
            raise DtypeError(f"a dtype for {name}, which is no tensor of {recording.name}; it has {known}{meant}", site)
    dtypes: dict[str, str] = {}
    first = next((given[t.name] for t in recording.tensors if t.name in given), "float32")
    for t in recording.tensors:
        wanted = given.get(t.name, t.dtype)
        if isinstance(wanted, TensorWord):
            dtypes[t.name] = dtypes[wanted.name]
            continue
        try:
            dtypes[t.name] = dtype_name(first if wanted is None else wanted)
        except ValueError as e:
            raise DtypeError(f"{t.name}: {e}", site) from e
    return dtypes


def _check_roles(recording: Recording, schedule: Schedule, site: Site) -> None:
    roles = [launch.scheduled for launch in recording.launches]
    for launch in recording.launches:
        name = launched(launch.scheduled)
        if name not in schedule:
            known = (", ".join(schedule) or "no role") + similar(name, schedule)
            raise RoleWithoutScheduleError(f"the schedule says nothing of role {name}; it names {known}", launch.site)
    sms = {r: s for r in roles if isinstance(s := schedule.of(r), SMs)}
    if len({s.warps for s in sms.values()}) > 1:
        warps = ", ".join(f"{r}: {s.warps}" for r, s in sms.items())
        raise ScheduleError(f"the roles of a program are one kernel, with as many warps each: {warps}", schedule.site)
    for name in {launched(r): s for r, s in sms.items()}:
        counts = {r: s.count for r, s in sms.items() if launched(r) == name}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{r}: {n}" for r, n in counts.items())
            raise ScheduleError(f"the members of {name} share SMs, so their number is one: {said}", schedule.site)
    for name in schedule:
        if name not in roles and name not in map(launched, roles):
            known = ", ".join(roles) + similar(name, roles)
            raise ScheduleWithoutRoleError(f"{recording.name} has no role {name}; its roles are {known}", schedule.site)


def _names(recording: Recording, site: Site) -> Names:
    return Names(
        (recording.name, site),
        tensors={t.name: t.site or site for t in recording.tensors}
        | {token_name(t.name): t.site or site for t in recording.tensors if t.buffers},
        dims={d: site for t in recording.tensors for d in t.dims if d != RANKS_DIM},
        roles={launch.function.name: launch.site for launch in recording.launches},
        axes={a: launch.site for launch in recording.launches for a in launch.space.axes}
        | (dict.fromkeys((EXPERT, "source"), site) if recording.routes else {}),
        routed=frozenset(d for r in recording.routes for d in r.sides),
    )


def _resource(schedule: Schedule, launch: Launch) -> Resource:
    """The resource of a launch; of dimensions that its member has of its own, with their names."""
    resource = schedule.of(launch.scheduled)
    if isinstance(resource, SMs) and launch.own:
        return replace(resource, whole=tuple((launch.own.get(d, d), n) for d, n in dict(resource.whole).items()))
    return resource


def _producer(launch: Launch, resource: Epilogue, schedule: Schedule, made: Mapping[str, Role]) -> Role:
    """The role that another is folded into: of members, that of the same member. Raises ScheduleError."""
    member = launch.scheduled.removeprefix(launched(launch.scheduled))
    of = next((n for n, r in made.items() if r.scheduled == resource.of + member), resource.of)
    if of in made and isinstance(made[of].resource, SMs):
        return made[of]
    known = ", ".join(made) or "none"
    why = f"{resource.of} is no role of the program"
    if resource.of in schedule:
        folded = isinstance(schedule[resource.of], Epilogue)
        why = f"{resource.of} is {'in an epilogue itself' if folded else 'launched later'}"
    if of in made:
        why = f"{resource.of} is on the copy engine"
    raise ScheduleError(
        f"{launch.scheduled}={resource}: {why}; a role is folded into one on SMs that is launched before it: {known}",
        schedule.site,
    )


@dataclass
class _Elaboration:
    """From launches to roles. `functions`: the Triton functions that the roles call, by name."""

    recording: Recording
    dtypes: dict[str, str]
    cut: frozenset[str]
    names: Names
    functions: dict[str, Any] = field(default_factory=dict)

    def ways(self, launch: Launch, producer: Role) -> list[Role]:
        """A role in the tiles of a producer, once for each answer to who executes it."""
        space, theirs = launch.space, [r.dim for r in producer.walk.ranges]
        if list(space.dims) != theirs or isinstance(space.routed, RouteWord):
            raise ScheduleError(
                f"{launch.function.name} can't be folded into {producer.name}: it runs over {', '.join(space.dims)}, "
                f"{producer.name} over {', '.join(theirs)}",
                launch.site,
            )
        other = next(o for o in self.recording.launches if o.function.name == producer.name)
        taken = other.function.mentioned
        executors: list[str | None] = list(rank_axes(space, self.cut))
        return [self.role(launch, replace(producer.resource, at=at), taken) for at in executors or [None]]

    def role(self, launch: Launch, resource: SMs | CopyEngine, taken: frozenset[str] = frozenset()) -> Role:
        """A launch as a role; `taken`: names that its variables must not have."""
        function, recording = launch.function, self.recording
        found, axes = make_walk(function.name, launch.space, resource, self.cut, launch.site)
        for parameter in launch.arguments:
            for word in launch.tensors(parameter):
                if word not in recording.tensors:
                    raise NotUnderstoodError(f"{parameter}: {word.name} is no tensor of this program", launch.site)
        context = Context(
            tensors={t.name: t for t in recording.tensors},
            dtypes=self.dtypes,
            cut=self.cut,
            written={
                word.name: site
                for other in reversed(recording.launches)
                for p, site in other.function.written_parameters().items()
                for word in other.tensors(p)
            },
            tile=TileValue(found.ranges, axes, found.sent),
            step=step_size(resource, launch.space),
            whole=dict(resource.whole),
            reserved=self.names,
            taken=taken,
            own=launch.own,
        )
        elaborator = Elaborator(function, launch.arguments, context)
        body = elaborator.body()
        for dim in sorted(set(dict(resource.whole)) - elaborator.wholes) if not taken else ():
            raise ScheduleError(f"{function.name} takes no block over the whole of {dim}: leave it out", launch.site)
        for name, called in elaborator.functions.items():
            if self.functions.setdefault(name, called) is not called:
                raise NotUnderstoodError(f"two functions {name} are called: give one another name", launch.site)
        return Role(function.name, resource, found, body, launch.site, scheduled=launch.scheduled)


def _reads(roles: Iterable[Role]) -> Iterator[tuple[View, Site]]:
    """The views that roles load or copy from."""
    for role in roles:
        for s in walk(role.body):
            views = [load.view for load in s.loads] + ([s.source] if isinstance(s, Copy) else [])
            yield from ((view, s.site) for view in views)


def _published(tensors: tuple[Tensor, ...], roles: tuple[Role, ...]) -> tuple[str, ...]:
    """Inputs that peers read."""
    read = {view.tensor for view, _ in _reads(roles) if view.remote}
    return tuple(t.name for t in tensors if t.kind == "input" and t.name in read)


def _check_outputs(tensors: tuple[Tensor, ...], roles: tuple[Role, ...]) -> None:
    """Raises HomeError where a rank may read the output of another: outputs are memory of the caller's, which peers do
    not reach."""
    outputs = {t.name: t for t in tensors if t.kind == "output"}
    for view, site in _reads(roles):
        if view.remote and view.tensor in outputs:
            tensor = outputs[view.tensor]
            named = ("tk.ranks" if d == RANKS_DIM else f'"{d}"' for d in tensor.dims)
            dims = ", ".join(named) + (f", axis={tensor.sharded}" if tensor.sharded else "")
            word = "local" if tensor.sharded is None else "sharded"
            raise HomeError(
                f"{view} may be another rank's output, and outputs are memory that peers can't read. Store what peers "
                f"read to a buffer, tk.{word}({dims}), notify it there, and copy it to {view.tensor}",
                site,
            )
