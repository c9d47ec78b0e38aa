"""Runs a drawn program on CPU ranks and holds its results against those of the reference."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilelink as tk
from tests.differential.generator import Case, damaged, drawn
from tests.differential.reference import Faulty, Output, reference
from tests.modules import load
from tilelink.emulator import KernelError, RaceError
from tilelink.errors import StuckError, TileLinkError

LARGEST = 2.0**22


@dataclass(frozen=True)
class Outcome:
    """What became of a program with a schedule: "right", "refused" by check or bind (`why`), or "wrong"."""

    verdict: str
    why: str = ""


def loaded(case: Case, folder: Path) -> Any:
    """The program's file as a module."""
    name = f"drawn_{case.seed}_{case.damage or 'whole'}".replace(" ", "_")
    return load(folder / f"{name}.py", case.source, listed=True)


def called(case: Case, module: Any, schedule: str, seed: int) -> dict[str, Any]:
    """The outputs on CPU ranks, by name."""
    parts = {d.name: d.parts for d in case.dims.values() if d.parts is not None}
    wanted = [n for n, v in case.given.items() if isinstance((v or [None])[0] if isinstance(v, list) else v, Output)]

    def rank(group: Any) -> Any:
        def of(values: Any) -> Any:
            if isinstance(values[0], list):
                return [of(v) for v in values]
            return torch.from_numpy(values[group.rank].copy())

        given = {n: of(v) for n, v in case.given.items() if n not in wanted and v is not None}
        return module.drawn(**given, schedule=getattr(module, schedule), group=group, parts=parts)

    world = tk.CpuWorld(case.world, heap_bytes=1 << 18, signal_bytes=1 << 14, sms=12, seed=seed)
    results = world.run(rank)
    results = [r if len(wanted) > 1 else (r,) for r in results]
    outputs = {n: [r[k] for r in results] for k, n in enumerate(wanted)}
    return flat({n: list(zip(*o, strict=True)) if isinstance(case.given[n], list) else o for n, o in outputs.items()})


def flat(outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs by name, where each member of a list has its own."""
    made: dict[str, Any] = {}
    for name, o in outputs.items():
        made |= {f"{name}[{k}]": m for k, m in enumerate(o)} if name == "outs" else {name: o}
    return made


def outcome(case: Case, folder: Path, schedule: str, seeds: tuple[int, ...] = (0,)) -> Outcome:
    """What becomes of it with one of its schedules, on each seed of the execution."""
    found: Any
    try:
        module = loaded(case, folder)
        found = [called(case, module, schedule, s) for s in seeds]
    except (StuckError, RaceError, KernelError) as e:
        return Outcome("wrong", f"called safe, and then {type(e).__name__}: {e}")
    except TileLinkError as e:
        says = e.site is not None and Path(e.site.file).parent == folder and e.site.line > 0
        return Outcome("refused" if says else "wrong", f"{type(e).__name__}: {e}")
    except Exception as e:
        return Outcome("wrong", f"{type(e).__name__}: {e}")
    try:
        wanted = [
            flat(reference(case.source, "drawn", schedule, case.world, case.dims, case.given, s)) for s in (0, 1)
        ]
    except Faulty as e:
        return Outcome("wrong", f"called safe, and {e}")
    for name, want in wanted[0].items():
        for rank in range(case.world):
            if not np.array_equal(want[rank], wanted[1][name][rank]):
                return Outcome("wrong", f"called safe, but {name} of rank {rank} depends on the order of tiles")
            if np.abs(want[rank]).max(initial=0) > LARGEST:
                return Outcome("large")
            for got in found:
                if not np.array_equal(got[name][rank].numpy(), want[rank]):
                    return Outcome("wrong", f"{name} of rank {rank} is\n{got[name][rank]}\nand should be\n{want[rank]}")
    return Outcome("right")


def said(case: Case) -> str:
    """How to run it alone."""
    small = " small" if case.small else ""
    return f"python -m tests.differential.comparing {case.seed}{small}{' damaged' if case.damage else ''}"


if __name__ == "__main__":
    seed, *how = sys.argv[1:]
    case = (damaged if "damaged" in how else drawn)(int(seed), small="small" in how)
    print(case.source)
    print({n: d.parts or d.size for n, d in case.dims.items()}, "world", case.world, "damage", case.damage)
    with tempfile.TemporaryDirectory() as folder:
        for schedule in case.schedules:
            print(schedule, *vars(outcome(case, Path(folder), schedule, (0, 1))).values())
