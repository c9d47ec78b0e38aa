"""What an operator of torch is: a description, from which its schema, fake, checks, agreement and gradient follow.

A description is a dataclass of a call. Its fields are the arguments, in the order of the schema; its methods say what a
call has to be, what ranks have to agree on, which plan it needs, what a path computes, and what the gradient is.
`made_known` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar

import torch

from tilelink.ops.agreement import agree, agreed_machine, told_of_machine
from tilelink.ops.auto import Asked, fastest
from tilelink.ops.collectives import Members
from tilelink.ops.paths import path_of
from tilelink.ops.plain import Plain
from tilelink.plans.names import AUTO, TORCH, planned

SCHEMA = {
    "torch.Tensor": "Tensor", "torch.Tensor | None": "Tensor?", "Tensors": "Tensor[]", "Maybe": "Tensor?[]",
    "int": "SymInt", "Sequence[int]": "SymInt[]", "Sequence[int] | None": "SymInt[]", "Sequence[bool]": "bool[]",
    "bool": "bool", "str": "str", "str | None": "str?",
}  # fmt: skip
"""What annotations of fields are in the schema of an operator. A field that may be None beside a list is left out."""


class Call:
    """A call of an operator. `name`: of the operator, as messages call it; `results`: their types in its schema."""

    name: ClassVar[str]
    results: ClassVar[str]
    x: torch.Tensor
    group_name: str
    plan: str | None

    @cached_property
    def members(self) -> Members:
        return Members.named(self.group_name)

    def check(self) -> None:
        """Raises what is wrong with the arguments; also asked while torch traces."""

    def check_here(self) -> None:
        """Raises what is wrong on this rank, of a call that is made."""

    def told(self) -> Mapping[str, Any]:
        """What the ranks have to agree on, besides the dtype, the plan and who computes."""
        return {}

    def asked(self) -> Asked:
        """What a plan is needed for."""
        raise NotImplementedError

    def planless(self) -> bool:
        """Whether nothing of this call can be fused: then "auto" stands for plain torch."""
        return False

    def run(self, path: Plain) -> Any:
        """The results, of what both paths have; or of its own: by `path.call` where that is `Programs`, else by plain
        torch."""
        raise NotImplementedError

    def fake(self) -> Any:
        """Results as torch traces them."""
        raise NotImplementedError

    def setup(self, ctx: Any, output: Any) -> None:
        """Keeps what `backward` needs."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        """The gradients of arguments, by name."""
        raise NotImplementedError

    # ---- what follows

    def __call__(self) -> Any:
        """Checks the call, compares it with those of the other ranks, and computes it."""
        agree(self.members, self.x.device, self._tell)
        return self.run(self._path())

    def _tell(self) -> Mapping[str, Any]:
        self.check()
        self.check_here()
        path = path_of(self.x.device, self._wanted)
        told = {"operator": self.name, **self.told(), "dtype": self.x.dtype, "plan": self._wanted}
        machine = told_of_machine(self.x.device) if self._wanted == AUTO and path is not Plain else {}
        return told | machine | {"computed by": path.__module__}

    @property
    def _wanted(self) -> str | None:
        return TORCH if self.plan == AUTO and self.planless() else self.plan

    def _path(self) -> Plain:
        """Who computes the call: by the plan that it names, or by the one that is predicted to be the fastest, which
        all ranks choose alike, since they agree on all that it is chosen by."""
        device = self.x.device
        path, plan = path_of(device, self._wanted), None
        if path is not Plain and self._wanted == AUTO:
            plan = fastest(self.asked(), self.members.world, agreed_machine(self.members, device), self.x.dtype)
        elif path is not Plain:
            plan = planned(self.asked().operator, self._wanted)
        return Plain(self.members) if plan is None else path(self.members, plan)


def made_known(call: type[Call], name: str, *, without: str = "", gradient: bool = True) -> Callable[..., Any]:
    """Registers `tilelink::name`, opaque to compilers, for all devices. `without`: an argument that it does not take,
    and that is None in the description."""
    arguments = [f for f in fields(call) if f.init and f.name != without]  # type: ignore[arg-type]  # a dataclass
    schema = ", ".join(f"{SCHEMA[str(f.type)]} {f.name}" for f in arguments)
    names = [f.name for f in arguments]

    def of(given: tuple[Any, ...], **named: Any) -> Call:
        return call(**({without: None} if without else {}), **dict(zip(names, given, strict=False)), **named)

    def fake(*given: Any, **named: Any) -> Any:
        made = of(given, **named)
        made.check()
        return made.fake()

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        made = of(inputs)
        made.check()
        made.setup(ctx, output)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = call.backward(ctx, *grads) if any(g is not None for g in grads) else {}
        return tuple(found.get(n) for n in names)

    make = torch.library.custom_op(
        f"tilelink::{name}", mutates_args=(), schema=f"({schema}) -> {call.results}",
        tags=[torch.Tag.needs_fixed_stride_order],
    )  # fmt: skip
    made = make(lambda *given, **named: of(given, **named)())
    made.register_fake(fake)
    if gradient:
        made.register_autograd(backward, setup_context=setup)
    return made
