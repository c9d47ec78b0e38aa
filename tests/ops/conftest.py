"""Four processes for all tests of operators; groups of fewer are sub-groups of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.processes import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    made = Pool(4)
    yield made
    made.close()
