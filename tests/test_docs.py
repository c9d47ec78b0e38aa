"""The code on the pages is run; what they quote is what is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tilelink
from tests.modules import load
from tilelink.tools.cli import parser
from tilelink.tools.cli.program import find

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/language.md", "docs/handwritten.md", "docs/exploring.md"])
def test_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page as one module, in a file, because tile functions are read from their source."""
    text = blocks(ROOT / page)
    assert text
    name = f"page_{Path(page).stem.lower()}"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))  # in its place `load` puts the page, until the test ends
    load(tmp_path / f"{name}.py", "\n\n".join(text), listed=True)


def test_products_of_the_first_page_are_as_exact_on_gpus() -> None:
    """Its numbers are compared as float32. Without the keyword, NVIDIA GPUs round operands to TF32."""
    lines = [line for block in blocks(ROOT / "README.md") for line in block.splitlines() if "tl.dot(" in line]
    assert lines and all('input_precision="ieee"' in line for line in lines)


@pytest.mark.verify
@pytest.mark.parametrize(("page", "first"), [("operators", None), ("experts", 1)])
def test_blocks_of_a_page_run_under_torchrun(page: str, first: int | None, tmp_path: Path) -> None:
    """All blocks of a page, or the first."""
    file = tmp_path / f"{page}.py"
    file.write_text("\n\n".join(blocks(ROOT / "docs" / f"{page}.md")[:first]))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, str(file)], env=environment, check=True)


def test_page_of_the_language_has_every_word() -> None:
    """In code that runs; types of what words return are left out."""
    code = "\n".join(blocks(ROOT / "docs" / "language.md"))
    words = set(tilelink.__all__) - {"KernelRank", "KernelWorld", "Order", "Program", "VirtualWorld", "group"}
    assert not [w for w in sorted(words) if not re.search(rf"\btk\.{w}\b", code)]


@pytest.mark.parametrize("page", PAGES)
def test_what_pages_point_to_is_there(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    here = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (here / target).exists(), target
    for path in re.findall(r"`((?:tilelink|tests|docs|examples|bench)/[\w/.]+\.\w+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_commands(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their flags are there, and the programs they name, seen from the checkout. Those that are whole, that is: without
    a placeholder."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = re.findall(r"^tilelink .*|(?<=`)tilelink [^`\n]+", (ROOT / page).read_text(), flags=re.MULTILINE)
    commands = [shlex.split(line, comments=True)[1:] for line in found]
    for command in commands:
        if len(command) > 1 and command[1][0] != "-" and not {"TARGET", "..."} & set(command):
            args = parser().parse_args([word.partition("|")[0] for word in command])
            if "program" in args:
                find(args.program)


def test_make_help_says_what_targets_take() -> None:
    """Every target has its line, which has ARGS in it where the recipe has."""
    said = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = {line.split()[0]: line for line in said.splitlines()}
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (help .*)$", makefile, re.MULTILINE)
    assert targets is not None and set(targets[1].split()) <= set(lines)
    recipes = dict(re.findall(r"^([a-z]+):.*\n((?:\t.*\n)*)", makefile, re.MULTILINE))
    taking = {n for n, r in recipes.items() if "$(ARGS)" in r}
    assert taking >= {"test", "bench", "verify"} and all("ARGS" in lines[n] for n in taking)
