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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilelink.backend.gluon import takes
from tilelink.backend.lower import Lowered
from tilelink.backend.targets import FORMS
from tilelink.errors import FormError
from tilelink.frontend.sizes import Sizes, spread
from tilelink.inspect.compile import Compiled, CompileError, each_compiled, stand_ins
from tilelink.inspect.gates import Verdict, expectations, judge
from tilelink.inspect.machine_code import KernelCode, inspected
from tilelink.kernels import operators
from tilelink.language import Each
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
BUDGET = {"step": 80, "async_copies": 0, "spill_bytes": 0}
BUDGETS = {"sm_90": BUDGET, **{f"sm_{n}+warps": {**BUDGET, "step": 60} for n in (90, 100)}}
"""The most of each figure that an operator should need, by target."""
PUSHED = "push", "pull"
BACKWARD = "push", "pull", "fused", "engine"
SPECIALISED_EXPERTS = (
    (("all_gather_grouped_matmul", "all_gather_grouped_matmul[wanted]"), ("push", "pull", "by_rank")),
    (("all_gather_grouped_matmul",), ("engine",)),
    (("dispatch_matmul",), PUSHED),
    (("grouped_matmul_reduce_scatter", "grouped_matmul_reduce_scatter[wanted]"), ("push",)),
    (("matmul_combine", "matmul_combine[kept]"), ("push", "pull", "columns")),
)
WITHIN_BUDGET = frozenset(
    f"{name} {schedule} {target}"
    for target, names, schedules in (
        ("sm_90", tuple(f"all_gather_matmul{n}" for n in ("", "[gathered]", "[2]")), ("multicast",)),
        ("sm_90", ("all_gather_matmul",), ("push",)),
        ("sm_90", ("matmul_reduce_scatter_backward", "matmul_reduce_scatter_backward[dbias]"), ("pull", "engine")),
        ("sm_90", ("matmul_all_reduce", "matmul_fabric_all_reduce"), ("multicast",)),
        ("sm_90+warps", ("all_gather_matmul",), ("push", "pull", "engine", "pieces", "few")),
        ("sm_90+warps", ("matmul_reduce_scatter",), ("fused", "push", "pull", "engine", "few")),
        ("sm_90+warps", ("matmul_all_reduce",), ("fused", "push", "pull")),
        ("sm_90+warps", ("matmul_ring_reduce_scatter",), ("ringed",)),
        ("sm_90+warps", ("hierarchical_all_gather_matmul",), ("relayed",)),
        ("sm_90+warps", ("matmul", "expert_weight_gradient"), ("gemm",)),
        ("sm_90+warps", ("all_gather_matmul[2]",), ("push", "pull", "engine", "pieces", "few")),
        ("sm_90+warps", ("all_gather_matmul[gathered]",), ("push", "pull", "engine", "few")),
        ("sm_90+warps", ("all_gather_split_matmul", "all_gather_split_matmul[2]"), ("split",)),
        ("sm_90+warps", tuple(f"all_gather_matmul_backward{n}" for n in ("", "[2]", "[dbias]")), BACKWARD),
        ("sm_90+warps", tuple(f"matmul_reduce_scatter_backward{n}" for n in ("", "[dbias]")),
         ("push", "pull", "engine", "pieces")),
        ("sm_90+warps", ("all_gather_grouped_matmul[gathered]",), ("push", "pull", "by_rank", "engine")),
        ("sm_90+warps", ("dispatch_matmul[gathered]",), PUSHED),
        ("sm_90+warps", ("dispatch_matmul_backward", "matmul_combine_backward"), PUSHED),
        ("sm_100+warps", ("all_gather_matmul",), ("push", "pull", "engine", "pieces")),
        ("sm_100+warps", ("all_gather_matmul_backward", "all_gather_matmul_backward[dbias]"), BACKWARD),
        ("sm_100+warps", tuple(f"matmul_reduce_scatter_backward{n}" for n in ("", "[dbias]")),
         ("push", "pull", "engine", "pieces")),
        ("sm_100+warps", ("dispatch_matmul_backward",), PUSHED),
        ("sm_100+warps", ("all_gather_matmul[2]",), ("push", "pull", "pieces")),
        ("sm_100+warps", ("matmul_reduce_scatter",), ("engine",)),
        ("sm_100+warps", ("matmul_all_reduce", "matmul_reduce_scatter"), ("push", "pull")),
        ("sm_100+warps", ("matmul_ring_reduce_scatter",), ("ringed",)),
        ("sm_100+warps", ("hierarchical_all_gather_matmul",), ("relayed",)),
        ("sm_100+warps", ("matmul",), ("gemm",)),
        *((f"sm_{n}+warps", *of_experts) for n in (90, 100) for of_experts in SPECIALISED_EXPERTS),
    )
    for name in names
    for schedule in schedules
)  # fmt: skip
"""Cases that must keep to this budget, on every Triton; docs/targets.md has the figures of all cases."""
EXPERTS = (
    "all_gather_grouped_matmul", "all_gather_grouped_matmul[gathered]", "dispatch_matmul", "dispatch_matmul[gathered]",
    "matmul_combine", "matmul_combine[kept]",
)  # fmt: skip
WITH_WEIGHTS = (("dispatch_matmul_backward", 132), ("matmul_combine_backward", 168))
FOR_EXPERTS = "push", "pull", "few"
SENDING = "matmul_all_reduce", "matmul_reduce_scatter"
WITHIN = {
    "matmul_one_shot_all_reduce push sm_90+warps": {**BUDGET, "step": 64},  # its steps are twice as deep
    **{f"{name} fused sm_100+warps": {**BUDGET, "step": 62} for name in SENDING},
    **{
        f"mixture_of_experts{n} {s} sm_90+warps": {**BUDGET, "step": 66}  # two products
        for n in ("", "[gates+gathered+kept+ups]")
        for s in PUSHED
    },
    **{
        f"all_gather_gated_matmul {s} sm_{n}+warps": {**BUDGET, "step": step}  # two products
        for s in ("push", "pull", "engine", "few")
        for n, step in ((90, 66), (100, 88))
    },
    **{f"{name} {s} sm_90": {**BUDGET, "step": 92} for name in SENDING for s in PUSHED},
    **{
        f"all_gather_matmul{n} {s} sm_90": {**BUDGET, "step": 90}
        for n in ("", "[2]", "[gathered]")
        for s in (*PUSHED, "engine")
        if (n, s) != ("", "push")
    },
    **{f"{name} {schedule} sm_90": {**BUDGET, "step": 96} for name in EXPERTS for schedule in ("push", "pull")},
    **{f"all_gather_grouped_matmul[gathered] {s} sm_90": {**BUDGET, "step": 98, "spill_bytes": 44} for s in PUSHED},
    **{f"{name} few sm_90": {**BUDGET, "step": 108} for name in EXPERTS},
    "matmul_all_reduce fused sm_90": {**BUDGET, "step": 92},
    "all_gather_matmul_backward fused sm_90": {**BUDGET, "step": 88},
    **{f"all_gather_matmul_backward[2] {s} sm_90": {**BUDGET, "step": 86} for s in (*PUSHED, "fused")},
    **{f"{name} {s} sm_90": {**BUDGET, "step": step} for name, step in WITH_WEIGHTS for s in FOR_EXPERTS},
    **{f"all_gather_grouped_matmul {s} sm_90": {**BUDGET, "step": 96} for s in ("by_rank", "multicast")},
    "all_gather_grouped_matmul engine sm_90": {**BUDGET, "step": 100},
    "grouped_matmul_reduce_scatter push sm_90": {**BUDGET, "step": 96},
    "grouped_matmul_reduce_scatter few sm_90": {**BUDGET, "step": 108},
    "matmul_combine columns sm_90": {**BUDGET, "step": 96},
    "expert_weight_gradient gemm sm_90": {**BUDGET, "step": 128},
    **{
        f"{name} {s} sm_90": {**BUDGET, "step": 144}  # two products
        for name in ("mixture_of_experts", "mixture_of_experts[gates+gathered+kept+ups]")
        for s in FOR_EXPERTS
    },
}
"""The budgets of other cases. With descriptors of peers, ptxas keeps fewer addresses in uniform registers if there are
two products or rows are kept; the ptxas of Triton 3.9 does so wherever a role pushes. Loops over rows of experts also
compute where the rows end, and the expert's weight. On Triton 3.8.0 gradients of weights take 116 to 165 instructions,
on other versions at most 109, and `engine` takes 97. Waits set their registers before the first poll: where that takes
registers away, `fused` AllReduce takes 90 on 3.7.1 and 92 on 3.9.0, the backward of AllGather 87 on
3.9.0, and experts that keep what they gather spill 44 bytes on 3.6.0. In many programs ptxas keeps the address of the
descriptors in registers of threads: about 10 more instructions (`matmul` alone: 86 to 88)."""


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
        lists = any(isinstance(p, Each) for p in program.declared.values())
        for variant in (program, program.of(2)) if lists else (program,):
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


def over(name: str, figures: Figures) -> Iterator[str]:
    """Yields the figures that are over the budget of a case. If no steady loop is found, that is a finding, too."""
    if name in WITHIN_BUDGET or name in WITHIN:
        now, budget = asdict(figures), WITHIN.get(name) or BUDGETS[name.split()[-1]]
        if not figures.step:
            yield "step: no loop with matrix instructions was found"
        yield from (f"{k}: {now[k]}, the budget is {most}" for k, most in budget.items() if now[k] > most)


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
