"""`python -m bench.explore` runs every program of the library and of the examples, in all its schedules and in worlds
of 2 to 4 ranks, under many schedules of their execution: lowered kernels in the interpreter, events by the oracle.

It writes what it ran, with the seeds, to bench/results/explore.jsonl, and leaves lines of other cases unchanged.
The exit code is 1 if anything is found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench import progress
from bench.gates import forms, told_rows
from bench.processes import finished
from bench.records import Record, json_lines
from tilelink.frontend.ir import RANKS_DIM
from tilelink.programs.program import Program
from tilelink.tools.cli.explore import TILE
from tilelink.tools.cli.program import read_schedule
from tilelink.tools.explore import Exploration, Lowered, Oracle, Subject, explore
from tilelink.tools.explore.trial import POLICIES

RECORD = Path(__file__).parent / "results" / "explore.jsonl"
WORLDS = (2, 3, 4)
CUT = {2: 18, 3: 10, 4: 10}
"""By world, the length of a rank's part along a dimension that is cut: a tile and a rest, or only a rest."""
SIZES = {"M": 18, "N": 16, "K": 20, "H": 2, "B": 2, "experts": 2, "top": 2, "splits": 2}
OTHERS = 16
SMS, DTYPE = 24, "float32"
BACKENDS = {"lowered": 2000, "oracle": 8000}
"""The backends, and the number of schedules of all cases together."""
NODES = {"hierarchical_all_gather_matmul": 2}
"""The number of nodes that the ranks are on, for programs about several nodes."""
Key = tuple[str, str, int, str, str]
"""Program, schedule, world, backend and policy."""


@dataclass(frozen=True)
class Case:
    """A program, by its label, in a schedule and a world, under execution schedules of the seeds from 0 to `seeds` - 1.
    "all_gather_grouped_matmul[wanted]" gets the optional input that says which rows to move."""

    program: str
    schedule: str
    world: int
    backend: str
    policy: str
    seeds: int

    @property
    def key(self) -> Key:
        """The key of the case: the record has one line for each key."""
        return self.program, self.schedule, self.world, self.backend, self.policy


@dataclass(frozen=True)
class Explored:
    """The result of a case."""

    case: Case
    schedules_run: int
    distinct: int
    schedule_hash: str
    findings: tuple[dict[str, Any], ...]
    seconds: float

    def record(self) -> Record:
        """Returns the line of the record."""
        about = {k: v for k, v in asdict(self).items() if k != "case"}
        return {"kind": "measured", **asdict(self.case), **about}


@cache
def known() -> dict[tuple[str, str], Program]:
    """Returns the programs, by label and name of a schedule. Raises ValueError if two have the same names."""
    found: dict[tuple[str, str], Program] = {}
    for name, program, _, asked in forms():
        if asked and asked != told_rows(program):
            continue  # forms with optional outputs store these outputs, and differ in nothing else
        label, schedule = name.rsplit(" ", 1)
        if (label, schedule) in found:
            raise ValueError(f"two programs are called {name}: name one anew")
        found[label, schedule] = program
    return found


def recorded(file: Path) -> dict[Key, Record]:
    """Returns the lines of a record, by key."""
    found = json_lines(file) if file.exists() else []
    return {(r["program"], r["schedule"], r["world"], r["backend"], r["policy"]): r for r in found}


def cases(counts: dict[str, int], only: str = "") -> Iterator[Case]:
    """Yields all cases; the cases of a backend share its number of schedules evenly."""
    for backend, count in counts.items():
        kinds = [(p, s, w, policy) for p, s in known() for w in WORLDS for policy in POLICIES]
        kinds = [k for k in kinds if only in f"{k[0]} {k[1]}"]
        for p, s, w, policy in kinds:
            yield Case(p, s, w, backend, policy, -(-count // len(kinds)))


def subject(case: Case) -> Subject:
    """Returns the subject that a case runs."""
    program = known()[case.program, case.schedule]
    asked = told_rows(program) if case.program != program.label else frozenset[str]()
    dtypes = dict.fromkeys(program.of_any_dtype - program.optional, DTYPE) | dict.fromkeys(asked, "int32")
    absent = program.optional - asked
    dims = program.recorded(absent).dims - {RANKS_DIM}
    cut = program.bind(case.schedule, DTYPE, absent).cut
    sizes: dict[str, Any] = {d: SIZES.get(d, OTHERS) for d in sorted(dims)}
    sizes |= dict.fromkeys(dims & set(cut), CUT[case.world] * case.world)
    schedule = read_schedule(program, case.schedule, case.world, sizes, TILE)
    per_node = case.world // NODES[program.name] if program.name in NODES and case.world % 2 == 0 else None
    make = Lowered if case.backend == "lowered" else Oracle.of
    return make(program, schedule, world=case.world, dtypes=dtypes, sms=SMS, per_node=per_node, **sizes)


def explored(case: Case) -> Explored:
    """Runs a case."""
    began = time.perf_counter()
    found: Exploration = explore(subject(case), range(case.seeds), case.policy)
    return Explored(
        case, found.schedules_run, found.distinct, found.schedule_hash, tuple(f.keys() for f in found.found),
        round(time.perf_counter() - began, 2),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.explore", description=(__doc__ or "").split("\n\n")[0])
    for backend, count in BACKENDS.items():
        what = "schedules (default: %(default)s)"
        parser.add_argument(f"--{backend}", type=int, default=count, metavar="N", help=what)
    parser.add_argument("--only", default="", metavar="TEXT", help="programs and schedules whose names contain this")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RECORD, metavar="FILE", help="the record (default: %(default)s)")
    args = parser.parse_args(argv)
    asked = list(cases({b: getattr(args, b) for b in BACKENDS if getattr(args, b)}, args.only))
    progress.say(f"{len(asked)} cases, {sum(c.seeds for c in asked)} schedules")
    done: dict[Case, Explored] = {}
    lines, order = recorded(args.out), [c.key for c in cases(BACKENDS)]
    for _, e in finished(explored, asked, args.jobs):
        done[e.case] = e
        lines[e.case.key] = e.record()
        c, runs = e.case, sum(d.schedules_run for d in done.values())
        what = f"{c.program} {c.schedule}, {c.world} ranks, {c.backend}, {c.policy}"
        progress.say(f"{what}: {e.schedules_run} schedules, {len(e.findings)} findings; {runs} in all")
        args.out.write_text("".join(json.dumps(lines[k]) + "\n" for k in order if k in lines))
    return respond(list(done.values()))


def respond(done: Sequence[Explored]) -> int:
    """Prints the number of schedules and the findings. Returns the exit code."""
    for backend in BACKENDS:
        mine = [e for e in done if e.case.backend == backend]
        runs, distinct = sum(e.schedules_run for e in mine), sum(e.distinct for e in mine)
        names = len({e.case.program for e in mine})
        print(f"{backend}: {runs} schedules ({distinct} distinct) of {names} programs in {len(mine)} cases")
    found = [(e.case, f) for e in done for f in e.findings]
    for case, f in found:
        print(f"\n{case}\n{f['kind']} (seed {f['seed']}): {f['what']}")
    print("1 finding" if len(found) == 1 else f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
