"""Generated modules on disk: what is run is what was generated, and nobody else can put anything there."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import sys
from pathlib import Path

import pytest

from tilelink.backend.cache import CacheError, cache_folder, load, store
from tilelink.backend.lower import Lowered
from tilelink.backend.targets import CPU
from tilelink.kernels.matmul import matmul


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "generated"))
    return tmp_path / "generated"


def lowered(N: int = 32) -> Lowered:
    return matmul.lowered_at(target=CPU, world=1, sizes={"M": 32, "N": N, "K": 32})[0]


def test_only_its_owner_may_enter_the_folder(folder: Path) -> None:
    previous = os.umask(0)
    try:
        assert cache_folder() == folder
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CacheError, match=f"{folder} may be written by others"):
        store("x = 1\n", "name")
    assert not list(folder.iterdir())


def test_a_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_folder()
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(CacheError, match="may be written by others"):
        cache_folder()


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(CacheError, match="can't be made"):
        cache_folder()


def test_by_default_it_lies_in_the_cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILELINK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "tilelink"
    assert stat.S_IMODE((tmp_path / "home" / "tilelink").stat().st_mode) == 0o700


def test_files_are_named_by_what_is_in_them(folder: Path) -> None:
    one, other = store("x = 1\n", "name"), store("x = 2\n", "name")
    assert one != other
    assert one.name == f"name_{hashlib.sha256(one.read_bytes()).hexdigest()[:16]}.py"
    assert store("x = 1\n", "name") == one
    assert sorted(folder.iterdir()) == sorted([one, other])
    assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_a_file_that_was_tampered_with_is_written_anew() -> None:
    path = store("x = 1\n", "name")
    path.write_text("x = 3\n")
    assert store("x = 1\n", "name").read_text() == "x = 1\n"


def test_a_module_is_loaded_once(folder: Path) -> None:
    module = load(lowered())
    assert load(lowered()) is module
    assert Path(str(module.__file__)).parent == folder
    assert load(lowered(N=33)) is not module
    assert module.__name__ not in sys.modules, "which would hold it when it is used no longer"


def test_a_module_is_that_of_its_source() -> None:
    good = lowered()
    changed = dataclasses.replace(good, source=good.source + "\nADDED = 1\n")
    assert load(changed).ADDED == 1
    assert not hasattr(load(good), "ADDED")
