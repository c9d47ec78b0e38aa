"""The command line of the harness; its flags, keys and exit codes are those of `tilelink.cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import TypeVar

from bench import compare, records
from bench.cases import LAYERS, QUICK, plan
from bench.operators import OPERATORS, Shape
from bench.processes import measure_all
from bench.table import table
from tilelink.cli import Parser, failure, respond
from tilelink.cli.command import Answer, UsageError
from tilelink.cli.program import read_dtype, read_shape, shape_text
from tilelink.errors import TileLinkError

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
    shapes = args.shapes or ([QUICK] if args.quick else list(LAYERS))
    seeds = range(QUICK_SEEDS if args.quick else SEEDS)
    try:
        cases = plan(args.ops, shapes, args.worlds, args.dtypes, seeds, args.out)
    except TileLinkError as e:
        if e.site and Path(e.site.file).parent == Path(__file__).parent:
            raise type(e)(e.message) from e  # it is about a flag, not about a line here
        raise
    _make(args.out)
    measured = measure_all(cases, args.jobs)
    made = records.records(measured, join(["python", "-m", "bench", *argv]))
    results = records.write(made, args.out)
    files = [str(results), *(f for m in measured for f in m.files)]
    status = "ok" if all(m.ok for m in measured) else "finding"
    listed = "".join(f"  {f}\n" for f in files)
    text = f"{table(made)}\nResults, and timelines (ui.perfetto.dev opens the traces):\n{listed}"
    return Answer({"records": made, "files": files}, text, status=status)


def _make(out: Path) -> None:
    """Makes the folder for results, and finds out whether it can be written to."""
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
        description="Measures operators against their unfused forms; every result is checked first. Leaves results,\n"
        f"as JSON lines, and timelines in --out. `python -m bench {COMPARE} A B` tells what got worse from A to B.",
        epilog="example:\n  python -m bench --shapes qkv M=64,N=512,K=1024 --worlds 2,4 --dtypes bf16,fp16",
    )  # fmt: skip
    known = "; ".join(
        f"of {op}: " + ", ".join(f"{name} ({shape_text(shape)})" for name, shape in operator.layers.items())
        for op, operator in OPERATORS.items()
    )
    every = ",".join(OPERATORS)
    parser.add_argument("--ops", type=_list(str), default=list(OPERATORS), metavar="OP,...", help=f"(default: {every})")
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", metavar="SHAPE",
        help=f"as of `tilelink --shape`, or a layer of Llama-3-8B at tensor parallel 4: {known} (default: all)",
    )  # fmt: skip
    parser.add_argument("--worlds", type=_list(int), default=[4], metavar="N,...", help="numbers of ranks (default: 4)")
    parser.add_argument(
        "--dtypes", type=_list(read_dtype), default=["bfloat16"], metavar="DTYPE,...", help="(default: bf16)"
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="for all files (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"a small shape, {shape_text(QUICK)}, and fewer runs")
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
    """Reads what stands between commas."""

    def several(text: str) -> list[T]:
        return [read(item.strip()) for item in text.split(",")]

    several.__name__ = f"list of {read.__name__}"  # as argparse calls it in errors
    return several


def _shape(text: str) -> Shape | str:
    return text if text in LAYERS else read_shape(text)
