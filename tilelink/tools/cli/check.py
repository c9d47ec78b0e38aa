"""`tilelink check`: whether a program is safe to run, before it runs."""

from __future__ import annotations

import argparse

from tilelink.analysis.machine import machine
from tilelink.analysis.unroll import BUDGET, DEFAULT_SMS
from tilelink.tools.cli.command import Answer, Command, Flag, UsageError, progress
from tilelink.tools.cli.program import Question, machine_flag, nodes_flag, program_flags


def run(args: argparse.Namespace) -> Answer:
    """Whether a program is safe to run: races, deadlocks, coverage, residency."""
    for name, least in (("reserve", 0), ("slot", 0), ("budget", 1)):
        if (given := getattr(args, name)) is not None and given < least:
            raise UsageError(f"--{name} {given}: it is {least} or more")
    asked, sms = Question.of(args), _sms(args)
    report = asked.program.check(
        asked.schedule, sms=sms, reserve=args.reserve, slot_bytes=args.slot, budget=args.budget,
        tell=progress(), **asked.options,
    )  # fmt: skip
    why = f"# the proof is unrolled, because {report.because}\n" if report.because and not report.findings else ""
    note = f"{asked.line()}{why}# {report.seconds:.2f} s, {report.peak_rss_bytes / 1e6:.0f} MB\n"
    looked_at = str(asked.keys["schedule"]).partition(",")[0]
    others = [s for s in asked.program.schedules if s != looked_at] if args.schedule is None else []
    note += f"# Other schedules, not checked (--schedule): {', '.join(others)}\n" if others else ""
    keys = {**report.keys(), **asked.keys, "machine": args.machine, "sms": sms}
    return Answer(keys, str(report), note, "finding" if report.findings else "ok")


def _sms(args: argparse.Namespace) -> int:
    """SMs of a rank's device: the number that was given, or the machine's."""
    if args.machine is None:
        return DEFAULT_SMS if args.sms is None else args.sms
    if args.sms is not None:
        raise UsageError(f"--machine {args.machine} says how many SMs there are: leave --sms out")
    return machine(args.machine).sms


COMMAND = Command(
    run,
    "tilelink check all_gather_matmul --world 8 --shape M=8192,N=3584,K=8192 --schedule push",
    [
        *program_flags(),
        nodes_flag(),
        machine_flag(None, ": workers that wait have to be resident on its SMs"),
        Flag("--sms", type=int, metavar="N", help=f"SMs of a device, not a machine's (default: {DEFAULT_SMS})"),
        Flag(
            "--reserve", type=int, default=0, metavar="N",
            help="SMs kept for other kernels; workers that wait have to be resident on the rest (default: %(default)s)",
        ),
        Flag(
            "--budget", type=int, default=BUDGET, metavar="EVENTS",
            help="events that the check may unroll; each takes about 2.5 us and 240 bytes (default: %(default)s)",
        ),
        Flag(
            "--slot", type=int, metavar="BYTES",
            help="bytes of a slot of the heap, with its signals laid out as on GPUs (default: enough)",
        ),
    ],
)  # fmt: skip
