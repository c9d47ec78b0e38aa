"""Labelled programs: whether something is wrong with them, and between which two lines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

import tilelink as tk
from tilelink.errors import Site
from tilelink.programs.program import Program

Label = Literal["racy", "clean"]
LINES = re.compile(r"([^\s:,()]+\.py):(\d+)")
ALIKE = {"UnguardedReadError": "race", "unguarded read": "race", "DeadlockError": "deadlock"}
"""What tools call a mistake that another tool calls otherwise."""


@dataclass(frozen=True)
class Tiles:
    """A tile program, at sizes. `arguments(rank)`: the tensors that a rank calls it with; without them, it is not
    executed. `sms`: of a device. `options`: of the world, such as `resident`."""

    program: Program
    schedule: tk.Schedule
    sizes: dict[str, int]
    arguments: Callable[[int], tuple[torch.Tensor, ...]] | None = None
    calls: int = 1
    sms: int = 8
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def functions(self) -> tuple[Any, ...]:
        return tuple(launch.function for launch in self.program.recorded().launches)

    def run(self, **options: Any) -> None:
        """Executes the lowered program in a world of CPU ranks with these options, and those of its own."""
        assert self.arguments is not None
        make = self.arguments
        world = tk.CpuWorld(**{"sms": self.sms, "heap_bytes": 4 << 20} | options | self.options)

        def on_rank(group: Any) -> None:
            for _ in range(self.calls):
                self.program(*make(group.rank), schedule=self.scheduled(group.rank), group=group)

        world.run(on_rank)

    def scheduled(self, rank: int) -> tk.Schedule:
        """What a rank calls the program with."""
        return self.schedule


@dataclass(frozen=True)
class Kernels:
    """Hand-written kernels. `host(world)` makes symmetric memory and runs all ranks; `functions`: those in whose source
    the racing lines stand. `options`: of the world, such as `resident`."""

    host: Callable[[tk.KernelWorld], object]
    functions: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, **options: Any) -> None:
        """Executes the kernels in a world of these options, and those of its own."""
        self.host(tk.KernelWorld(**options | self.options))


class Subject(Protocol):
    """What a case is about; tools know those that they can take."""

    @property
    def functions(self) -> tuple[Any, ...]:
        """Those in whose source the lines of the pair stand."""


@dataclass(frozen=True)
class Case:
    """A program with its label. `name`: the case that it mirrors. `kind`: on which side the conflict lies, on that of
    the rank that communicates ("local") or of its peer. `pair`: of the two lines that conflict (or that are ordered, in
    a clean case) a text each that stands in no other line of the functions; one text alone where one line conflicts
    with itself, on two ranks, or is a wait that never ends.

    Of a bug that was shipped: `bug`, what was wrong, in a sentence; `tool`, which finds it, and the kind of `finding`.
    `says`: words that this finding holds, where the mistake is not between two lines and there is no pair.
    """

    name: str
    label: Label
    kind: Literal["local", "remote"]
    ranks: int
    subject: Subject
    pair: tuple[str, ...]
    bug: str = ""
    tool: str = ""
    finding: str = "race"
    says: str = ""

    def __post_init__(self) -> None:
        asks = self.pair or (self.tool and self.finding and self.says)
        assert asks or self.label == "clean", f"{self.name}: any report would do"

    def told_by(self, report: Report) -> bool:
        """Whether a report is of the mistake: of this kind, and it names all lines of the pair; where there is no pair,
        it is the finding of that tool, and says that."""
        if self.pair:
            return _kind(report.kind) == _kind(self.finding) and self.lines <= report.lines
        return (report.tool, report.kind) == (self.tool, self.finding) and self.says in report.text

    @property
    def lines(self) -> frozenset[str]:
        """The lines of the pair, "file:line", as reports name them. Fails if a text is not that of one line."""
        found: dict[str, list[str]] = {text: [] for text in self.pair}
        for function in self.subject.functions:
            function = getattr(function, "fn", getattr(function, "function", function))
            source, first = inspect.getsourcelines(function)
            for number, line in enumerate(source, first):
                for text in self.pair:
                    if text in line:
                        found[text].append(str(Site(inspect.getsourcefile(function), number)))
        for text, lines in found.items():
            assert len(lines) == 1, f"{self.name}: {text!r} stands in {lines or 'no line'}"
        return frozenset(line for lines in found.values() for line in lines)


def _kind(word: str) -> str:
    return ALIKE.get(word, word)


def twins(
    name: str,
    bug: str,
    tool: str,
    finding: str,
    ranks: int,
    faulty: Subject,
    mended: Subject,
    pair: tuple[str, ...] = (),
    mended_pair: tuple[str, ...] | None = None,
    says: str = "",
) -> list[Case]:
    """A bug that was shipped, and the same program without it. `mended_pair`: the lines that are ordered there."""
    ordered = pair if mended_pair is None else mended_pair
    return [
        Case(f"twin-{name}", "racy", "remote", ranks, faulty, pair, bug, tool, finding, says),
        Case(f"twin-{name}-mended", "clean", "remote", ranks, mended, ordered, bug),
    ]


@dataclass(frozen=True)
class Report:
    """What a tool says of a case: the kind of finding, and the text that a person gets."""

    tool: str
    kind: str
    text: str

    @property
    def lines(self) -> frozenset[str]:
        """All lines that the text names, "file:line"."""
        return frozenset(f"{file}:{line}" for file, line in LINES.findall(self.text))
