"""Machines for tests: one of the descriptions with other numbers."""

from __future__ import annotations

from pathlib import Path


def described(folder: Path, extends: str = "h800", **numbers: float) -> str:
    """The path of a description. Keys of nested numbers have double underscores for dots."""
    lines = [f'{k.replace("__", ".")} = {{ value = {v}, source = "a guess" }}' for k, v in numbers.items()]
    file = folder / f"machine_{abs(hash((extends, *numbers.items())))}.toml"
    file.write_text("\n".join([f'extends = "{extends}"', *lines]))
    return str(file)
