"""Programs that are prepared are kept, so many of them; a call whose program went is made anew, and right."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import torch

from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.inputs import SMALL, Inputs
from tilelink.frontend.kept import Kept
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cpu_world import CpuWorld
from tilelink.runtime.cuda.group import KEPT_CALLS, CudaGroup
from tilelink.runtime.prepare import KEPT_PROGRAMS, prepare_bound

ROWS = (3, 5, 7)


def test_how_many_are_kept() -> None:
    assert CpuWorld(1).lane.prepared.most == KEPT_PROGRAMS
    (group,) = virtual_world(1, StandIn()).groups
    assert (group.cuda.prepared.most, group._known.most) == (KEPT_PROGRAMS, KEPT_CALLS)


def test_a_call_after_its_program_went() -> None:
    world = CpuWorld(2, heap_bytes=64 << 10, signal_bytes=512, sms=4)
    world.lane.prepared = Kept(2)
    sets = [Inputs(2, rows) for rows in ROWS]
    for inputs in sets:
        inputs.check(world.run(inputs.call))
    assert [p.sizes.values["M"] for p in world.lane.prepared.values()] == [10, 14]
    oldest = weakref.ref(next(iter(world.lane.prepared.values())))
    for inputs in (sets[0], sets[0]):
        inputs.check(world.run(inputs.call))
    assert [p.sizes.values["M"] for p in world.lane.prepared.values()] == [14, 6]
    prepare_bound.results.clear()
    gc.collect()
    assert oldest() is None, "what went is held by nothing"


def test_a_call_after_its_script_went() -> None:
    device = StandIn()
    ranks, sets = virtual_world(2, device), [Inputs(2, parts=(rows, 0)) for rows in ROWS]
    calls = (*sets, sets[2], sets[0])

    def body(group: CudaGroup) -> list[torch.Tensor]:
        group._known, outs, kept = Kept(2), [], []
        for inputs in calls:
            outs.append(inputs.call(group, parts={"M": inputs.lengths}, slot=0))
            kept.append(list(group._known.values()))
        assert [len(k) for k in kept] == [1, 2, 2, 2, 2]
        assert kept[2] == [kept[1][1], kept[3][1]], "the oldest goes"
        assert kept[3] == kept[2] and kept[4][0] is kept[2][1], "what is kept is not made again"
        return outs

    results = ranks.run(body)
    for k, inputs in enumerate(calls):
        inputs.check([r[k] for r in results])


def test_what_is_in_a_graph_stays() -> None:
    device = StandIn()
    ranks, others = virtual_world(2, device), [Inputs(2, rows) for rows in ROWS]
    first, second = Inputs(2, seed=1), Inputs(2, seed=2)

    def body(group: CudaGroup) -> torch.Tensor:
        group._known = Kept(2)
        x, weight = first.x[group.rank].clone(), first.weight[group.rank]
        call: Callable[[], torch.Tensor] = lambda: all_gather_matmul(  # noqa: E731
            x, weight, schedule=SMALL["pull"], group=group
        )
        all_gather_matmul.prepare(x, weight, schedule=SMALL["pull"], group=group)
        with device.capture() as graph:
            out = call()
        (script,) = group._captured.values()
        for inputs in others:
            inputs.call(group)
        assert all(script not in known.scripts.values() for known in group._known.values())
        x.copy_(second.x[group.rank])
        group.replay(graph)
        group.synchronize()
        assert script in group._captured.values()
        return out.clone()

    x = torch.cat(second.x)
    for rank, out in enumerate(ranks.run(body)):
        torch.testing.assert_close(out, x @ first.weight[rank], rtol=0, atol=0)
