"""The command line of `python -m bench.gpu`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join

from bench import steps
from bench.gpu import experts, host, machine, one_card, others, probe, right, speed, tiles, timelines, vain
from bench.gpu.place import Place, dry, gpu
from bench.gpu.report import COMPILED, Report
from bench.gpu.summary import lines_of, summed_up
from bench.gpu.supervise import GRACE, IN_ORDER, NO_DEVICE, patience, supervised
from bench.progress import began, begin, say
from tilelink.errors import DeviceError

Step = tuple[float, Callable[[Place, Report], None]]
STEPS: dict[str, Step] = {
    "probe": (55, probe.probe),
    "first": (25, right.first),
    "machine": (20, machine.machine),
    "results": (110, right.results),
    "vain": (20, vain.vain),
    "speed": (45, speed.speed),
    "one_card": (55, one_card.one_card),
    "loopback": (85, one_card.loopback),
    "host": (20, host.host),
    "sums": (100, right.sums),
    "graphs": (40, right.graphs),
    "experts": (60, experts.experts),
    "others": (140, others.others),
    "kernels": (15, machine.kernels),
    "timelines": (20, timelines.timelines),
    "description": (20, machine.description_of),
}
"""The steps, the most important first: seconds that each may take, with the start of its process, and its function. The
steps up to `host` make the tables of docs/performance.md."""
ALONE: dict[str, Step] = {"tiles": (240, tiles.tiles)}
"""Steps that only `--step` runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps. Returns 0 if everything is right, 1 for findings, 2 without a GPU, and 3 if a step died or ran
    out of time."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = steps.parser("python3 -m bench.gpu", STEPS, ALONE).parse_args(argv)
    out = steps.folder(args.out)
    command = join(["python3", "-m", "bench.gpu", *argv])
    try:
        place = dry() if args.dry else gpu()
    except DeviceError as e:
        return _compiled_only(out, command, e.message)
    path = out / f"gpu-{steps.slug(place.device) if place.on_gpu else 'dry'}.jsonl"
    if args.began is not None:
        begin(args.began)
        here(place, path, args.step, command)
        return IN_ORDER
    if args.step is None:
        path.write_text("")
    earlier = len(lines_of(path))
    for step in [args.step] if args.step else STEPS:
        _in_a_process(place, path, step, argv)
    return summed_up(path, earlier)


def here(place: Place, path: Path, step: str, command: str) -> int:
    """Runs a step in this process. Returns the number of its findings."""
    seconds, run = _patience(place, step), (STEPS | ALONE)[step][1]
    report = Report(path, step, place, command, seconds - GRACE)
    with steps.watched(seconds):
        steps.run_here(run, place, report)
    return report.failed


def _in_a_process(place: Place, path: Path, step: str, argv: Sequence[str]) -> None:
    """Runs a step in its own process. If it does not end by itself, that is a finding, too."""
    seconds = _patience(place, step)
    said = [] if "--step" in argv else ["--step", step]
    ending = supervised("bench.gpu", [*argv, *said, "--began", repr(began())], step, seconds, path)
    if ending.verdict:
        steps.add_ending(path, step, place, join(argv), ending)


def _patience(place: Place, step: str) -> float:
    return patience((STEPS | ALONE)[step][0], place.on_gpu)


def _compiled_only(out: Path, command: str, why: str) -> int:
    """Writes the record of a machine without a GPU."""
    path = out / "gpu-none.jsonl"
    path.write_text("")
    report = Report(path, "none", dry(), command, 60)
    report.add("compiled only: no GPU was at hand, nothing was run", ok=None, kind=COMPILED, error=why)
    say(f"{why}; --dry tries the steps on the CPU")
    return NO_DEVICE
