"""The command line of `python -m bench.gpu`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join

from bench.gpu import machine, others, right, speed, timelines, vain
from bench.gpu.place import Place, dry, gpu
from bench.gpu.report import COMPILED, OutOfTimeError, Report
from bench.progress import began, begin, say
from tilelink.errors import DeviceError

Step = tuple[float, Callable[[Place, Report], None]]
STEPS: dict[str, Step] = {
    "first": (40, right.first),
    "machine": (35, machine.machine),
    "results": (80, right.results),
    "sums": (50, right.sums),
    "others": (45, others.others),
    "vain": (35, vain.vain),
    "graphs": (35, right.graphs),
    "speed": (60, speed.speed),
    "host": (20, speed.host),
    "kernels": (30, machine.kernels),
    "timelines": (20, timelines.timelines),
    "description": (30, machine.description_of),
}
"""Seconds that each step may take, with the start of its process, and what it does; the most telling first."""
GRACE = 10.0
"""Seconds from when a step should end by itself to when it is ended."""
RESULTS = Path(__file__).resolve().parent.parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps; returns 0 if all was right, 1 for a finding, 2 where there is no GPU."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(argv)
    if args.began is not None:
        begin(args.began)
    out: Path = args.out or Path(os.environ.get("OUT") or RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    command = join(["python3", "-m", "bench.gpu", *argv])
    try:
        place = dry() if args.dry else gpu()
    except DeviceError as e:
        return _compiled_only(out, command, e.message)
    name = re.sub(r"[^a-z0-9]+", "-", place.device.lower()).strip("-") if place.on_gpu else "dry"
    path = out / f"gpu-{name}.jsonl"
    if args.step is None:
        path.write_text("")
    steps = [args.step] if args.step else list(STEPS)
    if args.step or args.dry:
        failed = sum(_here(place, path, step, command) for step in steps)
    else:
        failed = sum(_in_a_process(path, step, argv) for step in steps)
    say(f"{failed} findings; all of it is in {path}")
    return 1 if failed else 0


def _here(place: Place, path: Path, step: str, command: str) -> int:
    """Runs a step in this process; how many findings it had."""
    seconds, run = STEPS[step]
    report = Report(path, step, place, command, seconds - GRACE)
    if place.on_gpu:
        faulthandler.dump_traceback_later(seconds, exit=True)
    say(f"step {step}")
    try:
        run(place, report)
    except OutOfTimeError:
        pass
    finally:
        faulthandler.cancel_dump_traceback_later()
    return report.failed


def _in_a_process(path: Path, step: str, argv: Sequence[str]) -> int:
    """Runs a step in a process of its own; 1 if it had findings, or came to no end."""
    seconds, _ = STEPS[step]
    # Each virtual rank needs a queue of its own on the device, beside those of torch.
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"} | os.environ
    command = [sys.executable, "-m", "bench.gpu", *argv, "--step", step, "--began", repr(began())]
    started = time.monotonic()
    try:
        code = subprocess.run(command, env=environment, timeout=seconds + GRACE).returncode
        ending = f"ended with exit code {code}"
    except subprocess.TimeoutExpired:
        code, ending = -1, f"was ended after {seconds + GRACE:.0f} s"
    took = time.monotonic() - started
    say(f"step {step}: {took:.0f} s")
    if code not in (0, 1):
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "what": "the step as a whole", "ok": False, "error": ending}) + "\n")
        say(f"WRONG   step {step} {ending}")
    return int(code != 0)


def _compiled_only(out: Path, command: str, why: str) -> int:
    """What is on record where no GPU was at hand."""
    path = out / "gpu-none.jsonl"
    path.write_text("")
    report = Report(path, "none", dry(), command, 60)
    report.add("compiled only: no GPU was at hand, nothing was run", ok=None, kind=COMPILED, error=why)
    say(f"{why}; --dry tries the steps on the CPU")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.gpu", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(sys.modules["bench.gpu"].__doc__ or ""),
    )  # fmt: skip
    parser.add_argument("--step", choices=STEPS, help="one of the steps alone, in this process")
    parser.add_argument("--dry", action="store_true", help="on CPU ranks, at tiny sizes: are the steps all right?")
    parser.add_argument("--out", type=Path, help="folder for the results (default: $OUT, or bench/results)")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    return parser
