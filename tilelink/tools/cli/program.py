"""TARGET, and the flags that go with it: reading them, and writing them back."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from tilelink.backend.targets import Target
from tilelink.errors import ScheduleError, Site, TileSizeError, similar
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.values import dtype_name
from tilelink.kernels import operators
from tilelink.programs import schedule_text as written
from tilelink.programs.given import at_sizes
from tilelink.programs.program import Program
from tilelink.programs.show import DTYPE, SIZE, WORLD, with_defaults
from tilelink.tools.cli.command import Flag, UsageError

Shape = dict[str, int | Sequence[int]]


class Dtypes(dict[str, str]):
    """Dtypes by tensor, as --dtype says them."""

    def __str__(self) -> str:
        return ",".join(f"{name}={dtype}" for name, dtype in self.items())


MOST_SMS = 16
"""The most SMs of a role when a CPU executes the ranks."""


@dataclass(frozen=True)
class Question:
    """The question of a command: a program, at all of its sizes, in a schedule. `flags`: the same, as flags.
    `defaults`: the dimensions whose size nobody gave."""

    command: str
    program: Program
    sizes: Shape
    schedule: Schedule
    flags: dict[str, Any]
    defaults: list[str]

    @classmethod
    def of(
        cls, args: argparse.Namespace, size: int = SIZE, largest: int | None = None, target: Target | None = None
    ) -> Question:
        """Reads the flags of `program_flags`. `size`: see there; `largest`, `target`: see `read_schedule`."""
        program = find(args.program)
        sizes = with_defaults(program, args.shape, program.absent(args.dtype), size)
        schedule = read_schedule(program, args.schedule, args.world, sizes, largest, args.dtype, target)
        text = written.schedule_text(program, schedule, args.schedule)
        nodes = getattr(args, "per_node", None)
        flags = {"world": args.world, **({} if nodes is None else {"per_node": nodes})}
        flags |= {"shape": sizes, "dtype": args.dtype, "schedule": text}
        defaults = [d for d in sizes if d not in args.shape]
        return cls(f"tilelink {args.command} {args.program}", program, sizes, schedule, flags, defaults)

    @property
    def keys(self) -> dict[str, Any]:
        """The flags and defaults, as keys of an answer."""
        return {**self.flags, "defaults": self.defaults}

    @property
    def options(self) -> dict[str, Any]:
        """The keywords for methods of programs, without the schedule."""
        nodes = {"per_node": self.flags["per_node"]} if "per_node" in self.flags else {}
        return {"world": self.flags["world"], "dtypes": self.flags["dtype"], "sizes": self.sizes, **nodes}

    def line(self, before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None) -> str:
        """Comments: the command line with all its flags, then the sizes and dtypes that nobody gave."""
        flags = {**(before or {}), **self.flags, "shape": shape_text(self.sizes), **(after or {})}
        words = [w for flag, value in flags.items() for w in (f"--{flag}".replace("_", "-"), str(value))]
        defaults = f"# sizes by default: {', '.join(self.defaults)}\n" if self.defaults else ""
        unsaid = ", ".join(f"{name}={dtype}" for name, dtype in self.unsaid_dtypes().items())
        if unsaid:
            defaults += f"# dtypes by default: {unsaid}\n"
        return f"# {' '.join([self.command, *words])}\n{defaults}"

    def unsaid_dtypes(self) -> dict[str, str]:
        """The dtypes of tensors that --dtype leaves out, where it names some."""
        said = self.flags["dtype"]
        if not isinstance(said, Dtypes):
            return {}
        variant, _ = at_sizes(self.program, self.sizes)
        members = {m for n in said for m, _ in variant.flattened.get(n, ())}
        bound, _ = self.program.bound_at(self.schedule, **self.options)
        unsaid = variant.of_any_dtype - said.keys() - members
        return {t.name: t.dtype for t in bound.tensors if t.name in unsaid}


def program_flags(size: int = SIZE) -> list[Flag]:
    """TARGET, and the flags for its world, sizes, dtypes and schedule. `size`: the default size of a dimension."""
    return [
        Flag(
            "program", metavar="TARGET",
            help="an operator of `tilelink list`, FILE.py:NAME, or FILE.py if it has one program",
        ),
        Flag("--world", type=int, default=WORLD, metavar="N", help="number of ranks (default: %(default)s)"),
        Flag(
            "--shape", type=read_shape, default={}, metavar="M=512,...",
            help="sizes of the dimensions. A dimension that is cut over the ranks has its whole size (M=8192), or the "
            "size of each part (M=5+0+3). Any other dimension has its size on one rank (N=1376). Lists have a size for "
            f"each member (N=1024+256+256). Default: {size}",
        ),
        Flag(
            "--dtype", type=read_dtypes, default=DTYPE, metavar="DTYPE or NAME=DTYPE,...",
            help="of all tensors, or by tensor: unnamed tensors are like the first one named, or left out if optional "
            "(default: %(default)s)",
        ),
        Flag(
            "--schedule", metavar="NAME,ROLE.FIELD=VALUE,...",
            help="a schedule of the program, fitted to the sizes (default: the first); then changes, "
            "which are not fitted: matmul.tile=64x64x32, gather.count=4, matmul.order=ring, matmul.group=8, "
            "gather.at=reader, matmul.stages=3, matmul.warps=8, softmax.whole=N:4096; none is a value of count, at "
            "and in a tile",
        ),
    ]  # fmt: skip


def nodes_flag() -> Flag:
    """The flag for the number of ranks in a node."""
    return Flag("--per-node", type=int, metavar="N", help="ranks in a node, if there are several nodes (default: all)")


def machine_flag(default: str | None, what: str = " (default: %(default)s)") -> Flag:
    """The flag for the machine."""
    return Flag(
        "--machine", default=default, metavar="NAME",
        help=f"a machine of `tilelink machine list`, or the path of a description{what}",
    )  # fmt: skip


def find(target: str) -> Program:
    """The program that TARGET names. Raises UsageError, and whatever running the user's file raises."""
    file, name = split_target(target)
    if file is None:
        known = operators()
        if name not in known:
            beside = Path(f"{name}.py")
            meant = f"; did you mean {beside}?" if beside.is_file() else similar(name, known)
            raise UsageError(f"there is no operator {name}; there is {', '.join(known)}, or say FILE.py:NAME{meant}")
        return known[name]
    names = _run_file(file)
    there = [n for n, v in names.items() if isinstance(v, Program)]
    own = [n for n in there if names[n].file == file]
    programs = ", ".join(there) or "no program"
    if not name and len(own) != 1:
        raise UsageError(f"this file has {', '.join(own) or 'no program'}: TARGET is FILE.py:NAME", file)
    found = names.get(name or own[0])
    if found is None:
        meant = similar(name, there)
        raise UsageError(f"nothing here is called {name!r}; there is {programs}, TARGET is FILE.py:NAME{meant}", file)
    if isinstance(found, triton.runtime.JITFunction):
        raise UsageError(
            f"{name} is a Triton kernel, not a tile program; there is {programs}. Kernels of your own are explored in "
            "Python, by tilelink.tools.explore.of_world: docs/exploring.md",
            file,
        )
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
    """The names that a user's file defines. It is run like a script, so it can import what is beside it."""
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
    """`M=512,N=7168`: sizes by dimension; `M=5+0+3`: the parts of the ranks, or the sizes of members of lists."""
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


def read_dtypes(text: str) -> str | Dtypes:
    """A dtype for all tensors, or `x=bf16,weight=fp8e5`: dtypes by tensor."""
    if "=" not in text:
        return read_dtype(text)
    dtypes = Dtypes()
    for item in text.split(","):
        name, _, dtype = (s.strip() for s in item.partition("="))
        if not name.isidentifier() or name in dtypes:
            raise argparse.ArgumentTypeError(f"{item!r} is not NAME=DTYPE of another tensor; try x=bf16,weight=fp8e5")
        dtypes[name] = read_dtype(dtype)
    return dtypes


def read_dtype(text: str) -> str:
    """The full name of a dtype."""
    try:
        return dtype_name(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def read_schedule(
    program: Program, text: str | None, world: int, sizes: Shape, largest: int | None = None, dtypes: Any = "float32",
    target: Target | None = None,
) -> Schedule:  # fmt: skip
    """`NAME`, `NAME,ROLE.FIELD=VALUE,...` or `ROLE.FIELD=VALUE,...`, which changes the program's default schedule.

    The named schedule is for the tensors that `dtypes` names, and is fitted to the sizes and to a target as in
    `Program.fit`. With `largest`, its tiles are at most that long along each dimension, and roles with a number of SMs
    have at most `MOST_SMS`. Changes are not fitted; see `tilelink.programs.schedule_text`. Raises ScheduleError or
    TileSizeError.
    """
    name, items = written.split_schedule(text)
    whole: dict[str, Any] = dict(sizes)
    schedule = program.fit(name, world=world, dtypes=dtypes, target=target, sizes=whole)
    if largest is not None:
        schedule = schedule.small(largest, MOST_SMS)
    try:
        schedule = written.read_changes(program, name, schedule, items).changed(schedule)
    except (ScheduleError, TileSizeError) as e:
        raise type(e)(f"--schedule {e.message}") from e
    if items:
        schedule.site = Site(f"--schedule {text}", 0)
    return schedule
