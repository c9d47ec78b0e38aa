"""Programs: a recorded function of roles, bound with a schedule and dtypes to a tile program."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import triton

from tilelink.errors import (
    ArgumentError,
    DtypeError,
    NotUnderstoodError,
    RoleWithoutScheduleError,
    ScheduleError,
    ScheduleWithoutRoleError,
    Site,
    TileSizeError,
)
from tilelink.frontend.copy_engine import check_copy_engine
from tilelink.frontend.elaboration import Context, Elaborator
from tilelink.frontend.folding import fold, without_unread
from tilelink.frontend.given import Given, at_sizes
from tilelink.frontend.ir import RANKS_DIM, Copy, Role, Tensor, TileProgram, loads_of, token_name, walk
from tilelink.frontend.multicast import multicast
from tilelink.frontend.names import Names, check_parameters
from tilelink.frontend.schedule import CopyEngine, Epilogue, Resource, Schedule, SMs, launched, smallest_tile
from tilelink.frontend.signals import derive_signals
from tilelink.frontend.sizes import Sizes, check_world, even_parts, stepped
from tilelink.frontend.splitting import split_waits
from tilelink.frontend.turns import members, turns
from tilelink.frontend.values import TileValue, dtype_name
from tilelink.frontend.walk import make_walk, rank_axes, step_size
from tilelink.language import (
    Declared,
    Function,
    Launch,
    Parameters,
    Recording,
    TensorWord,
    Variant,
    check_lists,
    declarations,
    record,
)

if TYPE_CHECKING:
    from tilelink.analysis.check import Report
    from tilelink.analysis.machine import Machine
    from tilelink.analysis.simulate import Prediction
    from tilelink.analysis.unroll import Events


class Program:
    """A program: what `@tk.program` makes of a function.

    Calling it runs it: `y = program(x, weight, schedule=push, group=group)`. Tensors go by position or name; a
    parameter with the default None may be left out; outputs are allocated where they are not given, and returned.
    For a parameter that is declared `tk.Each(...)` a list may be given, `program(x, [wq, wk, wv], ...)`: then results
    are lists, too. `variant`: how many members lists have, and the functions that are given; see `of`.
    """

    def __init__(self, function: Callable[..., None], variant: Variant = Variant()) -> None:  # noqa: B008  # frozen
        self.function, self.name, self.variant = function, function.__name__, variant
        self.__doc__ = function.__doc__
        self.file = inspect.getsourcefile(function) or "<unknown>"
        self.site = Site(self.file, function.__code__.co_firstlineno, f"def {self.name}")
        check_parameters(self.name, inspect.signature(function).parameters, self.site)
        self._recorded: dict[frozenset[str], Recording] = {}
        self._bound: dict[Any, TileProgram] = {}
        self._variants: dict[Variant, Program] = {variant: self}

    @cached_property
    def declared(self) -> Parameters:
        """The declarations of the parameters, by name. Raises DimensionError."""
        found = declarations(self.function)
        check_lists(self.name, found, self.site)
        return found

    @cached_property
    def varies(self) -> bool:
        """Whether it takes lists or functions."""
        return not all(isinstance(p, Declared) for p in self.declared.values())

    @cached_property
    def flattened(self) -> dict[str, tuple[tuple[str, Declared], ...]]:
        """The tensors that stand for each parameter that is no function."""
        return self.variant.flattened(self.declared)

    @cached_property
    def parameters(self) -> dict[str, Declared]:
        """The declarations of the tensors that it takes, by name, the members of lists one after the other."""
        self.recorded()
        return {n: p for tensors in self.flattened.values() for n, p in tensors}

    @cached_property
    def optional(self) -> frozenset[str]:
        """Tensors that may be left out."""
        defaults = {n: p.default for n, p in inspect.signature(self.function).parameters.items()}
        return frozenset(n for p, tensors in self.flattened.items() if defaults[p] is None for n, _ in tensors)

    @cached_property
    def on_demand(self) -> frozenset[str]:
        """Optional outputs: they are there where they are asked for, by a tensor in a call or else by their dtype."""
        return self.optional & {t.name for t in self.recorded().tensors if t.kind == "output"}

    def of(self, members: int | None = None, **functions: Any) -> Program:
        """The variant of this program whose lists have so many members and that gets these functions, by parameter:
        `all_gather_matmul.of(3, epilogue=gelu)`. What is not said stays as it is. A variant is an ordinary program, in
        which the members of lists are called weight_0, weight_1, ... Raises ArgumentError."""
        count = self.variant.members if members is None else members
        wanted = Variant(count, tuple(sorted((dict(self.variant.functions) | functions).items())))
        if wanted not in self._variants:
            wanted.check(self.name, self.declared, Site.of_user())
            _check_functions(functions)
            self._variants[wanted] = made = Program(self.function, wanted)
            made._variants = self._variants
        return self._variants[wanted]

    @property
    def label(self) -> str:
        """Its name, and where lists have several members their number: "all_gather_matmul[2]"."""
        return self.name + (f"[{self.variant.members}]" if self.variant.members > 1 else "")

    def absent(self, dtypes: Mapping[str, Any] | Any) -> frozenset[str]:
        """The tensors that are left out where dtypes are given so: optional ones that they say nothing of."""
        said = dtypes if isinstance(dtypes, Mapping) else {}
        return self.optional - {n for d in said for n in (d, *(m for m, _ in self.flattened.get(d, ())))}

    def recorded(self, absent: frozenset[str] = frozenset()) -> Recording:
        """Tensors and roles, where the tensors in `absent` are None. Raises ArgumentError for a missing function."""
        if absent not in self._recorded:
            signature, given = inspect.signature(self.function).parameters, dict(self.variant.functions)
            functions = {n: given.get(n, signature[n].default) for n, p in self.declared.items() if p == Function}
            for name, function in functions.items():
                if function is inspect.Parameter.empty:
                    raise ArgumentError(f"{self.name} needs a function {name}, with @triton.jit", Site.of_user())
            variant = replace(self.variant, functions=tuple(functions.items()))
            self._recorded[absent] = record(self.function, absent, variant)
        return self._recorded[absent]

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules that stand beside the program in its file, by name; the first is the default."""
        return self.schedules_without(frozenset()) | self.schedules_without(self.optional)

    def schedules_without(self, absent: frozenset[str]) -> dict[str, Schedule]:
        """Those for the roles that there are where the parameters in `absent` are None."""
        roles = {launched(launch.scheduled) for launch in self.recorded(absent).launches}
        schedules = {n: s for n, s in self.function.__globals__.items() if isinstance(s, Schedule)}
        return {n: s for n, s in schedules.items() if s.launched == roles}

    def schedule(self, wanted: Schedule | str | None, absent: frozenset[str] | None = None) -> Schedule:
        """A schedule by name, the default one for None. Raises ScheduleError."""
        if isinstance(wanted, Schedule):
            return wanted
        known = self.schedules if absent is None else self.schedules_without(absent)
        if not known and wanted is None:
            raise ScheduleError(f"{self.name} has no schedule beside it: write one, tk.Schedule(...)", self.site)
        if wanted is not None and wanted not in known:
            other = self.function.__globals__.get(wanted)
            if isinstance(other, Schedule):  # its roles are not the program's: binding says which
                return other
            raise ScheduleError(f"{self.name} has no schedule {wanted}; it has {', '.join(known)}", self.site)
        return known[wanted] if wanted is not None else next(iter(known.values()))

    # ---- binding

    def bind(
        self,
        schedule: Schedule | str | None = None,
        dtypes: Mapping[str, Any] | Any = "float32",
        absent: frozenset[str] = frozenset(),
    ) -> TileProgram:
        """The tile program of this schedule. `dtypes`: one for all tensors, or by parameter; outputs are like the first
        tensor where nothing is said. `absent`: parameters that are None, and so are optional outputs of which `dtypes`
        says nothing. Raises the errors of the frontend."""
        absent |= self.on_demand & self.absent(dtypes)
        schedule = self.schedule(schedule, absent)
        given = dict(dtypes) if isinstance(dtypes, Mapping) else dict.fromkeys(self.parameters, dtypes)
        lists = {n: tensors for n, tensors in self.flattened.items() if n in given and len(tensors) > 1}
        given = {m: d for n, d in given.items() for m in ([t for t, _ in lists[n]] if n in lists else [n])}
        key = (schedule, tuple(sorted((n, str(d)) for n, d in given.items())), absent)
        if key not in self._bound:
            try:
                self._bound[key] = self._bind(schedule, given, absent)
            except (ScheduleError, TileSizeError) as e:
                raise e.because_of("the schedule", schedule.site) from None
        bound = self._bound[key]  # of a schedule that is equal, and may stand elsewhere
        return bound if bound.schedule_site == schedule.site else replace(bound, schedule_site=schedule.site)

    def _bind(self, schedule: Schedule, given: dict[str, Any], absent: frozenset[str]) -> TileProgram:
        recording = self.recorded(absent)
        _check_roles(self, recording, schedule)
        dtypes = self._dtypes(recording, given)
        cut = frozenset(t.dims[t.sharded] for t in recording.tensors if t.sharded is not None)
        names = _names(recording, self.site)
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
            else:
                role = elaboration.role(launch, resource)
                goes_to_all = isinstance(resource, SMs) and resource.via == "multicast"
                made[name] = multicast(role, launch.space, cut) if goes_to_all else role
        tensors, roles = without_unread(tensors, tuple(made.values()))
        check_copy_engine(roles)
        signals = derive_signals(tensors, roles, cut, schedule.cells, schedule.site)
        roles = tuple(split_waits(role, signals, names) for role in roles)
        for together in members(roles):
            turns(together)
        return TileProgram(
            name=self.name,
            tensors=tensors,
            cut=tuple(d for d in dict.fromkeys(d for t in tensors for d in t.dims) if d in cut),
            roles=roles,
            signals=signals,
            published=_published(tensors, roles),
            functions=tuple(elaboration.functions.items()),
            slots=schedule.slots,
            site=self.site,
            schedule_site=schedule.site,
        )

    def fit(
        self,
        schedule: Schedule | str | None = None,
        *,
        world: int = 1,
        dtypes: Mapping[str, Any] | Any = "float32",
        absent: frozenset[str] | None = None,
        **sizes: int | Sequence[int],
    ) -> Schedule:
        """The schedule with every tile that is larger than its tensor (than the longest part of it, along a dimension
        that is spread over the ranks) made as small as the tensor allows. Sizes as in `Sizes.of`, `dtypes` and
        `absent` as in `bind` (by default, all that may be left out is)."""
        check_world(world)
        variant, sizes = at_sizes(self, sizes)
        if variant is not self:
            return variant.fit(schedule, world=world, dtypes=dtypes, absent=absent, **sizes)
        absent = self.optional if absent is None else absent
        schedule = self.schedule(schedule, absent)
        bound = self.bind(schedule, dtypes, absent)
        parts = {d: even_parts(n, world) if d in bound.cut and isinstance(n, int) else n for d, n in sizes.items()}
        longest = {d: smallest_tile(max(n) if isinstance(n, Sequence) else n) for d, n in parts.items()}
        totals = {d: smallest_tile(sum(n) if isinstance(n, Sequence) else n) for d, n in sizes.items()}
        changes: dict[str, dict[str, dict[str, Any]]] = {}
        for role in bound.roles:
            tile = role.resource.tile
            cut = [t and min(t, longest.get(r.dim, t)) for t, r in zip(tile, role.walk.ranges, strict=False)]
            cut += [t and min(t, *(longest.get(d, t) for d in stepped(role)), t) for t in tile[len(cut) :]]
            whole = {d: min(n, totals.get(d, n)) for d, n in dict(role.resource.whole).items()}
            fitted = {"tile": tuple(cut)} | ({"whole": whole} if whole else {})
            changes.setdefault(role.launched, {})[role.scheduled] = fitted
        for fits in changes.values():  # one entry where it fits all members
            alike = all(fit == next(iter(fits.values())) for fit in fits.values())
            schedule = schedule.changed(**({launched(n): fit for n, fit in fits.items()} if alike else fits))
        return schedule

    def bound_at(
        self,
        schedule: Schedule | str | None = None,
        *,
        world: int,
        sizes: Mapping[str, int | Sequence[int]],
        dtypes: Mapping[str, Any] | Any = "float32",
        per_node: int | None = None,
    ) -> tuple[TileProgram, Sizes]:
        """The tile program at sizes as in `at_sizes` and `Sizes.of`, without the optional tensors that `dtypes` says
        nothing of. A schedule is taken as it is, one given by name (or by default) is fitted to the sizes. Raises the
        errors of the frontend."""
        variant, flat = at_sizes(self, sizes)
        absent = variant.absent(dtypes)
        if not isinstance(schedule, Schedule):
            schedule = variant.fit(schedule, world=world, dtypes=dtypes, absent=absent, **flat)
        bound = variant.bind(schedule, dtypes, absent)
        return bound, Sizes.of(bound, world, flat, per_node)

    def _dtypes(self, recording: Recording, given: Mapping[str, Any]) -> dict[str, str]:
        for name in given:
            if all(t.name != name for t in recording.tensors) and name not in self.parameters:
                known = ", ".join(t.name for t in recording.tensors)
                raise DtypeError(f"a dtype for {name}, which is no tensor of {self.name}; it has {known}", self.site)
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
                raise DtypeError(f"{t.name}: {e}", self.site) from e
        return dtypes

    # ---- what can be done with a program; each is the work of a layer above, imported when it is asked for

    def unroll(
        self,
        schedule: Schedule | str | None = None,
        *,
        world: int,
        per_node: int | None = None,
        dtypes: Any = "float32",
        **sizes: Any,
    ) -> Events:
        """The events of every worker of every rank; see `bound_at` and `tilelink.analysis.unroll.unroll`."""
        from tilelink.analysis.unroll import unroll

        return unroll(*self.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node))

    def check(
        self,
        schedule: Schedule | str | None = None,
        *,
        world: int,
        dtypes: Any = "float32",
        sms: int | None = None,
        reserve: int = 0,
        slot_bytes: int | None = None,
        per_node: int | None = None,
        **sizes: Any,
    ) -> Report:
        """Whether a run is safe, on devices of `sms` SMs (132 by default), `reserve` of which other kernels keep, with
        slots of `slot_bytes` on the heap (as large as needed by default), on nodes of `per_node` ranks; see `bound_at`
        and `tilelink.analysis.check.check`."""
        from tilelink.analysis.check import DEFAULT_SMS, check

        bound, exact = self.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node)
        return check(bound, exact, sms=sms or DEFAULT_SMS, reserve=reserve, slot_bytes=slot_bytes)

    def simulate(
        self,
        schedule: Schedule | str | None = None,
        *,
        machine: str | Machine,
        world: int,
        dtypes: Any = "bfloat16",
        agents: Mapping[str, str] | None = None,
        **sizes: Any,
    ) -> Prediction:
        """Predicts a run on a machine, by its name or description; see `bound_at` and
        `tilelink.analysis.simulate.simulate`."""
        from tilelink.analysis.machine import machine as described
        from tilelink.analysis.simulate import simulate

        found = described(machine) if isinstance(machine, str) else machine
        nodes = found.ranks_per_node if found.ranks_per_node < world <= found.ranks else None
        bound, exact = self.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=nodes)
        return simulate(bound, exact, found, agents)

    def show(self, stage: str = "program", schedule: Schedule | str | None = None, **options: Any) -> str:
        """The program as text, at a stage: "program", "events" or "triton"; see `tilelink.backend.show`."""
        from tilelink.backend.show import show

        return show(self, stage, schedule, **options)

    def __call__(
        self, /, *tensors: Any, schedule: Schedule | str | None = None, group: Any = None, **options: Any
    ) -> Any:
        """Runs the program on the calling rank of `group`; see `tilelink.runtime.group.Group.call`."""
        self._check_group(group)
        given = Given.of(self, tensors, options)
        return given.results(group.call(given.program, given.tensors, schedule, given.options))

    def prepare(
        self, /, *tensors: Any, schedule: Schedule | str | None = None, group: Any = None, **options: Any
    ) -> None:
        """Does all that a call like this one needs once, on every rank of `group`, and launches nothing; see
        `tilelink.runtime.group.Group.prepare_call`. Afterwards such a call may be captured in a CUDA graph."""
        self._check_group(group)
        given = Given.of(self, tensors, options)
        group.prepare_call(given.program, given.tensors, schedule, given.options)

    def _check_group(self, group: Any) -> None:
        if not hasattr(group, "call"):
            what = "missing" if group is None else f"a {type(group).__name__}"
            raise ArgumentError(
                f"{self.name} runs on a rank of a group; group= is {what}. In CpuWorld.run(function), function gets "
                "it; of a group of torch.distributed, tilelink.group(process_group) makes one",
                Site.of_user(),
            )

    def __repr__(self) -> str:
        return f"<program {self.name} of {self.file}>"


def _check_functions(functions: Mapping[str, Any]) -> None:
    """Raises ArgumentError for what can't compute on blocks."""
    for name, function in functions.items():
        if function is not None and not isinstance(function, triton.runtime.JITFunction):
            raise ArgumentError(
                f"{name} is of type {type(function).__name__}, not a function that computes on blocks: those have "
                "@triton.jit",
                Site.of_user(),
            )


def program(function: Callable[..., None]) -> Program:
    """Declares a program: a function that makes buffers and launches tile functions over tile spaces."""
    return Program(function)


def _check_roles(program: Program, recording: Recording, schedule: Schedule) -> None:
    roles = [launch.scheduled for launch in recording.launches]
    for launch in recording.launches:
        name = launched(launch.scheduled)
        if name not in schedule:
            known = ", ".join(schedule) or "no role"
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
            known = ", ".join(roles)
            raise ScheduleWithoutRoleError(f"{program.name} has no role {name}; its roles are {known}", schedule.site)


def _names(recording: Recording, site: Site) -> Names:
    return Names(
        (recording.name, site),
        tensors={t.name: t.site or site for t in recording.tensors}
        | {token_name(t.name): t.site or site for t in recording.tensors if t.buffers},
        dims={d: site for t in recording.tensors for d in t.dims if d != RANKS_DIM},
        roles={launch.function.name: launch.site for launch in recording.launches},
        axes={a: launch.site for launch in recording.launches for a in launch.space.axes},
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
        if list(space.dims) != theirs:
            raise ScheduleError(
                f"{launch.function.name} can't be folded into {producer.name}: it runs over {', '.join(space.dims)}, "
                f"{producer.name} over {', '.join(theirs)}",
                launch.site,
            )
        other = next(o for o in self.recording.launches if o.function.name == producer.name)
        taken = frozenset(n.id for n in ast.walk(other.function.node) if isinstance(n, ast.Name))
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
            tile=TileValue(found.ranges, axes),
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


def _published(tensors: tuple[Tensor, ...], roles: tuple[Role, ...]) -> tuple[str, ...]:
    """Inputs that peers read."""
    inputs = {t.name for t in tensors if t.kind == "input"}
    read: set[str] = set()
    for role in roles:
        for s in walk(role.body):
            views = [load.view for load in loads_of(s)] + ([s.source] if isinstance(s, Copy) else [])
            read |= {v.tensor for v in views if v.remote} & inputs
    return tuple(t.name for t in tensors if t.name in read)
