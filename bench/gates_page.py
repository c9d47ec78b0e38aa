"""The tables of docs/targets.md, from the records of the gates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.gates import RECORDS, held
from bench.table import head

SHOWN, PORTABLE, SPECIALISED = "3.7.1", ("sm_90", "sm_100"), ("sm_90+warps", "sm_100+warps")
"""The version of Triton in the tables, the targets of the portable form, and the targets of the specialised form."""

Record = Mapping[str, Mapping[str, Any]]


def records() -> dict[str, Record]:
    """Returns the records, by version of Triton."""
    found = sorted(RECORDS.glob("triton-*.json"))
    return {path.stem.removeprefix("triton-"): json.loads(path.read_text()) for path in found}


def portable(record: Record) -> str:
    """Returns a table of programs in the portable form, as Markdown: instructions of a step, and registers."""
    cells: dict[str, dict[str, list[str]]] = {}
    for case, figures in record.items():
        program, schedule, target = case.split()
        if target in PORTABLE and figures["step"]:
            star = "*" if held(case) else ""
            more = [f"`cp.async` {figures['async_copies']}"] if figures["async_copies"] else []
            more += [f"spilled {figures['spill_bytes']}"] if figures["spill_bytes"] else []
            said = ", ".join([f"{schedule} {figures['step']}{star}", str(figures["registers"]), *more])
            cells.setdefault(program, {}).setdefault(target, []).append(said)
    lines = head("program", *PORTABLE)
    lines += [
        f"| `{program}` | {' | '.join('; '.join(of.get(target, ['-'])) for target in PORTABLE)} |"
        for program, of in cells.items()
    ]
    return "\n".join(lines)


def specialised(by_version: Mapping[str, Record]) -> str:
    """Returns a table of the specialised form, as Markdown: instructions of a step by Triton, and shared memory."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for case, figures in by_version[SHOWN].items():
        program, schedule, target = case.split()
        if target in SPECIALISED:
            steps = ", ".join(str(of[case]["step"]) if case in of else "-" for of in by_version.values())
            star = "*" if held(case) else ""
            said = f"{steps}{star} | {figures['shared_bytes']:,}"
            cells.setdefault((program, schedule), {})[target] = said
    lines = head("program", "schedule", *(name for target in SPECIALISED for name in (f"{target}: step", "bytes")))
    lines += [
        f"| `{program}` | {schedule} | {' | '.join(of.get(target, '- | -') for target in SPECIALISED)} |"
        for (program, schedule), of in cells.items()
    ]
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """Returns the tables, by their names in the page."""
    found = records()
    return {"portable": portable(found[SHOWN]), "specialised": specialised(found)}
