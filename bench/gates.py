"""`python -m bench.gates` compiles every kernel of the library and of the examples for every target, without a GPU. It
compares the code with the program, and the figures with the recorded ones.

Nothing is run: registers, memory and instructions are read from the code that Triton compiles. The record of a Triton,
in bench/results/gates/, has figures, and the known findings in kernels that do not suit a target. The exit code is 1
if a gate finds anything else, or if a figure is clearly worse; --renew writes the record. The record of a case also has
a digest of everything that decides the compiled code; --changed skips cases whose digest is the same.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import inspect
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from bench.operands import takes_lists
from tilelink.backend.gluon import takes
from tilelink.backend.lower import Lowered
from tilelink.backend.targets import FORMS
from tilelink.errors import FormError
from tilelink.frontend.sizes import Sizes, spread
from tilelink.inspect.compile import Compiled, CompileError, each_compiled, stand_ins
from tilelink.inspect.gates import Verdict, expectations, judge
from tilelink.inspect.machine_code import KernelCode, inspected
from tilelink.kernels import operators
from tilelink.programs import fitting
from tilelink.programs.program import Program

HERE = Path(__file__).parent
DECIDE = "inspect/*.py", "backend/descriptors.py", "backend/targets/*.py"
DECIDE_SPECIALISED = (*DECIDE, *(f"backend/gluon/{n}.py" for n in ("primitives", "ring", "carry", "wgmma", "tcgen05")))
"""Files of the package that decide what a lowered source compiles to, and how the result is read, in the portable and
in the specialised form."""
RECORDS = HERE / "results" / "gates"
WORLD, DTYPE, PROCESSES = 8, "bfloat16", 2
SIZES = {"M": 8192, "N": 3584, "K": 8192, "S": 8192, "H": 16, "D": 128, "B": 64, "E": 128}
SIZES |= {"sent": 65536, "routed": 65536, "experts": 8, "tokens": 8192, "top": 8}
SIZES |= {"splits": 4, "depth": 2048}
"""Llama-3-70B's gate and up projection on 8 ranks, 8192 tokens; attention of 16 heads; blocks of 128 with a scale; 64
experts, 8 per token."""
SLACK = {
    "registers": 1.1, "shared_bytes": 1.0, "spill_bytes": 1.0, "instructions": 1.1, "step": 1.1, "async_copies": 1.0,
}  # fmt: skip
"""The factor by which each figure may exceed the record."""
BUDGETS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "budgets.toml").read_text())
"""The budgets of the gates, by target and line; the file says what its lines mean."""


@dataclass(frozen=True)
class Figures:
    """What is on record of a program on a target: of the largest of its kernels; instructions of all of them. `step`:
    instructions of the largest steady loop with matrix instructions; `async_copies`: loads in such a loop that copy
    from pointers (cp.async), because no descriptor describes what they load."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    instructions: int
    step: int = 0
    async_copies: int = 0

    @classmethod
    def of(cls, kernels: Sequence[Compiled], code: Sequence[KernelCode]) -> Figures:
        steps = [role.step for kernel in code for role in kernel.roles if role.step.kinds["matrix"]]
        return cls(
            max(k.registers for k in kernels), max(k.spill_bytes for k in kernels),
            max(k.shared_bytes for k in kernels), sum(map(instructions, kernels)),
            max((step.total for step in steps), default=0),
            max((step.kinds["async_copy"] for step in steps), default=0),
        )  # fmt: skip


@dataclass(frozen=True)
class Gated:
    """A program with a schedule, compiled for a target. `digest`: of everything that decides the compiled code."""

    name: str
    digest: str
    verdict: Verdict | None
    figures: Figures | None
    findings: tuple[str, ...]


def programs() -> Iterator[tuple[Program, str]]:
    """Yields the programs of the library and of the examples, each with the names of its schedules. Programs that take
    lists also come as variants for lists of two."""
    examples = HERE.parent / "examples"
    sys.path.insert(0, str(examples))
    found = dict(operators())
    for path in sorted(examples.glob("*.py")):
        module = importlib.import_module(path.stem)
        found |= {n: p for n, p in vars(module).items() if isinstance(p, Program) and p.file == str(path)}
    for program in found.values():
        for variant in (program, program.of(2)) if takes_lists(program) else (program,):
            yield from ((variant, schedule) for schedule in program.schedules_without(program.optional))


def forms() -> Iterator[tuple[str, Program, str, frozenset[str]]]:
    """Yields (name, program, schedule, optional tensors). Programs with optional outputs also come with these outputs,
    and programs that may be told which rows to move also with these inputs, if the schedule takes them."""
    for program, schedule in programs():
        yield f"{program.label} {schedule}", program, schedule, frozenset()
        for asked in (program.on_demand, told_rows(program)) if program.variant.members == 1 else ():
            if asked and fitting.takes(program, schedule, asked):
                yield f"{program.name}[{'+'.join(sorted(asked))}] {schedule}", program, schedule, asked


def told_rows(program: Program) -> frozenset[str]:
    """Returns the optional inputs of integers, which say what rows to move."""
    integers = {n for n in program.optional - program.on_demand if str(program.parameters[n].dtype) == "int32"}
    return frozenset(integers)


def lowered_for(
    program: Program, schedule: str, target: str, asked: frozenset[str] = frozenset(), *, dtype: str = DTYPE,
    even: bool = True,
) -> tuple[Lowered, Sizes]:  # fmt: skip
    """Returns a program lowered at the sizes of the gates, with the optional tensors in `asked` only. If not `even`,
    every second rank has parts of another length."""
    recorded = program.recorded(program.optional)
    dims = recorded.dims.union(*(t.called for t in recorded.tensors))
    sizes: dict[str, Any] = {d: SIZES[d] for d in SIZES if d in dims}
    declared = {n: program.parameters[n].dtype or dtype for n in asked}
    dtypes = dict.fromkeys(program.of_any_dtype - program.optional, dtype) | declared
    if not even:
        absent = program.absent(dtypes)
        bound = program.bind(program.schedule(schedule, absent), dtypes, absent)
        shorter = {d: sizes[d] // WORLD - 3 for d in spread(bound) if d in sizes and d not in bound.routed}
        sizes |= {d: [n, sizes[d] // (WORLD // 2) - n] * (WORLD // 2) for d, n in shorter.items()}
    return program.lowered_at(schedule, target=FORMS[target], world=WORLD, sizes=sizes, dtypes=dtypes)


def gated(targets: list[str], only: str, leave_out: Mapping[str, str]) -> Iterator[Gated]:
    """Compiles and judges every program, schedule and target, except cases whose digest is the one in `leave_out`."""
    cases = [(f"{name} {t}", p, s, t, asked) for name, p, s, asked in forms() for t in targets]
    jobs: dict[str, tuple[Lowered, Sizes]] = {}
    digests: dict[str, str] = {}
    for name, program, schedule, target, asked in (c for c in cases if only in c[0]):
        with suppress(FormError):  # raised for programs without a specialised form
            lowered, sizes = lowered_for(program, schedule, target, asked)
            digests[name] = digest(lowered, sizes)
            if leave_out.get(name) != digests[name]:
                jobs[name] = lowered, sizes
    for name, made in zip(jobs, each_compiled(jobs.values(), judged, processes=PROCESSES), strict=True):
        if isinstance(made, CompileError):
            yield Gated(name, digests[name], None, None, (made.message,))
        else:
            verdict, figures = made
            yield Gated(name, digests[name], verdict, figures, verdict.findings)


def digest(lowered: Lowered, sizes: Sizes) -> str:
    """Returns a digest of the input of Triton, of what the gates expect of the code, and of the code that compiles it
    and reads the result."""
    kernels = [(k.name, stand_ins(lowered, k.parameters, sizes)) for k in lowered.kernels]
    given = [(name, [(n, described(v)) for n, v in values.items()]) for name, values in kernels]
    functions = [(name, function.cache_key) for name, function in lowered.functions]  # covers functions they call
    source = lowered.source if lowered.beside is None else (lowered.source, lowered.beside.source)
    asked = source, functions, sorted(lowered.options.items()), given, lowered.target.name
    decided = asked, expectations(lowered), deciding(lowered.target.specialised)
    return hashlib.sha256(repr(decided).encode()).hexdigest()[:16]


def described(value: Any) -> Any:
    """Returns the properties of an argument that Triton specialises a kernel for."""
    if isinstance(value, int):
        return value
    about = ("dtype", "shape", "strides", "block_shape", "layout")
    return *(str(getattr(value, k, "")) for k in about), str(getattr(getattr(value, "base", None), "dtype", ""))


@cache
def deciding(specialised: bool) -> str:
    """Returns a digest of the code that decides what a lowered source compiles to, and how the result is read. Comments
    and docstrings decide nothing."""
    package = HERE.parent / "tilelink"
    decide = DECIDE_SPECIALISED if specialised else DECIDE
    texts = [path.read_text() for pattern in decide for path in sorted(package.glob(pattern))]
    texts += [inspect.getsource(made) for made in (Figures, judged, instructions)]
    read = *(code_of(text) for text in texts), (takes.SUMS, takes.LANES) if specialised else ()
    return hashlib.sha256(repr(read).encode()).hexdigest()


def code_of(text: str) -> str:
    """Returns the syntax tree of Python source, without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(ast.Constant(str())), *rest]:
                node.body = rest  # type: ignore[attr-defined]
    return ast.dump(tree)


def judged(lowered: Lowered, kernels: tuple[Compiled, ...]) -> tuple[Verdict, Figures]:
    """What the gates say of compiled kernels, and their figures."""
    return judge(lowered, kernels), Figures.of(kernels, inspected(lowered, kernels))


def instructions(kernel: Compiled) -> int:
    """Instructions of PTX or GCN."""
    lines = (line.split("//")[0].split(";")[0].strip() for line in kernel.code.splitlines())
    return sum(1 for line in lines if line and not line.startswith((".", "{", "}", ")")) and not line.endswith(":"))


def budget(case: str) -> dict[str, int]:
    """Returns the most of each figure that a case may need; {} for a case without a budget."""
    program, schedule, target = case.split()
    for line, most in BUDGETS.get(target, {}).items():
        if covers(line, program, schedule):
            figures = {"step": most} if isinstance(most, int) else most
            return {"step": 0, "async_copies": 0, "spill_bytes": 0} | figures
    return {}


def covers(line: str, program: str, schedule: str) -> bool:
    """Whether a line of the budgets is for a program in a schedule."""
    name, *schedules = line.split()
    return schedule in schedules and fnmatchcase(program, name.replace("[", "[[]"))  # brackets belong to names


def held(case: str) -> bool:
    """Whether a case is held to the steps that an operator should need on its target."""
    return 0 < budget(case).get("step", 0) <= BUDGETS["operators"].get(case.split()[-1], 0)


def over(name: str, figures: Figures) -> Iterator[str]:
    """Yields the figures that are over the budget of a case. If no steady loop is found, that is a finding, too."""
    now, most = asdict(figures), budget(name)
    if most and not figures.step:
        yield "step: no loop with matrix instructions was found"
    yield from (f"{k}: {now[k]}, the budget is {n}" for k, n in most.items() if now[k] > n)


def worse(figures: Figures, before: dict[str, Any]) -> list[str]:
    """Returns the figures that are clearly worse than before."""
    now = asdict(figures)
    return [f"{k}: {now[k]}, it was {before[k]}" for k in SLACK if k in before and now[k] > before[k] * SLACK[k]]


def main(argv: list[str] | None = None) -> int:
    import triton

    parser = argparse.ArgumentParser(prog="python -m bench.gates", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--target", action="append", choices=[t for t in FORMS if FORMS[t].backend])
    parser.add_argument("--only", default="", help="cases whose name contains this: PROGRAM SCHEDULE TARGET")
    parser.add_argument("--renew", action="store_true", help="write the figures to the record")
    parser.add_argument("--changed", action="store_true", help="skip cases whose digest is the one on record")
    args = parser.parse_args(argv)
    path = RECORDS / f"triton-{triton.__version__}.json"
    recorded: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    bad = compiled = 0
    print(f"Triton {triton.__version__}; compiled only, for {WORLD} ranks\n")
    heads = ("regs", "spill", "shared", "instr", "mma", "step", "async")
    print(f"{'program schedule target':<52} " + " ".join(map("{:>7}".format, heads)))
    digests = {name: figures.get("digest", "") for name, figures in recorded.items()} if args.changed else {}
    for case in gated(args.target or [t for t in FORMS if FORMS[t].backend], args.only, digests):
        before = recorded.get(case.name, {})
        row: tuple[int, ...] = ()
        changes: list[str] = []
        if case.figures is not None and case.verdict is not None:
            f = case.figures
            row = *astuple(f)[:4], case.verdict.found["mma"], f.step, f.async_copies
            changes = [*over(case.name, f), *([] if args.renew else worse(f, before))]
            recorded[case.name] = {"digest": case.digest, **asdict(f), "findings": list(case.findings)}
        known = case.findings if args.renew else tuple(before.get("findings", ()))
        new = [x for x in case.findings if x not in known] + changes
        print(f"{case.name:<52} " + " ".join(map("{:>7}".format, row)))
        for finding in (*(f"known: {x}" for x in case.findings if x in known), *new):
            print(f"    {finding}", flush=True)
        bad, compiled = bad + bool(new), compiled + 1
    if args.renew:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        print(f"\nwritten: {path}; python -m bench.pages writes its tables")
    print(f"\n{compiled} compiled" + "; all others are as on record" * args.changed)
    print(f"{bad} findings" if bad else "all as their programs say")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
