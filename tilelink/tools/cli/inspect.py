"""`tilelink inspect`: the compiled kernels of a program, with each role that multiplies or copies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from tilelink.backend.targets import FORMS
from tilelink.inspect.dialects import ACCESSES, KINDS
from tilelink.inspect.instructions import Stretch
from tilelink.inspect.machine_code import KernelCode, RoleCode, inspected
from tilelink.tools.cli.command import Answer, Command, Flag, columns
from tilelink.tools.cli.program import Question, program_flags

COMPILED = [name for name, target in FORMS.items() if target.backend]
LABEL = "compiled only"
PARTS = ("before", "step", "after")


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
    said = f"# {LABEL}: nothing was run; exposed times are estimates\n"
    text = "\n".join("\n".join(_lines(kernel)) + "\n" for kernel in kernels)
    return Answer(keys, text, asked.line({"target": args.target}) + said)


def _lines(kernel: KernelCode) -> Iterator[str]:
    """A kernel for people: a table of kinds of instructions by parts of the roles, then a line for each role."""
    yield (
        f"{kernel.name} ({LABEL}): {kernel.registers} registers, {kernel.spill_bytes} bytes spilled, "
        f"{kernel.shared_bytes} bytes of shared memory, {kernel.instructions} instructions"
    )
    parts = [(f"{role.name} {part}", getattr(role, part)) for role in kernel.roles for part in PARTS]
    lines = [
        [kind, *(_count(stretch, kind) for _, stretch in parts)]
        for kind in KINDS if any(stretch.kinds[kind] for _, stretch in parts)
    ]  # fmt: skip
    lines += [["total", *(str(stretch.total) for _, stretch in parts)]] if parts else []
    if parts:
        yield from columns(["instructions", *(name for name, _ in parts)], lines, left={0})
    yield from (_said(role) for role in kernel.roles)


def _count(stretch: Stretch, kind: str) -> str:
    """The number of instructions of a kind, as text; accesses to global memory have their width, too: "2 of 16 B"."""
    if kind in ACCESSES and stretch.kinds[kind]:
        return ", ".join(f"{n} of {width} B" for width, n in stretch.widths[kind].items())
    return str(stretch.kinds[kind])


def _said(role: RoleCode) -> str:
    stages = f"{role.stages} stages" if role.stages else "not pipelined"
    return (
        f"{role.name}: {stages}; {role.slow} instructions on slow paths of waits; exposed about {role.exposed_us} us a "
        f"tile (estimate)\n  in order: {', '.join(role.order).replace('loop(, ', 'loop(').replace(', )', ')')}"
    )


COMMAND = Command(
    run,
    "tilelink inspect all_gather_matmul --target sm_90 --world 8 --shape M=8192,N=3584,K=8192 --schedule push",
    [
        *program_flags(),
        Flag("--target", choices=COMPILED, default=COMPILED[0], help="target of the kernels (default: %(default)s)"),
    ],
)
