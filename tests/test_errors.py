"""How reports name places in the source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilelink.errors import Site, TileLinkError, shown
from tilelink.runtime.cpu.sites import KernelSite


def test_files_are_named_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    below, beside = str(tmp_path / "here" / "below" / "a.py"), str(tmp_path / "here_too" / "a.py")
    assert shown(below) == os.path.join("below", "a.py")
    assert (shown(beside), shown("<stdin>")) == (beside, "<stdin>")
    kernel = KernelSite(below, 3, "text", (Site(beside, 4),))
    assert (str(Site(below, 3)), str(kernel)) == ("below/a.py:3", f"below/a.py:3 called at {beside}:4")
    error = TileLinkError("wrong", Site(below, 3)).because_of("the schedule", Site(below, 5))
    assert str(error) == "below/a.py:3: wrong; the schedule: below/a.py:5"
    assert error.site is not None and error.site.file == below  # for programs, wherever they run


def test_files_are_named_where_there_is_no_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert str(Site("/a/b.py", 3)) == "/a/b.py:3"
