"""Operators computed by our programs: on CUDA devices, or on a CPU in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.utils._pytree import tree_leaves, tree_map_only

from tilelink.errors import ArgumentError, WorldError, listed
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import Integers
from tilelink.kernels.all_gather import all_gather as all_gather_program
from tilelink.ops.collectives import Later, Members
from tilelink.ops.known import BACKEND
from tilelink.ops.plain import Maybe, Plain, Tensors
from tilelink.ops.repeated import allocated, called
from tilelink.plans.names import TORCH, Plan
from tilelink.programs.given import Call
from tilelink.programs.program import Program
from tilelink.runtime.groups import group, reserved_by_default
from tilelink.runtime.process_group import ProcessGroup

BACKENDS = (TORCH, "interpret")
PART = tl.constexpr(1.0)

_lanes: WeakKeyDictionary[dist.ProcessGroup, dict[str, ProcessGroup]] = WeakKeyDictionary()
_preparing = False


def path_of(device: torch.device, plan: str | None = None) -> type[Plain]:
    """Returns who computes: `Programs` on CUDA devices, and on a CPU if TILELINK_BACKEND is "interpret"; else `Plain`.
    "torch", as TILELINK_BACKEND or as plan, asks for `Plain` on any device. Raises ArgumentError."""
    wanted = os.environ.get(BACKEND) or ("interpret" if device.type == "cuda" else "torch")
    if wanted not in BACKENDS:
        raise ArgumentError(f"{BACKEND} is {wanted!r}; it must be one of {listed(BACKENDS, wanted)}")
    return Plain if TORCH in (wanted, plan) else Programs


class Programs(Plain):
    """Computes as `Plain`, by the program and the schedule of a plan. No matrix may be empty."""

    def __init__(self, members: Members, plan: Plan) -> None:
        super().__init__(members)
        self.plan = plan

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        full = self.empty(rows, (sum(lengths), rows.shape[1]))
        self._run(all_gather_program, rows, out=full, parts={"M": lengths})
        return lambda: full

    def gather_linear(
        self, rows: torch.Tensor, weights: Tensors, biases: Maybe, lengths: Sequence[int], keep: bool = False
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        M = sum(lengths)
        outs = [self.empty(rows, (M, len(w))) for w in weights]
        bias = list(biases) if any(b is not None for b in biases) else None
        if given := self.plan.given:
            self.call(given(rows), [given(w).mT for w in weights], out=outs, bias=bias, parts={"M": lengths})
            return self.all_gather(rows, lengths)() if keep else None, outs
        full = self.empty(rows, (M, rows.shape[1])) if keep else None
        self.call(rows, [w.t() for w in weights], out=outs, bias=bias, gathered=full, parts={"M": lengths})
        return full, outs

    def linear_scatter(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lengths: Sequence[int],
        dtype: torch.dtype,
        mean: bool = False,
    ) -> Later:
        out = self.empty(x, (lengths[self.members.rank], len(weight)), dtype)
        self.call(x, weight.t(), out=out, parts={"M": lengths}, **self.ending(bias, mean))
        return lambda: out

    def ending(self, bias: torch.Tensor | None, mean: bool) -> dict[str, Any]:
        """Returns the options for what a program does to a sum before it rounds: bias, then epilogue. The epilogue of a
        mean divides the bias, too, so this multiplies the bias by the world first."""
        world = self.members.world
        if not mean:
            return {"bias": bias}
        return {"bias": None if bias is None else bias.float() * world, "epilogue": _mean_over(world)}

    def empty(self, like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns memory for a result on the device of `like`, by default of its dtype."""
        return allocated(self.lane(like), tuple(shape), dtype or like.dtype)

    def call(self, *tensors: Any, **options: Any) -> None:
        """Calls the program of the plan, or prepares the call inside `prepare`. The caller gives the outputs."""
        self._run(self.plan.program, *tensors, schedule=self.plan.schedule, **options)

    def _run(
        self, program: Program, *tensors: Any, parts: Mapping[str, Sequence[int]] | None = None, **options: Any
    ) -> None:
        first = tensors[0][0] if isinstance(tensors[0], list) else tensors[0]
        if parts is not None:
            options["parts"] = {d: _integers(tuple(lengths)) for d, lengths in parts.items()}
        call = Call.of(program, tensors, options.pop("schedule", None), options)
        if _preparing:
            self.lane(first).prepare_call(call)
        else:
            called(self.lane(first), call)

    def lane(self, like: torch.Tensor) -> ProcessGroup:
        """Returns the lane of the group on the device of a tensor."""
        return lane(self.members.group, device=like.device.type)

    def repeats(self, like: torch.Tensor) -> bool:
        """Whether calls on the device of a tensor can be repeated the short way. Makes no lane."""
        made = _lanes.get(self.members.group, {}).get(like.device.type)
        return not _preparing and made is not None and made.repeats


@kept()
def _integers(lengths: tuple[int, ...]) -> Integers | None:
    return Integers.of(lengths)


def mean(total):  # type: ignore[no-untyped-def]
    """Returns the mean of a sum over the ranks, in registers, before it is rounded."""
    return total * PART


@kept()
def _mean_over(world: int) -> Any:
    """Returns `mean` for a world, as the `epilogue` of a program. Triton takes constants from a function's globals."""
    names = mean.__globals__ | {"PART": tl.constexpr(1 / world)}
    return triton.jit(FunctionType(mean.__code__, names, mean.__name__))


def lane(process_group: dist.ProcessGroup | None = None, *, device: str = "cpu", **options: Any) -> ProcessGroup:
    """Returns the lane on which operators run the programs of a group on a kind of device: "cpu" or "cuda".

    The first operator makes the lane with the default options of `tilelink.group`. A call of this function before that
    makes it with other options; it is collective. Raises WorldError if options are given and the lane exists, and the
    errors of `tilelink.group`."""
    members = dist.group.WORLD if process_group is None else process_group
    if not isinstance(members, dist.ProcessGroup):
        return group(members, **options)  # says what is wrong
    made = _lanes.setdefault(members, {})
    if device not in made:
        made[device] = group(members, device=device, **options)  # type: ignore[arg-type]  # "cpu" or "cuda"
    elif options:
        late = ", ".join(options)
        raise WorldError(f"the group already has a lane, made without {late}: pass options before the first call")
    return made[device]


def reserved_on(members: Members, device: torch.device) -> int:
    """Returns how many SMs the lane of a group leaves to other kernels, or would leave if it were made now."""
    if device.type != "cuda":
        return 0
    made: Any = _lanes.get(members.group, {}).get("cuda")
    return reserved_by_default(members.group) if made is None else made.lane.device.sms - made.lane.sms


def prepare(operator: Callable[..., Any], x: torch.Tensor, *tensors: Any, **options: Any) -> None:
    """Does the one-time work of calls like `operator(x, *tensors, **options)`, without launching a program. The calls
    can then be captured in a CUDA graph. Collective.

    It makes the lane of the group, checks and compiles programs, and lays out symmetric memory; for the backward, too,
    if tensors require gradients. Work that an operator leaves to torch does run: copies, products without a collective,
    collectives if a matrix is empty or the gathered x has a gradient, and on a CPU the comparison of calls. If plain
    torch computes the operator, `prepare` does nothing.

    `operator`: a function of `tilelink.ops`, or a module that contains layers of `tilelink.nn`. Other code in the
    module runs on undefined results; `.grad` of its parameters does not change. Values do not matter; shapes, strides,
    dtypes and devices do. Raises what the call raises.
    """
    if path_of(x.device) is Plain:
        return
    given = tree_map_only(torch.Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), [x, *tensors])
    with _prepared():
        found = [y for y in tree_leaves(operator(*given, **options)) if _has_gradient(y)]
        parameters = list(operator.parameters()) if isinstance(operator, torch.nn.Module) else []
        wanted = [t for t in tree_leaves([given, parameters]) if _has_gradient(t)]
        if wanted and found:
            zeros = [torch.zeros_like(y) for y in found]
            torch.autograd.grad(found, wanted, zeros, allow_unused=True)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def preparing() -> bool:
    """Whether programs are prepared now, and not launched."""
    return _preparing


@contextmanager
def _prepared() -> Iterator[None]:
    """A context in which programs are prepared and not launched. Results have undefined values."""
    global _preparing
    before, _preparing = _preparing, True
    try:
        yield
    finally:
        _preparing = before
