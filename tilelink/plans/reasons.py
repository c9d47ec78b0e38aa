"""Why a plan was chosen, in a sentence with numbers for a person."""

from __future__ import annotations

from collections import defaultdict

from tilelink.analysis.simulate import Prediction
from tilelink.analysis.simulate.verdict import times_as_fast
from tilelink.plans.forms import Forms
from tilelink.plans.unfused import Unfused

NAMED = 3
"""So many shares of a critical path are told, the largest first,"""
LEAST = 0.1
"""those of so many microseconds at least."""


def reason(plain: Unfused, forms: Forms, margin: float) -> str:
    """What the fastest fused form takes beside the unfused one, and what both are made of."""
    of_plain = f"unfused takes {plain.total_us:,.1f} us ({_parts(plain)})"
    if forms.fastest is None or forms.prediction is None:
        whys = "; ".join(f"{f.plan}: {f.why}" for f in forms.all)
        return f"{of_plain}; no fused form can be: {whys}"
    fused = forms.prediction.makespan_us
    plan, takes = forms.fastest.plan, f"takes {fused:,.1f} us ({_path(forms.prediction)})"
    ratio = plain.total_us / fused
    far = times_as_fast(ratio)
    if ratio < 1:
        return f"{of_plain}; the fastest fused form, {plan}, {takes}: {far}"
    if ratio < 1 + margin:
        return f"{of_plain}; the fastest fused form, {plan}, {takes}: {far}, where predictions need {1 + margin:.2f}"
    return f"{plan} {takes}, {far}; {of_plain}"


def _parts(plain: Unfused) -> str:
    parts = [(plain.product_us, "products"), (plain.collective_us, "collective"), (plain.launch_us, "launch")]
    said = ", ".join(f"{us:,.1f} {name}" for us, name in parts)
    return said + (f", {plain.hidden_us:,.1f} of them at the same time" if plain.hidden_us else "")


def _path(prediction: Prediction) -> str:
    """What the critical path is made of, by role, members of a list as one."""
    roles = {r.name: r.launched for r in prediction.steps.events.program.roles}
    shares: dict[str, float] = defaultdict(float)
    for link in prediction.critical_path:
        shares[roles[link.role] if link.kind == "tiles" else "launch and signals"] += link.duration
    largest = [s for s in sorted(shares.items(), key=lambda share: -share[1])[:NAMED] if s[1] >= LEAST]
    return ", ".join(f"{us:,.1f} {name}" for name, us in largest)
