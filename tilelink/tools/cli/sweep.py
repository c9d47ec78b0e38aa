"""Sweeps: one command line at every combination of some values, on all cores, the fastest first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any

from tilelink.errors import TileLinkError
from tilelink.tools.cli.command import UsageError, columns, on_all_cores
from tilelink.tools.cli.program import read_shape

Axis = tuple[str, tuple[str, ...]]
Point = dict[str, str]
FLAGS = ("machine", "world", "schedule")
TIMES = ("makespan_us", "bound_us", "unfused_us")


def read(text: str) -> Axis:
    """`gather.count=4,8,16`: what is varied, and its values."""
    key, _, values = (s.strip() for s in text.partition("="))
    found = tuple(v.strip() for v in values.split(","))
    if not key or not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE,VALUE,...; try gather.count=4,8,16 or M=1024,8192")
    return key, found


def rows(args: argparse.Namespace, run: Callable[[argparse.Namespace], dict[str, Any]]) -> list[dict[str, Any]]:
    """What `run` says of every point: its `point` and its figures, by `makespan_us`; then the points that can't be,
    with `error`. Progress goes to stderr. Raises UsageError where none can be."""
    axes: list[Axis] = args.sweep
    twice = {key for key, _ in axes if sum(key == other for other, _ in axes) > 1}
    if twice:
        raise UsageError(f"--sweep {', '.join(sorted(twice))}: given twice; all values of a key go into one --sweep")
    points = [dict(zip([key for key, _ in axes], values, strict=True)) for values in product(*(v for _, v in axes))]
    jobs = [at(args, p) for p in points]  # bad keys are found before anything runs
    found: dict[int, dict[str, Any]] = {}
    for done, (k, made) in enumerate(on_all_cores(run, jobs), start=1):
        what = {"error": f"{type(made).__name__}: {made.message}"} if isinstance(made, TileLinkError) else made
        found[k] = {"point": points[k], **what}
        said = found[k].get("error") or f"{found[k]['makespan_us']:,.1f} us"
        print(f"[{done}/{len(jobs)}] {_named(points[k])}: {said}", file=sys.stderr, flush=True)
    fine = sorted((r for r in found.values() if "error" not in r), key=lambda r: r["makespan_us"])
    if not fine:
        raise UsageError(f"no point of the sweep can be; {_named(points[0])}: {found[0]['error']}")
    return fine + [found[k] for k in sorted(found) if "error" in found[k]]


def at(args: argparse.Namespace, point: Point) -> argparse.Namespace:
    """The command line at a point. Raises UsageError for a value that its key can't have."""
    made = argparse.Namespace(**{**vars(args), "sweep": None})
    made.shape = deepcopy(args.shape)
    changes: list[str] = []
    for key, value in point.items():
        if key == "world":
            if not value.isdecimal():
                raise UsageError(f"--sweep world={value}: a natural number")
            made.world = int(value)
        elif key in FLAGS:
            setattr(made, key, value)
        elif "." in key:
            changes.append(f"{key}={value}")
        else:
            try:
                made.shape |= read_shape(f"{key}={value}")
            except argparse.ArgumentTypeError as e:
                raise UsageError(f"--sweep {key}={value}: {e}") from None
    made.schedule = ",".join([*([made.schedule] if made.schedule else []), *changes]) or None
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people: the fastest first."""
    keys = list(rows[0]["point"])
    heads = [*keys, "predicted us", "bound us", "unfused us"]
    lines = [
        [*r["point"].values(), *("-" if r[k] is None else f"{r[k]:,.1f}" for k in TIMES)]
        for r in rows
        if "error" not in r
    ]
    texts = columns(heads, lines)
    texts += [f"{_named(r['point'])}: {r['error']}" for r in rows if "error" in r]
    return "\n".join(texts) + "\n"


def _named(point: Point) -> str:
    return " ".join(f"{key}={value}" for key, value in point.items())
