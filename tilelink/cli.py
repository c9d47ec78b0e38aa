"""The command line: `tilelink COMMAND TARGET [flags]`, for people, and with --json for programs.

Every command is a function from its arguments to an `Answer`; `main` alone prints. With --json stdout holds one
object with the keys `schema`, `command`, `status` and those of the command, whatever happens. Exit code and status:
0 "ok", what was asked holds; 1 "finding"; 2 "error", bad input, and the key `error` says what and where.

TileLink itself is imported in the functions that need it: help and wrong flags don't wait for Triton.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tilelink.backend.show import DTYPE, SIZE, STAGES, TARGETS, WORLD, show, with_defaults
from tilelink.errors import Site, TileLinkError

if TYPE_CHECKING:
    from tilelink.frontend.program import Program
    from tilelink.frontend.schedule import Order, Schedule, SMs

SCHEMA = 1
EXIT_CODES = {"ok": 0, "finding": 1, "error": 2}
Shape = dict[str, int | Sequence[int]]


class UsageError(TileLinkError):
    """A command line that asks for what there is not. `file`: the file of the target, where it is about that."""

    def __init__(self, message: str, file: str | None = None) -> None:
        self.file = file
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """What a command found out: `keys` for programs; `text` and `note` (for stderr) say the same to people."""

    keys: dict[str, Any]
    text: str
    note: str = ""
    status: str = "ok"


# ---- commands ----------------------------------------------------------------------------------------------------


def list_(args: argparse.Namespace) -> Answer:
    """The operators of the library, their tensors and their schedules."""
    from tilelink.kernels import operators

    found = [_describe(p) for p in operators().values()]
    return Answer({"operators": found}, "\n".join(map(_paragraph, found)))


def show_(args: argparse.Namespace) -> Answer:
    """A program as text, at a stage of its way to a kernel."""
    program = find(args.program)
    sizes = with_defaults(program, args.shape, program.optional)
    schedule = read_schedule(program, args.schedule, args.world, sizes)
    text = show(program, args.stage, schedule, target=args.target, world=args.world, dtypes=args.dtype, **sizes)
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


@dataclass(frozen=True)
class Command:
    """A command: `flags` adds its own flags, `example` stands in its help."""

    run: Callable[[argparse.Namespace], Answer]
    example: str
    flags: Callable[[argparse.ArgumentParser], None] = field(default=lambda parser: None)


def _show_flags(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("--stage", choices=STAGES, default=STAGES[0], help="how far on its way (default: %(default)s)")
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0], help="what runs it (default: %(default)s)")


COMMANDS = {
    "list": Command(list_, "tilelink list --json"),
    "show": Command(
        show_,
        "tilelink show all_gather_matmul --stage triton --world 8 --shape M=8192,N=3584,K=8192 \\\n"
        "      --schedule push,gather.count=8,matmul.tile=128x128x64",
        _show_flags,
    ),
}


def _describe(program: Program) -> dict[str, Any]:
    """An operator, for `list`. The first schedule is the default one."""
    tensors = [
        {
            "name": t.name, "kind": t.kind, "dims": list(t.dims),
            "sharded": None if t.sharded is None else t.dims[t.sharded], "optional": t.name in program.optional,
        }
        for t in program.recorded().tensors if t.kind != "buffer"
    ]  # fmt: skip
    summary = (program.__doc__ or "").strip().split("\n")[0]
    return {"name": program.name, "summary": summary, "tensors": tensors, "schedules": list(program.schedules)}


def _paragraph(operator: dict[str, Any]) -> str:
    def tensor(t: dict[str, Any]) -> str:
        dims = ", ".join(f"{d}/world" if d == t["sharded"] else d for d in t["dims"])
        return f"{t['name']}[{dims}]" + (" (optional)" if t["optional"] else "")

    by_kind = {k: ", ".join(tensor(t) for t in operator["tensors"] if t["kind"] == k) for k in ("input", "output")}
    default, *others = operator["schedules"] or ["none"]
    lines = [operator["summary"], f"{by_kind['input']} -> {by_kind['output']}"]
    lines.append(f"schedules: {', '.join([f'{default} (default)' if others else default, *others])}")
    return "".join([f"{operator['name']}\n", *(f"    {line}\n" for line in lines if line)])


# ---- what stands on a command line -------------------------------------------------------------------------------


def find(target: str) -> Program:
    """The program that a TARGET names. Raises UsageError, and whatever running the user's file raises."""
    from tilelink.frontend.program import Program

    file, name = split_target(target)
    if file is None:
        from tilelink.kernels import operators

        known = operators()
        if name not in known:
            raise UsageError(f"there is no operator {name}; there is {', '.join(known)}, or say FILE.py:NAME")
        return known[name]
    names = _run_file(file)
    programs = ", ".join(n for n, v in names.items() if isinstance(v, Program)) or "no program"
    found = names.get(name)
    if found is None:
        raise UsageError(f"nothing here is called {name!r}; there is {programs}, TARGET is FILE.py:NAME", file)
    if not isinstance(found, Program):
        raise UsageError(f"{name} is no program but of type {type(found).__name__}; there is {programs}", file)
    return found


def split_target(target: str) -> tuple[str | None, str]:
    """File (None for an operator of the library) and name of a TARGET."""
    file, colon, name = target.rpartition(":")
    if not colon and target.endswith(".py"):
        file, name = target, ""
    return (str(Path(file).resolve()) if file else None), name


def _run_file(file: str) -> dict[str, Any]:
    """The names of a user's file, run as Python runs a script: what stands beside it can be imported."""
    path = Path(file)
    if not path.is_file():
        raise UsageError("there is no such file", file)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"tilelink_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("this is no Python file", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where inspect and dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except SystemExit as e:
        raise UsageError(f"running this file ends the process with {e.code!r}", file) from e
    return vars(module)


def read_shape(text: str) -> Shape:
    """`M=512,N=7168`: sizes by dimension; `M=5+0+3`: the parts of the ranks."""
    shape: Shape = {}
    for item in text.split(","):
        dim, _, size = (s.strip() for s in item.partition("="))
        if not dim.isidentifier() or not re.fullmatch(r"\d+(\+\d+)*", size, re.ASCII):
            raise argparse.ArgumentTypeError(f"{item!r} is neither DIM=SIZE nor DIM=PART+PART+...; try M=512,N=7168")
        if dim in shape:
            raise argparse.ArgumentTypeError(f"{dim} is given twice")
        parts = tuple(map(int, size.split("+")))
        shape[dim] = parts if len(parts) > 1 else parts[0]
    return shape


def shape_text(shape: Mapping[str, int | Sequence[int]]) -> str:
    """A shape as `read_shape` reads it."""
    return ",".join(f"{d}={n if isinstance(n, int) else '+'.join(map(str, n))}" for d, n in shape.items())


def read_dtype(text: str) -> str:
    """The full name of a dtype."""
    from tilelink.frontend.values import dtype_name

    try:
        return dtype_name(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def read_schedule(program: Program, text: str | None, world: int, sizes: Shape) -> Schedule:
    """`NAME`, `NAME,ROLE.FIELD=VALUE,...` or `ROLE.FIELD=VALUE,...`, which changes the program's default schedule.

    The named schedule is fitted to the sizes, what is changed is taken as it is. A field is one of `SMs`, or `group`
    for that of its order. Raises UsageError, ScheduleError or TileSizeError.
    """
    items = [item.strip() for item in text.split(",")] if text else []
    name = items.pop(0) if items and "=" not in items[0] else None
    whole: dict[str, Any] = dict(sizes)
    schedule = program.fit(name, world=world, **whole)
    for item in items:
        match = re.fullmatch(r"(\w+)\.(\w+)=(.+)", item)
        try:
            if match is None:
                raise UsageError("a change is ROLE.FIELD=VALUE, such as matmul.tile=64x64x32")
            role, key, value = match.groups()
            changes = _read_field(program, schedule[role], key, value) if role in schedule else {}
            schedule = schedule.changed(**{role: changes})
        except TileLinkError as e:
            raise type(e)(f"--schedule {item}: {e.message}") from e
    return schedule


def _read_field(program: Program, resource: SMs, field: str, value: str) -> dict[str, Any]:
    """The change that FIELD=VALUE makes to a role's resource. Raises UsageError."""

    def number(text: str) -> int:
        if not text.isdecimal():
            raise UsageError(f"{text!r} is not a natural number")
        return int(text)

    def optional(text: str) -> int | None:
        return None if text == "none" else number(text)

    match field:
        case "tile":
            return {"tile": tuple(optional(n) for n in value.split("x"))}
        case "order":
            known = orders(program)
            if value not in known:
                raise UsageError(f"there is no order {value}; there is {', '.join(known)}")
            return {"order": known[value]}
        case "group":
            return {"order": replace(resource.order, group=number(value))}
        case "at":
            return {"at": None if value == "none" else value}
        case "count":
            return {"count": optional(value)}
        case "stages" | "warps":
            return {field: number(value)}
    raise UsageError(f"a role has no {field}; it has count, tile, order, group, at, stages, warps")


def orders(program: Program) -> dict[str, Order]:
    """The orders that a command line can name: ours, and those in the file of the program."""
    from tilelink.frontend import schedule

    names = {**vars(schedule), **program.function.__globals__}
    return {n: o for n, o in names.items() if isinstance(o, schedule.Order)}


def schedule_text(program: Program, schedule: Schedule, asked: str | None) -> str:
    """A schedule as `read_schedule` reads it: its name, and the fields in which it differs from what stands in the
    file, because they were fitted or changed."""
    named = (asked or "=").split(",")[0].strip()
    name = named if "=" not in named else next(iter(program.schedules))
    text = [name]
    for role, resource in schedule.items():
        was = _field_texts(program, program.schedule(name)[role])
        text += [f"{role}.{f}={v}" for f, v in _field_texts(program, resource).items() if v != was[f]]
    return ",".join(text)


def _field_texts(program: Program, resource: SMs) -> dict[str, str]:
    """The fields of a resource as `_read_field` reads them."""

    def word(value: Any) -> str:
        return "none" if value is None else str(value)

    texts = {f.name: word(getattr(resource, f.name)) for f in fields(resource)}
    order = resource.order
    called = next((n for n, o in orders(program).items() if o.parts is order.parts), order.name)
    return {**texts, "tile": "x".join(map(word, resource.tile)), "order": called, "group": str(order.group)}


# ---- the parser --------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Raises what is wrong instead of ending the process, so that --json holds for it as well."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} -h")

    def print_help(self, file: Any = None) -> None:
        _write(self.format_help())


def _add_target(parser: argparse.ArgumentParser) -> None:
    """TARGET, and the flags that say what it is looked at for."""
    parser.add_argument("program", metavar="TARGET", help="an operator of `tilelink list`, or FILE.py:NAME")
    parser.add_argument("--world", type=int, default=WORLD, metavar="N", help="number of ranks (default: %(default)s)")
    parser.add_argument(
        "--shape", type=read_shape, default={}, metavar="M=512,...",
        help="sizes of the program's dimensions as its tensors declare them: the whole size where the dimension is cut "
        "over the ranks, also as the parts of the ranks, M=5+0+3; else the size on a rank "
        f"(default: {SIZE} for each that is left out)",
    )  # fmt: skip
    parser.add_argument("--dtype", type=read_dtype, default=DTYPE, help="of all tensors (default: %(default)s)")
    parser.add_argument(
        "--schedule", metavar="NAME,ROLE.FIELD=VALUE,...",
        help="a schedule that stands beside the program, fitted to the sizes (default: the first); then changes, taken "
        "as they are: matmul.tile=64x64x32, gather.count=4, matmul.order=ring, matmul.group=8, gather.at=reader, "
        "matmul.stages=3, matmul.warps=8; none is a value of count, at and in a tile",
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="tilelink", description="Overlap kernels as tile programs.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about = command.run.__doc__ or ""
        sub = commands.add_parser(
            name, help=about, description=about, epilog=f"example:\n  {command.example}", allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.flags(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


# ---- printing ----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, given without the program's name; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    file = None
    try:
        args = _parser().parse_args(argv)
        file = split_target(getattr(args, "program", ""))[0]
        with redirect_stdout(sys.stderr):  # what a user's file prints is no part of the answer
            answer = COMMANDS[args.command].run(args)
    except Exception as e:
        answer = failure(e, file)
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
    """What is wrong, and where: where the error says, else the line that ran of the user's file or of one beside it."""
    site = e.site if isinstance(e, TileLinkError) else None
    message = e.message if isinstance(e, TileLinkError) else str(e)
    if isinstance(e, SyntaxError):
        message = e.msg
        site = Site(e.filename or "", e.lineno or 1, (e.text or "").strip())
    elif site is None and file is not None:
        frames = traceback.extract_tb(e.__traceback__)
        theirs = [f for f in frames if Path(f.filename).parent == Path(file).parent]
        site = Site(theirs[-1].filename, theirs[-1].lineno or 1, theirs[-1].line or "") if theirs else None
    if site is None and not isinstance(e, TileLinkError):  # nobody foresaw it
        traceback.print_exception(e)
    about = {"file": site.file, "line": site.line} if site else {"file": getattr(e, "file", None), "line": None}
    where = ":".join(str(v) for v in about.values() if v is not None) or "tilelink"
    note = f"{where}: {type(e).__name__}: {message}\n" + (f"    {site.text}\n" if site and site.text else "")
    return Answer({"error": {"class": type(e).__name__, "message": message, **about}}, "", note, "error")


def _write(text: str) -> None:
    """To stdout, whose reader may have left, as in `| head`: that is not an error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried again at exit
