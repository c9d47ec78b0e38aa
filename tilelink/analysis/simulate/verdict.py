"""What decides how long a predicted run takes, in words for a person."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tilelink.analysis.simulate.alone import bounds

if TYPE_CHECKING:
    from tilelink.analysis.simulate.prediction import Prediction

ENOUGH = 1.1
"""So much more than a link takes its workers have to be able to move, that more of them are no help."""
WORTH_SAYING = 0.01


def verdict(prediction: Prediction) -> str:
    """Which role most of the critical path is made of, what stands before and after it, what its transfers cost it, the
    limit of the machine, and how the run compares with the unfused form."""
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
        f"the rest: {rest or 'nothing'}.{_held(prediction, longest)}{_movers(prediction, longest)} "
        f"No schedule takes less than {limits[limit]:,.1f} us, for {limit}. "
        f"{fused.capitalize()}."
    )


def _held(prediction: Prediction, role: str) -> str:
    """How much of the time of tiles that multiply goes to transfers, where it is worth a word: the tiles of a role that
    only moves are that and nothing else."""
    steps, run = prediction.steps, prediction.run
    multiplies = np.zeros(len(steps.tile_rank), bool)
    multiplies[steps.tile[steps.operations > 0]] = True
    roles = [r.name for r in steps.events.program.roles]
    mine = multiplies & (steps.tile_role == roles.index(role))
    whole = float((run.tile_stop - run.tile_start)[mine].sum())
    share = float(run.tile_moving[mine].sum()) / whole if whole else 0.0
    return f" {share:.0%} of the time of its tiles is moving bytes from and to peers." if share >= WORTH_SAYING else ""


def _movers(prediction: Prediction, role: str) -> str:
    """What the workers of a role can move, beside what a link takes; nothing of a role that moves nothing."""
    steps, costs = prediction.steps, prediction.costs
    number = next(k for k, r in enumerate(steps.events.program.roles) if r.name == role)
    tile = steps.tile[steps.transfer_step]
    moves = steps.tile_role[tile] == number
    agent = costs.agents[number]
    if not moves.any() or not agent.on_sm or costs.multicasts[number]:
        return ""
    pushes = bool((steps.source[moves] == steps.tile_rank[tile[moves]]).all())
    workers = steps.events.allotment[role].workers
    able, word = workers * (agent.push if pushes else agent.pull), "push" if pushes else "pull"
    more = "more workers would help" if able < ENOUGH * agent.saturation else "more workers would not help"
    return f" Its {workers} workers {word} {able:,.0f} GB/s at most, a link takes {agent.saturation:,.0f}: {more}."


def _place(order: list[str], role: str, longest: str) -> str:
    """Where a role stands on the path, seen from the one that decides; nothing to be said of what is in between."""
    if role not in order:
        return ""
    if order.index(role) > len(order) - 1 - order[::-1].index(longest):
        return " after them"
    return " before them" if len(order) - 1 - order[::-1].index(role) < order.index(longest) else ""
