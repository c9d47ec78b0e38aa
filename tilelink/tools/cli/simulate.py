"""`tilelink simulate`: how long a run of a program is predicted to take on a machine, and why."""

from __future__ import annotations

import argparse
import sys
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from tilelink.analysis.draw import About, write_page, write_perfetto
from tilelink.analysis.lanes import Tell, silent
from tilelink.analysis.machine import machine
from tilelink.analysis.paths import Link
from tilelink.analysis.simulate import FUSED, UNFUSED, Prediction
from tilelink.analysis.simulate.prediction import rounded
from tilelink.errors import TileLinkError, similar
from tilelink.tools.cli.command import Answer, Command, Flag, UsageError, columns, on_all_cores, progress
from tilelink.tools.cli.program import Question, machine_flag, program_flags, read_shape

ENDINGS = (".json", ".html")
Axis = tuple[str, tuple[str, ...]]
Point = dict[str, str]
FLAGS = ("machine", "world", "schedule")
MOST_LINKS = 16
"""The number of links that are printed at each end of a critical path."""
TIMES = ("makespan_us", "bound_us", "unfused_us")


def run(args: argparse.Namespace) -> Answer:
    """The predicted time of a run of a program on a machine, its bound, and where time goes. Whether its tiles fit into
    shared memory and registers is not checked here: `tilelink show TARGET --stage ptx` says that."""
    if args.trace is not None and not args.trace.endswith(ENDINGS):
        raise UsageError(f"--trace {args.trace}: .json for ui.perfetto.dev, .html for a page")
    if args.until is not None and not (args.trace or "").endswith(".html"):
        raise UsageError("--until is for a page: give --trace FILE.html, too")
    if args.trace is not None and not Path(args.trace).resolve().parent.is_dir():
        raise UsageError(f"--trace {args.trace}: there is no folder {Path(args.trace).parent}")
    rows = _swept(args) if args.sweep else []
    if rows:
        args = _at(args, rows[0]["point"])
    asked, prediction = predict(args, progress())
    text, keys = _text(prediction), {"machine": args.machine, **asked.keys, **prediction.summary()}
    if args.trace is not None:
        write_timeline(prediction, args.trace, asked.keys["schedule"], args.until)
        keys["trace"] = args.trace
    if rows:
        keys["rows"] = rows
        text = f"{_table(rows)}\nthe fastest:\n{text}"
    return Answer(keys, text, asked.line({"machine": args.machine}))


def predict(args: argparse.Namespace, tell: Tell = silent) -> tuple[Question, Prediction]:
    """The question of a command line, and its prediction. `tell`: see `tilelink.analysis.simulate.simulate`."""
    found, asked = machine(args.machine), Question.of(args)
    agents = dict(_agent(item) for item in args.agents.split(",")) if args.agents else {}
    options = {"machine": found, "agents": agents, "reserved": args.reserved, "tell": tell, **asked.options}
    return asked, asked.program.simulate(asked.schedule, **options)


def point(args: argparse.Namespace) -> dict[str, float | None]:
    """The figures of one point of a sweep."""
    _, prediction = predict(args)
    times = {name: rounded(getattr(prediction, name)) for name in TIMES}
    return {**times, "efficiency": round(prediction.efficiency, 4)}


def _agent(item: str) -> tuple[str, str]:
    role, _, agent = (s.strip() for s in item.partition("="))
    if not role or not agent:
        raise UsageError(f"--agents {item}: it is ROLE=AGENT, such as gather=copy_engine")
    return role, agent


def write_timeline(prediction: Prediction, path: str, schedule: str, until: float | None = None) -> None:
    """Writes the timeline of a prediction to a file: .json for ui.perfetto.dev, or an .html page whose time axis ends
    at `until` microseconds."""
    timeline = replace(prediction.timeline, title=f"{prediction.timeline.title} · {schedule}")
    if path.endswith(".json"):
        write_perfetto(timeline, path)
        return
    p = prediction
    plain = {} if p.unfused_us is None else {"unfused": _us(p.unfused_us)}
    facts = {
        f"with {FUSED}": " to ".join(map(_us, p.interval_us)), **plain, "bound": _us(p.bound_us),
        "busiest link": " ".join(_link(p)),
    }  # fmt: skip
    about = About(p.makespan_us, p.idle_us, p.critical_path, p.verdict, facts, until)
    write_page(timeline, path, about)


def _text(prediction: Prediction) -> str:
    """The prediction for people: the answer first, then its causes."""
    p = prediction
    left = f", {p.machine.reserved} of its SMs left to others" if p.machine.reserved else ""
    rows = [
        ("predicted", p.makespan_us, f"to {_us(p.interval_us[1])} ({FUSED}), on {p.machine.title}{left}"),
        ("bound", p.bound_us, f"the least for these bytes and operations; the run reaches {p.efficiency:.0%} of it"),
        *([("products alone", p.compute_us, "on all SMs of the kernel")] if p.compute_us else []),
        ("transfers alone", p.comm_us, "by the workers that make them, with their notifications"),
    ]
    if p.unfused_us is not None:
        form = "products of the same tiles alone, and a library's collective of as many bytes"
        rows.append(("unfused", p.unfused_us, f"({UNFUSED}) {form}"))
    rate, of = _link(p)
    lines = [f"{name:<16}{_us(time):>12}  {what}" for name, time, what in rows]
    lines += [f"{'busiest link':<16}{rate:>12}  {of}"]
    lines += [f"{'interval':<16}{FUSED!s:>12}  {FUSED.source}", "", p.verdict, "", "idle, the mean over SMs"]
    lines += [f"  {cause:<38}{_us(time):>12}" for cause, time in p.idle_us.items()]
    lines += ["", "critical path"]
    path = [_of_path(p, link) for link in p.critical_path]
    if (between := len(path) - 2 * MOST_LINKS) > 0:
        left_out = sum(link.duration for link in p.critical_path[MOST_LINKS:-MOST_LINKS])
        path[MOST_LINKS:-MOST_LINKS] = [f"  {_us(left_out):>12}  {between} more, which --json and --trace show"]
    return "\n".join([*lines, *path]) + "\n"


def _of_path(p: Prediction, link: Link) -> str:
    """The line of a link of the critical path."""
    named = {"signal": f"signal: {link.label}", "tiles": f"{link.role} x {link.tiles}, last {link.label}"}
    who = p.steps.events.worker_name(link.worker)
    return f"  {_us(link.duration):>12}  rank {link.rank} {who}: {named.get(link.kind, link.label)}"


def _link(p: Prediction) -> tuple[str, str]:
    """The rate of the busiest link, and what it is compared with."""
    most = f"the fastest agent reaches {p.link_limit:,.0f} in one direction"
    return f"{p.link_rate:,.0f} GB/s", f"on average over the run; {most}"


def _us(time: float) -> str:
    return f"{time:,.1f} us"


def _time(text: str) -> float:
    try:
        time = float(text)
    except ValueError:
        time = 0.0
    if not 0 < time < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in microseconds, more than 0")
    return time


# ---- sweeps: one command line at every combination of some values, on all cores, the fastest first


def _axis(text: str) -> Axis:
    """The key and the values of `gather.count=4,8,16`."""
    key, _, values = (s.strip() for s in text.partition("="))
    found = tuple(v.strip() for v in values.split(","))
    if not key or not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE,VALUE,...; try gather.count=4,8,16 or M=1024,8192")
    return key, found


def _swept(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all points: first those that can be predicted, the fastest first, with `point` and figures; then the
    others, with `error`. Progress goes to stderr. Raises UsageError if no point can be predicted."""
    axes: list[Axis] = args.sweep
    twice = {key for key, _ in axes if sum(key == other for other, _ in axes) > 1}
    if twice:
        raise UsageError(f"--sweep {', '.join(sorted(twice))}: given twice; all values of a key go into one --sweep")
    points = [dict(zip([key for key, _ in axes], values, strict=True)) for values in product(*(v for _, v in axes))]
    jobs = [_at(args, p) for p in points]  # bad keys are found before anything runs
    found: dict[int, dict[str, Any]] = {}
    for done, (k, made) in enumerate(on_all_cores(point, jobs), start=1):
        what = {"error": _error(made, points[k])} if isinstance(made, TileLinkError) else made
        found[k] = {"point": points[k], **what}
        said = found[k].get("error") or f"{found[k]['makespan_us']:,.1f} us"
        print(f"[{done}/{len(jobs)}] {_named(points[k])}: {said}", file=sys.stderr, flush=True)
    fine = sorted((r for r in found.values() if "error" not in r), key=lambda r: r["makespan_us"])
    if not fine:
        raise UsageError(f"no point of the sweep can be predicted; {_named(points[0])}: {found[0]['error']}")
    return fine + [found[k] for k in sorted(found) if "error" in found[k]]


def _error(error: TileLinkError, where: Point) -> str:
    """The error of a point of a sweep. If a change of the schedule causes it, the text names --sweep."""
    said = error.message
    for key, value in where.items():
        said = said.replace(f"--schedule {key}={value}:", f"--sweep {key}={value}:")
    return f"{type(error).__name__}: {said}"


def _at(args: argparse.Namespace, where: Point) -> argparse.Namespace:
    """The command line at a point. Raises UsageError for a value that its key can't have."""
    made = argparse.Namespace(**{**vars(args), "sweep": None})
    made.shape = deepcopy(args.shape)
    changes: list[str] = []
    for key, value in where.items():
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
                keys = f"{', '.join(FLAGS)}, a dimension, and ROLE.FIELD of the schedule{similar(key, FLAGS)}"
                raise UsageError(f"--sweep {key}={value}: {e}; the keys are {keys}") from None
    made.schedule = ",".join([*([made.schedule] if made.schedule else []), *changes]) or None
    return made


def _table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table for people."""
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


def _named(where: Point) -> str:
    return " ".join(f"{key}={value}" for key, value in where.items())


COMMAND = Command(
    run,
    "tilelink simulate all_gather_matmul --machine h800 --world 8 --shape M=8192,N=1376,K=4096 \\\n"
    "      --schedule push --sweep gather.count=8,16,32",
    [
        *program_flags(),
        machine_flag("h100"),
        Flag("--trace", metavar="FILE", help="write the timeline: .json for ui.perfetto.dev, .html a page"),
        Flag(
            "--until", type=_time, metavar="US", help="end of the page's time axis, in microseconds, so that "
            "two pages have one scale (default: the end of the run)",
        ),
        Flag(
            "--reserved", type=int, default=0, metavar="N", help="SMs that the kernel leaves to others: it leaves 24 "
            "to NCCL if that is the backend of its process group (default: %(default)s)",
        ),
        Flag(
            "--agents", metavar="ROLE=AGENT,...",
            help="predict with another agent for a role than its resource has, such as gather=copy_engine",
        ),
        Flag(
            "--sweep", action="append", type=_axis, metavar="KEY=VALUE,...", help="predict every combination of "
            "these values, on all cores, and show the fastest. KEY: machine, world, schedule, a dimension, or "
            "ROLE.FIELD of the schedule; may be given several times",
        ),
    ],
)  # fmt: skip
