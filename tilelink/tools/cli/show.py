"""`tilelink show`: a program as text, at a stage of its way to a kernel."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from tilelink.backend.targets import TARGETS
from tilelink.errors import TargetError
from tilelink.programs.show import CODE, STAGES, code, show, target_of, with_defaults
from tilelink.tools.cli.command import Answer, Command, UsageError
from tilelink.tools.cli.program import add_program_flags, find, shape_text
from tilelink.tools.cli.schedule import read_schedule, schedule_text

FIGURES = ("expected", "found", "registers", "spill_bytes", "shared_bytes")
"""What is said of machine code."""


def run(args: argparse.Namespace) -> Answer:
    """A program as text, at a stage of its way to a kernel."""
    program = find(args.program)
    sizes = with_defaults(program, args.shape, program.absent(args.dtype))
    schedule = read_schedule(program, args.schedule, args.world, sizes, dtypes=args.dtype)
    try:
        target = target_of(args.stage, args.target)
    except TargetError as e:
        raise UsageError(e.message) from e
    nodes = args.per_node
    asked: dict[str, Any] = {"target": target, "world": args.world, "per_node": nodes, "dtypes": args.dtype, **sizes}
    verdict = None
    if args.stage in CODE:
        shown = code(program, args.stage, schedule, **asked)
        text, verdict = shown.text, shown.verdict
    else:
        text = show(program, args.stage, schedule, **asked)
    flags = {
        **({} if nodes is None else {"per-node": nodes}),
        "stage": args.stage, "target": target, "world": args.world, "shape": sizes, "dtype": args.dtype,
        "schedule": schedule_text(program, schedule, args.schedule),
    }  # fmt: skip
    keys = {
        **{k.replace("-", "_"): v for k, v in flags.items()},
        "defaults": [d for d in sizes if d not in args.shape], "absent": sorted(program.absent(args.dtype)),
        "text": text, "sha256": sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    if args.stage == "events":
        keys["events"] = text.count("\n")
    if verdict is not None:
        keys |= asdict(verdict)
    said = [f"--{flag} {shape_text(value) if flag == 'shape' else value}" for flag, value in flags.items()]
    note = [f"tilelink show {args.program} {' '.join(said)}"]
    note += [f"sizes by default: {', '.join(keys['defaults'])}"] if keys["defaults"] else []
    note += [f"without: {', '.join(keys['absent'])}"] if keys["absent"] else []
    note += [f"{key}: {keys[key]}" for key in (*FIGURES, "events", "sha256") if key in keys]
    findings = verdict.findings if verdict is not None else ()
    note += [f"wrong: {finding}" for finding in findings]
    note += [f"the schedule: {schedule.site}"] if findings else []
    return Answer(keys, text, "".join(f"# {line}\n" for line in note), "finding" if findings else "ok")


def flags(parser: argparse.ArgumentParser) -> None:
    add_program_flags(parser)
    parser.add_argument("--stage", choices=STAGES, default=STAGES[0], help="how far on its way (default: %(default)s)")
    parser.add_argument(
        "--per-node", type=int, metavar="N", help="ranks of a node: what runs where the world spans several "
        "(default: all)",
    )  # fmt: skip
    parser.add_argument("--target", choices=list(TARGETS), help="what runs it (default: the first that has the stage)")


COMMAND = Command(
    run,
    "tilelink show all_gather_matmul --stage triton --world 8 --shape M=8192,N=3584,K=8192 \\\n"
    "      --schedule push,gather.count=8,matmul.tile=128x128x64",
    flags,
)
