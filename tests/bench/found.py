"""What scripts wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]
