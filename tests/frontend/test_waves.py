"""Roles over the experts of a route that take turns, wave by wave: whose turn it is, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import triton.language as tl

import tilelink as tk
from tests.kernels.routed import random_counts
from tests.kernels.whole_layer import in_tiles
from tilelink.analysis.unroll import unroll
from tilelink.errors import ScheduleError, UnsafeProgramError
from tilelink.frontend.workload import turns
from tilelink.kernels.mixture_of_experts import mixture_of_experts

SIZES = {"K": 40, "N": 24, "experts": 5, "tokens": 40, "top": 2}
WAVED = ("gate_up", "down")


def turns_of(wave: int | None) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """The role and the expert of all tiles of each worker that multiplies, in its order."""
    counts = random_counts(2, 5, seed=3)
    sizes = {"routed": counts, **SIZES}
    events = unroll(*mixture_of_experts.bound_at(in_tiles("push", wave), world=2, sizes=sizes), sms=11)
    begins = np.cumsum([0, *np.array(counts).sum(1)])
    names = [r.name for r in events.program.roles]
    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for k in events.heads.tolist():
        if (name := names[events.role[k]]) in WAVED:
            expert = int(np.searchsorted(begins, events.lo[k, 0], "right")) - 1
            found[int(events.rank[k]), int(events.worker[k])].append((name, expert % 5))
    return found


@pytest.mark.parametrize("wave", [1, 2, 3, 8])
def test_workers_go_on_by_a_wave_of_each_role_the_second_a_turn_behind(wave: int) -> None:
    for tiles in turns_of(wave).values():
        turn = [(expert // wave + WAVED.index(name), WAVED.index(name), expert) for name, expert in tiles]
        assert turn == sorted(turn)


def test_waves_change_neither_the_tiles_nor_by_more_than_one_how_many_a_worker_has() -> None:
    once, in_turns = turns_of(None), turns_of(2)
    assert sorted(t for of in once.values() for t in of) == sorted(t for of in in_turns.values() for t in of)
    for rank in range(2):
        lengths = [len(tiles) for (r, _), tiles in in_turns.items() if r == rank]
        assert max(lengths) - min(lengths) <= 1


def test_the_last_role_begins_earlier() -> None:
    def first_down(wave: int | None) -> int:
        return min([name for name, _ in tiles].index("down") for tiles in turns_of(wave).values())

    assert first_down(1) < first_down(None)


# ---- programs whose roles can't take turns so


ROUTE = tk.Route("S", "R", "E")


@tk.tile
def make(t, x, rows):  # type: ignore[no-untyped-def]
    tk.notify(rows[t].store(x[t].load()))


@tk.tile
def use(t, rows, out):  # type: ignore[no-untyped-def]
    out[t].store(tk.wait(rows[t]).load())


@tk.tile
def use_all(t, rows, out):  # type: ignore[no-untyped-def]
    here = tk.wait(rows[:, t.cols].at(tk.rank()))
    out[t].store(here[t.rows, :].load())


@tk.tile
def scale(t, weight, out):  # type: ignore[no-untyped-def]
    out[t].store(weight[t].load())


@tk.program
def of_own_expert(x: tk.Sharded("R", "K"), sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: ROUTE,
                  out: tk.Sharded("R", "K")):  # type: ignore[no-untyped-def, valid-type]  # fmt: skip
    rows = tk.sharded("R", "K")
    make[tk.tiles(route.experts, x.cols)](x, rows)
    use[tk.tiles(route.experts, x.cols)](rows, out)


@tk.program
def of_all_experts(x: tk.Sharded("R", "K"), sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: ROUTE,
                   out: tk.Sharded("R", "K")):  # type: ignore[no-untyped-def, valid-type]  # fmt: skip
    rows = tk.sharded("R", "K")
    make[tk.tiles(route.experts, x.cols)](x, rows)
    use_all[tk.tiles(route.experts, x.cols)](rows, out)


@tk.program
def backwards(x: tk.Sharded("R", "K"), sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: ROUTE,
              out: tk.Sharded("R", "K")):  # type: ignore[no-untyped-def, valid-type]  # fmt: skip
    rows = tk.sharded("R", "K")
    use[tk.tiles(route.experts, x.cols)](rows, out)
    make[tk.tiles(route.experts, x.cols)](x, rows)


@tk.program
def without_a_route(weight: tk.Local("E", "K"), out: tk.Local("E", "K", dtype=tl.float32)):  # type: ignore[no-untyped-def, valid-type]
    scale[tk.tiles(out)](weight, out)


def checked(program: Any, wave: int | None, *names: str) -> Any:
    waved = dict.fromkeys(names, tk.SMs(tile=(16, 16), wave=wave))
    counts = random_counts(2, 3, seed=5)
    return program.check(tk.Schedule(**waved), world=2, R=counts, E=3, K=16, sms=1)


def test_one_worker_is_enough_where_roles_wait_for_their_own_expert() -> None:
    report = checked(of_own_expert, 1, "make", "use")
    assert (report.verdict, report.proof) == ("safe", "structural")


@pytest.mark.parametrize(
    ("program", "names", "because"),
    [
        (of_all_experts, ("make", "use_all"), "use_all waits for rows, which no earlier role writes"),
        (backwards, ("use", "make"), "use waits for rows, which no earlier role writes"),
    ],
)
def test_roles_that_wait_for_other_experts_deadlock(program: Any, names: tuple[str, ...], because: str) -> None:
    report = checked(program, 1, *names)
    assert report.proof == "unrolled" and because in report.because
    assert {f.kind for f in report.findings} == {"deadlock"}
    if program is of_all_experts:  # the wave is what is wrong with it
        assert checked(program, None, *names).verdict == "safe"
    with pytest.raises(UnsafeProgramError, match="deadlock"):
        report.raise_if_unsafe()


def test_a_walk_that_does_not_go_expert_by_expert_has_no_waves() -> None:
    bound = mixture_of_experts.bind(in_tiles("push", 1), absent=mixture_of_experts.optional)
    first, second = (bound.role(name) for name in WAVED)
    turned = replace(second, walk=replace(second.walk, coordinates=second.walk.coordinates[1:]))
    turns([first, second])
    with pytest.raises(ScheduleError, match="down has wave=1, and its order own_rank_first does not go expert by expe"):
        turns([first, turned])


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda: tk.SMs(tile=(16, 16), wave=0), "wave=0: experts in a turn, at least 1"),
        (lambda: tk.SMs(4, tile=(16, 16), wave=2), "wave=2: experts in a turn, at least 1, of a role without a count"),
        (
            lambda: in_tiles("push", 2).changed(down={"wave": 3}),
            "roles that take turns have one wave, of experts of one route: gate_up: 2 of experts, down: 3 of experts",
        ),
        (
            lambda: in_tiles("push", 2).changed(add_up={"count": None, "wave": 2}),
            "add_up has wave=2, and goes over no rows of a route",
        ),
    ],
)
def test_errors(make_it: Any, said: str) -> None:
    with pytest.raises(ScheduleError) as error:
        mixture_of_experts.check(make_it(), world=2, routed=20, **SIZES)
    assert said in error.value.message and error.value.site is not None
