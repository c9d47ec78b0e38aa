"""Times that workers record: all tiles and waits of a program, in a timeline like others; nothing unless asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.parameters import first_of
from tilelink.analysis.events import WAIT
from tilelink.analysis.timeline import EXECUTED, RECORDS, Timeline
from tilelink.backend.targets import CPU, TARGETS
from tilelink.errors import TraceMismatchError, WorldError
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.runtime.cpu.world import CpuWorld, Group
from tilelink.runtime.timestamps import TimedRun, timeline_of

K, N, SMS = 64, 48, 6

IN_TILES = push.changed(gather={"tile": (128, 256)})


def run(parts: tuple[int, ...], name: str, **options: bool) -> CpuWorld:
    """Two calls of all_gather_matmul, the second one timed if the options say so."""
    world = CpuWorld(len(parts), sms=SMS, heap_bytes=4 << 20)
    gather = {"tile": (16, None)} if name == "engine" else {"tile": (16, 32), "count": 2}
    schedule = all_gather_matmul.schedule(name).changed(gather=gather, matmul={"tile": (16, 32, 32)})
    xs = [torch.randint(-3, 4, (m, K)).float() for m in parts]
    weight = torch.randint(-3, 4, (K, N)).float()

    def rank(group: Group) -> torch.Tensor:
        given = {"schedule": schedule, "group": group, "parts": {"M": parts}}
        all_gather_matmul(xs[group.rank], weight, **given)
        return all_gather_matmul(xs[group.rank], weight, **given, **options)

    for out in world.run(rank):
        assert torch.equal(out, torch.cat(xs) @ weight)
    return world


@pytest.mark.parametrize(
    ("name", "parts"),
    [("push", (20,)), pytest.param("push", (5, 0, 33), marks=pytest.mark.verify), ("pull", (16, 7)),
     ("multicast", (16, 16)), ("engine", (16, 16))],
)  # fmt: skip
def test_the_timeline_has_every_tile_and_every_wait(name: str, parts: tuple[int, ...]) -> None:
    world = run(parts, name, timed=True)
    found = world.timeline()
    assert (found.unit, found.source) == (RECORDS, EXECUTED) and found.start == 0
    timed = world.groups[0].timed
    assert timed is not None
    events = timed.prepared.events
    in_kernel = events.worker < events.kernel_workers
    tiles = {(r, events.program.roles[o].name, t) for r, o, t in _tiles(events, in_kernel)}
    spans = Counter((s.rank, s.role) for s in found.spans if s.kind == "tile")
    assert spans == Counter((r, name) for r, name, _ in tiles)
    waits = [s for s in found.spans if s.kind == "wait"]
    assert len(waits) == np.count_nonzero((events.op == WAIT) & in_kernel)
    for wait in waits:
        assert name == "engine" or (wait.cause is not None and found.spans[wait.cause].role == "gather")
    if len(parts) > 1 and name != "engine":
        assert {(t.source, t.target) for t in found.transfers} >= {(0, 1)}


def _tiles(events, chosen) -> set[tuple[int, int, int]]:
    columns = (events.rank[chosen].tolist(), events.role[chosen].tolist(), events.tile[chosen].tolist())
    return set(zip(*columns, strict=True))


@pytest.mark.parametrize("widths", first_of([(33, 80), (48, 16)]))
def test_lists_of_weights_take_turns(widths: tuple[int, ...]) -> None:
    world = CpuWorld(2, sms=7, heap_bytes=4 << 20)
    x, weights = torch.ones(2, 40, K), [torch.ones(K, n) for n in widths]
    schedule = all_gather_matmul.of(2).schedule("push").changed(
        gather={"tile": (16, 32), "count": 2}, matmul={"tile": (16, 16, 32)}
    )  # fmt: skip
    world.run(lambda g: all_gather_matmul(x[g.rank], weights, schedule=schedule, group=g, timed=True))
    found = world.timeline()
    tiles = Counter(s.role for s in found.spans if s.kind == "tile" and s.rank == 0)
    assert [tiles[f"matmul_{k}"] for k in range(2)] == [2 * 3 * -(-n // 16) for n in widths]


def test_across_nodes() -> None:
    world = CpuWorld(4, sms=SMS, heap_bytes=4 << 20, per_node=2)
    x, weight = torch.ones(4, 16, K), torch.ones(K, N)
    world.run(lambda g: all_gather_matmul(x[g.rank], weight, group=g, timed=True))
    assert world.timeline().ranks == (0, 1, 2, 3)


def test_nothing_is_recorded_unless_asked() -> None:
    world = run((32, 32), "push")
    with pytest.raises(WorldError, match="rank 0, 1 has recorded no times: call the program with timed=True"):
        world.timeline()
    (prepared,) = world.lane.prepared.values()
    assert "stamp" not in prepared.lowered.source and "clock" not in prepared.lowered.source


def test_a_reset_forgets_the_records() -> None:
    world = run((32, 32), "push", timed=True)
    assert world.timeline().ranks == (0, 1)
    world.reset()
    with pytest.raises(WorldError, match="has recorded no times"):
        world.timeline()


def test_records_of_another_program_are_refused() -> None:
    runs = [g.timed for g in run((32, 32), "push", timed=True).groups]
    assert runs[1] is not None
    runs[1].stamps[1, 1, 0] = 7
    with pytest.raises(TraceMismatchError, match=r"rank 1 worker 1 of all_gather_matmul: record 1 is 7; the program"):
        timeline_of(runs)


def test_clocks_of_ranks_are_set_by_signals() -> None:
    """Ranks whose clocks are far apart: with one clock effects come before causes; once set, hardly."""
    runs = [g.timed for g in run((32, 32, 32), "push", timed=True).groups]
    ahead = [0, 100_000, -7_000]
    skewed: list[TimedRun | None] = []
    for timed, ticks in zip(runs, ahead, strict=True):
        assert timed is not None
        stamps = timed.stamps.clone()
        stamps[:, :, 1] += ticks
        skewed.append(replace(timed, stamps=stamps))
    assert timeline_of(skewed).makespan > 90_000
    assert timeline_of(skewed, clocks="each").makespan < 3 * timeline_of(runs).makespan
    assert _early(timeline_of(skewed, clocks="each")) <= timeline_of(runs).makespan


def _early(found: Timeline) -> float:
    """How long before the end of the tile that ended it a wait ended, at most."""
    return max(found.spans[w.cause].stop - w.stop for w in found.spans if w.cause is not None)


@pytest.mark.parametrize("target", first_of(["sm_90", "gfx942"]))
def test_kernels_that_record_hold_what_the_program_says(target: str) -> None:
    """Compiled only: the chip's clock is read once for each record, and the gate finds what it finds without."""
    at = {"world": 4, "sizes": {"M": 1024, "N": 512, "K": 512}, "dtypes": "bfloat16"}
    lowered, sizes = all_gather_matmul.lowered_at(IN_TILES, target=TARGETS[target], timed=True, **at)
    kernels = compiled(lowered, sizes)
    assert not judge(lowered, kernels).findings
    read = kernels[-1].code.count("%globaltimer" if target == "sm_90" else "s_memrealtime")
    assert read >= lowered.source.count(" = stamp(")


def test_timed_kernels_are_kernels_of_their_own() -> None:
    at = {"target": CPU, "world": 2, "sizes": {"M": 512, "N": 512, "K": 512}}
    plain, timed = (all_gather_matmul.lowered_at(IN_TILES, timed=t, **at)[0] for t in (False, True))
    assert plain.sha256 != timed.sha256 and "times are recorded" in timed.source.splitlines()[0]
