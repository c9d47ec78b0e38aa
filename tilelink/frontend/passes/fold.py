"""Folds roles into the epilogue of the role that makes what they wait for: a rewriting of the tile program.

A folded role waits for and copies what a producer's tile stores and notifies. Inside one tile the wait is superfluous,
and the copy becomes a store of the block that is still in registers. The block is rounded to the dtype of the buffer
that it would have gone through, so the bits are the same. The buffer disappears if nobody else waits for it. FLUX
(arXiv 2406.06858) does so by hand for GEMM-ReduceScatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from tilelink.errors import ScheduleError, Site
from tilelink.frontend import ir
from tilelink.frontend.expressions import shown
from tilelink.frontend.passes.elaborate import Binding, with_role
from tilelink.frontend.schedule import Epilogue, Schedule, SMs
from tilelink.frontend.values import TRITON_DTYPES
from tilelink.frontend.walk import rank_axes
from tilelink.language import Launch, RouteWord, launched


def fold(program: ir.TileProgram, binding: Binding) -> ir.TileProgram:
    """The program with the roles that the schedule puts into epilogues folded into their producers."""
    made: dict[str, ir.Role] = {}
    for launch in binding.recording.launches:
        resource = binding.resource(launch)
        if isinstance(resource, Epilogue):
            producer = _producer(launch, resource, binding.schedule, made)
            try:
                program, folded = in_tiles_of(producer, program, binding, launch)
            except ScheduleError as e:
                raise type(e)(f"{e.message}; tk.SMs gives it workers of its own", e.site) from None
            made[producer.name] = _with_epilogue(producer, folded, program)
        else:
            made[launch.function.name] = program.role(launch.function.name)
    return replace(program, roles=tuple(made.values()))


def _producer(launch: Launch, resource: Epilogue, schedule: Schedule, made: Mapping[str, ir.Role]) -> ir.Role:
    """The role that a launch is folded into (for a member, the role of the same member). Raises ScheduleError."""
    member = launch.scheduled.removeprefix(launched(launch.scheduled))
    of = next((n for n, r in made.items() if r.scheduled == resource.of + member), resource.of)
    if of in made and isinstance(made[of].resource, SMs):
        return made[of]
    if of in made:
        why = "is on the copy engine"
    elif resource.of in schedule:
        why = "is in an epilogue itself" if isinstance(schedule[resource.of], Epilogue) else "is launched later"
    else:
        why = "is no role of the program"
    raise ScheduleError(
        f"{launch.scheduled}={resource}: {resource.of} {why}; tk.Epilogue takes the name of a role on SMs that is "
        f"launched before {launch.scheduled}: {', '.join(made) or 'none'}",
        schedule.site,
    )


def in_tiles_of(
    producer: ir.Role, program: ir.TileProgram, binding: Binding, launch: Launch
) -> tuple[ir.TileProgram, ir.Role]:
    """The program with the functions that a launch calls, and the launch as a role in the tiles of a producer, which
    can be folded into it: it waits for what the producer's tile notifies, on the rank that notifies. Raises
    ScheduleError."""
    space, theirs = launch.space, [r.dim for r in producer.walk.ranges]
    if list(space.dims) != theirs or isinstance(space.routed, RouteWord):
        runs = f"over {', '.join(space.dims)}, {producer.name} over {', '.join(theirs)}"
        if isinstance(space.routed, RouteWord):
            runs = f"over the rows of a route, and its tiles are not those of {producer.name}"
        raise _refused(launch.function.name, producer, f"it runs {runs}", launch.site)
    taken = binding.launch(producer.name).function.mentioned
    executors: list[str | None] = list(rank_axes(space, frozenset(program.cut)))
    found = []
    for at in executors or [None]:
        try:
            program, role = with_role(program, binding, launch, replace(producer.resource, at=at), taken)
        except ScheduleError as e:
            raise e.because_of(f"its tiles and their order are those of {producer.name}", producer.site) from None
        found.append(role)
    alike = [role for role in found if role.walk == producer.walk]
    if not alike:
        why = (
            f"it runs over {_space(found[0])}, {producer.name} over {_space(producer)}; a role in an epilogue has the "
            "same tiles on the same rank, so its space has the same dimensions, and one rank axis for whoever makes "
            "the tile"
        )
        raise _refused(found[0].name, producer, why, found[0].site)
    folded = next((role for role in alike if set(role.awaited) <= set(_notified(producer))), alike[0])
    _check(producer, folded, [r for r in program.roles if r.name not in (producer.name, *producer.folded, folded.name)])
    return program, folded


def _refused(role: str, producer: ir.Role, why: str, site: Site) -> ScheduleError:
    return ScheduleError(f"{role} can't be done in the epilogue of {producer.name}: {why}", site)


def _with_epilogue(producer: ir.Role, folded: ir.Role, program: ir.TileProgram) -> ir.Role:
    """The producer with a role in its epilogue."""
    body: list[ir.Statement] = []
    missing = set(folded.awaited)
    for s in keeping(producer, folded, program):
        body.append(s)
        if isinstance(s, ir.Notify) and missing:
            missing -= set(s.views)
            body += () if missing else from_registers(folded.body)
    return replace(producer, body=tuple(body), folded=(*producer.folded, folded.name))


def keeping(producer: ir.Role, folded: ir.Role, program: ir.TileProgram) -> Iterator[ir.Statement]:
    """Yields the statements of a producer. Blocks that `folded` waits for are kept in registers, as they are stored."""
    dtypes = {t.name: TRITON_DTYPES[t.dtype] for t in program.tensors}
    for s in producer.body:
        if isinstance(s, ir.Store) and s.target in folded.awaited and s.value != _kept(s.target):
            text = s.value.text if s.value.text == "{0}" else f"({s.value.text})"
            rounded = replace(s.value, text=f"{text}.to(tl.{dtypes[s.target.tensor]})")
            yield ir.Compute(s.site, rounded, (_register(s.target),))
            s = replace(s, value=_kept(s.target))
        yield s


def _check(producer: ir.Role, folded: ir.Role, others: Sequence[ir.Role]) -> None:
    """Raises ScheduleError for a role that can't be folded into the producer."""

    def fail(where: ir.Statement | ir.Role, why: str) -> NoReturn:
        raise _refused(folded.name, producer, why, where.site)

    notified = _notified(producer)
    if not folded.awaited:
        fail(folded.body[0], f"it waits for nothing that {producer.name} makes")
    for s in ir.walk(folded.body):
        if not isinstance(s, ir.Wait | ir.Copy | ir.Notify | ir.For | ir.If):
            fail(s, f"it computes; a role in an epilogue only copies what {producer.name} made")
    for wait in ir.every(ir.Wait, folded.body):
        for v in wait.views:
            if v not in notified:
                every = [n for n in ir.every(ir.Notify, producer.body) if v.tensor in {w.tensor for w in n.views}]
                if inside := [n for n in every if n not in producer.body]:
                    fail(wait, f"it waits for {v}, and {producer.name} notifies {inside[0].views[0]} in a loop or a "
                         f"branch ({inside[0].site}); let every tile notify exactly what is waited for, once")
                theirs = ", ".join(map(str, notified)) or "nothing"
                fail(wait, f"it waits for {v}, and a tile of {producer.name} notifies {theirs}; wait for exactly what "
                     "the tile notifies, on the rank that notifies it")
    for v in folded.awaited:
        stores = [s for s in producer.body if isinstance(s, ir.Store) and s.target == v]
        if len(stores) != 1 or notified.count(v) != 1:
            fail(producer, f"{producer.name} does not store and notify {v} once in each tile: a loop, a branch or a "
                 "copy is between; store the block and notify it, one after the other")
        if stores[0].where is not None:
            fail(stores[0], f"{producer.name} stores some rows of {v} only; the block in registers has all of them")
        for role in (producer, *others):
            writes = (s for s in ir.every(ir.Write, role.body) if s.target.tensor == v.tensor)
            if again := next((s for s in writes if s is not stores[0]), None):
                fail(again, f"{role.name} writes {v.tensor} here, too; the block in registers does not change with it")
    for copy in ir.every(ir.Copy, folded.body):
        if copy.source.guard is not None and replace(copy.source, guard=None) not in folded.awaited:
            fail(copy, f"it copies {copy.source}, a part of what it waits for; the whole block is in registers")


def from_registers(body: ir.Body) -> ir.Body:
    """A folded role's statements without its waits, and with stores in place of copies from the kept block."""

    def change(s: ir.Statement) -> ir.Body:
        match s:
            case ir.Wait():
                return ()
            case ir.Copy() if s.source.guard is not None:
                return (ir.Store(s.site, _kept(s.source), target=s.target, where=s.where),)
        return (s,)

    return ir.rewritten(body, change)


def drop_unread(program: ir.TileProgram, _: Binding) -> ir.TileProgram:
    """The program without buffers that only folded roles read (and their stores and notifications), and without buffers
    that no role touches, whose dimensions only say how tiles are spread."""
    touched = {v.tensor for r in program.roles for v in r.touched}
    folded = [r for r in program.roles if r.folded]
    awaited = {v.tensor for r in program.roles for v in r.awaited}
    kept = {s.target.tensor for r in folded for s in ir.every(ir.Store, r.body) if s.value == _kept(s.target)}
    gone = {t.name for t in program.tensors if t.kind == "buffer" and t.name not in touched - (kept - awaited)}
    roles = tuple(replace(r, body=_without(r.body, gone)) if r.folded else r for r in program.roles)
    left = replace(program, tensors=tuple(t for t in program.tensors if t.name not in gone), roles=roles)
    return replace(left, cut=tuple(d for d in left.dims if d in program.cut))


def _without(body: ir.Body, gone: set[str]) -> ir.Body:
    """The statements without stores to, and notifications of, the tensors in `gone`."""

    def change(s: ir.Statement) -> ir.Body:
        match s:
            case ir.Store() if s.target.tensor in gone:
                return ()
            case ir.Notify():
                views = tuple(v for v in s.views if v.tensor not in gone)
                return (replace(s, views=views),) if views else ()
        return (s,)

    return ir.rewritten(body, change)


def _register(view: ir.View) -> str:
    """The name of the variable that keeps the block in registers."""
    return f"{view.tensor}.kept"


def _kept(view: ir.View) -> ir.Code:
    """Code that is the kept block."""
    return ir.Code("{0}", (ir.Variable(_register(view)),))


def _space(role: ir.Role) -> str:
    ranges = ", ".join(r.dim if r.extent is None else f"{r.dim} by {r.extent}" for r in role.walk.ranges)
    axes = [shown(n) for n, _ in role.walk.axes]
    return f"{ranges} ({', '.join(axes)} in turn on each rank)" if axes else ranges


def _notified(producer: ir.Role) -> list[ir.View]:
    """The views that every tile notifies once."""
    return [v for s in producer.body if isinstance(s, ir.Notify) for v in s.views]
