"""`tilelink show`: a program as text, at a stage of its way to a kernel."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from tilelink.backend.targets import FORMS
from tilelink.errors import TargetError
from tilelink.programs.show import STAGES, show, stages_of, target_of, without_bulk
from tilelink.tools.cli.command import Answer, Command, Flag, UsageError
from tilelink.tools.cli.program import Question, nodes_flag, program_flags, read_schedule

FIGURES = ("expected", "found", "registers", "spill_bytes", "shared_bytes")
"""Keys about machine code."""
GPU = "sm_90"


def run(args: argparse.Namespace) -> Answer:
    """A program as text, at a stage of its way to a kernel."""
    try:
        target = target_of(args.stage, args.target)
    except TargetError as e:
        raise UsageError(e.message) from e
    asked = Question.of(args, target=FORMS[target])
    options: dict[str, Any] = {"target": target, **asked.options}
    shown = show(asked.program, args.stage, asked.schedule, **options)
    text, verdict = shown.text, shown.verdict
    flags = {"stage": args.stage, "target": target}
    keys = {
        **flags, **asked.keys,
        "absent": sorted(asked.program.absent(args.dtype)), "text": text, "sha256": sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    if args.stage == "events":
        keys["events"] = text.count("\n")
    findings = verdict.findings if verdict is not None else ()
    keys |= asdict(verdict) if verdict is not None else {}
    note = [f"without: {', '.join(keys['absent'])}"] if keys["absent"] else []
    note += without_bulk(asked.program, asked.schedule, FORMS[target], **asked.options)
    of_gpu = read_schedule(asked.program, args.schedule, args.world, asked.sizes, dtypes=args.dtype, target=FORMS[GPU])
    if not FORMS[target].backend and of_gpu != asked.schedule:
        note += [f"a GPU has smaller tiles of exact float32 products: --target {GPU} shows them"]
    note += [f"{key}: {keys[key]}" for key in (*FIGURES, "events", "sha256") if key in keys]
    note += [f"wrong: {finding}" for finding in findings]
    note += [f"the schedule: {asked.schedule.site}"] if findings else []
    said = asked.line(flags) + "".join(f"# {line}\n" for line in note)
    return Answer(keys, text, said, "finding" if findings else "ok")


def _stages() -> str:
    """Which targets have which stages, as the help says it."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, target in FORMS.items():
        alike.setdefault(stages_of(target), []).append(name)
    return "; ".join(f"{', '.join(names)}: {', '.join(stages)}" for stages, names in alike.items())


COMMAND = Command(
    run,
    "tilelink show all_gather_matmul --stage triton --world 8 --shape M=8192,N=3584,K=8192 \\\n"
    "      --schedule push,gather.count=8,matmul.tile=128x128x64",
    [
        *program_flags(),
        Flag("--stage", choices=STAGES, default=STAGES[0], help="the stage to show (default: %(default)s)"),
        nodes_flag(),
        Flag(
            "--target", choices=list(FORMS),
            help=f"the target that runs it (default: the first with this stage). Targets and their stages: {_stages()}",
        ),
    ],
)  # fmt: skip
