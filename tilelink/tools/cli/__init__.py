"""The command line: `tilelink COMMAND TARGET [flags]`, for people, and with --json for programs.

Every command is a `Command` of a module here: its flags, and a function from arguments to an `Answer`; `main` prints.
With --json, stdout always holds one object, with the keys `schema`, `command`, `status` and the command's own. Exit
codes and statuses: 0 "ok", what was asked holds; 1 "finding"; 2 "error", bad input, and the key `error` says what is
wrong and where.

Functions import modules that need torch themselves, because that takes seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import tilelink
from tilelink.errors import Site, TileLinkError, shown, similar
from tilelink.tools.cli import check, explore, inspect, inventory, plan, show, simulate
from tilelink.tools.cli.command import Answer, UsageError
from tilelink.tools.cli.program import split_target

SCHEMA = 1
EXIT_CODES = {"ok": 0, "finding": 1, "error": 2}
INTERRUPTED = 130  # as in shells
COMMANDS = {
    "list": inventory.LIST, "check": check.COMMAND, "show": show.COMMAND, "inspect": inspect.COMMAND,
    "simulate": simulate.COMMAND, "plan": plan.COMMAND, "explore": explore.COMMAND, "machine": inventory.MACHINE,
    "doctor": inventory.DOCTOR,
}  # fmt: skip
EXAMPLES = """\
examples:
  tilelink list
  tilelink check all_gather_matmul --world 8
  tilelink show all_gather_matmul --stage triton

tilelink COMMAND -h says what a command takes, and has another example."""


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of ending the process, so that --json covers wrong arguments, too."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        meant = similar(choice[1], re.findall(r"[^', ]+", choice[2])) if choice else ""
        raise UsageError(f"{message}{meant}; see {self.prog} -h")

    def print_help(self, file: Any = None) -> None:
        _write(self.format_help())


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = Parser(
        prog="tilelink", description="Overlap kernels as tile programs.", epilog=EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"tilelink {tilelink.__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about = command.run.__doc__ or ""
        sub = commands.add_parser(
            name, help=re.split("[:;,.]", about)[0], description=about, epilog=f"example:\n  {command.example}",
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        for flag in command.flags:
            sub.add_argument(flag.name, **flag.options)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line. Raises UsageError."""
    args, unknown = parser().parse_known_args(argv)
    if unknown:
        flags = [*(flag.name for flag in COMMANDS[args.command].flags if flag.name.startswith("-")), "--json"]
        meant = next(filter(None, (similar(word, flags) for word in unknown if word.startswith("-"))), "")
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}{meant}; see tilelink {args.command} -h")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, given without the program's name; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    file = None
    try:
        args = read(argv)
        file = split_target(getattr(args, "program", ""))[0]
        with redirect_stdout(sys.stderr):  # what a user's file prints is no part of the answer
            answer = COMMANDS[args.command].run(args)
    except Exception as e:
        answer = failure(e, file)
        if all(a.startswith("-") for a in argv):  # no command was given: list them
            answer = replace(answer, note=f"{parser().format_help()}\n{answer.note}")
    except KeyboardInterrupt:
        sys.stderr.write("\nbroken off\n")
        return INTERRUPTED
    return respond(next((a for a in argv if a in COMMANDS), None), answer, as_json="--json" in argv)


def respond(command: str | None, answer: Answer, *, as_json: bool) -> int:
    """Prints the answer of a command; returns its exit code."""
    if as_json:
        _write(json.dumps({"schema": SCHEMA, "command": command, "status": answer.status, **answer.keys}) + "\n")
    else:
        sys.stderr.write(answer.note)
        _write(answer.text)
    return EXIT_CODES[answer.status]


def failure(e: Exception, file: str | None = None) -> Answer:
    """The answer for an exception. The place is the error's own, else the last line that ran in the user's folder."""
    site = e.site if isinstance(e, TileLinkError) else None
    if site is not None and (not site.line or site.file in (sys.argv[0], "<frozen runpy>")):  # from a command line
        site = None
    message = e.message if isinstance(e, TileLinkError) else str(e)
    if isinstance(e, SyntaxError):
        message = e.msg
        site = Site(e.filename or "", e.lineno or 1, (e.text or "").strip())
    elif site is None and file is not None:
        frames = traceback.extract_tb(e.__traceback__)
        theirs = [f for f in frames if Path(f.filename).parent == Path(file).parent]
        site = Site(theirs[-1].filename, theirs[-1].lineno or 1, theirs[-1].line or "") if theirs else None
    if site is None and not isinstance(e, TileLinkError):  # an unexpected exception
        traceback.print_exception(e)
    about = site.file if site else getattr(e, "file", None)
    where = str(site or shown(about or "tilelink"))
    note = f"{where}: {type(e).__name__}: {message}\n" + (f"    {site.text}\n" if site and site.text else "")
    error = {"class": type(e).__name__, "message": message, "file": about, "line": site.line if site else None}
    return Answer({"error": error}, "", note, "error")


def _write(text: str) -> None:
    """Writes to stdout. A reader that has left, as in `| head`, is not an error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would write the rest at exit
