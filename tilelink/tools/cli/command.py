"""What a command is: from its arguments to an answer; and the error of a command line that can't be carried out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilelink.errors import TileLinkError


class UsageError(TileLinkError):
    """A command line that asks for what there is not. `file`: the file of the target, where it is about that."""

    def __init__(self, message: str, file: str | None = None) -> None:
        self.file = file
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """What a command found out: `keys` for programs; `text` and `note` (for stderr) say the same to people."""

    keys: dict[str, Any]
    text: str
    note: str = ""
    status: str = "ok"


@dataclass(frozen=True)
class Command:
    """A command: `flags` adds its own flags, `example` stands in its help."""

    run: Callable[[argparse.Namespace], Answer]
    example: str
    flags: Callable[[argparse.ArgumentParser], None] = field(default=lambda parser: None)
