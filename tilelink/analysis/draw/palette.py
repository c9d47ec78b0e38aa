"""The colours of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# Okabe and Ito's palette, which colour-blind readers can tell apart; after its last colour it starts again.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
INK, FAINT, IDLE = "#222222", "#7d7d7d", "#eceef1"


def colours_of(roles: Sequence[str], palette: Sequence[str] = PALETTE) -> dict[str, str]:
    """The colour of each role."""
    return {role: palette[k % len(palette)] for k, role in enumerate(roles)}


def pale(colour: str, share: float = 0.82) -> str:
    """The colour mixed with a share of white."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def luminance(colour: str) -> float:
    """How light a colour looks, from 0 to 1."""
    red, green, blue = (math.pow(int(colour[k : k + 2], 16) / 255, 2.2) for k in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def waiting(colour: str) -> dict[str, Any]:
    """How a wait looks: pale and hatched."""
    return {"facecolor": pale(colour), "edgecolor": colour, "hatch": "/////", "linewidth": 0}
