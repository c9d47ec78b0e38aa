"""`tilelink machine`: the machines that runs are predicted on, and measuring what one GPU can tell of another."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilelink.tools.cli.command import Answer, Command, UsageError

ACTIONS = ("list", "show", "measure")


def run(args: argparse.Namespace) -> Answer:
    """The machines that runs are predicted on; `measure` fills in what this machine's GPU can tell."""
    from tilelink.analysis.machine import machine, names

    if args.action == "list":
        found = [machine(name) for name in names()]
        keys = {"machines": [{"name": m.name, "title": m.title, "sms": m.sms} for m in found]}
        return Answer(keys, "".join(f"{m.name:<14}{m.title}\n" for m in found))
    if args.action == "show":
        if args.name is None:
            raise UsageError(f"tilelink machine show NAME; there is {', '.join(names())}")
        shown = machine(args.name)
        numbers = {path: {"value": value, "source": shown.sources[path]} for path, value in shown.numbers.items()}
        width = max(map(len, numbers))
        text = "".join(f"{p:<{width}}  {v['value']:>10g}  {v['source']}\n" for p, v in numbers.items())
        return Answer({"name": shown.name, "title": shown.title, "numbers": numbers}, f"{shown.title}\n{text}")
    return _measure(args)


def _measure(args: argparse.Namespace) -> Answer:
    from tilelink.runtime.measure import description, measure

    measured = measure()
    text = description(measured, args.extends)
    if args.out is not None:
        Path(args.out).write_text(text)
    numbers = {path: {"value": value, "source": how} for path, (value, how) in measured.numbers.items()}
    return Answer({"gpu": measured.gpu, "numbers": numbers, "description": text}, text)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("name", nargs="?", help="of the machine, for show")
    parser.add_argument("--extends", default="h100", help="of measure: whose numbers it leaves (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="of measure: write the description there")


COMMAND = Command(run, "tilelink machine show h800", flags)
