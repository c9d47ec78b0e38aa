"""`tilelink show`: a program as text, at a stage of its way to a kernel."""

from __future__ import annotations

import argparse
from hashlib import sha256

from tilelink.backend.show import STAGES, show, with_defaults
from tilelink.backend.targets import TARGETS
from tilelink.cli.command import Answer, Command
from tilelink.cli.program import add_program_flags, find, shape_text
from tilelink.cli.schedule import read_schedule, schedule_text


def run(args: argparse.Namespace) -> Answer:
    """A program as text, at a stage of its way to a kernel."""
    program = find(args.program)
    sizes = with_defaults(program, args.shape, program.optional)
    schedule = read_schedule(program, args.schedule, args.world, sizes)
    world, target = args.world, args.target
    text = show(
        program, args.stage, schedule, target=target, world=world, per_node=None, dtypes=args.dtype, **sizes
    )
    flags = {
        "stage": args.stage, "target": args.target, "world": args.world, "shape": sizes, "dtype": args.dtype,
        "schedule": schedule_text(program, schedule, args.schedule),
    }  # fmt: skip
    keys = {
        **flags, "defaults": [d for d in sizes if d not in args.shape], "absent": sorted(program.optional),
        "text": text, "sha256": sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    if args.stage == "events":
        keys["events"] = text.count("\n")
    said = [f"--{flag} {shape_text(value) if flag == 'shape' else value}" for flag, value in flags.items()]
    note = [f"tilelink show {args.program} {' '.join(said)}"]
    note += [f"sizes by default: {', '.join(keys['defaults'])}"] if keys["defaults"] else []
    note += [f"without: {', '.join(keys['absent'])}"] if keys["absent"] else []
    note += [f"{key}: {keys[key]}" for key in ("events", "sha256") if key in keys]
    return Answer(keys, text, "".join(f"# {line}\n" for line in note))


def flags(parser: argparse.ArgumentParser) -> None:
    add_program_flags(parser)
    parser.add_argument("--stage", choices=STAGES, default=STAGES[0], help="how far on its way (default: %(default)s)")
    parser.add_argument("--target", choices=list(TARGETS), default="cpu", help="what runs it (default: %(default)s)")


COMMAND = Command(
    run,
    "tilelink show all_gather_matmul --stage triton --world 8 --shape M=8192,N=3584,K=8192 \\\n"
    "      --schedule push,gather.count=8,matmul.tile=128x128x64",
    flags,
)
