"""`tilelink simulate`: what a run of a program is predicted to take on a machine, and why."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tilelink.analysis.draw import About, write_page, write_perfetto
from tilelink.analysis.machine import machine
from tilelink.analysis.simulate import FUSED, UNFUSED, Prediction
from tilelink.analysis.simulate.prediction import rounded
from tilelink.tools.cli import sweep
from tilelink.tools.cli.command import Answer, Command, Flag, UsageError
from tilelink.tools.cli.program import Question, machine_flag, program_flags

ENDINGS = (".json", ".html")


def run(args: argparse.Namespace) -> Answer:
    """What a run of a program is predicted to take on a machine, what bounds it, and where time goes. Whether its tiles
    fit into shared memory and registers is not looked at: `tilelink show TARGET --stage ptx` says that."""
    if args.trace is not None and not args.trace.endswith(ENDINGS):
        raise UsageError(f"--trace {args.trace}: .json for ui.perfetto.dev, .html for a page of its own")
    if args.until is not None and not (args.trace or "").endswith(".html"):
        raise UsageError("--until is of a page: say --trace FILE.html, too")
    if args.trace is not None and not Path(args.trace).resolve().parent.is_dir():
        raise UsageError(f"--trace {args.trace}: there is no folder {Path(args.trace).parent}")
    rows = sweep.rows(args, point) if args.sweep else []
    if rows:
        args = sweep.at(args, rows[0]["point"])
    asked, prediction = predict(args)
    text, keys = _text(prediction), {"machine": args.machine, **asked.keys, **prediction.summary()}
    if args.trace is not None:
        write_timeline(prediction, args.trace, asked.keys["schedule"], args.until)
        keys["trace"] = args.trace
    if rows:
        keys["rows"] = rows
        text = f"{sweep.table(rows)}\nthe fastest:\n{text}"
    return Answer(keys, text, asked.line({"machine": args.machine}))


def predict(args: argparse.Namespace) -> tuple[Question, Prediction]:
    """What a command line asks, and the prediction."""
    found, asked = machine(args.machine), Question.of(args)
    agents = dict(_agent(item) for item in args.agents.split(",")) if args.agents else {}
    return asked, asked.program.simulate(asked.schedule, machine=found, agents=agents, **asked.options)


def point(args: argparse.Namespace) -> dict[str, float | None]:
    """What a sweep says of one of its points."""
    _, prediction = predict(args)
    return {
        "makespan_us": round(prediction.makespan_us, 3), "bound_us": round(prediction.bound_us, 3),
        "unfused_us": rounded(prediction.unfused_us), "efficiency": round(prediction.efficiency, 4),
    }  # fmt: skip


def _agent(item: str) -> tuple[str, str]:
    role, _, agent = (s.strip() for s in item.partition("="))
    if not role or not agent:
        raise UsageError(f"--agents {item}: it is ROLE=AGENT, such as gather=copy_engine")
    return role, agent


def write_timeline(prediction: Prediction, path: str, schedule: str, until: float | None = None) -> None:
    """Writes the timeline of a prediction to a file: .json for ui.perfetto.dev, .html a page, whose axis may end at a
    time of `until`."""
    timeline = replace(prediction.timeline, title=f"{prediction.timeline.title} · {schedule}")
    if path.endswith(".json"):
        write_perfetto(timeline, path)
        return
    p = prediction
    plain = {} if p.unfused_us is None else {"unfused": _us(p.unfused_us)}
    facts = {
        "in truth": " to ".join(map(_us, p.interval_us)), **plain, "bound": _us(p.bound_us),
        "busiest link": " ".join(_link(p)),
    }  # fmt: skip
    about = About(p.makespan_us, p.idle_us, p.critical_path, p.verdict, facts, until)
    write_page(timeline, path, about)


def _text(prediction: Prediction) -> str:
    """For people: the answer first, then what it is due to."""
    p = prediction
    rows = [
        ("predicted", p.makespan_us, f"to {_us(p.interval_us[1])} ({FUSED}), on {p.machine.title}"),
        ("bound", p.bound_us, f"no schedule is faster; the run reaches {p.efficiency:.0%} of it"),
        ("products alone", p.compute_us, "on all SMs"),
        ("transfers alone", p.comm_us, "by the workers that make them"),
    ]
    if p.unfused_us is not None:
        rows.append(("unfused", p.unfused_us, f"({UNFUSED}) products, and a collective of the library"))
    rate, of = _link(p)
    lines = [f"{name:<16}{_us(time):>12}  {what}" for name, time, what in rows]
    lines += [f"{'busiest link':<16}{rate:>12}  {of}"]
    lines += [f"{'interval':<16}{FUSED!s:>12}  {FUSED.source}", "", p.verdict, "", "idle, the mean over SMs"]
    lines += [f"  {cause:<38}{_us(time):>12}" for cause, time in p.idle_us.items()]
    lines += ["", "critical path"]
    for link in p.critical_path:
        named = {"signal": f"signal: {link.label}", "tiles": f"{link.role} x {link.tiles}, last {link.label}"}
        what = named.get(link.kind, link.label)
        who = p.steps.events.worker_name(link.worker)
        lines.append(f"  {_us(link.duration):>12}  rank {link.rank} {who}: {what}")
    return "\n".join(lines) + "\n"


def _link(p: Prediction) -> tuple[str, str]:
    """What crosses the busiest link, and of how much that is."""
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


COMMAND = Command(
    run,
    "tilelink simulate all_gather_matmul --machine h800 --world 8 --shape M=8192,N=1376,K=4096 \\\n"
    "      --schedule push --sweep gather.count=8,16,32",
    [
        *program_flags(),
        machine_flag("h100"),
        Flag("--trace", metavar="FILE", help="write the timeline: .json for ui.perfetto.dev, .html a page"),
        Flag(
            "--until", type=_time, metavar="US", help="where the time axis of the page ends, in microseconds, so that "
            "two pages have one scale (default: where the run does)",
        ),
        Flag(
            "--agents", metavar="ROLE=AGENT,...",
            help="what if another agent than its resource's moved a role's bytes",
        ),
        Flag(
            "--sweep", action="append", type=sweep.read, metavar="KEY=VALUE,...", help="predict every combination of "
            "these values, on all cores, and tell of the fastest. KEY: machine, world, schedule, a dimension, or "
            "ROLE.FIELD of the schedule; may be given several times",
        ),
    ],
)  # fmt: skip
