"""Programs: the object that `@tk.program` makes of a function, and its methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from tilelink.errors import (
    ArgumentError,
    NotUnderstoodError,
    ScheduleError,
    Site,
    TileSizeError,
    listed,
    public,
    similar,
)
from tilelink.frontend.binding import bind
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.kept import Kept
from tilelink.frontend.passes.publish import publish_sources
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import Sizes, check_parts, check_world
from tilelink.language import (
    Declared,
    Function,
    Parameters,
    Recording,
    TileFunction,
    Variant,
    check_lists,
    declarations,
    record,
    site_of,
)
from tilelink.programs.fitting import fitted, in_registers
from tilelink.programs.given import CALL_OPTIONS, Call, at_sizes
from tilelink.programs.schedule_text import NamedSchedule, check_schedule, nearly, read_schedule

if TYPE_CHECKING:
    from tilelink.analysis.check import Report
    from tilelink.analysis.events import Events
    from tilelink.analysis.machine import Machine
    from tilelink.analysis.simulate import Prediction
    from tilelink.backend.lower import Lowered
    from tilelink.backend.targets import Target

_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
"""The kinds of parameters that a program can't have, because it gets its tensors by name."""
KEPT_SCHEDULES = 256
"""The number of tile programs, and of variants, that a program keeps; it drops those that were used longest ago."""


class Program:
    """A program, made by `@tk.program` of a function. A call runs it: `y = program(x, weight, group=group)`. Pass
    tensors by position or name. A parameter with the default None may be omitted. The call allocates outputs that are
    not given, and returns them. A parameter that is declared `tk.Each(...)` takes a list, `program(x, [wq, wk], ...)`;
    results are then lists, too. `variant`: the number of members of lists, and the given functions; see `of`."""

    def __init__(self, function: Callable[..., None], variant: Variant = Variant()) -> None:  # noqa: B008  # frozen
        if not isinstance(function, FunctionType):
            message = f"{function!r} is no function of Python: @tk.program stands on a function written with def"
            raise NotUnderstoodError(message, Site.of_user())
        self.function, self.name, self.variant = function, function.__name__, variant
        self.__doc__ = function.__doc__
        self.site = site_of(function)
        self.file = self.site.file
        for p in (p for p in inspect.signature(function).parameters.values() if p.kind in _UNNAMED):
            raise NotUnderstoodError(
                f"{self.name} has the parameter {p}: each tensor of a program has a name of its own; a list of tensors "
                f"is declared {p.name}: tk.Each(tk.Local(...))",
                self.site,
            )
        for name in (n for n in inspect.signature(function).parameters if n in CALL_OPTIONS):
            options = ", ".join(f"{n}=" for n in CALL_OPTIONS)
            raise NotUnderstoodError(
                f"{self.name} has a tensor {name}, but {name}= is an option of every call ({options}): give the tensor "
                "another name",
                self.site,
            )
        self._recorded: Kept[frozenset[str], Recording] = Kept(KEPT_SCHEDULES)
        self._bound: Kept[Any, TileProgram] = Kept(KEPT_SCHEDULES)
        self._variants: Kept[Variant, Program] = Kept(KEPT_SCHEDULES)
        self._variants.put(variant, self)
        self._reading: dict[FunctionType, TileFunction] = {}

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
        """The tensors of each parameter that is not a function."""
        return self.variant.flattened(self.declared)

    @cached_property
    def parameters(self) -> dict[str, Declared]:
        """The declarations of its tensors, by name; members of lists follow each other."""
        self.recorded()
        return {n: p for tensors in self.flattened.values() for n, p in tensors}

    @cached_property
    def optional(self) -> frozenset[str]:
        """Tensors that a call may omit."""
        defaults = {n: p.default for n, p in inspect.signature(self.function).parameters.items()}
        return frozenset(n for p, tensors in self.flattened.items() if defaults[p] is None for n, _ in tensors)

    @cached_property
    def of_any_dtype(self) -> frozenset[str]:
        """Tensors that are declared without a dtype. Counts, and integers that pick rows, are declared with one."""
        return frozenset(n for n, p in self.parameters.items() if p.route is None and p.dtype is None)

    @cached_property
    def on_demand(self) -> frozenset[str]:
        """Optional outputs: a call gets them if it passes a tensor for them, or their dtype."""
        return self.optional & {t.name for t in self.recorded().tensors if t.kind == "output"}

    @public
    def of(self, members: int | None = None, **functions: Any) -> Program:
        """The variant of this program with this number of members in lists, and these functions by parameter:
        `all_gather_matmul.of(3, epilogue=gelu)`. The rest stays unchanged. A variant is an ordinary program; its
        members are weight_0, weight_1, ... Raises ArgumentError."""
        count = self.variant.members if members is None else members
        wanted = Variant(count, tuple(sorted((dict(self.variant.functions) | functions).items())))
        made = self._variants.get(wanted)
        if made is None:
            wanted.check(self.name, self.declared, Site.of_user())
            made = Program(self.function, wanted)
            made._variants, made._reading = self._variants, self._reading
            self._variants.put(wanted, made)
        return made

    @property
    def label(self) -> str:
        """Its name, and the number of members if there are several: "all_gather_matmul[2]"."""
        return self.name + (f"[{self.variant.members}]" if self.variant.members > 1 else "")

    def absent(self, dtypes: Mapping[str, Any] | Any) -> frozenset[str]:
        """The absent tensors for these dtypes: optional tensors without a dtype."""
        said = dtypes if isinstance(dtypes, Mapping) else {}
        return self.optional - {n for d in said for n in (d, *(m for m, _ in self.flattened.get(d, ())))}

    def recorded(self, absent: frozenset[str] = frozenset()) -> Recording:
        """Tensors and roles, if the tensors in `absent` are None. Raises ArgumentError for a missing function."""
        recorded = self._recorded.get(absent)
        if recorded is None:
            signature, given = inspect.signature(self.function).parameters, dict(self.variant.functions)
            functions = {n: given.get(n, signature[n].default) for n, p in self.declared.items() if p == Function}
            for name, function in functions.items():
                if function is inspect.Parameter.empty:
                    raise ArgumentError(f"{self.name} needs a function {name}, with @triton.jit", Site.of_user())
            variant = replace(self.variant, functions=tuple(functions.items()))
            recorded = record(self.function, absent, variant)
            self._recorded.put(absent, recorded)
        return recorded

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules in the program's file, by name and in full. The first is the default."""
        return self.schedules_without(self.optional) | self.schedules_without(frozenset())

    def schedules_without(self, absent: frozenset[str]) -> dict[str, Schedule]:
        """The schedules for the program without the parameters in `absent`, and without the roles that need those."""
        roles, gone = self.recorded(absent).roles, self._gone(absent)
        schedules = {n: s.without(gone) for n, s in self.function.__globals__.items() if isinstance(s, Schedule)}
        return {n: s for n, s in schedules.items() if s.launched == roles}

    def _gone(self, absent: frozenset[str]) -> frozenset[str]:
        """The roles that are missing because of absent parameters."""
        return self.recorded().roles - self.recorded(absent).roles

    def schedule(self, wanted: Schedule | str | None, absent: frozenset[str] | None = None) -> Schedule:
        """A schedule by name, or the default one for None. Raises ScheduleError."""
        check_schedule(wanted)
        if isinstance(wanted, Schedule):
            return wanted if absent is None else wanted.without(self._gone(absent))
        known = self.schedules if absent is None else self.schedules_without(absent)
        if not known and wanted is None:
            raise ScheduleError(*nearly(self, absent))
        if wanted is not None and wanted not in known:
            other = self.function.__globals__.get(wanted)
            if isinstance(other, Schedule):  # its roles are not the program's: binding says which
                return other
            raise ScheduleError(f"{self.name} has no schedule {wanted}; it has {listed(known, wanted)}", Site.of_user())
        return known[wanted] if wanted is not None else next(iter(known.values()))

    # ---- binding

    @public
    def bind(
        self,
        schedule: Schedule | str | None = None,
        dtypes: Mapping[str, Any] | Any = "float32",
        absent: frozenset[str] = frozenset(),
    ) -> TileProgram:
        """The tile program of this schedule. `dtypes`: by parameter, or one for all tensors that declare none; the
        default of an output is the dtype of the first tensor. `absent`: parameters that are None, together with
        optional outputs without an entry in `dtypes`. Raises the errors of the frontend."""
        self._check_values_read()
        absent |= self.on_demand & self.absent(dtypes)
        schedule = self.schedule(schedule, absent)
        given = dict(dtypes) if isinstance(dtypes, Mapping) else dict.fromkeys(self.of_any_dtype, dtypes)
        lists = {n: tensors for n, tensors in self.flattened.items() if n in given and len(tensors) > 1}
        given = {m: d for n, d in given.items() for m in ([t for t, _ in lists[n]] if n in lists else [n])}
        key = (schedule, tuple(sorted((n, str(d)) for n, d in given.items())), absent)
        bound = self._bound.get(key)  # maybe of an equal schedule in another place
        if bound is None:
            try:
                bound = bind(self.recorded(absent), schedule, given, self.parameters, self.site)
            except (ScheduleError, TileSizeError) as e:
                raise e.because_of("the schedule", schedule.site) from None
            self._bound.put(key, bound)
            functions = (f for launch in self.recorded(absent).launches for f in launch.function.with_called)
            self._reading |= {f.function: f for f in functions if f.values_read}
        return bound if bound.schedule_site == schedule.site else replace(bound, schedule_site=schedule.site)

    @public
    def fit(
        self,
        schedule: Schedule | NamedSchedule | str | None = None,
        *,
        world: int = 1,
        dtypes: Mapping[str, Any] | Any = "float32",
        absent: frozenset[str] | None = None,
        target: Target | None = None,
        **sizes: Any,
    ) -> Schedule:
        """The schedule with tiles no larger than necessary for their tensors (for the longest part, along a dimension
        that is cut over the ranks). Sizes as in `Sizes.of`, `dtypes` and `absent` as in `bind`; by default, optional
        tensors without a dtype by name are absent. For a GPU as `target`, tiles of exact float32 products fit in
        registers. A name may have changes after it, which are not fitted: "push,matmul.tile=16x64x64"
        (`tilelink.programs.schedule_text`)."""
        check_world(world)
        variant, sizes = at_sizes(self, sizes)
        if variant is not self:
            return variant.fit(schedule, world=world, dtypes=dtypes, absent=absent, target=target, sizes=sizes)
        absent = self.absent(dtypes) if absent is None else absent
        named, found = self._read(schedule, absent)
        made = fitted(found, self.bind(found, dtypes, absent), world, sizes)
        if target is not None and target.backend:
            made = in_registers(made, self.bind(made, dtypes, absent))
        if isinstance(named, NamedSchedule) and named.changes:
            made = named.changed(made)
            made.site = Site(f"schedule={str(named)!r}", 0)
        return made

    def unchanged(self, schedule: Schedule | NamedSchedule | str | None, absent: frozenset[str]) -> Schedule:
        """The schedule as it stands beside the program, without changes of its fields and not fitted."""
        return self._read(schedule, absent)[1]

    def _read(
        self, schedule: Schedule | NamedSchedule | str | None, absent: frozenset[str]
    ) -> tuple[Schedule | NamedSchedule, Schedule]:
        named = read_schedule(self, schedule, absent) if isinstance(schedule, str | None) else schedule
        return named, self.schedule(named.name, absent) if isinstance(named, NamedSchedule) else named

    def bound_at(
        self,
        schedule: Schedule | NamedSchedule | str | None = None,
        *,
        world: int,
        sizes: Mapping[str, int | Sequence[int]],
        dtypes: Mapping[str, Any] | Any = "float32",
        per_node: int | None = None,
        target: Target | None = None,
    ) -> tuple[TileProgram, Sizes]:
        """The tile program at sizes as in `at_sizes` and `Sizes.of`, without optional tensors that have no entry in
        `dtypes`, and whose integers are not among the sizes. A Schedule object is used unchanged; a schedule given by
        name (or by default) is fitted to the sizes and the `target`, as in `fit`. With nodes of `per_node` ranks, fewer
        than the world, it is the program for a network. Without `dtypes`, tensors that declare no dtype are float32: a
        dtype that tile functions mistake for float32 is then not found. Raises the errors of the frontend."""
        variant, flat = at_sizes(self, sizes)
        absent = frozenset(variant.absent(dtypes) - flat.keys())
        if not isinstance(schedule, Schedule):
            schedule = variant.fit(schedule, world=world, dtypes=dtypes, absent=absent, target=target, sizes=flat)
        bound = variant.bind(schedule, dtypes, absent)
        check_parts(bound, flat)
        exact = Sizes.of(bound, world, flat, per_node)
        return bound if exact.per_node == world else publish_sources(bound), exact

    # ---- methods that upper layers implement, imported when they are called

    def lowered_at(
        self, schedule: Schedule | str | None = None, *, target: Target, timed: bool = False, **asked: Any
    ) -> tuple[Lowered, Sizes]:
        """The program lowered for a target and bound at its sizes; arguments and errors as in `bound_at`. With `timed`,
        workers record times. Raises FormError for a program without a specialised form."""
        from tilelink.backend.lower import lower_at

        bound, exact = self.bound_at(schedule, target=target, **asked)
        target = target if exact.per_node == exact.world else target.across_nodes()
        return lower_at(bound, exact, target, timed=timed), exact

    @public
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

    @public
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
        budget: int | None = None,
        tell: Callable[[str], None] = lambda _: None,
        **sizes: Any,
    ) -> Report:
        """A report that says whether a run is safe. `sms`: SMs of a device (default 132); `reserve`: how many of these
        other kernels keep. `slot_bytes`: bytes of a slot on the heap (default: as many as needed). `per_node`: ranks of
        a node. `budget`: events (default 10,000,000). `dtypes`: of the tensors of your calls, by parameter, or one for
        all that declare none; the default is float32, where `tilelink check` takes bfloat16. See `bound_at` and
        `tilelink.analysis.check.check`. Raises DtypeError for dtypes that the tile functions do not take, and
        FarAccessError for what no network between nodes does."""
        from tilelink.analysis.check import BUDGET, DEFAULT_SMS, check
        from tilelink.backend.lower import lower_at
        from tilelink.backend.targets import TARGETS

        bound, exact = self.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node)
        stage = 0 if exact.per_node == world else lower_at(bound, exact, TARGETS["cpu"].across_nodes()).stage_bytes
        return check(
            bound, exact, sms=DEFAULT_SMS if sms is None else sms, reserve=reserve, slot_bytes=slot_bytes, stage=stage,
            budget=BUDGET if budget is None else budget, tell=tell,
        )  # fmt: skip

    @public
    def simulate(
        self,
        schedule: Schedule | NamedSchedule | str | None = None,
        *,
        machine: str | Machine,
        world: int,
        dtypes: Any = "bfloat16",
        agents: Mapping[str, str] | None = None,
        reserved: int = 0,
        tell: Callable[[str], None] = lambda _: None,
        **sizes: Any,
    ) -> Prediction:
        """The predicted times of a run on a machine, given by name or description; see `bound_at` and
        `tilelink.analysis.simulate.simulate`. Without `dtypes`, tensors that declare no dtype are bfloat16, as in the
        commands. `reserved`: SMs that the lane leaves to other kernels.
        `tell` is called now and then with the progress."""
        from tilelink.analysis.machine import machine as described
        from tilelink.analysis.simulate import simulate

        found = described(machine) if isinstance(machine, str) else machine
        nodes = found.nodes_of(world)
        bound, exact = self.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=nodes)
        return simulate(bound, exact, found.leaving(reserved) if reserved else found, agents, tell)

    @public
    def show(self, stage: str = "program", schedule: Schedule | str | None = None, **options: Any) -> str:
        """The program as text at a stage, such as "program", "events" or "triton"; see `tilelink.programs.show`."""
        from tilelink.programs.show import show

        return show(self, stage, schedule, **options).text

    @public
    def __call__(
        self, /, *tensors: Any, schedule: Schedule | str | None = None, group: Any = None, **options: Any
    ) -> Any:
        """Runs the program on the calling rank of `group`, and returns its results. Options: tensors by name; `parts`,
        the lengths of each rank's shard by dimension; `slot`, the copy of buffers and signals (default: in turn);
        `timed`, whether workers record times, the same on all ranks (see `timeline` of the kinds of worlds)."""
        call = self._call(tensors, schedule, group, options)
        return group.call(call)

    @public
    def prepare(
        self, /, *tensors: Any, schedule: Schedule | str | None = None, group: Any = None, **options: Any
    ) -> None:
        """Does the one-time work of a call like this, on every rank of `group`, without a launch; see
        `tilelink.runtime.group.Group.prepare_call`. The call may then be captured in a CUDA graph."""
        call = self._call(tensors, schedule, group, options)
        group.prepare_call(call)

    def __getitem__(self, space: Any) -> NoReturn:
        raise NotUnderstoodError(
            f"{self.name}[...]: {self.name} is a program, and tile functions are launched like this; a tile function "
            "of the same name needs another one",
            Site.of_user(),
        )

    def _call(self, tensors: tuple[Any, ...], schedule: Any, group: Any, options: Mapping[str, Any]) -> Call:
        """Raises ScheduleError or ArgumentError if schedule or group have a wrong type, and ChangedValueError."""
        check_schedule(schedule)
        self._check_values_read()
        if not hasattr(group, "call"):
            what = "missing" if group is None else f"of type {type(group).__name__}"
            meant = next((f" ({n}= is given{found})" for n in options if (found := similar(n, ["group"]))), "")
            raise ArgumentError(
                f"{self.name} runs on a rank of a group; group= is {what}{meant}. CpuWorld.run(function) passes it to "
                "function; tilelink.group(process_group) makes it for a group of torch.distributed",
                Site.of_user(),
            )
        return Call.of(self, tensors, schedule, options)

    def _check_values_read(self) -> None:
        for function in self._reading.values():
            function.check_values_read()

    def __repr__(self) -> str:
        return f"<program {self.name} of {self.file}>"


@public
def program(function: Callable[..., None]) -> Program:
    """Declares a program: a function that makes buffers and launches tile functions over tile spaces.

    Its parameters are declared `tk.Local(...)`, `tk.Sharded(...)`, `tk.Each(...)`, `tk.Route(...)` or `tk.Function`.
    The result is a `Program`. Call it to run it. Its methods look at it: `check`, `show`, `simulate`, `unroll`. `fit`
    fits a schedule to sizes, and `prepare` does the one-time work of a call."""
    return Program(function)
