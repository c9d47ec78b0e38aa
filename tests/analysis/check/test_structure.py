"""What the structure of a program shows holds at all sizes: where it suffices, unrolled runs are never unsafe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tilelink as tk
from tests.analysis.runs import RESULTS, SIGNALS, Run, runs
from tests.differential.comparing import loaded
from tests.differential.generator import Case, damaged, drawn
from tests.parameters import random_tries
from tests.programs.alone import (
    first_of_a_row_writes,
    reads_next_rank,
    reads_rank_1,
    scaled_by_all_entries,
    scaled_by_all_ranks,
    scaled_by_rank,
    scaled_by_three_entries,
    second_of_a_row_writes,
)
from tests.programs.unsafe import (
    halves_of_two_dimensions,
    members_on_two_resources,
    notifies_twice,
    output_of_a_reader,
    own_places_alone,
    part_beyond_the_world,
    places_of_readers_alone,
    range_across_a_part,
    range_of_another_part,
)
from tilelink.analysis.check import check as check_program
from tilelink.analysis.check import check_events
from tilelink.analysis.check.memory import without_result
from tilelink.analysis.check.structure import why_not_structural
from tilelink.errors import TileLinkError
from tilelink.frontend.sizes import Sizes
from tilelink.programs.program import Program


@random_tries(20, 60, runs(RESULTS + SIGNALS))
def test_programs_are_safe_at_random_sizes(run: Run) -> None:
    """And the structure says so of those that have no conditions; what it says depends on no size. Two have tiles
    that notify a region more than once, at some sizes: that is found, and nothing else."""
    report = check_events(run.unroll())
    several = not {"one_or_two", "as_often_as_the_reader_says"}.isdisjoint(run.schedule)
    twice = {"notified twice"} if several else set()
    assert {finding.kind for finding in report.findings} <= twice, report
    structural = {"all_gather_matmul", "matmul_reduce_scatter", "all_gather_matmul_backward", "waits_for_two"}
    suffices = run.program.name in structural or "in_steps" in run.schedule
    assert report.proof == ("structural" if suffices else "unrolled")


# ---- what the structure does not show, one program for each of its rules


SMALL, BY_ROWS = tk.SMs(2, tile=(16, 16)), tk.SMs(2, tile=(16,))
HOME, READER = (tk.SMs(2, tile=(16, 16), at=at) for at in ("home", "reader"))
OUTSIDE = [
    (notifies_twice, {"tell_twice": HOME, "take": SMALL}, "full is notified elsewhere than after the write", {}),
    (output_of_a_reader, {"to_reader": HOME}, ".at(reader) may be memory of another rank", {1: "safe"}),
    (reads_rank_1, {"from_rank_1": SMALL}, ".at(1) may be on a rank outside the world", {2: "safe", 3: "safe"}),
    (scaled_by_rank, {"scaled": SMALL}, "scale[rank] may lie outside scale along S", {1: "safe", 2: "safe"}),
    (
        second_of_a_row_writes,
        {"and_keep_some_rows": SMALL},
        "whether total[M[M_lo:+16]] is written depends on a",
        {1: "safe", 2: "safe", 3: "safe"},
    ),
    (scaled_by_three_entries, {"scaled_by_three": SMALL}, "scale[k] may lie outside scale along S", {}),
    (own_places_alone, {"to_own_place": SMALL, "sum_of_all": SMALL}, "to different places of inbox[rank,", {1: "safe"}),
    (
        places_of_readers_alone,
        {"to_the_place_of_the_reader": READER, "sum_of_all": SMALL},
        "to different places of inbox[rank, ",
        {1: "safe"},
    ),
    (
        part_beyond_the_world,
        {"gather": HOME, "wait_for_next_part": SMALL},
        "may be in the part of a rank outside the world",
        {},
    ),
    (
        halves_of_two_dimensions,
        {"own_rows": BY_ROWS, "columns_of_others": BY_ROWS, "pass_a": SMALL, "pass_b": SMALL},
        "out is written by 2 statements",
        {1: "safe"},
    ),
    (range_of_another_part, {"from_next_part": SMALL}, "may lie outside x along M", {1: "safe"}),
    (
        range_across_a_part,
        {"gather": HOME, "from_own_part": tk.SMs(2, tile=(16, 16), order=tk.across_parts)},
        "may lie outside full along M",
        {1: "safe"},
    ),
]
INSIDE = [
    (reads_next_rank, {"from_next_rank": READER}),
    (scaled_by_all_ranks, {"scaled": SMALL}),
    (scaled_by_all_entries, {"scaled_by_all": SMALL}),
    (first_of_a_row_writes, {"and_keep_rows": SMALL}),
]  # fmt: skip


def sizes_of(program: Program) -> dict[str, int]:
    return {d: 2 if d == "S" else 32 for t in program.recorded().tensors for d in t.dims if d != "ranks"}


@pytest.mark.parametrize(("program", "roles", "because", "verdicts"), OUTSIDE, ids=lambda v: getattr(v, "name", ""))
def test_what_depends_on_sizes_is_shown_for_these_alone(
    program: Program, roles: dict[str, tk.SMs], because: str, verdicts: dict[int, str]
) -> None:
    """Two entries of scale are enough for two ranks, and not for three: so no verdict is for all sizes."""
    for world in (1, 2, 3):
        report = program.check(tk.Schedule(**roles), world=world, **sizes_of(program))
        assert (report.verdict, report.proof) == (verdicts.get(world, "unsafe"), "unrolled"), report
        assert because in report.because or report.because == "unrolling refuses it"
    bound = program.bind(tk.Schedule(**roles))
    assert because in why_not_structural(bound)


@pytest.mark.parametrize(("program", "roles"), INSIDE, ids=lambda v: getattr(v, "name", ""))
def test_what_lies_inside_at_all_sizes_is_shown_for_all(program: Program, roles: dict[str, tk.SMs]) -> None:
    for world in (1, 3):
        report = program.check(tk.Schedule(**roles), world=world, **sizes_of(program))
        assert (report.verdict, report.proof, report.because) == ("safe", "structural", "")


def test_where_there_is_no_first_tile_nothing_is_written() -> None:
    schedule = tk.Schedule(and_keep_rows=SMALL)
    report = first_of_a_row_writes.check(schedule, world=1, M=32, K=0)
    assert (report.verdict, report.proof) == ("unsafe", "unrolled") and "no tile writes total" in str(report)
    assert report.because == "the first tile along K writes a tensor, and K is 0"


@pytest.mark.parametrize("engine", [0, 1])
def test_members_on_an_engine_take_no_turns_with_those_on_sms(engine: int) -> None:
    """The kernel goes through `take` before a `bring_to_next` that follows it among its own roles."""
    program, brings = members_on_two_resources.of(2), ["bring_to_next", "bring_to_next[1]"]
    roles: dict[str, Any] = dict.fromkeys([*brings, "take"], tk.SMs(tile=(16, 16)))
    schedule = tk.Schedule(**roles | {brings[engine]: tk.CopyEngine(tile=(16, None))})
    report = program.check(schedule, world=2, sms=1, M=(40, 40), K=(16, 16))
    assert report.proof == "unrolled"
    assert [f.kind for f in report.findings] == (["deadlock"] if engine == 0 else []), report


def unsafe_though_shown(draw: Callable[..., Case], seeds: range, folder: Path) -> tuple[int, list[str]]:
    """How many of the drawn programs the structure shows to be safe, and what unrolling finds in them at sizes, parts
    and worlds that were not drawn with them."""
    shown, wrong = 0, []
    for seed in seeds:
        case, random = draw(seed, small=True), Random(seed)
        module = loaded(case, folder)
        lists = [len(v) for v in case.given.values() if isinstance(v, list) and isinstance(v[0], list)]
        program = module.drawn.of(lists[0]) if lists else module.drawn
        for schedule in case.schedules:
            try:
                bound = program.bind(getattr(module, schedule), dict.fromkeys(program.parameters, "float32"))
            except TileLinkError:
                continue  # a damaged one
            if why_not_structural(bound) or without_result(bound):
                continue
            shown += 1
            for world in random.sample(range(1, 6), 3):
                lengths = {d: tuple(random.choice([0, 1, 7, 16, 33]) for _ in range(world)) for d in bound.cut}
                sizes = {d: random.choice([1, 2, 5, 16, 17, 40]) for d in bound.dims} | lengths
                found = check_program(bound, Sizes.of(bound, world, sizes), sms=12).findings
                wrong += [f"seed {seed} {schedule} {world} {sizes}: {finding.what}" for finding in found]
    return shown, wrong


SEEDS = [(drawn, range(3), 4), (damaged, range(12), 4)]
MORE = [pytest.param(drawn, range(3, 10), 4, marks=pytest.mark.verify)]
MORE += [pytest.param(d, range(1000, 1400), 100, marks=pytest.mark.verify) for d in (drawn, damaged)]


@pytest.mark.parametrize(("draw", "seeds", "least"), [*SEEDS, *MORE], ids=lambda v: getattr(v, "__name__", ""))
def test_random_programs_that_it_shows_are_safe_at_all_sizes(
    draw: Callable[..., Case], seeds: range, least: int, tmp_path: Path
) -> None:
    shown, wrong = unsafe_though_shown(draw, seeds, tmp_path)
    assert not wrong and shown >= least, (shown, wrong[:3])
