"""Edits of lowered kernels and of primitives, and the fixture by which tests run what was edited."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.modules import importable, text_of
from tests.verification.mutants.tools import Edit
from tilelink.backend.targets import portable
from tilelink.emulator import RaceError
from tilelink.errors import StuckError

EITHER = (RaceError, StuckError)
WAIT = r"rows_ready \+?= wait\(.*\)"
"""The wait of a GEMM for the rows that are gathered."""


def replaced(old: str, new: str) -> Edit:
    """Every match of a pattern replaced; there has to be one."""

    def edit(source: str) -> str:
        edited, count = re.subn(old, new, source, flags=re.MULTILINE)
        assert count, f"nothing matches {old}"
        return edited

    return edit


def in_function(name: str, old: str, new: str) -> Edit:
    """A match in one primitive replaced."""

    def edit(source: str) -> str:
        begin = source.index(f"def {name}(")
        end = source.find("\n\n\n", begin)
        end = len(source) if end < 0 else end
        return source[:begin] + replaced(old, new)(source[begin:end]) + source[end:]

    return edit


KEPT_EARLY = in_function(
    "matmul_multiply", r"( {8}acc = sums(?:.*\n)+?)( {8}# if gathered.*\n {8}if N_lo == 0:(?:\n {12}.*)+)", r"\2\n\1"
)
"""Rows that warps keep behind a product, kept before it: nobody has told them that the rows are here."""


def written_out(name: str, edit: Edit) -> Edit:
    """An edit of a primitive that a module takes over from the portable one: its text stands in the module first."""

    def written(source: str) -> str:
        text = text_of(portable.__name__)
        begin = text.index(f"@triton.jit\ndef {name}(")
        own = text[begin : text.index("\n\n\n", begin)]
        return edit(f"{source}\n\nfrom {portable.__name__} import PROGRESS, RUN, SLOT_LEFT, TICKET\n\n\n{own}\n")

    return written


def tells_early(name: str) -> Edit:
    """A primitive that tells the peers this rank's progress without release order."""

    def edit(source: str) -> str:
        begin = source.index("@triton.jit\ndef tell(")
        early = source[begin : source.index("\n\n\n", begin)].replace("def tell(", "def tell_early(")
        early = early.replace('"release"', '"relaxed"')
        return in_function(name, r"tell\(", "tell_early(")(source) + f"\n\n{early}\n"

    return edit


@pytest.fixture
def primitives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Edit], ModuleType]:
    """Makes an edited copy of the portable primitives, importable."""

    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda edit: import_module(importable(tmp_path, edit(text_of(portable.__name__))))
