"""The run protocol is safe in all lanes enumerated and needs each of its rules; its page says what was found."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.parameters import first_of
from tests.runtime.protocol_model.enumeration import explore
from tests.runtime.protocol_model.kinds import Notify, Program, Push, Read, Store, Wait, decode, partials, pull, relay
from tests.runtime.protocol_model.lanes import FAMILIES, PAIRS, WEAKER, Family, lane
from tests.runtime.protocol_model.mutants import HOME, MUTANTS, Mutant
from tests.runtime.protocol_model.rules import Case, Rules

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8").splitlines()


LONG = ("every 3 kinds but relay", "decode, rowless or pull twice", "every 2 kinds, 1 slot, 3 ranks",
        "every 2 kinds but relay, 1 slot, 2 ranks of 2 workers", "engines 3 times",
        "engines, 1 slot, 3 ranks", "pull, rowless, gather or partials")  # fmt: skip
"""Families that take longest, in `make verify`."""


def marked(family: Family) -> Any:
    """A family, as a parameter of a test."""
    marks = [pytest.mark.verify] * family.name.startswith(LONG)
    return pytest.param(family, marks=marks, id=family.name)


@pytest.mark.parametrize("family", [marked(family) for family in FAMILIES])
def test_every_lane_is_safe(family: Family) -> None:
    unsafe = [(str(case), explore(case).story()) for case in family.cases if explore(case).outcome != "safe"]
    assert not unsafe
    assert family.row() in PAGE


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name}: {mutant.case}")
def test_every_rule_is_needed(mutant: Mutant) -> None:
    assert explore(mutant.case, mutant.rules).outcome == mutant.outcome
    assert mutant.row() in PAGE


@pytest.mark.verify
@pytest.mark.parametrize("family", WEAKER, ids=lambda family: family.name)
def test_the_page_tells_what_weaker_credits_do(family: Family) -> None:
    assert family.row(Rules(credit=family.name)) in PAGE


@cache
def by_the_home(pairs: str) -> dict[Case, str]:
    """What comes of each pair with a credit of the home: of all pairs, or of each kind before three that are soon
    explored, of which one stores, one is read, and one passes on."""
    some = [case for case in PAIRS if pairs == "all" or case.runs[1][0] in (decode, pull, relay)]
    return {case: explore(case, HOME).outcome for case in some}


@pytest.mark.parametrize("pairs", first_of(["some", "all"]))
def test_a_credit_of_the_home_fails_only_after_peers_have_read_there(pairs: str) -> None:
    wrong = {case: outcome for case, outcome in by_the_home(pairs).items() if outcome != "safe"}
    assert {case.runs[0][0] for case in wrong} == {pull, partials, relay}
    assert set(wrong.values()) == {"wrong"}


@pytest.mark.parametrize("pairs", first_of(["where the home's fails", "all"]))
def test_a_credit_for_what_peers_read_is_enough_in_a_zone_of_its_own(pairs: str) -> None:
    rules = Rules(credit="everyone, for what peers read")
    cases = PAIRS if pairs == "all" else [case for case, outcome in by_the_home("some").items() if outcome != "safe"]
    assert {explore(case, rules).outcome for case in cases} == {"safe"}


def test_a_program_that_waits_for_itself_is_a_deadlock() -> None:
    def crossed(rank: int, world: int) -> Program:
        peer = (rank + 1) % world
        return Program((Wait(f"cell {peer}"), Push(peer, f"part {rank}", f"cell {rank}")))

    verdict = explore(lane(crossed, world=2))
    assert verdict.outcome == "deadlock"
    assert verdict.reason == "stuck before 0.0 wait for cell 1, 1.0 wait for cell 0"


def test_two_stores_that_nothing_orders_are_a_race() -> None:
    def twice(rank: int, world: int) -> Program:
        if rank == 0:
            return Program((), (Wait("cell 0"), Read(0, "part 0")))
        return Program((Store(0, "part 0"), Notify(0, "cell 0")))

    assert explore(lane(twice, world=2)).outcome == "safe"
    assert explore(lane(twice, world=3)).outcome == "race"


def test_the_shortest_trace_comes_first() -> None:
    def hasty(rank: int, world: int) -> Program:
        return Program((Push(0, "part 0", "cell 0"),) if rank else (), () if rank else (Read(0, "part 0"),))

    verdict = explore(Case(2, ((hasty, 0),)))
    assert [str(action) for action in verdict.trace] == ["0.0 enter at 1", "0.0 read part 0 of 0"]
