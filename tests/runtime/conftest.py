"""What tests of the runtime share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.processes import Pool
from tests.runtime.ranks import WORLD


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process a rank."""
    made = Pool(WORLD)
    yield made
    made.close()
