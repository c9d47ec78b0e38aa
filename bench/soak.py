"""Random calls of all programs of the library, several in a row on one lane, until the time is up.

Each case draws from its seed: schedules, tiles, shapes, uneven and empty parts, dtypes, layouts, slots and the world.
Every result is compared with float64. Cases run on virtual ranks of a GPU, if there is one. Otherwise they run on CPU
ranks in a drawn order, and are searched for races, deadlocks and accesses out of bounds. Exit code 1 for a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from shlex import join
from typing import Any

import torch

from bench import progress
from bench.gpu.place import Place, dry, gpu
from bench.gpu.supervise import QUEUES
from bench.lanes import WORLDS, lane, world_of
from bench.records import cores, machine, versions
from bench.soak_experts import layer, soaked
from tilelink.tools.cli import Parser, failure, respond
from tilelink.tools.cli.command import Answer, UsageError

SECONDS = 240.0
OUT, RECORD = Path("bench/out"), "soak.json"
MOST = 10
"""The number of findings after which a soak ends: one mistake makes many findings."""
ON_ONE_GPU = 4
"""The most ranks that share a GPU: each takes a part of the SMs, and queues of the device."""


@dataclass(frozen=True)
class Case:
    """The result of the lane of a seed. `programs`: of its calls, in order. `error`: "" if nothing is wrong."""

    seed: int
    world: int
    programs: tuple[str, ...]
    error: str
    seconds: float


@cache
def place() -> Place:
    """Returns where the cases of this process run."""
    return gpu() if torch.cuda.is_available() else dry()


def run(seed: int) -> Case:
    """Runs the case of a seed."""
    began, drawn = time.perf_counter(), lane(seed)
    try:
        error = drawn.wrong(place())
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    error = f"{error}\n    in {drawn}" if error else ""
    programs = tuple(call.program.name for call in drawn.calls)
    return Case(seed, drawn.world, programs, error, round(time.perf_counter() - began, 2))


def soak(seeds: Iterator[int], seconds: float, jobs: int) -> Iterator[Case]:
    """Runs cases, `jobs` at a time, and begins none after `seconds`."""
    until = time.monotonic() + seconds
    if jobs == 1:
        while time.monotonic() < until:
            yield run(next(seeds))
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), progress.begin, (progress.began(),)) as pool:
        running = {pool.submit(run, seed): seed for seed in islice(seeds, jobs)}
        while running:
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                seed = running.pop(ended)
                try:
                    yield ended.result()
                except BrokenProcessPool as e:  # any of the running cases may be the one that died
                    yield Case(seed, world_of(seed), (), f"its process, or that of another case, has died: {e}", 0.0)
                    until = 0.0
                if time.monotonic() < until:
                    new = next(seeds)
                    running[pool.submit(run, new)] = new


def experts(first: int, seconds: float) -> list[Case]:
    """Runs cases of layers of experts: operators on several processes."""
    began = time.perf_counter()
    found = soaked(first, seconds)
    each = (time.perf_counter() - began) / len(found)
    return [Case(seed, layer(seed).world, ("mixture_of_experts",), error, round(each, 2)) for seed, error in found]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, given without the program's name; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    os.environ.update(QUEUES | os.environ)  # before CUDA starts
    try:
        answer = _answer(_parser().parse_args(argv), join(["python", "-m", "bench.soak", *argv]))
    except Exception as e:
        answer = failure(e)
    return respond("soak", answer, as_json="--json" in argv)


def _answer(args: argparse.Namespace, command: str) -> Answer:
    if args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: at least one process is needed")
    if args.case is not None:
        print(lane(args.case), file=sys.stderr)
        return _said([run(args.case)], args, command)
    first = args.seed if args.seed is not None else time.time_ns() % 1_000_000 * 1000
    if args.experts:
        progress.say(f"layers of experts from seed {first} on; `--experts --seed SEED --seconds 0` repeats one")
        return _said(experts(first, args.seconds), args, command)
    seeds = (seed for seed in count(first) if world_of(seed) in args.worlds)
    progress.say(f"cases from seed {first} on; `python -m bench.soak --case SEED` repeats one")
    done: list[Case] = []
    for case in soak(seeds, args.seconds, args.jobs):
        done.append(case)
        word = "WRONG" if case.error else "right"
        progress.say(f"{word}  case {case.seed}: {case.world} ranks, {', '.join(case.programs)}, {case.seconds} s")
        if case.error:
            progress.say(case.error)
        if sum(bool(c.error) for c in done) >= MOST:
            break
    return _said(done, args, command)


def _said(done: Sequence[Case], args: argparse.Namespace, command: str) -> Answer:
    """Writes the record of the cases to a file, and returns it as an answer."""
    wrong = [case for case in done if case.error]
    calls = Counter(name for case in done for name in case.programs)
    record: dict[str, Any] = {
        "kind": "measured", "what": "right or wrong; no performance", "on": _where(), "cases": len(done),
        "calls": calls.total(), "programs": dict(sorted(calls.items())),
        "worlds": dict(sorted(Counter(case.world for case in done).items())),
        "seeds": [case.seed for case in done], "findings": [asdict(case) for case in wrong],
        "seconds": round(time.time() - progress.began(), 1), "jobs": args.jobs,
        "versions": versions(), "machine": machine(),
    }  # fmt: skip
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / RECORD).write_text(json.dumps(record | {"command": command}, indent=1) + "\n")
    except OSError as e:
        raise UsageError(f"--out {args.out} can't be written to: {e.strerror}", str(args.out)) from e
    told = "".join(f"case {c.seed}: {c.error}\n" for c in wrong)
    findings = "1 finding" if len(wrong) == 1 else f"{len(wrong)} findings"
    summary = f"{len(done)} cases, {calls.total()} calls of {len(calls)} programs on {_where()}: {findings}\n"
    return Answer(record, told + summary, status="finding" if wrong else "ok")


def _where() -> str:
    return place().device if place().on_gpu else "CPU ranks"


def _parser() -> Parser:
    on_gpu = torch.cuda.is_available()
    worlds = [n for n in WORLDS if n <= ON_ONE_GPU or not on_gpu]
    jobs = 1 if on_gpu else cores()
    parser = Parser(
        prog="python -m bench.soak", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog="example:\n  python -m bench.soak --seconds 60 --worlds 2,3",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help="no case begins after (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the first case (default: by the clock)")
    parser.add_argument("--experts", action="store_true", help="layers of experts by operators, on gloo processes")
    parser.add_argument("--case", type=int, metavar="SEED", help="one case alone")
    parser.add_argument(
        "--worlds", type=_worlds, default=worlds, metavar="N,...",
        help=f"numbers of ranks (default: {','.join(map(str, worlds))})",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help=f"where {RECORD} goes (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _worlds(text: str) -> list[int]:
    found = [int(item) for item in text.split(",")]
    if not set(found) <= set(WORLDS):
        raise argparse.ArgumentTypeError(f"{text}: cases have {', '.join(map(str, WORLDS))} ranks")
    return found


if __name__ == "__main__":
    sys.exit(main())
