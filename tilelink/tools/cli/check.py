"""`tilelink check`: whether a program is safe to run, before it runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tilelink.analysis.machine import machine
from tilelink.analysis.unroll import BUDGET, DEFAULT_SMS
from tilelink.programs.show import with_defaults
from tilelink.tools.cli.command import Answer, Command, UsageError
from tilelink.tools.cli.program import add_program_flags, find, shape_text
from tilelink.tools.cli.schedule import read_schedule, schedule_text

EVERY = 2.0
"""Seconds between two lines of progress."""


def run(args: argparse.Namespace) -> Answer:
    """Whether a program is safe to run: races, deadlocks, coverage, residency."""
    program = find(args.program)
    sizes: Mapping[str, Any] = with_defaults(program, args.shape, program.absent(args.dtype))
    schedule = read_schedule(program, args.schedule, args.world, dict(sizes), dtypes=args.dtype)
    device = {"sms": _sms(args), "reserve": args.reserve, "slot_bytes": args.slot}
    told = {"budget": args.budget, "tell": progress()}
    report = program.check(schedule, world=args.world, dtypes=args.dtype, **device, **told, **sizes)
    written = schedule_text(program, schedule, args.schedule)
    note = (
        f"# tilelink check {args.program} --world {args.world} --shape {shape_text(sizes)} --dtype {args.dtype} "
        f"--schedule {written}\n# {report.seconds:.2f} s, {report.peak_rss_bytes / 1e6:.0f} MB\n"
    )
    keys = {
        **report.keys(), "world": args.world, "shape": sizes, "dtype": args.dtype, "schedule": written,
        "machine": args.machine, "sms": device["sms"],
    }  # fmt: skip
    return Answer(keys, str(report), note, "finding" if report.findings else "ok")


def progress() -> Callable[[str], None]:
    """Says every other second what a check is at."""
    began = said = time.monotonic()

    def tell(what: str) -> None:
        nonlocal said
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            sys.stderr.write(f"{said - began:.0f} s: {what}\n")

    return tell


def _sms(args: argparse.Namespace) -> int:
    """SMs of a rank's device: those that are given, or those of the machine."""
    if args.machine is None:
        return DEFAULT_SMS if args.sms is None else args.sms
    if args.sms is not None:
        raise UsageError(f"--machine {args.machine} says how many SMs there are: leave --sms out")
    return machine(args.machine).sms


def flags(parser: argparse.ArgumentParser) -> None:
    add_program_flags(parser)
    parser.add_argument(
        "--machine", metavar="NAME", help="a machine of `tilelink machine list`, or the path of a description: "
        "workers that wait have to be resident on its SMs",
    )  # fmt: skip
    parser.add_argument(
        "--sms", type=int, default=None, metavar="N", help=f"SMs of a device, not a machine's (default: {DEFAULT_SMS})"
    )
    parser.add_argument(
        "--reserve", type=int, default=0, metavar="N",
        help="SMs kept for other kernels; workers that wait have to be resident on the rest (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=int, default=BUDGET, metavar="EVENTS",
        help="events that the check may unroll, of some 2.5 us and 240 bytes each (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--slot", type=int, default=None, metavar="BYTES", help="bytes of a slot of the heap (default: enough)"
    )


COMMAND = Command(run, "tilelink check all_gather_matmul --world 8 --shape M=8192,N=3584,K=8192 --schedule push", flags)
