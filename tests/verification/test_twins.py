"""Twins of real bugs: what is wrong is found by the tool that it is labelled with, in the lines it is labelled with;
in the mended twin nothing is found by any tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verification import twins_of_kernels, twins_of_primitives, twins_of_programs
from tests.verification.twins import Found, Twin

TWINS = [*twins_of_kernels.TWINS, *twins_of_programs.TWINS, *twins_of_primitives.TWINS]
SEEDS = range(4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edited kernels stay out of the user's cache."""
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "kernels"))


def seeds(twin: Twin) -> range:
    """What is found without an execution does not depend on a seed."""
    return SEEDS if twin.tool in ("execution", "repetition") else range(1)


def matches(found: Found, twin: Twin) -> bool:
    """Whether a finding is the one that the twin is labelled with."""
    at = [line for line in found.lines if any(text in line for text in twin.pair)]
    pairs = all(any(text in line for line in at) for text in twin.pair)
    return (found.tool, found.kind) == (twin.tool, twin.kind) and pairs


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_what_is_wrong_is_found(twin: Twin) -> None:
    found = [twin.faulty(seed) for seed in seeds(twin)]
    hits = [any(matches(f, twin) for f in under_seed) for under_seed in found]
    assert all(hits) if twin.every_seed else any(hits), found


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_nothing_is_found_in_the_mended_twin(twin: Twin) -> None:
    for seed in seeds(twin):
        assert twin.mended(seed) == []


def test_twins_have_names_of_their_own() -> None:
    assert len({twin.name for twin in TWINS}) == len(TWINS)
