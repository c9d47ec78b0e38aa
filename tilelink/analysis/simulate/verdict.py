"""The verdict on a predicted run: what decides its time, in words. The effect of other workers is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilelink.analysis.events import Events
from tilelink.analysis.simulate.costs import bounds
from tilelink.errors import StuckError, counted

if TYPE_CHECKING:
    from tilelink.analysis.simulate.prediction import Prediction

OTHER = "launch and signals"
"""The part of a critical path that is no tile of a role."""
WORTH_SAYING = 0.01
"""The least share of a time that is mentioned. A change helps if it makes a run faster by more than this share."""
SHORT = 0.8
"""A role's last turn is mentioned if less than this share of its workers is busy, over all its turns."""


@dataclass(frozen=True)
class Neighbour:
    """A simulated run with other workers: `role` (its name in schedules) has `after` workers instead of `before`, and
    the run takes `makespan_us`. `helps`: whether that is faster by more than `WORTH_SAYING`."""

    role: str
    before: int
    after: int
    makespan_us: float
    helps: bool


def verdict(prediction: Prediction) -> str:
    """The verdict as text. It names the role with most of the critical path, and the roles before and after it. It says
    what the role's transfers cost, which SMs have no tile, what other workers would change, what no schedule can beat,
    and how the run compares with the unfused form, if it has one."""
    shares, whole = prediction.shares_us, prediction.makespan_us
    order = [link.role for link in prediction.critical_path if link.kind == "tiles"]
    if not order:
        return "No rank has a tile."
    longest = deciding(prediction)
    others = sorted((role for role in shares if role != longest), key=lambda role: -shares[role])
    rest = ", ".join(f"{shares[role]:,.1f} us of {role}{_place(order, role, longest)}" for role in others)
    limits = bounds(prediction.steps, prediction.costs, prediction.machine)
    limit = max(limits, key=lambda name: limits[name])
    said = [
        f"{longest} decides: its tiles are {shares[longest]:,.1f} us of the {whole:,.1f} us on the critical path; "
        f"the rest: {rest or 'nothing'}.",
        _held(prediction, longest),
        _tiles(prediction, longest),
        _workers(prediction, longest),
        f"No schedule of these tiles takes less than {limits[limit]:,.1f} us, for {limit}.",
    ]
    if (plain := prediction.unfused_us) is not None:
        compared = times_as_fast(plain / whole).capitalize()
        said.append(f"{compared} ({plain / prediction.interval_us[1]:.2f} at the end of the interval).")
    return " ".join(text for text in said if text)


def deciding(prediction: Prediction) -> str:
    """The role whose tiles are most of the critical path; the path must have tiles."""
    shares = prediction.shares_us
    return max((role for role in shares if role != OTHER), key=lambda role: shares[role])


def times_as_fast(ratio: float) -> str:
    """A text that compares a form with the unfused form, which takes `ratio` times as long."""
    return "as fast as unfused" if f"{ratio:.2f}" == "1.00" else f"{ratio:.2f} times as fast as unfused"


def neighbour(prediction: Prediction, role: str) -> Neighbour | None:
    """The simulated run with twice the workers for a role on SMs, or four times if twice does not help, or as many as
    there are tiles and SMs for. A role that shares the SMs that others leave gets more of them: the role with the
    largest count gets half or a quarter of it. None if the role can't get more, or if no rank could go on."""
    events = prediction.steps.events
    counted = {r.launched: events.allotment[r.name].workers for r in events.program.in_kernel if r.resource.count}
    changed = events.program.role(role).launched
    tiles, workers = _together(events, role)
    if changed in counted:
        sharing = len(counted) < len({r.launched for r in events.program.in_kernel})
        most = min(tiles, workers + events.sms - sum(counted.values()) - sharing)
        tried = [min(2 * workers, most), min(4 * workers, most)]
    else:
        others = {name: n for name, n in counted.items() if name not in prediction.off_sm}
        if not others or workers >= tiles:
            return None
        changed = max(others, key=lambda name: others[name])
        tried = [others[changed] // 2, others[changed] // 4]
    before, found = counted[changed], None
    for after in dict.fromkeys(tried):
        if after in (0, before):
            break
        try:
            made = prediction.with_workers(changed, after)
        except StuckError:
            break
        helps = made.makespan_us < prediction.makespan_us * (1 - WORTH_SAYING)
        found = Neighbour(changed, before, after, made.makespan_us, helps) if helps or found is None else found
        if helps:
            break
    return found


def _together(events: Events, role: str) -> tuple[int, int]:
    """Tiles and workers of a role on a rank, where all members of a list count as one role."""
    launched = events.program.role(role).launched
    members = [events.allotment[r.name] for r in events.program.roles if r.launched == launched]
    return sum(a.tiles for a in members), members[0].workers


def _held(prediction: Prediction, role: str) -> str:
    """A sentence on the share of transfers in the time of the tiles that multiply; "" if it is small. For a role that
    only moves bytes the share says nothing."""
    steps, run = prediction.steps, prediction.run
    roles = [r.name for r in steps.events.program.roles]
    mine = steps.multiplies & (steps.of_tiles("role") == roles.index(role))
    whole = float((run.tile_stop - run.tile_start)[mine].sum())
    share = float(run.tile_moving[mine].sum()) / whole if whole else 0.0
    return f"{share:.0%} of the time of its tiles is moving bytes from and to peers." if share >= WORTH_SAYING else ""


def _tiles(prediction: Prediction, role: str) -> str:
    """A sentence on SMs without a tile, in the whole run or in the deciding role's last turn; "" if there are few."""
    events, sms = prediction.steps.events, prediction.machine.free_sms
    on_sm = [r for r in events.program.in_kernel if r.name not in prediction.off_sm]
    allotted = [events.allotment[r.name] for r in on_sm]
    without = sms - len({w for a in allotted for w in range(a.first, a.first + a.workers)})
    if without > WORTH_SAYING * sms:
        sharing = {r.launched: _together(events, r.name)[0] for r in on_sm if not r.resource.count}
        most = max(sharing, key=lambda name: sharing[name], default=None)
        why = f"{most} has {sharing[most]} tiles" if most else "the schedule gives them to no role"
        return f"{without} of the {sms} SMs of a rank have no tile: {why}."
    tiles, workers = _together(events, role)
    turns = -(-tiles // workers)
    if role in prediction.off_sm or tiles >= SHORT * turns * workers:
        return ""
    last = tiles - (turns - 1) * workers
    taken, of = counted(turns, "turn"), counted(workers, "worker")
    return f"{counted(tiles, 'tile')} take {taken} of {of}; in the last, {workers - last} have no tile."


def _workers(prediction: Prediction, role: str) -> str:
    """A sentence on whether more workers would help the deciding role, and how long the run takes with them."""
    if role in prediction.off_sm:
        return ""
    tiles, workers = _together(prediction.steps.events, role)
    found = neighbour(prediction, role)
    if found is None:
        return f"Each of its {tiles} tiles has a worker." if workers >= tiles else "No SM is left for more workers."
    whose = "" if found.role == prediction.steps.events.program.role(role).launched else f" for {found.role}"
    needs = f"{role} needs {'more' if found.helps else 'no more'} SMs"
    workers_then = f"with {found.after} workers instead of {found.before}{whose}"
    return f"{needs}: {workers_then}, the run takes {found.makespan_us:,.1f} us."


def _place(order: list[str], role: str, longest: str) -> str:
    """The place of a role on the path before or after the deciding role, as text; "" if it is neither."""
    if role not in order:
        return ""
    if order.index(role) > len(order) - 1 - order[::-1].index(longest):
        return " after them"
    return " before them" if len(order) - 1 - order[::-1].index(role) < order.index(longest) else ""
