"""The command line of the harness; its flags, keys and exit codes are those of `tilelink.tools.cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import TypeVar

from bench import compare, index, overview, records
from bench.cases import LAYERS, QUICK, Case, plan
from bench.operators import OPERATORS, Shape
from bench.processes import measure_all, run_all
from bench.table import table
from tilelink.errors import TileLinkError
from tilelink.tools.cli import Parser, failure, respond
from tilelink.tools.cli.command import Answer, UsageError
from tilelink.tools.cli.program import read_dtype, read_shape, shape_text

T = TypeVar("T")
COMPARE = "compare"
SEEDS, QUICK_SEEDS = 3, 2
OUT = Path("bench/out")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, given without the program's name; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    comparing = argv[:1] == [COMPARE]
    try:
        if comparing:
            answer = _compare(_compare_parser().parse_args(argv[1:]))
        else:
            answer = _run(_parser().parse_args(argv), argv)
    except Exception as e:
        answer = failure(e)
    return respond(f"bench {COMPARE}" if comparing else "bench", answer, as_json="--json" in argv)


def _run(args: argparse.Namespace, argv: Sequence[str]) -> Answer:
    if args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: at least one process is needed")
    jobs, cases = _asked(args)
    _make(args.out)
    command, made, texts, files = join(["python", "-m", "bench", *argv]), list[records.Record](), list[str](), []
    if jobs:
        found = run_all(overview.run, jobs, args.jobs, cost=lambda job: job.cost, said=overview.said)
        made += [r | records.about(command) for of_job in found for r in of_job]
        texts.append(overview.text(made))
        files += [str(args.out / r["page"]) for r in made if r.get("page")]
    if cases:
        measured = measure_all(cases, args.jobs)
        logical = records.records(measured, command)
        made += logical
        texts.append(table(logical))
        files += [f for m in measured for f in m.files]
    files.append(str(records.write(made, args.out)))
    text = "\n".join(texts)
    page = str(index.write(text, made, files, args.out))
    status = "ok" if all(r["ok"] for r in made) else "finding"
    return Answer({"records": made, "files": [page, *files]}, f"{text}\nAll pages and results: {page}\n", status=status)


def _asked(args: argparse.Namespace) -> tuple[list[overview.Job], list[Case]]:
    """Returns the checks and predictions that flags ask for, and the cases to execute for their logical makespan."""
    executed = args.full or args.quick or args.shapes is not None
    shapes = args.shapes or ([QUICK] if args.quick else list(LAYERS))
    seeds = range(QUICK_SEEDS if args.quick else SEEDS)
    try:
        jobs = overview.jobs(args.ops, args.worlds, args.dtypes, args.out) if args.full or not executed else []
        ops = args.ops or list(OPERATORS)
        if jobs:  # `overview.jobs` has checked the names; only some programs have a form to execute here
            ops = [op for op in ops if op in OPERATORS]
        return jobs, plan(ops, shapes, args.worlds, args.dtypes, seeds, args.out) if executed and ops else []
    except TileLinkError as e:
        if e.site and Path(e.site.file).parent == Path(__file__).parent:
            raise type(e)(e.message) from e  # it is about a flag, not about a line here
        raise


def _make(out: Path) -> None:
    """Makes the folder for results. Raises UsageError if it can't be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / records.RESULTS).write_text("")
    except OSError as e:
        raise UsageError(f"--out {out} can't be written to: {e.strerror}", str(out)) from e


def _compare(args: argparse.Namespace) -> Answer:
    before, after = (_read(path) for path in (args.before, args.after))
    found = compare.regressions(before, after)
    keys = {"regressions": found, "compared": len(before)}
    return Answer(keys, compare.text(found, len(before)), status="finding" if found else "ok")


def _read(path: Path) -> list[records.Record]:
    try:
        found = records.read(path)
    except OSError as e:
        raise UsageError(f"{path} can't be read: {e.strerror}", str(path)) from e
    except ValueError as e:
        raise UsageError(f"{path} holds no results of a benchmark: {e}", str(path)) from e
    if not found:
        raise UsageError(f"{path} is empty", str(path))
    return found


# ---- flags


def _parser() -> Parser:
    parser = Parser(
        prog="python -m bench", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Checks every program in every schedule at a small shape on CPU ranks, and predicts the MLPs of\n"
        "the TileLink paper, in under three minutes on two cores. Leaves pages and results (JSON lines) in --out.\n"
        "With --full, --quick or --shapes it executes operators beside their unfused forms, too, for their logical\n"
        f"makespan. `python -m bench {COMPARE} A B` tells what got worse from A to B.",
        epilog="examples:\n  python -m bench --ops all_gather_matmul --worlds 2,3 --dtypes bf16,fp16\n"
        "  python -m bench --shapes qkv M=64,N=512,K=1024 --worlds 2,4",
    )  # fmt: skip
    known = "; ".join(
        f"of {op}: " + ", ".join(f"{name} ({shape_text(shape)})" for name, shape in operator.layers.items())
        for op, operator in OPERATORS.items()
    )
    parser.add_argument(
        "--ops", type=_list(str), metavar="OP,...", help="programs of `tilelink list` (default: all); those that are "
        f"executed for a figure: {', '.join(OPERATORS)}",
    )  # fmt: skip
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", metavar="SHAPE",
        help=f"execute these: as of `tilelink --shape`, or a layer of Llama-3-8B at tensor parallel 4: {known}",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="execute all of these layers, too (a quarter of an hour)")
    parser.add_argument("--worlds", type=_list(int), default=[4], metavar="N,...", help="numbers of ranks (default: 4)")
    parser.add_argument(
        "--dtypes", type=_list(read_dtype), default=["bfloat16"], metavar="DTYPE,...", help="(default: bf16)"
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="for all files (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"execute one shape, {shape_text(QUICK)}, twice")
    parser.add_argument(
        "--jobs", type=int, default=records.cores(), metavar="N", help="processes (default: one a core, %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _compare_parser() -> Parser:
    parser = Parser(
        prog=f"python -m bench {COMPARE}", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Tells what got worse from one result to another; the exit code is 1 if anything did. The wall\n"
        f"time of the interpreter is not compared; other figures may grow by {compare.TOLERANCE:.0%}.",
        epilog=f"example:\n  python -m bench {COMPARE} main/bench/out bench/out",
    )  # fmt: skip
    parser.add_argument("before", metavar="A", type=Path, help="results: a file, or the folder given to --out")
    parser.add_argument("after", metavar="B", type=Path, help="results to hold against them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _list(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Returns a reader of items that are separated by commas."""

    def several(text: str) -> list[T]:
        return [read(item.strip()) for item in text.split(",")]

    several.__name__ = f"list of {read.__name__}"  # argparse shows this name in errors
    return several


def _shape(text: str) -> Shape | str:
    return text if text in LAYERS else read_shape(text)
