"""What the tools say of all labelled programs, counted, and the bugs among them: tables on the page of verification."""

from __future__ import annotations

from collections.abc import Iterable

from tests.verification.cases import Case, Kernels
from tests.verification.tools import TOOLS, executed

SUITES = {
    "conflict": "RMARaceBench, conflict",
    "sync": "RMARaceBench, sync",
    "atomic": "RMARaceBench, atomic",
    "twin": "twins of real bugs",
}
"""What suites are called, by what the names of their cases begin with."""


def finders(case: Case) -> frozenset[str]:
    """The tools that report the mistake that the case is labelled with; of a clean case, anything at all."""
    found = set()
    for name, tool in TOOLS.items():
        if any(case.label == "clean" or case.told_by(report) for report in tool(case) or ()):
            found.add(name)
    return frozenset(found)


OTHERS = tuple({"policy": ("random", "pct")[seed % 2], "seed": seed} for seed in range(100, 140))
"""Schedules under which kernels written by hand are executed once more, to see how much hangs on those of `TOOLS`."""


def orders(cases: Iterable[Case]) -> str:
    """Markdown: under how many of the other schedules each kernel is found that was written by hand with a mistake."""
    found: dict[str, int] = {}
    flagged: dict[str, int] = {}
    for case in cases:
        if isinstance(case.subject, Kernels):
            reports = [executed(case, case.subject, schedule) for schedule in OTHERS]
            counts, told = (found, case.told_by) if case.label == "racy" else (flagged, bool)
            counts[case.name] = sum(any(map(told, of_one)) for of_one in reports)
    always = sum(n == len(OTHERS) for n in found.values())
    first, last = OTHERS[0]["seed"], OTHERS[-1]["seed"]
    rows = [f"| {name} | {n} |" for name, n in sorted(found.items(), key=lambda i: i[1]) if n < len(OTHERS)]
    return "\n".join([
        f"All kernels written by hand also ran under {len(OTHERS)} other schedules, half of them random and half PCT "
        f"(seeds {first} to {last}).",
        f"Of {len(found)} kernels with a mistake, {always} are found under each schedule, and the others under some.",
        f"Of {len(flagged)} clean kernels, {sum(map(bool, flagged.values())) or 'none'} is flagged under any schedule.",
        "", f"| found under some schedules | of {len(OTHERS)} |", "|---|---|", *rows,
    ])  # fmt: skip


def bugs(cases: Iterable[Case]) -> str:
    """Markdown: what each twin gets wrong, and who says so, as what."""
    rows = [f"| {case.bug} | {case.tool} | {case.finding} |" for case in cases if case.bug and case.label == "racy"]
    return "\n".join(["| | found by | as |", "|---|---|---|", *rows])


def table(cases: Iterable[Case]) -> str:
    """Markdown: a row for each suite."""
    found = [(case, finders(case)) for case in cases]
    heads = ["", "with a mistake", "found", "missed", *(f"by {tool}" for tool in TOOLS), "clean", "flagged"]
    lines = [" | ".join(heads), "|".join(["---"] * len(heads))]
    for prefix, name in SUITES.items():
        own = [(case, tools) for case, tools in found if case.name.partition("-")[0] == prefix]
        racy = [tools for case, tools in own if case.label == "racy"]
        clean = [tools for case, tools in own if case.label == "clean"]
        hits = sum(map(bool, racy))
        by = [sum(tool in tools for tools in racy) for tool in TOOLS]
        row = [name, len(racy), hits, len(racy) - hits, *by, len(clean), sum(map(bool, clean))]
        lines.append(" | ".join(map(str, row)))
    return "\n".join(f"| {line} |" if " | " in line else f"|{line}|" for line in lines)
