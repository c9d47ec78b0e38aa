"""Notifications that are given one tile later: their place in the program, in the events and in a deadlock that a role
which waits would make; and the roles that can't give theirs late."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frontend.wrong import Case, changed, check
from tests.kernels.gather_gemm import run_and_check, small_world
from tests.kernels.gemm_reduce import Sum, in_tiles
from tests.parameters import seldom
from tilelink.analysis.check import check as checked
from tilelink.analysis.events import DOT, NOTIFY, WRITE, Events
from tilelink.analysis.unroll import unroll
from tilelink.emulator import Operation
from tilelink.errors import ScheduleError, TileProgramError
from tilelink.frontend import ir
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.verify import verify
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter
from tilelink.runtime.trace import align
from tilelink.tools.explore.oracle import Oracle
from tilelink.tools.explore.trial import Trial

ABSENT = frozenset({"bias", "epilogue"})
LATE = in_tiles(matmul_reduce_scatter, "fused", (16, 16, 16), (16, 16))
RINGED = in_tiles(matmul_ring_reduce_scatter, "ringed", (16, 16, 16), (16, 16)).changed(ring={"count": 1})
NOW = LATE.changed(matmul={"signals": "now"})
UNEVEN = {"M": (40, 0, 7), "N": 33, "K": 20}

SOURCE = """
@tk.tile
def multiply(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    tk.notify(partial[t].store(acc))


@tk.tile
def take(t, partial, out):
    out[t].store(tk.wait(partial[t]).load())


@tk.program
def program(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    partial = tk.local("M", "N", dtype=out)
    multiply[tk.tiles(partial)](x, weight, partial)
    take[tk.tiles(out)](partial, out)


schedule = tk.Schedule(multiply=tk.SMs(tile=(16, 16, 16), signals="late"), take=tk.SMs(tile=(16, 16)))


def main():
    return program.bind(schedule)
"""
LAUNCH_MULTIPLY = "    multiply[tk.tiles(partial)](x, weight, partial)"
LAUNCH_TAKE = "    take[tk.tiles(out)](partial, out)"
LOOP = """    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
"""


def case(name: str, changes: dict[str, str], *says: str) -> Case:
    return Case(name, ScheduleError, changed(SOURCE, changes), says)


@pytest.mark.parametrize(
    "wrong",
    [
        case(
            "waits",
            {"tile=(16, 16))": 'tile=(16, 16), signals="late")', LAUNCH_TAKE: f"{LAUNCH_TAKE}  # <-"},
            "take can't give its signals late: its tiles wait for partial[M[M_lo:+16], N[N_lo:+16]], and the "
            'notifications of the tile before would wait, too. Leave out signals="late"',
        ),
        case(
            "no main loop",
            {LOOP: "", LAUNCH_MULTIPLY: f"{LAUNCH_MULTIPLY}  # <-", "16, 16, 16": "16, 16"},
            "multiply can't give its signals late: it has no main loop (a loop that multiplies)",
        ),
        case(
            "main loops in branches",
            {
                LOOP: "".join(
                    f"    {word}:\n{LOOP.replace('    for', '        for').replace('        acc', '            acc')}"
                    for word in ("if t.N.start > 0", "else")
                ),
                LAUNCH_MULTIPLY: f"{LAUNCH_MULTIPLY}  # <-",
            },
            "multiply can't give its signals late: its main loop stands in a loop or a branch (",
            "user.py:10), and late signals are given behind a main loop that each tile runs once",
        ),
        case(
            "notifies nothing",
            {
                "    tk.notify(partial[t].store(acc))": "    out[t].store(acc)",
                "def multiply(t, x, weight, partial)": "def multiply(t, x, weight, out)",
                f"{LAUNCH_TAKE}\n": "",
                LAUNCH_MULTIPLY: "    multiply[tk.tiles(out)](x, weight, out)  # <-",
                ", take=tk.SMs(tile=(16, 16))": "",
                '    partial = tk.local("M", "N", dtype=out)\n': "",
            },
            "multiply can't give its signals late: its tiles notify nothing behind their main loop",
        ),
        case("another word", {'"late"),': '"later"),  # <-\n'}, "signals='later': it is one of 'now', 'late'"),
    ],
    ids=lambda c: c.name,
)
def test_what_can_not_be_late(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_where_they_stand_in_the_program() -> None:
    text = str(matmul_reduce_scatter.bind(LATE, absent=ABSENT).role("matmul").resource)
    assert "signals='late'" in text
    _, owed, *_, notify = matmul_reduce_scatter.bind(LATE, absent=ABSENT).role("matmul").body[1:]
    assert str(owed) == "notify what the tile before left for later"
    assert str(notify) == "notify(inbox[rank, M[M_lo:+16], N[N_lo:+16]].at(home)) later"


def events(schedule: object, sms: int) -> Events:
    bound = matmul_reduce_scatter.bind(schedule, absent=ABSENT)
    return unroll(bound, Sizes.of(bound, 3, UNEVEN), sms=sms)


@pytest.mark.parametrize("sms", [1, 2, 5])
def test_a_tile_is_told_behind_the_next_main_loop_of_its_worker(sms: int) -> None:
    """Of uneven parts, of which one is empty, so that workers pass over tiles."""
    late, now = events(LATE, sms), events(NOW, sms)
    role = next(k for k, r in enumerate(late.program.roles) if r.name == "matmul")

    def done(of: Events, rank: int, worker: int) -> list[tuple[int, int]]:
        """What a worker does for its tiles of `matmul`: of products and stores the tile, of notifications the cell."""
        mine = of.of_worker(rank, worker)
        mine = [k for k in mine[of.role[mine] == role] if of.op[k] in (DOT, WRITE, NOTIFY)]
        return [(int(of.op[k]), int(of.cell[k] if of.op[k] == NOTIFY else of.tile[k])) for k in mine]

    for rank, worker in now.workers:
        tiles = [done(now, rank, worker)[k : k + 3] for k in range(0, len(done(now, rank, worker)), 3)]
        wanted = [] if not tiles else [tiles[0][0]]
        for (_, store, told), (products, *_) in pairwise(tiles):
            wanted += [store, products, told]
        wanted += [] if not tiles else tiles[-1][1:]
        assert done(late, rank, worker) == wanted


@pytest.mark.parametrize("world", seldom([1, 2, 3, 4, 8], lambda world: world in (2, 4)))
def test_integers_are_exact_and_runs_do_what_their_events_say(world: int) -> None:
    """With a worker for all tiles of a rank, and twice in a row."""
    call = Sum(((21, 0, 7, 16) * 2)[:world], integers=True, bias=True).by((matmul_reduce_scatter, "fused"))
    operations: list[Operation] = []
    run_and_check(call, call, world=(one := small_world(world, sms=1, observer=operations.append)))
    (prepared,) = one.lane.prepared.values()
    assert all(align(prepared.events, operations, f"matmul_reduce_scatter run {n}").done for n in range(2))


def rings(*, late: bool) -> ir.TileProgram:
    """A ring whose tiles give what they pass on at once, or behind all that the worker's next tile waits for."""
    bound = matmul_ring_reduce_scatter.bind(RINGED, absent=ABSENT)
    ring = bound.role("ring")

    def later(s: ir.Statement) -> ir.Body:
        return (replace(s, late=True) if isinstance(s, ir.Notify) else s,)

    body = (*ir.rewritten(ring.body, later), ir.Owed(ring.site)) if late else ring.body
    return replace(bound, roles=(bound.role("matmul"), replace(ring, body=body)))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_tiles_that_wait_and_tell_late_wait_for_each_other(world: int) -> None:
    """The pass allows it to no role; past the pass, the check and the oracle find the deadlock."""
    for late in (False, True):
        bound = rings(late=late)
        run = Sizes.of(bound, world, {"M": (16,) * world, "N": 16, "K": 16})
        kinds = {f.kind for f in checked(bound, run, sms=2).findings}
        outcome = Oracle(unroll(bound, run, sms=2)).run(Trial(0))
        assert kinds == ({"deadlock"} if late else set())
        assert {f.kind for f in outcome.findings} == kinds


def test_what_the_verifier_says_of_late_notifications() -> None:
    """That they stand behind the place where those of the tile before are given, and wait for nothing."""
    bound, ring = matmul_reduce_scatter.bind(LATE, absent=ABSENT), rings(late=True).role("ring")
    matmul, reduce = bound.roles
    without = replace(matmul, body=tuple(s for s in matmul.body if not isinstance(s, ir.Owed)))
    with pytest.raises(TileProgramError, match="stands before the previous tile's late notifications"):
        verify(replace(bound, roles=(without, reduce)), "a pass")
    with pytest.raises(TileProgramError, match="in a role that waits for nothing"):
        verify(replace(rings(late=True), roles=(replace(ring, body=(ring.body[-1], *ring.body[:-1])),)), "a pass")


def test_a_changed_schedule_stands_where_it_was_changed() -> None:
    changed_here = NOW.changed(matmul={"signals": "late"})
    assert changed_here.site.file == __file__ and changed_here.site.line > NOW.site.line
    with pytest.raises(ScheduleError, match="no role matmult") as caught:
        NOW.changed(matmult={"signals": "late"})
    assert {entry.path.name for entry in caught.traceback} == {Path(__file__).name}
