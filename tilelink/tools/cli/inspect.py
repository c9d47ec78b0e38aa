"""`tilelink inspect`: the compiled kernels of a program, with each role that multiplies or copies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap

from tilelink.backend.targets import FORMS
from tilelink.inspect.dialects import ACCESSES, KINDS
from tilelink.inspect.instructions import Stretch
from tilelink.inspect.machine_code import KernelCode, RoleCode, inspected
from tilelink.tools.cli.command import Answer, Command, Flag, columns
from tilelink.tools.cli.program import Question, program_flags

COMPILED = [name for name, target in FORMS.items() if target.backend]
LABEL = "compiled only"
PARTS = ("before", "step", "after")
WIDTH = 120


def run(args: argparse.Namespace) -> Answer:
    """The contents of compiled kernels: registers, the steady loop by kinds of instructions, and the code around it."""
    from tilelink.analysis.check import check_results
    from tilelink.programs.compiling import compiled

    made = FORMS[args.target]
    asked = Question.of(args, target=made)
    lowered, exact = asked.program.lowered_at(asked.schedule, target=made, **asked.options)
    check_results(lowered.program)
    kernels = inspected(lowered, compiled(lowered, exact))
    keys = {"target": args.target, **asked.keys, "label": LABEL, "kernels": [asdict(k) for k in kernels]}
    said = (
        f"# {LABEL}: nothing was run; exposed times are estimates\n"
        "# figures of a tile are those of the slowest path through its branches, if no wait has to wait\n"
        "# stages: of the schedule, or fewer if shared memory holds fewer; the specialised form may have one more\n"
    )
    text = "\n".join("\n".join(_lines(kernel)) + "\n" for kernel in kernels)
    return Answer(keys, text, asked.line({"target": args.target}) + said)


def _lines(kernel: KernelCode) -> Iterator[str]:
    """A kernel for people: tables with a column for each role, as many as it takes to be no wider than WIDTH, and the
    order of each role."""
    yield from wrap(
        f"{kernel.name} ({LABEL}): {kernel.registers} registers, {kernel.spill_bytes} bytes spilled, "
        f"{kernel.shared_bytes} bytes of shared memory, {kernel.instructions} instructions", WIDTH,
    )  # fmt: skip
    roles = kernel.roles
    for many in range(len(roles), 0, -1):
        tables = [_table(roles[k : k + many]) for k in range(0, len(roles), many)]
        if many == 1 or max(len(line) for table in tables for line in table) <= WIDTH:
            yield from (line for table in tables for line in table)
            break
    for role in roles:
        order = ", ".join(role.order).replace("loop(, ", "loop(").replace(", )", ")")
        yield from wrap(f"{role.name} in order: {order}", WIDTH, subsequent_indent="  ")


def _table(roles: Sequence[RoleCode]) -> list[str]:
    """The instructions of roles by kinds, accesses to global memory also by width; then the other figures."""
    parts = [[getattr(role, part) for part in PARTS] for role in roles]
    lines = [
        [kind, *("+".join(map(str, counts)) if any(counts) else "0" for counts in row)]
        for kind, row in _rows(parts) if any(map(any, row))
    ]  # fmt: skip
    lines += [
        ["total", *("+".join(str(stretch.total) for stretch in of_role) for of_role in parts)],
        ["on cheaper branches", *(str(role.cheaper) for role in roles)],
        ["on slow paths of waits", *(str(role.slow) for role in roles)],
        ["exposed us a tile (estimate)", *(str(role.exposed_us) for role in roles)],
        ["stages", *(str(role.stages or "none") for role in roles)],
    ]
    return columns(["instructions: " + "+".join(PARTS), *(role.name for role in roles)], lines, left={0})


def _rows(parts: Sequence[Sequence[Stretch]]) -> Iterator[tuple[str, list[list[int]]]]:
    """Yields each kind of instructions with its counts, by roles and parts."""
    for kind in KINDS:
        if kind in ACCESSES:
            for width in sorted({width for of_role in parts for x in of_role for width in x.widths[kind]}):
                yield f"{kind} of {width} B", [[x.widths[kind].get(width, 0) for x in of_role] for of_role in parts]
        else:
            yield kind, [[x.kinds[kind] for x in of_role] for of_role in parts]


COMMAND = Command(
    run,
    "tilelink inspect all_gather_matmul --target sm_90 --world 8 --shape M=8192,N=3584,K=8192 --schedule push",
    [
        *program_flags(),
        Flag("--target", choices=COMPILED, default=COMPILED[0], help="target of the kernels (default: %(default)s)"),
    ],
)
