"""Tests of the CPU execution draw the same numbers each time."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
