"""`tilelink list`, `machine` and `doctor`: the operators, the machines, and the capabilities of this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tilelink.analysis.machine import machine, names, unit
from tilelink.kernels import operators
from tilelink.language import Each, Function
from tilelink.programs.program import Program
from tilelink.tools.cli.command import Answer, Command, Flag, UsageError


def run_list(args: argparse.Namespace) -> Answer:
    """The operators of the library, their tensors and their schedules. The text has the first sentence of each
    description, --json all of it."""
    found = [_described(p) for p in operators().values()]
    return Answer({"operators": found}, "\n".join(map(_paragraph, found)))


def _described(program: Program) -> dict[str, Any]:
    """An operator as a dict. Its first schedule is the default; a tensor with `each` may be given as a list."""
    tensors = [
        {
            "name": t.name, "kind": t.kind, "dims": list(t.dims),
            "sharded": None if t.sharded is None else t.dims[t.sharded], "optional": t.name in program.optional,
            "each": isinstance(program.declared[t.name], Each),
        }
        for t in program.recorded().tensors if t.kind != "buffer"
    ]  # fmt: skip
    return {
        "name": program.name, "summary": " ".join((program.__doc__ or "").split()), "tensors": tensors,
        "functions": [n for n, p in program.declared.items() if p == Function], "schedules": list(program.schedules),
    }  # fmt: skip


def _paragraph(operator: dict[str, Any]) -> str:
    def tensor(t: dict[str, Any]) -> str:
        dims = ", ".join(f"{d}/world" if d == t["sharded"] else d for d in t["dims"])
        return ("each " if t["each"] else "") + f"{t['name']}[{dims}]" + (" (optional)" if t["optional"] else "")

    by_kind = {k: ", ".join(tensor(t) for t in operator["tensors"] if t["kind"] == k) for k in ("input", "output")}
    default, *others = operator["schedules"] or ["none"]
    sentence, dot, _ = operator["summary"].partition(". ")
    lines = [sentence + dot.strip(), f"{by_kind['input']} -> {by_kind['output']}"]
    lines += [f"functions: {', '.join(operator['functions'])}"] if operator["functions"] else []
    lines.append(f"schedules: {', '.join([f'{default} (default)' if others else default, *others])}")
    return "".join([f"{operator['name']}\n", *(f"    {line}\n" for line in lines if line)])


def run_machine(args: argparse.Namespace) -> Answer:
    """The machines that runs are predicted on; `measure` fills in what this machine's GPU can tell."""
    match args.action:
        case "list":
            found = [machine(name) for name in names()]
            keys = {"machines": [{"name": m.name, "title": m.title, "sms": m.sms} for m in found]}
            return Answer(keys, "".join(f"{m.name:<14}{m.title}\n" for m in found))
        case "show":
            return _shown(args.name)
    return _measured(args.extends, args.out)


def _shown(name: str | None) -> Answer:
    if name is None:
        raise UsageError(f"tilelink machine show NAME; there is {', '.join(names())}")
    shown = machine(name)
    numbers = {
        path: {"value": value, "unit": unit(path), "source": shown.sources[path]}
        for path, value in shown.numbers.items()
    }
    width = max(map(len, numbers))
    text = "".join(f"{p:<{width}}  {v['value']:>10g} {v['unit']:<7}  {v['source']}\n" for p, v in numbers.items())
    return Answer({"name": shown.name, "title": shown.title, "numbers": numbers}, f"{shown.title}\n{text}")


def _measured(extends: str, out: str | None) -> Answer:
    from tilelink.runtime.measure import description, measure

    measured = measure()
    text = description(measured, extends)
    if out is not None:
        Path(out).write_text(text)
    numbers = {path: {"value": value, "source": how} for path, (value, how) in measured.numbers.items()}
    return Answer({"gpu": measured.gpu, "numbers": numbers, "description": text}, text)


def run_doctor(args: argparse.Namespace) -> Answer:
    """The capabilities of this machine and its installation; a finding if one is missing that everything needs."""
    from tilelink.tools.capabilities import capabilities, gpus, versions

    found = capabilities()
    told = {c.name: {"ok": c.ok, "needed": c.needed, "why": c.why} for c in found}
    width = max(map(len, told))
    marks = ["ok" if c.ok else "MISSING" if c.needed else "no" for c in found]
    text = "".join(f"{mark:<8}{c.name:<{width}}  {c.why}\n" for mark, c in zip(marks, found, strict=True))
    keys = {"versions": versions(), "gpu": gpus(), "capabilities": told}
    return Answer(keys, text, status="ok" if all(c.ok for c in found if c.needed) else "finding")


LIST = Command(run_list, "tilelink list --json")
DOCTOR = Command(run_doctor, "tilelink doctor")
MACHINE = Command(
    run_machine,
    "tilelink machine show h800",
    [
        Flag("action", choices=("list", "show", "measure"), help="what to do"),
        Flag("name", nargs="?", help="for show: the machine's name"),
        Flag("--extends", default="h100", help="for measure: whose other numbers to keep (default: %(default)s)"),
        Flag("--out", metavar="FILE", help="for measure: write the description there"),
    ],
)
