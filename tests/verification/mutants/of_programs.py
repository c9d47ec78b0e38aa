"""Mutants of programs as users write them, and how they are judged: made, checked, executed, under every schedule."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from tests.modules import load
from tests.verification.mutants import programs, tools
from tests.verification.mutants.equivalents import of_program
from tests.verification.mutants.job import Answer, Job
from tests.verification.mutants.mutant import Mutant, mutants
from tests.verification.mutants.of_kernels import right
from tests.verification.mutants.subjects import Subject, subjects
from tests.verification.mutants.tools import CHECK, EXECUTION, FRONTEND, Ran
from tilelink.programs.program import Program

LEVEL = "program"
SEEDS = range(2)


def jobs() -> Iterator[Job]:
    """All mutants of the files of all programs, for the programs in them."""
    for name in dict.fromkeys(s.name for s in subjects()):
        of = tuple(s for s in subjects() if s.name == name)
        text = source(of[0])
        for mutant in mutants(text, programs.OPERATORS):
            if _is_of(of[0], mutant):
                yield Job(LEVEL, name, mutant, text, partial(judge, of, mutant))


def judge(of: tuple[Subject, ...], mutant: Mutant) -> Answer:
    """What finds a mutant: under one schedule of its program at least. The frontend and the check also look at the
    first one with all optional outputs asked for."""
    try:
        program = loaded(of[0], mutant.of(source(of[0])))
    except Exception as e:
        return Answer(FRONTEND, f"{type(e).__name__}: {e}")
    checked = dict.fromkeys((*of, of[0].asking))
    for subject in checked:
        if said := tools.frontend(subject, program):
            return Answer(FRONTEND, said)
    for subject in checked:
        if new := set(tools.check(subject, program)) - set(tools.check(subject, subject.program)):
            return Answer(CHECK, "; ".join(sorted(new)))
    rans: list[tuple[Ran, Ran]] = []
    for subject in of:
        for seed in SEEDS:
            ran = tools.run(subject, program, seed=seed)
            if said := tools.execution(ran, right(subject)):
                return Answer(EXECUTION, said)
            rans.append((ran, right(subject)))
    return Answer("", "", of_program(of[0].name, mutant, rans))


@cache
def source(subject: Subject) -> str:
    """The file that a subject stands in."""
    return Path(subject.program.file).read_text()


def loaded(subject: Subject, text: str) -> Program:
    """The program of a file with another text."""
    folder = Path(tempfile.mkdtemp(prefix="mutant_"))
    found: Program = getattr(load(folder / f"{Path(subject.program.file).stem}_mutant.py", text), subject.name)
    return found


def _is_of(subject: Subject, mutant: Mutant) -> bool:
    """Whether a mutant is in what a program is made of: its function, its tile functions, what stands outside of all
    functions (schedules)."""
    program = subject.program
    launched = [launch.function for launch in program.recorded().launches]
    own = {program.name, *(f.node.name for f in launched if f.file == program.file)}
    body = ast.parse(source(subject)).body
    inside = (f for f in body if isinstance(f, ast.FunctionDef) and f.lineno <= mutant.line <= (f.end_lineno or 0))
    function = next(inside, None)
    return function is None or function.name in own
