"""`tilelink explore`: a program under many schedules, and what goes wrong in any of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tilelink.programs.show import with_defaults
from tilelink.tools.cli.command import Answer, Command
from tilelink.tools.cli.program import add_program_flags, find, shape_text
from tilelink.tools.cli.schedule import read_schedule, schedule_text

if TYPE_CHECKING:
    from tilelink.frontend.schedule import Schedule
    from tilelink.programs.program import Program
    from tilelink.tools.explore import Exploration, Lowered, Oracle

SIZE, TILE = 40, 16
"""Sizes that are not given, and the largest extent of the tiles of a schedule that is named: several tiles, with rests,
and so small that a schedule takes a fraction of a second."""
SEEDS, SMS = 100, 24
EVERY = 2.0
"""Seconds between two lines of progress."""


def run(args: argparse.Namespace) -> Answer:
    """Runs a program under many schedules: races, deadlocks, accesses out of bounds, results that are not always the
    same. Schedules are fixed by seeds, and repeated by them."""
    from tilelink.analysis.check import idle
    from tilelink.analysis.check.refusals import KINDS
    from tilelink.errors import TileLinkError
    from tilelink.tools.explore import Exploration, Finding, explore

    program = find(args.program)
    sizes: Mapping[str, Any] = with_defaults(program, args.shape, program.absent(args.dtype), SIZE)
    schedule = read_schedule(program, args.schedule, args.world, dict(sizes), TILE, dtypes=args.dtype)
    seeds = range(args.seeds) if args.replay is None else [args.replay]
    notes: list[str] = []
    try:
        subject = _subject(args, program, schedule, sizes)
        notes += idle(subject.events)
        exploration = explore(subject, seeds, args.policy, _progress(len(seeds)))
    except TileLinkError as e:
        if type(e) not in KINDS:
            raise
        report = program.check(schedule, world=args.world, dtypes=args.dtype, sms=args.sms, **sizes)
        refused = [Finding(f.kind, f.lines, f"{f.what}; it was not run", remedy=f.remedy) for f in report.findings]
        exploration = Exploration(args.policy, findings=refused)
    written = schedule_text(program, schedule, args.schedule)
    asked = f"--seeds {args.seeds}" if args.replay is None else f"--replay {args.replay}"
    note = (
        f"# tilelink explore {args.program} --world {args.world} --shape {shape_text(sizes)} --dtype {args.dtype} "
        f"--schedule {written} --policy {args.policy} --backend {args.backend} {asked}\n"
        f"# schedule hash {exploration.schedule_hash}\n"
    )
    findings = [{k: getattr(f, k) for k in ("seed", "kind", "lines", "what", "remedy")} for f in exploration.findings]
    keys = {
        "schedules_run": exploration.schedules_run, "distinct": exploration.distinct,
        "schedule_hash": exploration.schedule_hash, "findings": findings, "notes": notes, "policy": args.policy,
        "backend": args.backend, "world": args.world, "shape": sizes, "dtype": args.dtype, "schedule": written,
    }  # fmt: skip
    text = str(exploration) + "".join(f"note: {n}\n" for n in notes)
    return Answer(keys, text, note, "finding" if findings else "ok")


def _subject(
    args: argparse.Namespace, program: Program, schedule: Schedule, sizes: Mapping[str, Any]
) -> Lowered | Oracle:
    from tilelink.tools.explore import Lowered, Oracle

    options = {"world": args.world, "dtypes": args.dtype, "sms": args.sms, "resident": args.resident}
    if args.backend == "oracle":
        return Oracle.of(program, schedule, **options, **sizes)
    return Lowered(program, schedule, slots=args.slots, **options, **sizes)


def _progress(schedules: int) -> Callable[[Exploration], None]:
    """Says now and then how far it is."""
    said = time.monotonic()

    def say(exploration: Exploration) -> None:
        nonlocal said
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            run, found = exploration.schedules_run, len(exploration.findings)
            sys.stderr.write(f"{run} of {schedules} schedules, {exploration.distinct} distinct, {found} findings\n")

    return say


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a natural number")
    return int(text)


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def flags(parser: argparse.ArgumentParser) -> None:
    add_program_flags(parser, SIZE)
    parser.add_argument(
        "--seeds", type=_positive, default=SEEDS, metavar="N",
        help="schedules to run, those of the seeds 0 to N-1; in that of 0 all take turns (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--policy", choices=("random", "pct"), default="random", help="who runs next: anybody, or the one with the "
        "highest priority, which changes at a few turns (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("lowered", "oracle"), default="lowered", help="what runs: the lowered kernels, or the "
        "events of the tile program, one run of them, which is much faster (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--replay", type=_natural, metavar="SEED", help="run the schedule of this seed alone")
    parser.add_argument(
        "--slots", type=int, default=1, metavar="N",
        help="copies of the buffers; every rank calls lowered kernels once more than that (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--resident", type=_positive, metavar="N", help="at most so many workers of a rank at a time, the last first, "
        "which mostly wait for others (default: all)",
    )  # fmt: skip
    parser.add_argument("--sms", type=int, default=SMS, metavar="N", help="SMs of a device (default: %(default)s)")


COMMAND = Command(
    run, "tilelink explore all_gather_matmul --world 2 --shape M=20,K=16,N=16 --schedule pull --seeds 4 --policy pct",
    flags,
)  # fmt: skip
