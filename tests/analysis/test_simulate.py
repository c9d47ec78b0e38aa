"""Predictions: of runs small enough for times by hand, and what has to hold of any."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import tilelink as tk
from tests.parameters import first_cases, random_tries, rarely
from tests.programs import gathered as gathering
from tests.programs.alone import sum_of_peers
from tests.programs.exchanges import readers_first
from tests.programs.notifying import moves
from tests.programs.ring_maximum import ring_maximum
from tilelink.analysis.machine import Machine, machine
from tilelink.analysis.simulate import Prediction, predict, steps_of
from tilelink.analysis.simulate.costs import bounds, compute, costs, way
from tilelink.analysis.simulate.steps import fold
from tilelink.analysis.simulate.verdict import OTHER, WORTH_SAYING, deciding, neighbour, times_as_fast
from tilelink.errors import (
    MachineError,
    MachineMemoryError,
    ScheduleError,
    StuckError,
    TileLinkError,
    UnsafeProgramError,
    shown,
)
from tilelink.frontend.sizes import Sizes
from tilelink.kernels import matmul_fabric_all_reduce as fabric
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_gather_split_matmul import SPLITS
from tilelink.kernels.matmul import matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

MB = 1 << 20


def plain(sms: int = 4, **numbers: Any) -> Machine:
    """A machine that is easy to reckon with: only what is named takes time."""
    free = dict(tile_us=0, signal_us=0, fence_us=0, flight_us=0, poll_us=0, launch_us=0, skew_us=0, collective_us=0)
    fast = dict(memory_rate=1e9, l2_rate=1e9, l2_total=1e12, shared_rate=1e9, sms=sms, matmul__bfloat16=1e6)
    made = machine("h100").changed(**free, **fast)
    for agent in made.agents:
        rates = {"setup_us": 0, "push": 1e9, "pull": 1e9, "saturation": 1e9}
        made = made.changed(**{f"agents.{agent}.{n}": v for n, v in rates.items()})
    return made.changed(**numbers)


def products(m: int, n: int, k: int, on: Machine, tile: tuple[int, int, int] = (64, 64, 64)) -> Prediction:
    schedule = tk.Schedule(multiply=tk.SMs(tile=tile))
    return matmul.simulate(schedule, machine=on, world=1, M=m, N=n, K=k)


def gathered(on: Machine, at: str = "reader", count: int = 1, world: int = 2, **options: Any) -> Prediction:
    schedule = tk.Schedule(move=tk.SMs(count, tile=(64, 64), at=at))
    return moves.simulate(schedule, machine=on, world=world, M=64 * world, K=64, **options)


SIZE = 64 * 64 * 2  # bytes of the part of a rank in `gathered`


# ---- by hand -----------------------------------------------------------------------------------------------------


def test_waves() -> None:
    """Five tiles on four SMs take two waves."""
    one = 2.0 * 64**3 / (1.0 / 4 * 1e6)  # operations of a tile, at a quarter of 1 TFLOP/s
    on = plain(matmul__bfloat16=1.0)
    assert products(256, 64, 64, on).makespan_us == pytest.approx(one)
    assert products(320, 64, 64, on).makespan_us == pytest.approx(2 * one)
    assert products(320, 64, 64, on.changed(tile_us=3.0)).makespan_us == pytest.approx(2 * one + 6)


def test_sms_that_are_left_to_others_take_no_tiles() -> None:
    """Four tiles on two of four SMs take two waves, each at the rate of an SM; the library's product has all SMs."""
    one = 2.0 * 64**3 / (1.0 / 4 * 1e6)
    on = plain(matmul__bfloat16=1.0)
    assert products(256, 64, 64, on.leaving(2)).makespan_us == pytest.approx(2 * one)
    small = tk.Schedule(gather=tk.SMs(1, tile=(64, 64)), matmul=tk.SMs(tile=(64, 64, 64)))
    whole, left = (
        all_gather_matmul.simulate(small, machine=on.changed(sms=9), reserved=n, world=2, M=256, N=128, K=64)
        for n in (0, 4)
    )  # fmt: skip
    assert left.compute_us > whole.compute_us and left.unfused_us == whole.unfused_us
    assert left.summary()["reserved"] == 4 and sum(left.idle_us.values()) <= left.makespan_us
    for wrong in (-1, 4):
        with pytest.raises(MachineError, match=f"has 4 SMs: {wrong} can't be reserved, at least one is ours"):
            on.leaving(wrong)


def test_a_large_k_takes_longer_by_its_operations() -> None:
    on = plain(matmul__bfloat16=1.0)
    assert products(64, 64, 640, on).makespan_us == pytest.approx(10 * products(64, 64, 64, on).makespan_us)


@pytest.mark.parametrize(("at", "rate"), [("reader", "pull"), ("home", "push")])
def test_a_transfer_by_one_worker_takes_its_own_rate(at: str, rate: str) -> None:
    on = plain(**{f"agents.load_store.{rate}": 1.0})
    assert gathered(on, at).makespan_us == pytest.approx(SIZE / 1e3)


@pytest.mark.parametrize("at", ["reader", "home"])
def test_links_are_shared_and_their_directions_are_apart(at: str) -> None:
    """Of four ranks each sends three parts and gets three, both at once; who is slow is the link."""
    on = plain(agents__load_store__saturation=1.0)
    assert gathered(on, at, world=4).makespan_us == pytest.approx(3 * SIZE / 1e3, rel=0.35)
    assert gathered(on, at, world=4).comm_us >= 3 * SIZE / 1e3 * (1 - 1e-9)
    mesh = replace(on, links="mesh")
    assert gathered(mesh, at, count=4, world=4).makespan_us == pytest.approx(SIZE / 1e3)


def test_transfers_alone_take_their_workers_as_long_as_these_need() -> None:
    """A worker makes one transfer after the other, and each with its notification: not just the bytes at a link's
    rate. Where these tiles decide, the run takes as long."""
    on = plain(agents__load_store__push=1.0, fence_us=2.0)
    one = tk.Schedule(gather=tk.SMs(1, tile=(64, 64), at="home"), matmul=tk.SMs(tile=(64, 64, 64)))
    run = all_gather_matmul.simulate(one, machine=on, world=4, M=256, N=64, K=64)
    assert run.comm_us == pytest.approx(3 * (SIZE / 1e3 + 2.0))
    few = tk.Schedule(gather=tk.SMs(1, tile=(16, 16), at="home"), matmul=tk.SMs(tile=(32, 16, 16)))
    run = all_gather_matmul.simulate(few, machine="h800", world=4, M=512, N=32, K=256)
    assert deciding(run) == "gather"
    assert 0.9 * run.shares_us["gather"] < run.comm_us < run.makespan_us


def test_a_mesh_has_a_link_for_every_pair() -> None:
    switch = plain(agents__load_store__saturation=1.0)
    assert gathered(switch, count=4, world=4).comm_us == pytest.approx(3 * SIZE / 1e3)
    assert gathered(replace(switch, links="mesh"), count=4, world=4).comm_us == pytest.approx(SIZE / 1e3)


def test_nodes_are_joined_by_their_nics() -> None:
    near = machine("h100_nodes2")
    free = plain(ranks_per_node=2)
    agents = {**free.agents, "nic": replace(near.agent("nic"), setup_us=5.0, push=1.0, pull=1.0, saturation=1.0)}
    on = replace(free, agents=agents)
    assert gathered(on, world=2).makespan_us == pytest.approx(0, abs=0.1)
    two, turn = 2 * (SIZE / 1e3 + 5), SIZE / 1e3  # two far parts each, and a turn of a peer's at most
    assert two < gathered(on, world=4).makespan_us <= two + turn * 1.001


def test_a_multicast_leaves_once() -> None:
    """Only rank 0 has rows: what it sends to three peers in turn takes three times as long as a multicast."""
    on = plain(agents__load_store__saturation=1.0, agents__multicast__saturation=1.0)

    def took(via: str) -> float:
        gather = tk.SMs(1, tile=(64, 64), at="home", via=via)
        schedule = tk.Schedule(gather=gather, matmul=tk.SMs(tile=(64, 64, 64)))
        return all_gather_matmul.simulate(schedule, machine=on, world=4, M=(64, 0, 0, 0), N=64, K=64).comm_us

    assert took("load-store") == pytest.approx(3 * SIZE / 1e3)
    assert took("multicast") == pytest.approx(SIZE / 1e3)


def test_a_sum_of_the_fabric_enters_once() -> None:
    """Rank 0 adds up all rows: loads from three peers keep its link busy three times as long as loads of the sum."""
    on = plain(agents__load_store__saturation=1.0, agents__multicast__saturation=1.0)
    sizes: dict[str, Any] = {"M": (64, 0, 0, 0), "N": 64, "K": 64}

    def entering(via: str) -> float:
        tiles = {"matmul": {"tile": (64, 64, 64)}, "share": {"tile": (64, 64), "via": via}, "take": {"tile": (64, 64)}}
        bound = fabric.matmul_fabric_all_reduce.bind(fabric.multicast.changed(**tiles), "bfloat16")
        steps = steps_of(bound, Sizes.of(bound, 4, sizes), on, {})
        return float(way(steps, costs(steps, on, {}), on).entering[~steps.pushed].sum())

    assert entering("load-store") == pytest.approx(3 * SIZE / 1e3)
    assert entering("multicast") == pytest.approx(SIZE / 1e3)


def test_what_the_fabric_adds_up_or_copies_counts_once_in_the_bound() -> None:
    """Each rank takes the sum of its rows of all ranks, and sends it to all: no run may beat its own bound."""
    found = fabric.matmul_fabric_all_reduce.simulate(machine="h800", world=8, M=8192, N=4096, K=512, dtypes="bfloat16")
    assert 0.5 * found.makespan_us < found.bound_us <= found.makespan_us
    assert found.link_rate <= 160.0, "GB/s of the fastest agent"


@pytest.mark.parametrize("rows", [32, 512], ids=["once", "read by several tiles"])
def test_a_bound_counts_each_input_once_and_what_is_written(rows: int) -> None:
    """With few rows, reading the weight takes longest."""
    sizes = {"M": rows, "N": 1024, "K": 2048}
    found = all_gather_matmul.simulate("push", machine="h100", world=2, dtypes="bfloat16", **sizes)
    read = 2 * (sizes["N"] * sizes["K"] + rows // 2 * sizes["K"])
    written = np.bincount(found.steps.events.rank[found.steps.event], weights=found.steps.written).max()
    limits = bounds(found.steps, found.costs, found.machine)
    assert limits["the bytes of device memory"] == pytest.approx((read + written) / (found.machine.memory_rate * 1e3))
    if rows == 32:
        assert found.bound_us == limits["the bytes of device memory"]
        assert "us, for the bytes of device memory." in found.verdict


def test_an_engine_takes_no_sm_and_sets_up_every_copy() -> None:
    on = plain(sms=1, agents__copy_engine__setup_us=7.0)
    found = gathered(on, agents={"move": "copy_engine"})
    assert found.makespan_us == pytest.approx(7.0) and found.off_sm == {"move"}
    with pytest.raises(ScheduleError, match="asks for 5 SMs"):
        gathered(on, count=5, world=8)


def test_signals_take_fence_flight_and_poll() -> None:
    def waited(**numbers: float) -> float:
        schedule = tk.Schedule(
            gather=tk.SMs(1, tile=(64, 64), at="home", order=tk.ring), matmul=tk.SMs(tile=(64, 64, 64))
        )
        sizes = {"M": 128, "N": 64, "K": 64}
        return all_gather_matmul.simulate(schedule, machine=plain(**numbers), world=2, **sizes).makespan_us

    none = waited()
    assert waited(fence_us=3.0) == pytest.approx(none + 3)
    assert waited(signal_us=2.0) == pytest.approx(none + 2)
    assert waited(flight_us=10.0) == pytest.approx(none + 30)  # to hear of entry, of the rows, and of leaving
    assert waited(launch_us=4.0) == pytest.approx(none + 4)  # pushed: nothing is published first
    assert waited(skew_us=6.0) == pytest.approx(none + 6)


def test_publishing_costs_a_launch_and_a_copy() -> None:
    on = plain(launch_us=4.0, memory_rate=1.0)
    moved = 2 * SIZE / 1e3
    assert gathered(on, "reader").run.tile_start.min() == pytest.approx(8 + moved)
    assert gathered(on, "home").run.tile_start.min() == pytest.approx(4)


def test_device_memory_is_one_server() -> None:
    """Two tiles that share nothing fetch one after the other; what is in L2 is fetched once."""
    on = plain(memory_rate=1.0, l2=1e9)
    out, rows, cols = 64 * 64 * 2, 64 * 64 * 2, 64 * 64 * 2
    assert products(128, 64, 64, on).makespan_us == pytest.approx((2 * out + 2 * rows + cols) / 1e3)
    assert products(64, 128, 64, on).makespan_us == pytest.approx((2 * out + rows + 2 * cols) / 1e3)


def test_what_l2_does_not_hold_is_fetched_again() -> None:
    schedule = tk.Schedule(multiply=tk.SMs(1, tile=(64, 64, 64)))
    events = matmul.unroll(schedule, world=1, dtypes="bfloat16", M=128, N=128, K=64)
    tile = 64 * 64 * 2
    held, lost = fold(events, 1e9), fold(events, 1.0)
    assert held.fetched.sum() == 4 * tile and lost.fetched.sum() == held.read.sum() == 8 * tile
    assert fold(events, 2.5 * tile).fetched.sum() == 6 * tile  # rows are read again at once, columns after all others


def test_all_sms_together_read_what_l2_gives() -> None:
    """Four tiles on four SMs, each of which reads 8 KB of either operand."""
    slow = plain(l2_total=4.0)
    read = 2 * 64 * 64 * 2
    assert products(128, 128, 64, slow).makespan_us == pytest.approx(read / (4e3 / 4), rel=1e-6)
    assert products(64, 128, 64, slow).makespan_us == pytest.approx(read / (4e3 / 2), rel=1e-6), "two tiles"
    one = slow.changed(l2_rate=1.0)
    whole = read + 64 * 64 * 2
    assert products(64, 64, 64, one).makespan_us == pytest.approx(whole / 1e3, rel=1e-6), "what one SM takes"
    made = products(128, 128, 64, slow)
    library = compute(made.steps, costs(made.steps, slow.of_library, {}), slow.of_library)
    assert library < made.compute_us, "SMs of a library's product share what they read"


def test_a_worker_reads_from_one_peer_after_the_other() -> None:
    on = plain(agents__load_store__pull=1.0)
    schedule = tk.Schedule(add_peers=tk.SMs(1, tile=(64, 64)))
    assert sum_of_peers.simulate(schedule, machine=on, world=4, M=64, N=64).makespan_us == pytest.approx(3 * SIZE / 1e3)


def test_an_epilogue_stores_after_the_products() -> None:
    """On one SM two products, each followed by a store to the peer: nothing overlaps but what is under way."""
    on = plain(sms=1, matmul__bfloat16=1.0, agents__load_store__push=1.0)
    schedule = tk.Schedule(
        matmul=tk.SMs(tile=(64, 64, 64), order=tk.next_rank_first), send=tk.Epilogue("matmul"),
        reduce=tk.SMs(tile=(64, 64)),
    )  # fmt: skip
    found = matmul_reduce_scatter.simulate(schedule, machine=on, world=2, M=128, N=64, K=64)
    product, store = 2 * 64**3 / 1e6, SIZE / 1e3
    assert found.makespan_us == pytest.approx(2 * product + store, rel=1e-3)
    assert found.run.transfer_start.min() == pytest.approx(product, rel=1e-3)
    share = store / (2 * product + store)  # only what goes to the peer is moved
    assert str(found) == f"predicted {found.makespan_us:.1f} us. {found.verdict}"
    assert "decides" in found.verdict and f" {share:.0%} of the time of its tiles is moving bytes" in found.verdict


# ---- what holds of any -------------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> Prediction:
    tile = draw(st.sampled_from([(16, 32), (32, 32), (16, None)]))
    gather = tk.SMs(
        draw(st.integers(1, 3)), tile=tile, at=draw(st.sampled_from(["home", "reader"])),
        order=draw(st.sampled_from([tk.own_rank_first, tk.ring])),
    )  # fmt: skip
    schedule = tk.Schedule(gather=gather, matmul=tk.SMs(tile=(32, 16, 16)))
    found = machine(draw(st.sampled_from(["h100", "mi300x", "l20", "h100_nodes2"])))
    return all_gather_matmul.simulate(
        schedule, machine=found, world=draw(st.integers(1, 5)), M=draw(st.integers(40, 130)),
        N=draw(st.integers(20, 70)), K=draw(st.integers(32, 70)),
    )  # fmt: skip


@random_tries(12, 40, runs())
def test_bounds_hold_and_parts_add_up(p: Prediction) -> None:
    assert max(p.bound_us, p.compute_us, p.comm_us) <= p.makespan_us and 0 < p.efficiency <= 1
    timeline = p.timeline  # which checks that workers do one thing at a time, and that waits lie in their tiles
    assert timeline.stop <= p.makespan_us + 1e-9
    busy = sum(timeline.busy(rank, role) for rank in timeline.ranks for role in timeline.roles)
    sms = p.machine.sms * p.steps.events.sizes.world
    assert busy / sms + sum(p.idle_us.values()) == pytest.approx(p.makespan_us)
    path = p.critical_path
    assert path[0].start == 0 and path[-1].stop == pytest.approx(p.makespan_us)
    for before, after in pairwise(path):
        assert after.start == pytest.approx(before.stop)
    assert len(timeline.transfers) == len(p.steps.size)
    assert (p.run.transfer_stop >= p.run.transfer_start).all()
    assert not np.isnan(p.run.tile_stop).any()


@pytest.mark.parametrize("world", [2, 3, 8])
def test_a_path_goes_on_through_a_ring_inside_one_tile(world: int) -> None:
    """Tiles that wait for each other midway: the path goes to the part of the peer's tile before it notified."""
    p = ring_maximum.simulate(machine="h800", world=world, T=64, D=64)
    path, on = p.critical_path, p.machine
    assert (path[0].kind, path[-1].kind) == ("launch", "leave")
    assert path[0].stop == pytest.approx(p.timeline.start, abs=on.skew_us) and path[0].stop < 10
    assert path[0].start == 0 and path[-1].stop == pytest.approx(p.makespan_us)
    assert all(after.start == pytest.approx(before.stop) for before, after in pairwise(path))
    hops = [link for link in path if link.kind == "signal"]
    assert len(hops) >= 2 * (world - 1) and all(0 < link.duration < 5 for link in hops)
    assert p.shares_us["turn"] + p.shares_us[OTHER] == pytest.approx(p.makespan_us)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_faster_links_never_slow_a_transfer_bound_run(world: int) -> None:
    slow = gathered(machine("l20"), count=2, world=world)
    fast = gathered(machine("l20").changed(agents__load_store__saturation=1000.0), count=2, world=world)
    assert fast.makespan_us <= slow.makespan_us + 1e-9


LIBRARY = [(p, schedule) for p in operators().values() for schedule in p.schedules]


FIRST = {p: next(iter(p.schedules)) for p in operators().values()}
"""A schedule of each program, in every run; the events of its last are explored there."""


@pytest.mark.parametrize(
    ("program", "schedule"),
    rarely(LIBRARY, lambda program, schedule: FIRST[program] != schedule),
    ids=[f"{p.name}-{s}" for p, s in LIBRARY],
)
def test_every_schedule_of_the_library_is_predicted(program: Program, schedule: str) -> None:
    sizes: dict[str, Any] = {d: SPLITS if d == "splits" else 256 for d in program.recorded().dims - {"ranks"}}
    fitted = program.fit(schedule, world=2, **sizes)
    found = program.simulate(fitted, machine="h100", world=2, **sizes)
    assert 0 < found.bound_us <= found.makespan_us and found.critical_path and found.timeline.spans


def test_the_same_run_is_predicted_alike_twice() -> None:
    a, b = (all_gather_matmul.simulate("push", machine="h100", world=4, M=512, N=512, K=512) for _ in range(2))
    assert a.summary() == b.summary()


def test_pull_by_sms_is_slower_than_push_on_hopper() -> None:
    """A remote load keeps fewer bytes under way than a store does, if registers are all there is to keep them in; the
    model says so of our two schedules."""
    sizes: dict[str, Any] = {"machine": "h800", "world": 8, "M": 8192, "N": 1376, "K": 4096}

    def took(schedule: str) -> float:
        return all_gather_matmul.simulate(schedule, **sizes).makespan_us

    by_threads = "gather.tile=128x256,gather.via=load-store"
    assert took(f"push,{by_threads}") < 0.85 * took(f"pull,{by_threads}")
    assert took("push") < took("pull") < 1.05 * took("push")


def test_bulk_copies_need_lines_of_whole_16_bytes() -> None:
    """4,097 numbers of bfloat16 are none: kernels load and store them."""
    sizes: dict[str, Any] = {"machine": "h800", "world": 8, "M": 2048, "N": 512}
    made = {k: all_gather_matmul.simulate("push", **sizes, K=k) for k in (4096, 4097)}
    assert [p.costs.agents[0] for p in made.values()] == [machine("h800").agent(n) for n in ("tma", "load_store")]


def test_bulk_copies_need_a_machine_that_has_an_engine_for_them() -> None:
    """Elsewhere roles load and store, and are predicted so."""
    sizes: dict[str, Any] = {"world": 4, "M": 4096, "N": 2048, "K": 4096}
    for name, alike in (("h800", False), ("a100_nvlink", True)):
        times = {
            via: all_gather_matmul.simulate(f"push,gather.via={via}", machine=name, **sizes).makespan_us
            for via in ("tma", "load-store")
        }
        assert (times["tma"] == times["load-store"]) == alike and times["tma"] <= times["load-store"]


def test_progress_is_told() -> None:
    told: list[str] = []
    p = ring_maximum.simulate(machine="h800", world=4, T=64, D=64, tell=told.append)
    assert told[0].startswith("unrolling turn, line ") and told[-1].startswith("simulating, 0 of ")
    assert any(what.startswith("checking, accesses to ring") for what in told)
    count = len(told)
    assert p.comm_us and p.verdict
    assert any(what.startswith("transfers alone: simulating") for what in told[count:])
    assert any(what.startswith("with 8 workers for turn: simulating") for what in told[count:])


def test_growth_is_no_worse_than_linear() -> None:
    """Events in all grow with M; nothing is done for pairs of them."""
    steps = [
        len(all_gather_matmul.simulate("push", machine="h100", world=2, M=m, N=512, K=512).steps) for m in (512, 4096)
    ]
    assert steps[1] <= 8.1 * steps[0]


# ---- the verdict -------------------------------------------------------------------------------------------------

SWEEPS = [
    ("all_gather_matmul", "pull", "gather", (2, 16, 32), {"M": 2048, "N": 512, "K": 1024}),
    ("matmul_reduce_scatter", "fused", "matmul", (8, 32), {"M": 2048, "N": 1024, "K": 1024}),
    ("matmul_one_shot_all_reduce", "push", "send", (8, 32), {"M": 128, "N": 2048, "K": 256}),
    ("matmul", "gemm", "multiply", (8, 60, 64), {"M": 1024, "N": 2048, "K": 512}),
    ("all_gather_matmul", "push", "gather", (1, 4, 32), {"M": 2048, "N": 512, "K": 1024}),
    ("all_gather_matmul", "push", "matmul", (4, 32), {"M": 1024, "N": 2048, "K": 2048}),
    ("matmul_reduce_scatter", "push", "send", (4, 32), {"M": 2048, "N": 2048, "K": 512}),
    ("matmul_ring_reduce_scatter", "ringed", "ring", (4, 16), {"M": 1024, "N": 1024, "K": 512}),
    ("all_reduce", "pull", "fetch", (2, 4), {"M": 1024, "N": 2048}),
]


@pytest.mark.parametrize(("name", "schedule", "role", "counts", "sizes"), first_cases(SWEEPS, 4))
def test_the_verdict_is_what_a_sweep_says(
    name: str, schedule: str, role: str, counts: tuple[int, ...], sizes: dict[str, int]
) -> None:
    """More workers are said to help if and only if the run with twice as many is predicted to be faster; in none of
    these do four times as many help where twice do not."""
    program, world = operators()[name], 1 if name == "matmul" else 4
    of: dict[str, Any] = {"machine": "h800", "world": world, **sizes}
    for count in counts:
        found = program.simulate(f"{schedule},{role}.count={count}", **of)
        assert deciding(found) == role
        more = program.simulate(f"{schedule},{role}.count={2 * count}", **of).makespan_us
        faster = more < found.makespan_us * (1 - WORTH_SAYING)
        assert (f"{role} needs more SMs" in found.verdict) == faster, (count, found.makespan_us, more, found.verdict)
        near = neighbour(found, role)
        if near is not None:
            assert (near.role, near.before) == (role, count) and near.helps == faster
            assert near.makespan_us == program.simulate(f"{schedule},{role}.count={near.after}", **of).makespan_us
            assert f"{near.after} workers instead of {count}, the run takes {near.makespan_us:,.1f} us" in found.verdict


def test_where_twice_the_workers_are_no_help_four_times_may_be() -> None:
    sizes: dict[str, Any] = {"machine": "h800", "world": 8, "M": 2048, "N": 1024, "K": 8192}
    copies = "pull,gather.via=load-store"
    found, twice, more = (all_gather_matmul.simulate(f"{copies},gather.count={n}", **sizes) for n in (24, 48, 64))
    assert twice.makespan_us > 0.99 * found.makespan_us > more.makespan_us
    takes = f"with 64 workers instead of 24, the run takes {more.makespan_us:,.1f} us."
    assert f"gather needs more SMs: {takes}" in found.verdict


def test_a_role_without_a_count_gets_workers_of_another() -> None:
    """Products decide, and half of the gathering SMs are enough; which a sweep says, too."""
    sizes: dict[str, Any] = {"machine": "h800", "world": 4, "M": 4096, "N": 4096, "K": 1024}
    copies = "push,gather.tile=128x256"
    found = all_gather_matmul.simulate(f"{copies},gather.count=96", **sizes)
    fewer = all_gather_matmul.simulate(f"{copies},gather.count=48", **sizes)
    assert deciding(found) == "matmul" and fewer.makespan_us < 0.9 * found.makespan_us
    takes = f"with 48 workers instead of 96 for gather, the run takes {fewer.makespan_us:,.1f} us."
    assert f"matmul needs more SMs: {takes}" in found.verdict


def test_sms_without_a_tile_are_named() -> None:
    on = machine("h100")
    few = products(640, 256, 64, on)
    assert "92 of the 132 SMs of a rank have no tile: multiply has 40 tiles. Each of its 40 tiles has a worker." in (
        few.verdict
    )
    turns = products(64 * 133, 64, 64, on)
    assert "133 tiles take 2 turns of 132 workers; in the last, 131 have no tile." in turns.verdict
    assert "no tile" not in products(64 * 132, 64, 64, on).verdict
    counted = matmul.simulate("gemm,multiply.count=66", machine=on, world=1, M=8192, N=4096, K=64)
    assert "66 of the 132 SMs of a rank have no tile: the schedule gives them to no role." in counted.verdict


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.0, "as fast as unfused"), (0.998, "as fast as unfused"), (1.004, "as fast as unfused"),
        (0.5, "0.50 times as fast as unfused"), (1.5, "1.50 times as fast as unfused"),
        (0.99, "0.99 times as fast as unfused"),
    ],
)  # fmt: skip
def test_a_ratio_in_words(ratio: float, said: str) -> None:
    assert times_as_fast(ratio) == said


def test_what_is_not_a_product_and_a_collective_has_no_unfused_form() -> None:
    on = machine("h100")
    for made in (products(256, 64, 64, on), gathered(on)):
        assert made.unfused_us is made.summary()["unfused_interval_us"] is None
        assert "unfused" not in made.verdict


# ---- bad input ---------------------------------------------------------------------------------------------------


def test_who_waits_for_ever_is_named() -> None:
    schedule = "shared_workers"
    sizes = {"M": 16, "K": 16}
    with pytest.raises(UnsafeProgramError, match="readers_first is not safe to run"):
        readers_first.simulate(schedule, machine="h100", world=1, **sizes)
    bound = readers_first.bound_at(readers_first.schedule(schedule), world=1, sizes=sizes, dtypes="bfloat16")
    steps = steps_of(*bound, machine("h100"), {})
    with pytest.raises(StuckError, match=r"no rank can go on: rank 0 worker 0 take tile 0: wait full\[M\[0:16\]") as e:
        predict(steps, machine("h100"), {})
    assert e.value.site is not None and e.value.site.file == gathering.__file__


def test_bad_input_is_refused() -> None:
    big = {"M": 1 << 20, "N": 1 << 16, "K": 1 << 14}
    says = r"all_gather_matmul needs .* GB on a rank; l20 has 48 GB. Most of it"
    with pytest.raises(MachineMemoryError, match=says) as e:
        all_gather_matmul.simulate("push", machine="l20", world=8, **big)
    assert e.value.site is not None and e.value.site.file == __file__
    assert f"; the schedule: {shown(all_gather_matmul.file)}:" in e.value.message
    with pytest.raises(MachineError, match=r"test_simulate.py:\d+: a world of 9 on l20, which has 8 GPUs"):
        gathered(machine("l20"), world=9)
    with pytest.raises(MachineError, match="no agent tma"):
        gathered(machine("a100_nvlink"), agents={"move": "tma"})
    with pytest.raises(TileLinkError, match="no role mov; its roles are move"):
        gathered(machine("h100"), agents={"mov": "tma"})


def test_products_need_a_rate() -> None:
    with pytest.raises(MachineError, match="no matmul rate for float8_e4m3fn; there is one for bfloat16"):
        matmul.simulate(machine="h100", world=1, dtypes="float8_e4m3fn", M=128, N=256, K=64)


def test_copies_inside_a_rank_are_slow_where_they_wait_for_the_kernel() -> None:
    """Others come before the kernel, when all SMs are free."""
    sizes: dict[str, Any] = {"world": 2, "M": 4096, "N": 1024, "K": 1024}

    def us(program: Any, **numbers: float) -> float:
        engine = program.schedules["engine"]
        schedule = engine.changed(send={"own": "copied"}) if "send" in engine else engine
        made: float = program.simulate(schedule, machine=machine("h200").changed(**numbers), **sizes).makespan_us
        return made

    of_own_rows = 4096 / 2 * 1024 * 2 / 1e3  # microseconds at 1 GB/s
    assert us(matmul_reduce_scatter, inside_rate=1.0) > of_own_rows > us(matmul_reduce_scatter)
    assert us(all_gather_matmul, inside_rate=1.0) == us(all_gather_matmul)
