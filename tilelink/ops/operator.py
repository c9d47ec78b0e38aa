"""Operators of torch, made from descriptions. The schema, fake, checks, agreement and gradient follow from these.

A description is a dataclass of a call. Its fields are the arguments, in the order of the schema. Its methods check a
call, say what the ranks must have alike, which plan the call needs and what a path computes, and give the gradient.
`Operator` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from operator import index
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.utils._pytree import tree_iter, tree_map_only

from tilelink.errors import ArgumentError, MachineError, MachineMemoryError, Site
from tilelink.ops.agreement import agree, agree_again, agreed_machine, told_of_machine
from tilelink.ops.checks import OF_TENSORS, short
from tilelink.ops.collectives import Members, Traced, group_named
from tilelink.ops.eager import check_func_grad, has_gradient, only_called
from tilelink.ops.gradients import Differentiated
from tilelink.ops.known import Known, key, known_calls
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs, path_of, preparing, reserved_on
from tilelink.ops.repeated import Watch, each
from tilelink.plans import choose
from tilelink.plans.names import AUTO, TORCH, Plan, planned

SCHEMA = {
    "torch.Tensor": "Tensor", "torch.Tensor | None": "Tensor?", "Tensors": "Tensor[]", "Maybe": "Tensor?[]",
    "int": "SymInt", "Sequence[int]": "SymInt[]", "Sequence[int] | None": "SymInt[]", "Sequence[bool]": "bool[]",
    "bool": "bool", "str": "str", "str | None": "str?",
}  # fmt: skip
"""The type in the schema of an operator, by the annotation of a field. For a list or None, see `Operator`."""
CONVERTED: dict[str, Callable[[Any], Any]] = {
    "int": index, "Sequence[int]": lambda given: list(map(index, given)),
    "Sequence[int] | None": lambda given: None if given is None else list(map(index, given)),
}  # fmt: skip
"""The conversion that the dispatcher makes of an argument, by the annotation of a field."""


class Asked(NamedTuple):
    """The operator (or backward) and sizes that a call needs a plan for, as `choose` takes them."""

    operator: str
    M: int
    N: int | Sequence[int]
    K: int

    @property
    def empty(self) -> bool:
        """Whether one of its matrices has no elements."""
        return not self.M * self.K * min(self.N if isinstance(self.N, Sequence) else [self.N])


def fastest(asked: Asked, world: int, name: str | None, dtype: torch.dtype, reserved: int = 0) -> Plan | None:
    """Returns the plan with the shortest predicted time on a machine, or None for plain torch. Returns the first plan
    if the machine is unknown, too small, or described without products of this dtype, or if the operator is not
    predicted. Nothing is timed.

    The number of rows is rounded down to a power of two, so calls between two powers of two share a kept prediction.
    `reserved`: SMs that the lane leaves to others."""
    operator, M, N, K = asked
    if name is None:
        return planned(operator, None)
    rows, of_dtype = 1 << (M.bit_length() - 1), short(dtype)
    try:
        return choose(operator, M=rows, N=N, K=K, world=world, machine=name, dtype=of_dtype, reserved=reserved).by
    except (ArgumentError, MachineError, MachineMemoryError):
        return planned(operator, None)


Backward = Callable[..., tuple[Any, ...]]
"""The backward of an autograd function: takes its context, its saved tensors, and gradients of its results."""


class Call:
    """A call of an operator. `name`: the operator's name in messages; `results`: the types of results in its schema."""

    name: ClassVar[str]
    results: ClassVar[str]
    x: torch.Tensor
    group_name: str
    plan: str | None

    @cached_property
    def members(self) -> Members:
        return Members.named(self.group_name)

    def check(self) -> None:
        """Raises an error if the arguments are wrong. Also called while torch traces."""

    def check_here(self) -> None:
        """Raises an error if the arguments are wrong for this rank. Not called while torch traces."""

    def told(self) -> Mapping[str, Any]:
        """Returns what all ranks must have alike, besides the dtype, the plan and who computes."""
        return {}

    def asked(self) -> Asked:
        """Returns what a plan is needed for, the same on all ranks."""
        raise NotImplementedError

    def planless(self) -> bool:
        """Whether nothing of this call can be fused. "auto" then stands for plain torch."""
        return False

    def run(self, path: Plain) -> Any:
        """Returns the results, by methods that both paths have; or by `path.call` if the path is `Programs`, else by
        plain torch. While torch traces, the path is plain with collectives that move nothing: this makes the fake."""
        raise NotImplementedError

    def setup(self, ctx: Any, output: Any) -> None:
        """Keeps what `backward` needs."""

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        """Returns the gradients of arguments, by name. `saved`: what `setup` saved for the backward; see `once`. An
        operator without this method has no gradient."""
        raise NotImplementedError

    # ---- the same for all calls

    def __call__(self) -> Any:
        """Checks the call, compares it with the calls of the other ranks, and computes it. A call like an earlier one
        of the group is not checked again."""
        given = dict(vars(self))  # nothing is derived yet
        members, device = self.members, self.x.device
        calls, kind = known_calls(members.group), key(self.name, given.values())
        known = calls.get(kind)
        if known is None:
            told = agree(members, device, self._tell)
            found = {n: v for n, v in vars(self).items() if n != "members" and v is not given.get(n, calls)}
            known = Known(told, found, self._plan())
            calls.put(kind, known)
            return self.run(_path(members, known.plan))
        agree_again(self.group_name, self.x, known.told)
        vars(self).update(known.found)
        path = _path(members, known.plan)
        if known.watched or not (isinstance(path, Programs) and path.repeats(self.x)):
            return self.run(path)
        with Watch(tensors_among(given.values())) as watch:
            results = self.run(path)
        known.repeat, known.watched = watch.repeat(results), True
        return results

    def _tell(self) -> Mapping[str, Any]:
        self.check()
        self.check_here()
        path = path_of(self.x.device, self._wanted)
        told = {"operator": self.name, **self.told(), "dtype": self.x.dtype, "plan": self._wanted}
        machine = told_of_machine(self.members, self.x.device) if self._wanted == AUTO and path is not Plain else {}
        return told | machine | {"computed by": path.__module__}

    @property
    def _wanted(self) -> str | None:
        return TORCH if self.plan == AUTO and self.planless() else self.plan

    def _plan(self) -> Plan | None:
        """Returns the plan of the call, for "auto" the one that is predicted to be the fastest; None if plain torch
        computes. All ranks choose it alike, since they agree on its inputs. Plain torch computes empty matrices."""
        device, asked = self.x.device, self.asked()
        if path_of(device, self._wanted) is Plain or asked.empty:
            return None
        if self._wanted != AUTO:
            return planned(asked.operator, self._wanted)
        machine, reserved = agreed_machine(self.members, device), reserved_on(self.members, device)
        return fastest(asked, self.members.world, machine, self.x.dtype, reserved)


def _path(members: Members, plan: Plan | None) -> Plain:
    return Plain(members) if plan is None else Programs(members, plan)


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among the values of arguments, also in lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [t for t in value if isinstance(t, torch.Tensor)]
    return found


class Operator:
    """`torch.ops.tilelink.NAME`, made from a description: for all devices, opaque to compilers. If the description has
    `lengths` that may be None, there are two operators: NAME without lengths, and `NAME_uneven` with lengths."""

    def __init__(self, call: type[Call]) -> None:
        arguments = {f.name: str(f.type) for f in fields(call) if f.init}  # type: ignore[arg-type]  # a dataclass
        name, self.names, self.kinds = call.name.replace(", ", "_"), list(arguments), arguments
        self.evenly = None
        if arguments.get("lengths", "").endswith("None"):
            self.evenly = _registered(call, name, {n: t for n, t in arguments.items() if n != "lengths"})
            name += "_uneven"
        self.made = _registered(call, name, arguments)
        self.call, self.group_at = call, self.names.index("group_name")
        self.backward = _backward(call, arguments)
        self.converted = [(at, CONVERTED[k]) for at, k in enumerate(arguments.values()) if k in CONVERTED]
        self.tensors_at = [at for at, k in enumerate(arguments.values()) if k in OF_TENSORS]

    def __call__(self, **given: Any) -> Any:
        """Calls the operator with the arguments of the description, by name."""
        values = [given[n] for n in self.names]
        if only_called(tensors := self.tensors_of(values)):
            return self._eagerly(values, tensors)
        if not torch.compiler.is_compiling():
            self._check_derivatives(given, tensors)
        if self.evenly is not None:
            if given["lengths"] is None:
                return self.evenly(*[given[n] for n in self.names if n != "lengths"])
            given["lengths"] = list(given["lengths"])
        return self.made(*[given[n] for n in self.names])

    def tensors_of(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among the values of arguments, also in lists. Lengths that are given as a tensor are none."""
        return tensors_among([values[at] for at in self.tensors_at])

    def _eagerly(self, values: list[Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Calls the operator past torch's dispatcher."""
        for at, convert in self.converted:
            values[at] = convert(values[at])
        if not has_gradient(tensors):
            return self.computed(values, tensors)
        if self.call.backward is Call.backward:
            return self.made(*values)
        nesting: list[Any] = []
        flat = Differentiated.apply((self, values, nesting), *tensors)
        return each(flat.__getitem__, nesting[0])

    def computed(self, values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Returns the results, without a gradient. `tensors`: those among the values of arguments."""
        name = values[self.group_at]
        known = known_calls(group_named(name)).get(key(self.call.name, values))
        if known is not None and known.repeat is not None and not preparing():
            agree_again(name, tensors[0], known.told)
            results = known.repeat(tensors)
            if results is not None:
                return results
        return _no_views(self.call(*values)())

    def setup(self, ctx: Any, values: Sequence[Any], results: Any) -> None:
        """Keeps in `ctx` what `backward` needs."""
        _setup(ctx, self.call(*values), results)

    def _check_derivatives(self, given: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Raises ArgumentError for tangents of forward-mode differentiation, which torch would drop silently, and in
        transforms of `torch.func` that differentiate."""
        for name, value in given.items():
            if any(unpack_dual(t).tangent is not None for t in tensors_among([value])):
                raise ArgumentError(f"{name} has a tangent; operators have no forward-mode derivative", Site.of_user())
        if self.call.backward is not Call.backward:
            check_func_grad(self.call.name, tensors)


def _no_views(results: Any) -> Any:
    """Results that are no views: torch forbids to change such views in place (`y.relu_()`)."""
    return each(lambda result: result.data, results)


def _registered(call: type[Call], name: str, arguments: Mapping[str, str]) -> Callable[..., Any]:
    """Registers an operator with these arguments of a description, name to type. Other fields of a call are None."""
    absent = {f.name: None for f in fields(call) if f.init and f.name not in arguments}  # type: ignore[arg-type]

    def of(given: tuple[Any, ...], **named: Any) -> Call:
        return call(**absent, **dict(zip(arguments, given, strict=False)), **named)

    def fake(*given: Any, **named: Any) -> Any:
        made = of(given, **named)
        made.check()
        return made.run(Plain(Traced.named(made.group_name)))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, of(inputs), output)

    def computed(*given: Any, **named: Any) -> Any:
        return _no_views(of(given, **named)())

    schema = ", ".join(f"{SCHEMA[kind]} {argument}" for argument, kind in arguments.items())
    make = torch.library.custom_op(
        f"tilelink::{name}", mutates_args=(), schema=f"({schema}) -> {call.results}",
        tags=[torch.Tag.needs_fixed_stride_order],
    )  # fmt: skip
    made = make(computed)
    made.register_fake(fake)
    if call.backward is not Call.backward:
        made.register_autograd(_backward(call, arguments), setup_context=setup)
    return made


def _setup(ctx: Any, call: Call, results: Any) -> None:
    """Keeps in `ctx` what the backward of a call needs."""
    ctx.set_materialize_grads(False)
    call.check()
    call.setup(ctx, results)


def _backward(call: type[Call], arguments: Iterable[str]) -> Backward:
    """The backward of a description, which returns the gradients of all arguments."""

    def backward(ctx: Any, saved: Any, *grads: Any) -> tuple[Any, ...]:
        found = call.backward(ctx, saved, *grads) if any(g is not None for g in grads) else {}
        return tuple(found.get(n) for n in arguments)

    return once(call.name, backward)


def once(name: str, backward: Backward) -> Backward:
    """Makes the `backward` of an autograd function, called `name` in messages, one without a second derivative: to
    differentiate its gradients raises ArgumentError. (With torch's `once_differentiable`, `torch.autograd.grad` of some
    inputs leaves out the terms of this function and returns the rest.) It reads the saved tensors once and gives them
    to `backward`, because an activation checkpoint lets them be read only once."""

    def checked(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():  # nobody asks for a graph of the gradients
            return backward(ctx, saved, *grads)
        with torch.no_grad():
            found = backward(ctx, saved, *grads)
        made = [t for t in tree_iter(found) if isinstance(t, torch.Tensor)]
        of = [t for t in tree_iter((grads, saved)) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not made or not of:
            return found
        marked = iter(_Once.apply(name, len(made), *made, *of))
        return tree_map_only(torch.Tensor, lambda _: next(marked), found)

    return checked


class _Once(torch.autograd.Function):
    """Gradients that depend on all tensors from which they were made, so that no way back to these goes past it."""

    @staticmethod
    def forward(ctx: Any, name: str, number: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        return tuple(t.view_as(t) for t in tensors[:number])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        said = f"{ctx.name} has no second derivative: its gradients can't be differentiated"
        raise ArgumentError(said, Site.of_user())
