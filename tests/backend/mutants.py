"""Lowered programs and primitives with one thing wrong, and how that shows when they run."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.kernels.gather_gemm import Call, run
from tilelink.backend.cache import load
from tilelink.backend.lower import Lowered, lower
from tilelink.backend.targets import portable
from tilelink.errors import StuckError
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.cpu import OutOfBoundsError, RaceError
from tilelink.runtime.cpu_world import CpuWorld, Ready

Edit = tuple[str, str]
"""A regular expression, and what takes its place wherever it matches."""


@dataclass(frozen=True)
class Mutant:
    """`source` is done to generated modules, `target` to the primitives. `lane` names the calls in which it shows, `caught`
    how: "race on" a tensor or its signals, "stuck", "wrong", "out of bounds"."""

    name: str
    lane: str
    caught: tuple[str, ...]
    source: tuple[Edit, ...] = ()
    target: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, {self.lane}"

    def lowered(self, lowered: Lowered, folder: Path) -> Lowered:
        """The program with the fault in it."""
        if self.target:
            text = edited(Path(portable.__file__).read_text(), self.target)
            name = f"mutant_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            (folder / f"{name}.py").write_text(text)
            lowered = lower(lowered.program, lowered.facts, target=name)
        return replace(lowered, source=edited(lowered.source, self.source))


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Raises AssertionError where an edit finds nothing: a mutant that changes nothing proves nothing."""
    for pattern, replacement in edits:
        text, times = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert times, f"{pattern} does not occur in\n{text}"
    return text


class MutatedWorld(CpuWorld):
    """A world that runs programs with a fault in them. `folder` is on Python's path."""

    def __init__(self, world: int, mutant: Mutant, folder: Path, **options: Any) -> None:
        super().__init__(world, **options)
        self.mutant, self.folder = mutant, folder
        self._mutated: dict[Ready, Ready] = {}

    def ready(self, *call: Any) -> Ready:
        good = super().ready(*call)
        if good not in self._mutated:
            lowered = self.mutant.lowered(good.prepared.lowered, self.folder)
            self._mutated[good] = Ready.of(replace(good.prepared, lowered=lowered, module=load(lowered)))
        return self._mutated[good]


def outcomes(world: CpuWorld, lane: Sequence[Call], seed: int) -> set[str]:
    """How it shows that something is wrong; nothing where nothing does."""
    try:
        results = run(lane, seed=seed, world=world)
    except RaceError as e:
        return {f"race on {party.region}" for race in e.races for party in (race.first, race.second)}
    except StuckError:
        return {"stuck"}
    except OutOfBoundsError:
        return {"out of bounds"}
    for call, outs in zip(lane, results, strict=True):
        try:
            call.check(outs)
        except AssertionError:
            return {"wrong"}
    return set()


def forget(folder: Path) -> None:
    """Drops the modules of a folder, as if they had never been imported."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder):
            del sys.modules[name]
