"""Mutants made by machine: the engine, a fixed sample of them, and the record on the page of verification.

After a change that is meant, `TILELINK_RENEW=1 pytest -m verify -k by_machine tests/verification` judges what is drawn
and new, on two cores, and writes the record and the page. It takes long if all is new; it may be broken off and gone on
with.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.verification.mutants import (
    campaign,
    equivalents,
    kernels,
    of_kernels,
    of_primitives,
    of_programs,
    programs,
    record,
)
from tests.verification.mutants.job import Answer, Job
from tests.verification.mutants.mutant import Source, mutants
from tests.verification.mutants.subjects import Subject, named, subjects
from tilelink.kernels import operators

PAGE = Path(__file__).parents[2] / "docs" / "verification.md"
TEXT = """\
import tilelink as tk

@tk.tile
def use(t, full, out):
    rows = tk.wait(full[t.rows])
    out[t].store(rows[:, t.cols].load())
    tk.notify(tk.copy(rows, full[t].at(t.reader)))
"""


pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_mutant_is_one_change_in_one_place() -> None:
    made = mutants(TEXT, programs.OPERATORS)
    assert len({m.of(TEXT) for m in made}) == len(made)
    assert {m.kind for m in made} >= {"wait", "notify", "rank", "home", "tile index", "order"}
    for m in made:
        assert m.of(TEXT) != TEXT and m.of(TEXT)[: m.begin] == TEXT[: m.begin]
        assert 1 <= m.line <= TEXT.count("\n") and m.what
    assert "rows = full[t.rows]" in next(m for m in made if m.kind == "wait").of(TEXT)


def test_statements_are_swapped_with_what_is_between_them() -> None:
    source = Source("a = 1\n# of b\nb = 2\n")
    one, other = source.tree.body
    assert source.swapped("order", one, other).of(source.text) == "b = 2\n# of b\na = 1\n"


def test_every_operator_is_a_subject_under_every_schedule() -> None:
    made = {(s.name, s.schedule) for s in subjects()}
    assert made >= {(p.name, name) for p in operators().values() for name in p.schedules}


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_every_subject_has_its_tensors(subject: Subject) -> None:
    bound = subject.bound(subject.program)
    assert subject.operands(subject.program, 0).keys() == {t.name for t in bound.inputs}


DRAIN = """\
def drain_full(control, heaps, rank, M):
    signals = peer(heaps, rank, 0)
    cells = M // 16
    for first in range(0, cells, 128):
        cell = first + tl.arange(0, 128)
        cell_M = cell % 2
        drain(control, signals + cell, cell_M + 1, cell < cells, "sys")
"""


def test_how_a_drain_waits_is_told_from_what_it_zeroes() -> None:
    source = Source(DRAIN)
    of_wait = {}
    for m in mutants(DRAIN, kernels.OPERATORS):
        _, statement = equivalents.place(source, m)
        of_wait[m.kind, m.what] = equivalents.of_wait(source, statement, m)
    found = [what for what, is_wait in of_wait.items() if is_wait]
    assert {kind for kind, _ in found} == {"scope", "drain", "tile index"}
    assert all("cell_M" in what or "% 2" in what or kind == "scope" for kind, what in found)
    assert not any(is_wait for (kind, _), is_wait in of_wait.items() if kind in ("zeroing", "rank"))


def test_only_a_drain_of_one_cell_has_no_more_than_its_first_one() -> None:
    one = Source(DRAIN.replace("M // 16", "1"))
    assert equivalents._has_one_cell(one, "drain_full") and not equivalents._has_one_cell(Source(DRAIN), "drain_full")


def test_what_is_as_a_whole_in_a_tile_stays_as_long() -> None:
    subject = named("gathered_attention causal")
    assert subject.larger.sizes(subject.program)["D"] == subject.sizes(subject.program)["D"]
    assert subject.larger.sizes(subject.program)["S"] != subject.sizes(subject.program)["S"]


KINDS = {"wait", "notify", "acquire", "token", "drain", "rank", "tile index"}


def sample(primitive: str) -> list[Job]:
    """A mutant of some kinds, of one program, its kernel, and primitives whose names begin so."""
    of = named("lower_rows push")
    jobs = [j for j in of_programs.jobs() if j.subject == of.name]
    acquiring = (j for j in of_primitives.jobs() if j.subject == "portable" and j.mutant.kind == "acquire")
    jobs += [j for j in acquiring if j.mutant.what.startswith(primitive)]
    jobs += [j for j in of_kernels.of(of) if j.mutant.kind in KINDS]
    return campaign.drawn(jobs, 1)


@pytest.mark.verify
@pytest.mark.parametrize("primitive", ["wait:", "wait_some:"])
def test_a_sample_is_found(primitive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for pieces is found in the last of the programs that are tried, which takes longest."""
    monkeypatch.setattr(of_kernels, "SEEDS", range(1))
    judged = list(campaign.judged(sample(primitive), processes=1))
    assert {j.level for j, _ in judged} == {"program", "kernel", "primitive"} and len(judged) > 10
    assert {a.tool for _, a in judged} >= {"frontend", "execution", "gates"}
    missed = [f"{j.level} {j.mutant}" for j, a in judged if not a.tool and not a.why]
    assert not missed


def test_survivors_alone_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = named("lower_rows push")
    monkeypatch.setattr(of_programs, "subjects", lambda: [of])  # mutants of all programs take seconds to write
    notify = [j for j in of_programs.jobs() if j.mutant.kind == "notify"]
    results = tmp_path / "results.jsonl"
    found, survivor = (campaign.keys(j, Answer(tool, "")) for j, tool in zip(notify, ("check", ""), strict=False))
    results.write_text(f"{json.dumps(found)}\n{json.dumps(survivor)}\n")
    assert campaign.forgotten(results) == {survivor["key"]}
    campaign.carry_out([j for j in notify if j.key in (found["key"], survivor["key"])], results, 1)
    assert [r["key"] for r in campaign.known(results)] == [found["key"], survivor["key"]]
    assert campaign.known(results)[1]["tool"] == "check"


def test_at_least_98_of_100_are_found() -> None:
    kept = record.kept()
    rows = [row for kinds in kept["counts"].values() for row in kinds.values()]
    mistakes = sum(row["tried"] - row.get(record.EQUIVALENT, 0) for row in rows)
    missed = sum(row.get(record.MISSED, 0) for row in rows)
    assert missed == sum(not s["why"] for s in kept["survivors"])
    assert mistakes > 100 and missed <= 0.02 * mistakes
    assert set(kept["counts"]) == set(campaign.LEVELS)


def test_the_page_has_the_record() -> None:
    made = f"<!-- mutants -->\n{record.table(record.kept())}\n<!-- end of mutants -->"
    if os.environ.get("TILELINK_RENEW"):
        pattern = r"<!-- mutants -->\n.*?<!-- end of mutants -->"
        PAGE.write_text(re.sub(pattern, lambda _: made, PAGE.read_text(), flags=re.DOTALL))
    assert made in PAGE.read_text()


@pytest.mark.verify
def test_all_mutants_by_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Judges those that are drawn and not judged as they are, and writes the record if it is to be renewed."""
    jobs = [j for made in campaign.LEVELS.values() for j in made()]
    with capsys.disabled():
        campaign.carry_out(campaign.drawn(jobs, campaign.EACH), campaign.RESULTS, processes=2)
    found = record.summary(jobs, campaign.known(campaign.RESULTS))
    if os.environ.get("TILELINK_RENEW"):
        record.keep(found)
        test_the_page_has_the_record()
    tried = sum(row["tried"] for kinds in found["counts"].values() for row in kinds.values())
    missed = [s for s in found["survivors"] if not s["why"]]
    assert len(missed) <= 0.02 * tried, missed
