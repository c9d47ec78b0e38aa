"""The record of the gates: kernels of the library have no findings, and what is worse than on record is said."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from bench.gates import (
    BUDGETS,
    RECORDS,
    Figures,
    budget,
    covers,
    digest,
    forms,
    gated,
    held,
    instructions,
    lowered_for,
    over,
    programs,
    worse,
)
from tilelink.inspect.compile import Compiled
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul

TWICE = (
    r"dispatch_matmul|matmul_combine_backward|all_gather_grouped_matmul"
    r"|(matmul_combine|mixture_of_experts|grouped_matmul_reduce_scatter)(\[.*\])? few"
)
"""Programs of whose loop LLVM makes a step twice for gfx942."""
KEEPS = "mixture_of_experts[", "all_gather_grouped_matmul[gathered]"
"""With all that gradients need, they have more to store behind a product than sm_90 has registers for: 60 and, on
Triton 3.6.0, 48 bytes."""
ON_BLACKWELL = "matmul_combine_backward"
"""Two products and two gradients: threads of its specialised form spill up to 108 bytes, except on Triton 3.7.1."""
FILES = sorted(RECORDS.glob("triton-*.json"))
RECORDED = [json.loads(path.read_text()) for path in FILES]


def test_there_is_a_record() -> None:
    assert any(f.name == "triton-3.7.1.json" for f in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_nothing_is_found_in_kernels_of_the_library(path: object) -> None:
    record = json.loads(path.read_text())  # type: ignore[attr-defined]
    library = {case: figures for case, figures in record.items() if case.split()[0].partition("[")[0] in operators()}
    assert library
    for case, figures in library.items():
        target = case.split()[-1]
        several = "[dbias]" in case or "backward[2]" in case  # more sums than a thread has registers for
        spills = (target == "gfx942" and several) or (target == "sm_90" and case.startswith(KEEPS))
        spills |= target == "sm_100+warps" and case.startswith(ON_BLACKWELL)
        copied = target == "gfx942" and re.match(TWICE, case) is not None
        smaller = target in ("sm_80", "sm_120")  # the wide tiles are not for these chips
        assert spills or smaller or figures["spill_bytes"] == 0, case
        assert spills or smaller or copied or figures["findings"] == [], case
        allowed = [] if copied else ["of registers are spilled"]
        allowed += ["of shared memory; "] if smaller else []
        for finding in figures["findings"]:
            twice = re.fullmatch(r"mma: the program says (\d+), found (\d+)", finding) if copied else None
            ratio = int(twice[2]) / int(twice[1]) if twice else 0
            assert 1 < ratio <= 1.5 or any(a in finding for a in allowed), (case, finding)


def test_every_schedule_of_the_library_and_of_the_examples_is_compiled() -> None:
    found = {(program.label, schedule) for program, schedule in programs()}
    for name in ("all_gather_matmul", "all_gather_matmul[2]"):
        assert {(name, s) for s in ("push", "pull", "engine", "multicast")} <= found
    assert {name for name, _ in found} >= {"matmul_ring_reduce_scatter", "gathered_attention", "scaled_matmul"}
    names = {name for name, *_ in forms()}
    assert {"all_gather_matmul push", "all_gather_matmul[2] push", "all_gather_matmul[gathered] push"} <= names
    kept, _ = lowered_for(all_gather_matmul, "push", "sm_90", all_gather_matmul.on_demand)
    assert "gathered" in kept.source and "gathered" not in lowered_for(all_gather_matmul, "push", "sm_90")[0].source
    lowered, _ = lowered_for(operators()["matmul"], "gemm", "sm_90")
    assert "(128, 256)" in lowered.source, "sizes at which tiles are not made smaller"


def test_what_is_on_record_from_the_same_source_is_left_out() -> None:
    name, program = "all_gather_matmul push sm_90", all_gather_matmul
    same = digest(*lowered_for(program, "push", "sm_90"))
    others = (("pull", "sm_90", "bfloat16"), ("push", "sm_100", "bfloat16"), ("push", "sm_90", "float32"))
    assert same not in [digest(*lowered_for(program, s, target, dtype=dtype)) for s, target, dtype in others]
    assert list(gated(["sm_90"], name, {name: same})) == []
    (case,) = gated(["sm_90"], name, {name: "of another source"})
    assert case.digest == same and case.figures is not None and case.figures.instructions > 0


def test_what_is_worse_is_said() -> None:
    before = {"registers": 200, "spill_bytes": 0, "shared_bytes": 1000, "instructions": 1000}
    assert worse(Figures(200, 0, 1000, 1000), before) == []
    assert worse(Figures(210, 0, 900, 1090), before) == [], "a few more are no change for the worse"
    assert worse(Figures(230, 8, 1001, 1200), before) == [
        "registers: 230, it was 200", "shared_bytes: 1001, it was 1000", "spill_bytes: 8, it was 0",
        "instructions: 1200, it was 1000",
    ]  # fmt: skip
    assert worse(Figures(255, 99, 1, 1), {}) == [], "what is not on record is new"


def test_a_step_that_grows_and_loads_that_are_no_longer_described_are_worse() -> None:
    before = {"registers": 200, "spill_bytes": 0, "shared_bytes": 1000, "instructions": 1000}
    assert worse(Figures(200, 0, 1000, 1000, 120, 8), before) == [], "a record without them is still a record"
    before |= {"step": 79, "async_copies": 0}
    assert worse(Figures(200, 0, 1000, 1000, 86, 0), before) == []
    assert worse(Figures(200, 0, 1000, 1000, 87, 8), before) == [
        "step: 87, it was 79", "async_copies: 8, it was 0",
    ]  # fmt: skip


def test_cases_within_the_budget_are_held_to_it() -> None:
    case = "matmul_reduce_scatter_backward pull sm_90"
    assert held(case)
    assert list(over(case, Figures(255, 0, 1000, 1000, 80, 0))) == []
    assert list(over(case, Figures(255, 4, 1000, 1000, 81, 8))) == [
        "step: 81, the budget is 80", "async_copies: 8, the budget is 0", "spill_bytes: 4, the budget is 0",
    ]  # fmt: skip
    specialised = f"{case}+warps"
    assert list(over(specialised, Figures(168, 0, 1000, 1000, 61, 0))) == ["step: 61, the budget is 60"]
    assert list(over(case, Figures(255, 0, 1000, 1000))) == ["step: no loop with matrix instructions was found"]
    assert list(over("somebody else's sm_90", Figures(255, 4, 1000, 1000, 81, 8))) == []


def test_recorded_cases_are_within_their_budgets() -> None:
    cases = {f"{name} {target}" for name, *_ in forms() for target in BUDGETS}
    for case in filter(budget, cases):
        if not held(case):
            assert list(over(case, Figures(255, 0, 1000, 1000, 90, 1)))[-1] == "async_copies: 1, the budget is 0"
        recorded = [Figures(**{f.name: of[case][f.name] for f in fields(Figures)}) for of in RECORDED if case in of]
        assert recorded and not [found for figures in recorded for found in over(case, figures)], case


def test_every_line_of_the_budgets_has_cases_and_no_case_two_lines() -> None:
    known = [name.split() for name, *_ in forms()]
    for target in BUDGETS.keys() - {"operators"}:
        for line in BUDGETS[target]:
            name, *schedules = line.split()
            assert all(any(covers(f"{name} {s}", *case) for case in known) for s in schedules), line
        assert all(sum(covers(line, *case) for line in BUDGETS[target]) <= 1 for case in known), target


def test_instructions_are_counted_without_what_is_none() -> None:
    code = ".version 8.0\n{\n  mov.b32 %r1, %r2;\n$L:\n  // nothing\n  .loc 1 2 3\n  @%p bra $L;\n}\n"
    assert instructions(Compiled("k", "3.7.1", "", code, "", 32, 0, 0, ())) == 2
