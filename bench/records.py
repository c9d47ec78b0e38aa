"""Results as JSON lines, one for each figure of a case; `what` says what the figure is."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from bench.check import LIMITS
from bench.measure import Measured
from bench.operators import OPERATORS, UNFUSED, WORKERS

Record = dict[str, Any]

RESULTS = "results.jsonl"
LOGICAL = "logical makespan: memory operations on the longest chain of the execution on the CPU; no time"
WALL = "wall time of the interpreter that executes all ranks on the CPU; no performance"
UNIT = "memory operations"


def records(measured: Sequence[Measured], command: str) -> list[Record]:
    """Returns two records a case: its logical makespan, and the wall time of the interpreter. A wrong result has no
    figures. The makespan is no time, so it is in `logical`, with the ratio of the unfused form's makespan to it."""
    baselines = {_group(m): m for m in measured if m.case.schedule == UNFUSED and m.ok}
    made = []
    for m in measured:
        for what in (LOGICAL, WALL):
            figures = _logical(m, baselines.get(_group(m))) if what == LOGICAL else _wall(m)
            made.append({**_head(m, what), **figures, "speedup": None, "bound_us": None, **about(command)})
    return made


def about(command: str) -> Record:
    """Returns the part of a record that describes the run."""
    return {"versions": versions(), "machine": machine(), "command": command}


def _group(m: Measured) -> tuple[Any, ...]:
    """Returns a key that is the same for forms that are compared with each other."""
    return m.case.op, m.case.shape, m.case.dtype, m.case.world


def _head(m: Measured, what: str) -> Record:
    case = m.case
    return {
        "op": case.op, "layer": case.layer, "shape": case.shape_text, "dtype": case.dtype, "world": case.world,
        "schedule": case.schedule, "workers": WORKERS, "work": case.work, "kind": "measured", "what": what,
        "rel_rms": m.rel_rms if m.rel_rms != float("inf") else None, "limit": LIMITS[case.dtype],
        "ok": m.ok, "error": m.error, "repeats": len(m.makespans) if m.ok else 0,
        "baseline": None if case.schedule == UNFUSED else OPERATORS[case.op].baseline,
    }  # fmt: skip


def _logical(m: Measured, baseline: Measured | None) -> Record:
    found: Record = {"logical": None, "median_us": None, "min_us": None, "max_us": None}
    if m.ok:
        middle = median(m.makespans)
        fused = baseline is not None and m.case.schedule != UNFUSED
        ratio = median(baseline.makespans) / middle if fused and baseline else None
        found["logical"] = {
            "unit": UNIT, "median": middle, "min": min(m.makespans), "max": max(m.makespans),
            "ratio": ratio and round(ratio, 4),
        }  # fmt: skip
    return found


def _wall(m: Measured) -> Record:
    us = [round(s * 1e6) for s in m.seconds] if m.ok else []
    spread = {"median_us": median(us), "min_us": min(us), "max_us": max(us)} if us else {}
    return {"logical": None, **dict.fromkeys(("median_us", "min_us", "max_us")), **spread}


def write(made: Sequence[Record], folder: Path) -> Path:
    """Writes records to a folder; returns the file."""
    path = folder / RESULTS
    path.write_text("".join(json.dumps(r, allow_nan=False) + "\n" for r in made))
    return path


def read(path: Path) -> list[Record]:
    """Returns the records of a file, or of the results in a folder. Raises OSError, and ValueError for other lines."""
    path = path / RESULTS if path.is_dir() else path
    found = []
    for number, record in enumerate(json_lines(path), 1):
        if not isinstance(record, Mapping) or not {"op", "shape", "ok", "what"} <= record.keys():
            raise ValueError(f"line {number} is no record of a benchmark")
        found.append(dict(record))
    return found


def json_lines(path: Path) -> list[Any]:
    """Returns what a file of JSON lines holds. Raises OSError, and ValueError for a line that is not JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@cache
def versions() -> dict[str, str | None]:
    """Returns the versions of everything that affects measurements; for TileLink also the commit."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy", "tilelink"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    root = Path(__file__).resolve().parent.parent
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--tags"]
        found["commit"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found["commit"] = None
    return found


@cache
def machine() -> dict[str, Any]:
    """Returns the name of the processor, and how many cores this process may use."""
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": cores()}


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))
