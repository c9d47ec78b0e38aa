"""Fusing on one card, on a stand-in: virtual ranks against copies, and one rank whose peers are memory of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.gpu import one_card
from bench.gpu.loopback import RANK, LoopbackGroup, Prepared
from bench.gpu.place import Place, dry
from bench.gpu.report import Report
from bench.records import json_lines
from tests.bench.on_stand_in import OnStandIn
from tests.runtime.cuda_stand_in import StandIn
from tilelink.errors import StuckError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

WORLD = 3
SHAPE = (48, 32, 32)
CASES = [(p, s) for p in (all_gather_matmul, matmul_reduce_scatter) for s in p.schedules]
EVERY_RUN = {(all_gather_matmul.name, "engine")}
"""A link is written to by a copy engine; `make verify` has the other cases."""


@pytest.fixture
def place() -> Place:
    return OnStandIn().place()


def link(device: StandIn, world: int, heap_bytes: int, signal_bytes: int, shared: bool) -> LoopbackGroup:
    """A loopback link on a stand-in, which has to know who launches on it."""
    group = LoopbackGroup(device, world, heap_bytes, signal_bytes, shared)  # type: ignore[arg-type]
    group.stream = device.current()  # type: ignore[attr-defined]
    blank = {"runs": 0, "_engine": {}, "flag": torch.zeros(1)}
    others = [SimpleNamespace(rank=r, stream=device.stream(), **blank) for r in range(1, world)]
    device.world = SimpleNamespace(world=world, lane=group.lane, groups=[group, *others])  # type: ignore[assignment]
    return group


@pytest.mark.parametrize(
    ("program", "schedule"),
    [pytest.param(*c, marks=() if (c[0].name, c[1]) in EVERY_RUN else pytest.mark.verify) for c in CASES],
    ids=[f"{p.name} {s}" for p, s in CASES],
)
def test_a_rank_whose_peers_take_no_part(
    program: Program, schedule: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results are right, call after call, and what it does for its peers is in their memory."""
    made: list[LoopbackGroup] = []
    monkeypatch.setattr(one_card, "LoopbackGroup", lambda *given: made.append(link(*given)) or made[-1])
    device: Any = StandIn(sms=24)
    timed = replace(place, clock=lambda call, before: (before(), call(), made[0].synchronize()) and 1.0)
    found = one_card.over_the_link(timed, device, program, schedule, SHAPE, WORLD, shared=False)
    assert found.get("ok", True) and found["rel_rms"] < 5e-3, found
    assert made[0].runs > place.repeats, "each call was a run"
    touched = [int((h != 0xFF).sum()) for h in made[0].lane.heaps[1:]]
    assert all(touched), "peers are told of each run"


def test_signals_of_peers_are_given_before_each_call(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    device: Any = StandIn(sms=24)
    group = link(device, WORLD, 1 << 20, 1 << 12, False)
    x, peers = (torch.ones(16, 32).bfloat16() * n for n in (1, 2))
    given = Prepared(group, all_gather_matmul, "push", x, torch.ones(32, 32).bfloat16().T, peers)
    given.before()
    out = given.call()
    group.synchronize()
    assert torch.equal(out, torch.cat([x, peers, peers]).float().sum(1, keepdim=True).expand(-1, 32).bfloat16())
    given.call()
    for other in device.world.groups[1:]:
        other.runs = group.runs  # else the stand-in would say that they never came
    with pytest.raises(StuckError, match=r"rank 0 .* waits for full\[M\[16:"):
        group.synchronize()
    assert group.rank == RANK


@pytest.mark.verify
def test_virtual_ranks_against_copies(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_card, "WORLDS", (2,))
    path = tmp_path / "found.jsonl"
    one_card.one_card(settling(place, monkeypatch), Report(path, "step", place, "a command", 300))
    found = json_lines(path)
    assert [(r["op"], r["schedule"]) for r in found] == [(p.name, s) for p, s in CASES]
    assert [r["ok"] for r in found] == [None if s == "engine" else True for _, s in CASES]
    assert all(r["rel_rms"] < 5e-3 and r["speedup"] for r in found if r["ok"])


def settling(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A stand-in runs what waits when a host waits: so the results of the fused form are waited for."""
    real: Callable[..., Any] = one_card._against

    def against(place: Place, fused: Callable[[], Any], unfused: Callable[[], Any]) -> Any:
        def settled() -> Any:
            outs = fused()
            place.settle()
            return outs

        return real(place, settled, unfused)

    monkeypatch.setattr(one_card, "_against", against)
    return place


def test_how_much_of_the_link_is_hidden(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 us beside the GEMM, 10 are left."""
    monkeypatch.setattr(one_card, "LoopbackGroup", link)
    monkeypatch.setattr(one_card, "timed", lambda place, calls: [[110.0] * 3, [130.0] * 3, [120.0] * 3, [100.0] * 3])
    device: Any = StandIn(sms=24)
    found = one_card.over_the_link(place, device, all_gather_matmul, "push", SHAPE, WORLD, shared=False)
    assert found["overlap_efficiency"] == round(1 - 10 / 30, 4) and found["speedup"] == round(130 / 110, 4)
    of = {name: found[f"{name}_us"]["median_us"] for name in ("baseline", "chunked", "gemm")}
    assert of == {"baseline": 130.0, "chunked": 120.0, "gemm": 100.0}, "what it is made of is on record"
    assert found["median_us"] == 110.0
    assert found["overlap"].startswith("1 - (fused - GEMM) / (unfused - GEMM)")


@pytest.mark.parametrize(
    ("fused", "unfused", "gemm", "hidden"),
    [
        (100.0, 130.0, 100.0, 1.0),  # all of it
        (130.0, 130.0, 100.0, 0.0),  # nothing
        (145.0, 130.0, 100.0, -0.5),  # fusing costs
        (95.0, 130.0, 100.0, 1.1667),  # a GEMM faster than the library's
        (100.0, 100.0, 100.0, None),
        (100.0, 99.0, 100.0, None),
    ],
)
def test_overlap_efficiency(fused: float, unfused: float, gemm: float, hidden: float | None) -> None:
    assert one_card.overlap_efficiency(fused, unfused, gemm) == hidden


def over_the_wire(program: Program, m: int, n: int, k: int) -> tuple[int, int]:
    """Operations of a rank of eight, and bytes that it sends."""
    of_peers = one_card.WORLD - 1
    sent = of_peers * (m // one_card.WORLD) * (k if program is all_gather_matmul else n) * 2
    return 2 * m * n * k, sent


@pytest.mark.parametrize("program", [all_gather_matmul, matmul_reduce_scatter], ids=lambda p: p.name)
def test_shapes_have_the_ratio_of_a_node(program: Program) -> None:
    """Eight times slower than NVLink: eight times as many operations a byte, in as few tiles more as can be."""
    shape, gathers = (8192, 3584, 1792), program is all_gather_matmul
    operations, sent = over_the_wire(program, *shape)
    more, as_many = over_the_wire(program, *one_card.scaled(shape, 8.0, gathers))
    assert (more, as_many) == (8 * operations, sent)
    assert one_card.scaled(shape, 0.5, gathers) == shape, "never fewer"
    assert one_card.scaled(shape, 1.01, gathers) == shape, "to whole tiles"
    assert one_card.scaled(shape, 7.3, gathers)[1 if gathers else 2] == (26112 if gathers else 13056)


def test_layers_are_those_that_a_program_is_for() -> None:
    place = replace(dry(), gemms={f"{name}, {half}": SHAPE for half in ("gate", "down") for name in "abc"})
    assert [name for name, _ in one_card.layers(place, all_gather_matmul)] == ["a, gate", "b, gate"]
    assert [name for name, _ in one_card.layers(place, matmul_reduce_scatter)] == ["a, down", "b, down"]


def test_the_record_of_a_link_says_what_it_is_made_of(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_card, "link_rate", lambda place: one_card.node_rate(place.device) / 4)
    monkeypatch.setattr(one_card, "over_the_link", lambda place, device, program, schedule, shape: {"got": shape})
    path = tmp_path / "found.jsonl"
    one_card.loopback(place, Report(path, "step", place, "a command", 300))
    rate, *every = json_lines(path)
    balanced = [r for r in every if "compute_to_transfers" in r]
    each = product(one_card.BY_THREADS, one_card.RATIOS, one_card.BALANCED)
    assert [(r["op"], r["schedule"]) for r in balanced] == [(program.name, s) for (program, _), _, s in each]
    assert {r["compute_to_transfers"] for r in balanced} == set(one_card.RATIOS)
    found = [r for r in every if r not in balanced]
    assert rate["gb_s"] == found[0]["link_gb_s"] == round(found[0]["node_gb_s"] / 4, 1)
    by_threads = dict(one_card.BY_THREADS)
    wanted = [(p.name, s) for p in by_threads for s in (*p.schedules, by_threads[p])]
    assert [(r["op"], r["schedule"]) for r in found] == wanted and len(wanted) == len(CASES) + 2
    assert {tuple(r["got"]) for r in found} == {(64, 256, 32), (64, 32, 256)}
    assert all(r["scaled_from"] == [64, 32, 32] and r["ok"] for r in found)


def test_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    report = Report(path, "step", dry(), "a command", 300)
    one_card.one_card(dry(), report), one_card.loopback(dry(), report)
    assert all(r["ok"] is None for r in json_lines(path))
