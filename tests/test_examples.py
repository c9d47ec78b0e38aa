"""The examples run, as a person runs them; their programs compile and do what their events say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


LONG = ("next_call", "scaled_matmul", "hierarchical_gather", "gathered_attention", "mixture_of_experts")
"""Those that take longest, in `make verify`. Other tests run their programs in every run."""


def marked(path: Path) -> Any:
    """An example, as a parameter of a test."""
    return pytest.param(path, marks=[pytest.mark.verify] * (path.stem in LONG), id=path.stem)


@pytest.mark.parametrize("path", [*map(marked, EXAMPLES)])
def test_example_runs(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert "ranks" in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
