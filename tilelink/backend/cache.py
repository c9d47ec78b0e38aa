"""Generated modules on disk: one file a source, named by its hash, in a folder that only its owner writes to."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType

from tilelink.backend.kernel import kernel_name
from tilelink.backend.lower import Lowered
from tilelink.errors import TileLinkError
from tilelink.frontend.kept import kept


class CacheError(TileLinkError):
    """The folder for generated modules can't be used."""


def cache_folder() -> Path:
    """$TILELINK_CACHE, or a folder of this user under the cache home. A new folder has mode 0700. Raises CacheError."""
    given = os.environ.get("TILELINK_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(given) if given else base / "tilelink"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat()
    except OSError as e:
        raise CacheError(f"the cache folder {folder} can't be made: {e}; set TILELINK_CACHE") from e
    if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
        raise CacheError(
            f"the cache folder {folder} may be written by others, but its files are run; set TILELINK_CACHE"
        )
    return folder


def file_name(source: str, program: str) -> str:
    """The name of the file of a program's module."""
    return f"{kernel_name(program)}_{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"


def store(source: str, name: str) -> Path:
    """Writes the module of a program with this name, atomically, and returns its path. A file that exists is used only
    if it has this text."""
    path = cache_folder() / file_name(source, name)
    if path.exists() and path.read_text() == source:
        return path
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as f:
        f.write(source)
    os.replace(temporary, path)
    return path


@kept(256)
def load(lowered: Lowered) -> ModuleType:
    """The module of a lowered program, with the user's Triton functions in it. A process keeps the modules that were
    used last."""
    path = store(lowered.source, lowered.program.name)
    spec = importlib.util.spec_from_file_location(f"tilelink_generated.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(lowered.functions)
    spec.loader.exec_module(module)
    if lowered.beside is not None:
        name = lowered.beside.main.name
        setattr(module, name, getattr(load(lowered.beside), name))
    return module
