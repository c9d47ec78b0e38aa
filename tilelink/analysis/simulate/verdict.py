"""What decides how long a predicted run takes, in words for a person."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tilelink.analysis.simulate.alone import bounds

if TYPE_CHECKING:
    from tilelink.analysis.simulate.prediction import Prediction


def verdict(prediction: Prediction) -> str:
    """Which role most of the critical path is made of, what stands before and after it, the limit of the machine, and
    how the run compares with the unfused form."""
    path, whole = prediction.critical_path, prediction.makespan_us
    shares: dict[str, float] = defaultdict(float)
    for link in path:
        shares[link.role if link.kind == "tiles" else "launch and signals"] += link.duration
    order = [link.role for link in path if link.kind == "tiles"]
    if not order:
        return "No rank has a tile."
    longest = max(order, key=lambda role: shares[role])
    others = sorted((role for role in shares if role != longest), key=lambda role: -shares[role])
    rest = ", ".join(f"{shares[role]:,.1f} us of {role}{_place(order, role, longest)}" for role in others)
    limits = bounds(prediction.steps, prediction.machine)
    limit = max(limits, key=lambda name: limits[name])
    ratio = prediction.unfused_us / whole
    fused = f"{ratio:.2f} times as fast as unfused" if ratio >= 1 else f"slower than unfused, {1 / ratio:.2f} times"
    return (
        f"{longest} decides: its tiles are {shares[longest]:,.1f} us of the {whole:,.1f} us on the critical path; "
        f"the rest: {rest or 'nothing'}. No schedule takes less than {limits[limit]:,.1f} us, for {limit}. "
        f"{fused.capitalize()}."
    )


def _place(order: list[str], role: str, longest: str) -> str:
    """Where a role stands on the path, seen from the one that decides; nothing to be said of what is in between."""
    if role not in order:
        return ""
    if order.index(role) > len(order) - 1 - order[::-1].index(longest):
        return " after them"
    return " before them" if len(order) - 1 - order[::-1].index(role) < order.index(longest) else ""
