"""Imports run one way: a layer knows those before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilelink

ROOT = Path(tilelink.__file__).parent
LAYERS = (
    "errors", "language", "frontend", "analysis", "backend", "inspect", "programs", "emulator", "runtime", "kernels",
    "plans", "ops", "nn", "integrations", "tools",
)  # fmt: skip
ABOVE = ("__init__", "__main__")
"""What may import all of them."""


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def wrong(file: Path) -> Iterator[str]:
    """Imports of a file that go up."""
    layer = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if layer in ABOVE:
        return
    for line, module in imported(ast.parse(file.read_text())):
        if module.startswith("tilelink."):
            other = module.split(".")[1]
            if other not in LAYERS or LAYERS.index(other) > LAYERS.index(layer):
                yield f"{file.relative_to(ROOT)}:{line} imports {module}"


def test_every_folder_has_its_layer() -> None:
    found = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found <= {*LAYERS, *ABOVE}


def test_imports_run_one_way() -> None:
    assert [w for file in sorted(ROOT.rglob("*.py")) for w in wrong(file)] == []


def test_an_import_that_goes_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "runtime").mkdir()
    file = tmp_path / "runtime" / "lane.py"
    file.write_text("from tilelink.backend import lower\ndef f():\n    from tilelink.kernels.matmul import matmul\n")
    assert list(wrong(file)) == ["runtime/lane.py:3 imports tilelink.kernels.matmul"]
