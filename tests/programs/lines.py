"""Where in a tile function a text stands."""

from pathlib import Path

from tilelink.language import TileFunction


def line_of(function: TileFunction, text: str) -> int:
    """The number of the first line with a text in this function, from its decorator on."""
    lines = Path(function.file).read_text().splitlines()[function.first_line - 1 :]
    return next(n for n, line in enumerate(lines, function.first_line) if text in line)
