"""`tilelink explore`: a program under many schedules, and what goes wrong in any of them."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from tilelink.analysis.check import idle
from tilelink.analysis.check.refusals import KINDS
from tilelink.errors import ArgumentError, TileLinkError, counted
from tilelink.tools.cli.command import Answer, Command, Flag, now_and_then
from tilelink.tools.cli.program import Question, nodes_flag, program_flags

if TYPE_CHECKING:
    from tilelink.tools.explore import Exploration

SIZE, TILE = 40, 16
"""The default size of a dimension, and the longest tile of a named schedule: there are several tiles, with rests, and a
schedule takes only a fraction of a second."""
SEEDS, SMS = 100, 24


def run(args: argparse.Namespace) -> Answer:
    """Runs a program under many schedules, and finds races, deadlocks, accesses out of bounds, and results that are not
    always the same. A seed fixes a schedule, and repeats it."""
    from tilelink.tools.explore import Exploration, Found, Lowered, Oracle, explore

    asked = Question.of(args, SIZE, TILE)
    options = {"sms": args.sms, "resident": args.resident, **asked.options}
    if args.backend == "oracle" and (args.beside or args.reserved):
        raise ArgumentError("--beside and --reserved are for the backend lowered, which has kernels")
    seeds = range(args.seeds) if args.replay is None else [args.replay]
    notes: list[str] = []

    def said(e: Exploration) -> str:
        found = counted(len(e.found), "finding")
        return f"{e.schedules_run} of {counted(len(seeds), 'schedule')}, {e.distinct} distinct, {found}"

    try:
        if args.backend == "oracle":
            subject: Lowered | Oracle = Oracle.of(asked.program, asked.schedule, **options)
        else:
            beside = {"beside": args.beside, "reserved": args.reserved}
            subject = Lowered(asked.program, asked.schedule, slots=args.slots, **beside, **options)
        notes += idle(subject.events)
        exploration = explore(subject, seeds, args.policy, now_and_then(said))
    except TileLinkError as e:
        if type(e) not in KINDS:
            raise
        report = asked.program.check(asked.schedule, sms=args.sms, **asked.options)
        refused = [Found(0, replace(f, what=f"{f.what}; it was not run")) for f in report.findings]
        exploration = Exploration(args.policy, found=refused)
    how = {"policy": args.policy, "backend": args.backend}
    which = {"seeds": args.seeds} if args.replay is None else {"replay": args.replay}
    note = f"{asked.line(after=how | which)}# schedule hash {exploration.schedule_hash}\n"
    findings = [f.keys() for f in exploration.found]
    keys = {
        "schedules_run": exploration.schedules_run, "distinct": exploration.distinct,
        "schedule_hash": exploration.schedule_hash, "findings": findings, "notes": notes, **how, **asked.keys,
    }  # fmt: skip
    text = str(exploration) + "".join(f"note: {n}\n" for n in notes)
    return Answer(keys, text, note, "finding" if findings else "ok")


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a natural number")
    return int(text)


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


COMMAND = Command(
    run, "tilelink explore all_gather_matmul --world 2 --shape M=20,K=16,N=16 --schedule pull --seeds 4 --policy pct",
    [
        *program_flags(SIZE),
        nodes_flag(),
        Flag(
            "--seeds", type=_positive, default=SEEDS, metavar="N",
            help="schedules to run, with the seeds 0 to N-1; with seed 0 all take turns (default: %(default)s)",
        ),
        Flag(
            "--policy", choices=("random", "pct"), default="random", help="who runs next: anybody, or the one with the "
            "highest priority, which changes at a few turns (default: %(default)s)",
        ),
        Flag(
            "--backend", choices=("lowered", "oracle"), default="lowered", help="what runs: the lowered kernels, or "
            "the events of one run of the tile program, which is much faster (default: %(default)s)",
        ),
        Flag("--replay", type=_natural, metavar="SEED", help="run the schedule of this seed alone"),
        Flag(
            "--slots", type=int, default=1, metavar="N",
            help="copies of the buffers; every rank calls lowered kernels once more than that (default: %(default)s)",
        ),
        Flag(
            "--resident", type=_positive, metavar="N", help="at most N workers of a rank at a time; the last begin "
            "first, since they mostly wait for others (default: all)",
        ),
        Flag(
            "--beside", type=_natural, default=0, metavar="N", help="another kernel, such as a collective, has N "
            "blocks on each rank, which wait for each other; half of the ranks launch it before ours (default: none)",
        ),
        Flag(
            "--reserved", type=_natural, default=0, metavar="N",
            help="SMs of a device that are left to other kernels (default: %(default)s)",
        ),
        Flag("--sms", type=int, default=SMS, metavar="N", help="SMs of a device (default: %(default)s)"),
    ],
)  # fmt: skip
