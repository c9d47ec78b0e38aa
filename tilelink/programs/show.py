"""Text of a program at each stage of its way to a kernel, as `Program.show` and `tilelink show` print it.

Imports are inside the functions, because the command line reads the names and defaults here to print its help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilelink.backend.targets import FORMS, SPECIALISED, Target
from tilelink.errors import Site, TargetError, listed
from tilelink.programs.given import by_dimension

if TYPE_CHECKING:
    from tilelink.backend.facts import Facts
    from tilelink.frontend.ir import Role, TileProgram
    from tilelink.frontend.schedule import Schedule
    from tilelink.frontend.sizes import Sizes
    from tilelink.inspect.gates import Verdict
    from tilelink.programs.program import Program

CODE = {"ptx": "cuda", "sass": "cuda", "amdgcn": "hip"}
"""The stages of machine code, each with the backend of Triton that makes it."""
SOURCE = ("triton", "gluon")
"""The stages of source: of the portable form, and of the specialised form."""
ENGINE = "sm_90"
"""The first target with a copy engine for tiles."""
STAGES = ("program", "events", *SOURCE, "host", *CODE)
WORLD, SIZE, DTYPE, EXPERTS = 4, 512, "bfloat16", 2
"""Defaults of what is shown: small enough to be read, large enough for several tiles on each rank."""


@dataclass(frozen=True)
class Shown:
    """The text of a stage. `verdict`: for machine code, the findings of the gates."""

    text: str
    verdict: Verdict | None = None


def show(
    program: Program,
    stage: str = "program",
    schedule: Schedule | str | None = None,
    *,
    target: str | None = None,
    world: int = WORLD,
    per_node: int | None = None,
    dtypes: Mapping[str, Any] | Any = DTYPE,
    **sizes: int | Sequence[int],
) -> Shown:
    """The text of a stage: "program" (the tile program), "events" (one a line), "triton" (the generated module),
    "gluon" (the module of the specialised form), "host" (what the host of each rank launches and enqueues), or the
    machine code of the kernels in the order of their launch, compiled without a GPU: "ptx", "sass", "amdgcn".

    A Schedule object is used unchanged. A schedule given by name (or by default) is fitted to the sizes and to the
    target, as for a call on it. `dtypes` and sizes as for `Program.unroll`; a size left out is `SIZE`. `target`: by
    default, the first that has the stage. With nodes of `per_node` ranks, fewer than the world, the text is for a run
    across nodes. Raises the errors of the frontend, ArgumentError for a tensor that no tile touches, CompileError,
    FormError for programs without a specialised form, TargetError for a target without a network, for machine code
    across nodes, and for an unknown stage or target.
    """
    from tilelink.analysis.check import check_results
    from tilelink.analysis.unroll import unroll
    from tilelink.backend.host import plan_text
    from tilelink.backend.lower import lower_at
    from tilelink.inspect.gates import judge
    from tilelink.programs.compiling import compiled

    made = FORMS[target_of(stage, target)]
    sizes = with_defaults(program, by_dimension(sizes), program.absent(dtypes))
    bound, exact = program.bound_at(
        schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node, target=made
    )  # fmt: skip
    check_results(bound)
    if exact.per_node != world:
        made = made.across_nodes()
        if stage in CODE:
            nodes = f"a world of {world} on nodes of {per_node}"
            raise TargetError(f"{stage} is shown of one node: {nodes} has --stage triton")
    if stage == "program":
        return Shown(str(bound))
    if stage == "events":
        return Shown(unroll(bound, exact).text())
    lowered = lower_at(bound, exact, made)
    if stage in SOURCE:
        return Shown(lowered.source)
    if stage == "host":
        return Shown(plan_text(lowered, unroll(bound, exact)))
    kernels = compiled(lowered, exact, sass=stage == "sass")
    text = "\n".join(k.sass if stage == "sass" else k.code for k in kernels)
    return Shown(text, judge(lowered, kernels))


def without_bulk(
    program: Program, schedule: Schedule, target: Target, *, world: int, per_node: int | None = None, dtypes: Any,
    sizes: Mapping[str, int | Sequence[int]],
) -> list[str]:  # fmt: skip
    """A note for each role with `via="tma"` that moves nothing in bulk: `via` has no effect, and why. Arguments as in
    `show`, with all sizes."""
    from tilelink.backend.bulk import bulk_writes, stored_by_threads
    from tilelink.backend.facts import Facts, by_tma

    bound, exact = program.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node)
    facts = Facts.of(bound, exact)
    by_engine = bound if target.specialised else stored_by_threads(bound)
    notes = []
    for role in (r for r in bound.in_kernel if by_tma(r)):
        if role not in by_engine.roles:
            why = ": it multiplies, and threads store what they multiply"
        elif not any(bulk_writes(role, bound, facts)):
            why = f": {_why_not_in_bulk(role, bound, exact, facts)}"
        elif not target.descriptors:
            why = f" on {target.name}; --target {ENGINE} has it"
        elif exact.per_node != world:
            why = " in a world of several nodes"
        else:
            continue
        notes.append(f'{role.name}: via="tma" has no effect{why}')
    return notes


def _why_not_in_bulk(role: Role, program: TileProgram, sizes: Sizes, facts: Facts) -> str:
    """Why a role stores and copies nothing in bulk: rows of a length that no descriptor takes, or another reason."""
    from tilelink.backend.facts import DESCRIBED_BYTES
    from tilelink.frontend import ir
    from tilelink.frontend.values import ITEM_SIZE

    touched = [v.tensor for s in ir.every(ir.Write, role.body) for v in s.touched]
    for tensor in (program.tensor(name) for name in touched if name not in dict(facts.described)):
        dim = tensor.dims[tensor.contiguous]
        row = 0 if dim == ir.RANKS_DIM else max(sizes.lengths(dim)) * ITEM_SIZE[tensor.dtype]
        if row % DESCRIBED_BYTES:
            return f"rows of {tensor.name} along {dim} are {row} bytes, no multiple of {DESCRIBED_BYTES}"
    return "it stores and copies nothing that a tensor descriptor describes (docs/language.md, Bulk copies)"


def target_of(stage: str, target: str | None) -> str:
    """The target of a stage: the requested one, or the first that has the stage. Raises TargetError."""
    site = Site.of_user()
    if stage not in STAGES:
        raise TargetError(f"there is no stage {stage}; there is {listed(STAGES, stage)}", site)
    if target is not None and target not in FORMS:
        known = f"there is {listed(FORMS, target)}"
        raise TargetError(f"there is no target {target}; {known}", site)
    if stage == "gluon" and target in SPECIALISED:
        target = FORMS[target].with_own_warps().name
    having = [n for n, t in FORMS.items() if stage in stages_of(t)]
    if target is not None and target not in having:
        have, its = "have" if len(having) > 1 else "has", ", ".join(stages_of(FORMS[target]))
        raise TargetError(f"{target} has no {stage}; {', '.join(having)} {have} it; {target} has {its}", site)
    return target or having[0]


def stages_of(target: Target) -> tuple[str, ...]:
    """The stages of a target. (A stage that is the same for all targets belongs to the targets that run.)"""
    return tuple(
        s for s in STAGES if (target.backend == CODE[s] if s in CODE else target.specialised == (s == "gluon"))
    )


def with_defaults(
    program: Program, sizes: Mapping[str, int | Sequence[int]], absent: frozenset[str], size: int = SIZE
) -> dict[str, int | Sequence[int]]:
    """The sizes of all dimensions, in the order in which the tensors name them. A size left out is `size`, or the block
    over the whole dimension in a schedule of the program, if that is smaller. For experts, and for the integers that a
    row has to pick others by, it is `EXPERTS`. As many rows are sent as are routed."""
    from tilelink.frontend.ir import RANKS_DIM

    recorded = program.recorded(absent)
    of_routes = (d for route in recorded.routes for d in (*route.sides, route.per_rank))
    dims = (d for d in (*(d for t in recorded.tensors for d in t.dims), *of_routes) if d in recorded.dims - {RANKS_DIM})
    resources = [r for s in program.schedules_without(absent).values() for r in s.values()]
    whole = {d: n for r in resources for d, n in dict(getattr(r, "whole", ())).items()}
    whole |= {route.per_rank: EXPERTS for route in recorded.routes}
    integers = [t for t in recorded.tensors if str(t.dtype) == "int32" and RANKS_DIM not in t.dims]
    whole |= {d: EXPERTS for t in integers for d in t.dims[1:]}
    sent = {route.sent for route in recorded.routes} - sizes.keys()
    return {d: sizes.get(d, min(whole.get(d, size), size)) for d in (*dims, *sizes) if d not in sent}
