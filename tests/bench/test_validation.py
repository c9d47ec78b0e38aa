"""Validation: rows for judging stay out of fits, both models have the same parameters, and the page says what is so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.validation import experts, page
from bench.validation import fit as fitting
from bench.validation.command import PAGE, predict_source, read
from bench.validation.decisions import counted, decisions, gained
from bench.validation.experts import Beside, Table
from bench.validation.fit import cases, fit
from bench.validation.forms import FORMS
from bench.validation.models import EVENTS, SIMPLE, Case, Parameters, defaults, predict, to_fit
from bench.validation.page import write
from bench.validation.results import UNFITTED, Outcome, Result, errors, order_kept
from bench.validation.rows import AG, GATHER, SOURCES, Published, Row, Source
from tilelink.analysis.machine import machine
from tilelink.plans import choose

BY_NAME = {s.name: s for s in SOURCES}
ROWS = tuple(
    Row(AG, m, 512, 512, (Published("NCCL", None, unfused), Published("FLUX", GATHER, fused)))
    for m, unfused, fused in ((1024, 0.05, 0.03), (2048, 0.08, 0.05), (4096, 0.12, 0.09))
)
SMALL = Source("small", "made up", "h100", 2, ROWS, ("matmul", "fixed", "library"))


def test_rows_alternate_in_the_order_listed() -> None:
    assert [judged for _, judged in SMALL.split()] == [False, True, False]
    for source in SOURCES:
        assert [row for row, _ in source.split()] == list(source.rows)
        assert [judged for _, judged in source.split()] == [bool(k % 2) for k in range(len(source.rows))]


@pytest.mark.parametrize("source", SOURCES, ids=[s.name for s in SOURCES])
def test_sources_hang_together(source: Source) -> None:
    assert set(source.fitted) <= set(defaults(source))
    fused = {c.published.form for c in cases(source)} - {None}
    assert fused <= set(FORMS) and fused
    numbers = sum(len(row.published) for row, judged in source.split() if not judged)
    assert len(source.fitted) <= numbers  # no more parameters than numbers to fit them to
    stored = read()[source.name]
    assert {m: set(p) for m, p in stored.items()} == {EVENTS: set(source.fitted), SIMPLE: set(source.fitted)}


@pytest.mark.parametrize("model", [EVENTS, SIMPLE])
def test_rows_for_judging_are_never_looked_at_in_a_fit(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()

    def watched(model: str, case: Case, parameters: Parameters) -> float:
        seen.add(case.row.m)
        return predict(model, case, parameters)

    monkeypatch.setattr(fitting, "predict", watched)
    found = fit(model, SMALL)
    assert seen == {1024, 4096}
    assert {n for n, v in found.items() if v != to_fit(SMALL)[n]} <= set(SMALL.fitted)


def test_a_fit_is_better_than_the_description() -> None:
    def loss(parameters: Parameters) -> float:
        known = cases(SMALL, judging=False)
        return sum(math.log(predict(EVENTS, c, parameters) / c.published.value) ** 2 for c in known)

    assert loss(fit(EVENTS, SMALL)) < loss(defaults(SMALL))


def test_the_simple_model_by_hand() -> None:
    fused = Case(SMALL, ROWS[0], ROWS[0].published[1])
    products, moved = 2 * 1024 * 512 * 512 / 1e6, 1024 * 512 * 2 / 2 / 1e3  # at 1 TFLOP/s; at 1 GB/s
    parameters = {**defaults(SMALL), "fixed": 5.0, "matmul": 1.0, fused.link: 1.0}
    assert predict(SIMPLE, fused, parameters) * 1e3 == pytest.approx(max(products, moved) + 5)
    assert predict(SIMPLE, fused, {**parameters, "host": 1e6}) == 1e3
    assert predict(SIMPLE, fused, {**parameters, "matmul": 1e9}) * 1e3 == pytest.approx(moved + 5)


def test_errors_and_orders() -> None:
    row = ROWS[0]
    a, b = (Case(SMALL, row, p) for p in row.published)
    right = [Result(a, True, {EVENTS: 0.06}), Result(b, True, {EVENTS: 0.03})]
    assert errors(right, EVENTS) == pytest.approx((0.1, 0.2))
    assert order_kept(right, EVENTS) == (1, 1)
    assert order_kept([right[0], Result(b, True, {EVENTS: 0.07})], EVENTS) == (0, 1)
    assert errors([], EVENTS) == (0, 0)


def test_a_page(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("## Where\n\n")
    stored = {EVENTS: defaults(SMALL), SIMPLE: defaults(SMALL)}
    said = {EVENTS: 1.0, SIMPLE: 2.0, UNFITTED: 1.0}
    results = [Result(c, j, said) for row, j in SMALL.split() for c in cases(SMALL) if c.row is row]
    rows = tuple(Beside("dispatch", f"{n} SMs", n * 10.0, {"ours": 15.0, "bound": 5.0}) for n in (1, 2))
    tables = [Table("Some experts", "somewhere", "Of a note.", rows)]
    write([Outcome(SMALL, stored, tuple(results))], {"MLP": 2.48}, tables, notes, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    first = text.split("\n\n")[2]  # behind the title, and whom the page is for
    assert first.startswith("**`tilelink simulate` and `tilelink plan` use nothing fitted.**") and "1900 % off" in first
    assert "0 of 3 took longer than predicted" in first and "+0% to +35%" in first
    assert "| dense fused rows for judging | 1 | 1900.0% | 1900.0% | 1900.0% | 1900.0% | 3900.0% | 3900.0% |" in text
    assert "| MLP | 1.24 x | 2.48 x | +100.0% |" in text
    row = "| J | AG+GEMM, M=2048, N=512, K=512 | FLUX | 0.050 | 1.000 | +1900.0% | 2.000 | +3900.0% | 1.000 |"
    assert row in text
    assert "| Some experts: dispatch | 2 | ours | 38% | 50% |" in text
    assert "### Some experts\n\nsomewhere.\nOf a note.\n" in text
    assert "| dispatch, 2 SMs | 20 | 15 | -25% | 5 | -75% |" in text


def test_experts_of_the_model_by_hand() -> None:
    on = machine("h100")
    there = experts._once(1000)[0]
    assert there == [662] * 8 and len(there) * 662 / 1000 == pytest.approx(8 * (1 - (7 / 8) ** 8), rel=0.02)
    slow, fast = (experts._dispatched(on, 512, sms, experts.OURS) for sms in (4, 16))
    assert 3 < slow / fast < 4
    faster = experts._dispatched(experts._pushing(on), 512, 16, experts.ITS)
    assert faster < fast, "half of the SMs, each 4.9 times as fast"
    assert experts._reached(4, 1) == 1 and experts._reached(4, 2) == 0.9375


def test_what_plan_decides_is_counted() -> None:
    """Of each published fused row with an unfused one: what is chosen, and what that would have gained."""
    made = decisions(SMALL)
    assert [(d.row, d.implementation) for d in made] == [(f"AG+GEMM, {r.shape}", "FLUX") for r in ROWS]
    choice = choose("all_gather_linear", M=1024, N=512, K=512, world=2, machine="h100")
    assert choice.fused is not None and choice.fused_us is not None
    assert made[0].published == 0.05 / 0.03 and made[0].form == choice.fused.plan
    assert made[0].predicted == choice.unfused_us / choice.fused_us and made[0].fused() == (choice.choice == "fused")
    faster, slower = (replace(made[0], published=p, predicted=2.0) for p in (2.0, 0.5))
    left = replace(faster, predicted=1.0)
    assert counted([faster, slower, left]) == (2, 1, 1)
    assert gained([faster, slower, left]) == pytest.approx(1.0) and gained([faster, left]) == pytest.approx(2**0.5)


@pytest.mark.verify
def test_the_page_holds_what_is_predicted_of_experts() -> None:
    assert page.experts(list(experts.tables())) in PAGE.read_text()


@pytest.mark.verify
@pytest.mark.parametrize("name", list(BY_NAME))
def test_the_page_holds_what_is_predicted(name: str) -> None:
    outcome = predict_source(list(BY_NAME).index(name), read())
    text = PAGE.read_text()
    for r in outcome.results:
        about = f"{r.case.row.operator}, {r.case.row.shape} | {r.case.published.implementation} |"
        line = next(line for line in text.split(f"## {name}\n")[1].split("\n## ")[0].split("\n") if about in line)
        assert f"{r.off[EVENTS]:+.1%}" in line and f"{r.off[SIMPLE]:+.1%}" in line
    for d in outcome.decisions:
        cells = f"| {d.source} | {d.row} | {d.implementation} | {d.published:.3f} x | {d.predicted:.3f} x | {d.form} |"
        assert cells in text
