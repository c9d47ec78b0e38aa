"""docs/gpu.md says of every form what is known of it: the page is held against forms, programs, targets and steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import bench.gpu.command
import bench.node.command
from bench.gates import RECORDS
from bench.gpu import others, right
from bench.gpu.place import dry
from bench.records import json_lines
from tilelink.backend.targets import TARGETS
from tilelink.kernels import operators
from tilelink.runtime.cuda.probed import FORMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
COMPILED = [name for name, target in TARGETS.items() if target.backend]


def rows(head: str, page: str = PAGE) -> list[list[str]]:
    """The cells of a table that begins with this line."""
    lines = page[page.index(head) :].splitlines()[2:]
    end = next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:end]]


def test_every_form_that_a_probe_switches_is_told_of() -> None:
    assert {name.strip("`") for name, *_ in rows("| form | asked for | unasked |")} == FORMS.keys()
    probed = " ".join(row[3] for row in rows("| form | compiled |"))
    assert not [form for form in FORMS if f"`{form}`" not in probed]


def test_every_form_says_whether_it_has_run() -> None:
    """Only what a GPU has left a record of."""
    found = rows("| form | compiled | dry-run | probed by | run |")
    assert len(found) > 12 and all(len(row) == 5 for row in found)
    records = {p.stem for p in (ROOT / "bench" / "results").glob("gpu-*.jsonl")}
    ran = records - {"gpu-none", "gpu-dry"}
    assert {row[4] for row in found} == {"no"} or ran
    assert ran or "**Nothing on this page has run on a GPU.**" in PAGE


def test_every_step_is_told_of() -> None:
    told = {name for name, *_ in rows("| step | |\n")}
    assert told == bench.gpu.command.STEPS.keys()
    assert not [step for step in bench.gpu.command.ALONE if f"`--step {step}`" not in PAGE]
    benchmarking = (ROOT / "docs" / "benchmarking.md").read_text()
    of_a_node = {name for name, *_ in rows("| step | what each rank does |", benchmarking)}
    assert of_a_node == bench.node.command.STEPS.keys()


def test_every_program_in_every_schedule_on_every_target() -> None:
    """What the gates have compiled, on Triton 3.7.1, and which step of `make gpu` runs it, two calls in a row."""
    compiled: dict[str, set[str]] = {}
    for key in json.loads((RECORDS / "triton-3.7.1.json").read_text()):
        name, _, target = key.rpartition(" ")
        compiled.setdefault(name, set()).add(target)
    place = dry()
    steps = dict.fromkeys(others.cases(), "others")
    steps |= {(c[0].name, c[3]): "results" for c in right.gathering(place)}
    steps |= {(c[0].name, c[3]): "sums" for c in right.adding(place)}
    files = (ROOT / "bench" / "results").glob("gpu-nvidia-*.jsonl")
    ran = {(r["op"], r["schedule"]) for path in files for r in json_lines(path) if r["ok"]}
    made = []
    for name, program in sorted(operators().items()):
        schedules, targets = list(program.schedules), {s: compiled.get(f"{name} {s}", set()) for s in program.schedules}
        portable = {frozenset(found & TARGETS.keys()) for found in targets.values() if found}
        assert portable == {frozenset(COMPILED)}, f"{name} is not compiled for all targets"
        warps = ", ".join(s for s in schedules if "sm_90+warps" in targets[s]) or "-"
        warps = "all" if warps == ", ".join(schedules) else warps
        (step,) = {steps[name, s] for s in schedules}
        run = "yes" if {(name, s) for s in schedules} <= ran else "no"
        made.append([f"`{name}`", ", ".join(schedules), "all", warps, "CPU ranks", step, run])
    head = "| program | schedules | compiled | specialised, compiled | dry-run | step | run |"
    assert rows(head) == made, "the rows should be\n" + "\n".join(f"| {' | '.join(row)} |" for row in made)
    assert not [t for t in COMPILED if f"`{t}`" not in PAGE[PAGE.index("### Programs") :][: PAGE.index(head)]]


def test_words_of_the_page_are_defined() -> None:
    for word in ("Compiled", "Dry-run", "Probed", "Run"):
        assert re.search(rf"\*{word}\*:", PAGE)
