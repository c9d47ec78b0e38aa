"""Makes modules from texts: tile functions and kernels are read from their files, so each text needs a file."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


@cache
def text_of(module: str) -> str:
    """Returns the text of a module."""
    file = import_module(module).__file__
    assert file is not None
    return Path(file).read_text()


def importable(folder: Path, text: str, name: str = "") -> str:
    """Writes a module to a folder of `sys.path`, where it can be imported even if a module of its name was imported
    before. Returns its name: by default one that only modules with this text have."""
    name = name or f"edited_{abs(hash(text))}"
    (folder / f"{name}.py").write_text(text)
    invalidate_caches()
    sys.modules.pop(name, None)
    return name


def load(file: Path, text: str, name: str = "", *, listed: bool = False) -> ModuleType:
    """Writes a text to a file, and returns it as a module. `name`: of the module, by default the name of the file;
    `listed`: `sys.modules` has the module."""
    file.write_text(text)
    spec = spec_from_file_location(name or file.stem, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    if listed:
        sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
