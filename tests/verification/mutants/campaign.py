"""The campaign: every mutant given to the tools, one after the other, until one finds it.

    python -m tests.verification.mutants.campaign [--processes 2] [--level kernel] [--each 5] [--of REGEX] [--keep]

What is known already, in the file of results, is not done again, so a campaign can be broken off and gone on with.
`--survivors`: those that no tool found are judged again, and no others, as when tools have learned something.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.verification.mutants import of_kernels, of_primitives, of_programs
from tests.verification.mutants.children import each
from tests.verification.mutants.job import Answer, Job
from tests.verification.mutants.record import keep, summary

LEVELS = {m.LEVEL: m.jobs for m in (of_programs, of_kernels, of_primitives)}
SECONDS = 600.0
EACH = 3
"""Of each kind of each subject, where time is short."""
RESULTS = Path("build/mutants.jsonl")


def drawn(jobs: Iterable[Job], many: int | None) -> list[Job]:
    """At most so many mutants of each kind of each subject, at random, always the same; one of each kind first."""
    chosen: list[tuple[int, Job]] = []
    for _, alike in groupby(sorted(jobs, key=_kind), key=_kind):
        found = list(alike)
        random.Random(0).shuffle(found)
        chosen += enumerate(found[:many])
    return [job for _, job in sorted(chosen, key=lambda c: c[0])]


def _kind(job: Job) -> tuple[str, str, str]:
    return job.level, job.subject, job.mutant.kind


def judged(jobs: list[Job], processes: int) -> Iterator[tuple[Job, Answer]]:
    """Jobs with their answers, as they come."""
    for job, answer in each(lambda j: j.judge(), jobs, processes, SECONDS):
        yield job, Answer("", answer) if isinstance(answer, str) else answer


def keys(job: Job, answer: Answer) -> dict[str, Any]:
    """A result as JSON."""
    m = job.mutant
    of = {"key": job.key, "level": job.level, "subject": job.subject, "kind": m.kind, "line": m.line, "what": m.what}
    return of | {"tool": answer.tool, "said": answer.said[:300], "why": answer.why}


def known(results: Path) -> list[dict[str, Any]]:
    """The results that there are."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def forgotten(results: Path) -> set[str]:
    """The keys of those that no tool found, whose results are forgotten."""
    every = known(results)
    results.write_text("".join(json.dumps(r) + "\n" for r in every if r["tool"]))
    return {r["key"] for r in every if not r["tool"]}


def carry_out(jobs: list[Job], results: Path, processes: int) -> None:
    """Judges what is not judged yet. Progress goes to stderr."""
    results.parent.mkdir(parents=True, exist_ok=True)
    done = {r["key"] for r in known(results)}
    left = [j for j in jobs if j.key not in done]
    began, missed = time.monotonic(), 0
    with results.open("a") as file:
        for n, (job, answer) in enumerate(judged(left, processes), 1):
            file.write(json.dumps(keys(job, answer)) + "\n")
            file.flush()
            missed += not answer.tool and not answer.why
            if n % 20 == 0 or n == len(left):
                took = f"{time.monotonic() - began:.0f} s"
                print(f"mutants: {n} of {len(left)}, {missed} missed, {took}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Gives mutants to the tools.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--each", type=int, help="so many of each kind of each subject (default: all)")
    parser.add_argument("--of", default="", help="subjects that match")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--survivors", action="store_true", help="only what no tool found, and that again")
    parser.add_argument("--keep", action="store_true", help="write the record that the page shows, of all results")
    args = parser.parse_args()
    every = {level: list(jobs()) for level, jobs in LEVELS.items()}
    again = forgotten(args.results) if args.survivors else None
    for level in args.level or LEVELS:
        jobs = (j for j in every[level] if again is None or j.key in again)
        wanted = drawn((j for j in jobs if re.search(args.of, j.subject)), args.each)
        print(f"{level}: {len(every[level])} mutants, {len(wanted)} to judge", file=sys.stderr, flush=True)
        carry_out(wanted, args.results, args.processes)
    if args.keep:
        keep(summary((j for made in every.values() for j in made), known(args.results)))


if __name__ == "__main__":
    main()
