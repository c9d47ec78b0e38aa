"""Lengths of parts as lists, tuples, arrays and tensors, and counts of rows as any tensor: one call on every kind of
world, checked, prepared and compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.routed import Routed
from tests.parameters import first_cases
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.processes import Pool
from tests.runtime.ranks import in_processes
from tests.runtime.small_worlds import SMALL, whole
from tilelink.errors import ShapeError, TileLinkError
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

COUNTS = [[2, 0], [3, 1], [0, 0], [1, 4]]
LENGTHS = (5, 3)


def nested(made: Callable[[Any], Any], given: Any) -> Any:
    return made([nested(made, n) if isinstance(n, list | tuple) else n for n in given])


FORMS: list[Callable[[Any], Any]] = [
    lambda given: nested(list, given),
    lambda given: nested(tuple, given),
    np.array,
    torch.tensor,
    lambda given: np.array(given, np.uint8),
    lambda given: torch.tensor(given, dtype=torch.int32),
    lambda given: [[np.int32(n) for n in row] if isinstance(row, list) else torch.tensor(row) for row in given],
]
COUNTED: list[Callable[[], torch.Tensor]] = [
    lambda: torch.tensor(COUNTS, dtype=torch.int32),
    lambda: torch.tensor(COUNTS, dtype=torch.int32).repeat_interleave(2, 1)[:, ::2],
]
ROUTED = Routed((dispatch_matmul, "push"), COUNTS, K=16, N=16, integers=True)
GATHERED = whole(LENGTHS)


def routed(group: Group) -> list[torch.Tensor]:
    return [ROUTED.on(group, counts=form()) for form in (COUNTED[0], COUNTED[0])]


def gathered(group: Any) -> list[torch.Tensor]:
    return [GATHERED.on(group, parts={"M": form(LENGTHS)}) for form in FORMS]


CALLS: list[tuple[Any, Any]] = [(routed, ROUTED), (gathered, GATHERED)]


def check(expected: Any, made: list[list[torch.Tensor]]) -> None:
    for outs in zip(*made, strict=True):
        expected.check(list(outs))


@pytest.mark.parametrize(("calls", "expected"), CALLS, ids=["counts", "lengths"])
def test_in_one_process(calls: Callable[[Any], list[torch.Tensor]], expected: Any) -> None:
    world = CpuWorld(2, heap_bytes=128 << 10, signal_bytes=2048, sms=8)
    check(expected, world.run(calls))
    assert len(world.lane.prepared) == 1


@pytest.mark.parametrize(("calls", "expected"), CALLS, ids=["counts", "lengths"])
def test_on_virtual_ranks(calls: Callable[[Any], list[torch.Tensor]], expected: Any) -> None:
    device = StandIn(sms=16)
    world = virtual_world(2, device)
    check(expected, world.run(calls))
    assert [len(group._known) for group in world.groups] == [1, 1]
    kernels = 2 if expected is ROUTED else 1  # one makes the tables
    assert len(device.loads) == 2 * 2 * kernels, "a rank loads its kernels for each slot"


@pytest.mark.parametrize(("calls", "expected"), first_cases(CALLS), ids=["counts", "lengths"])
def test_in_a_process_a_rank(pool: Pool, calls: Callable[[Any], list[torch.Tensor]], expected: Any) -> None:
    check(expected, [made for made in pool.results(in_processes, calls, (0, 1)) if made is not None])


WRONG: list[tuple[Any, type[TileLinkError], str]] = [
    ({"M": [5, True]}, ShapeError, "parts of M are (5, True): 2 lengths are needed, one a rank, each an integer"),
    ({"M": np.array([5, -3])}, ShapeError, "parts of M are (5, -3)"),
    ({"M": torch.tensor([5.0, 3.0])}, ShapeError, "parts of M are (5.0, 3.0)"),
    ({"M": [[5, 3]]}, ShapeError, "parts of M are ((5, 3),)"),
    ({"M": np.array([[5, 3], [1, 1]])}, ShapeError, "parts of M are ((5, 3), (1, 1))"),
    ({"M": np.array(8)}, ShapeError, "parts of M are 8"),
    ((8, 8), ShapeError, "parts are (8, 8): lengths by dimension are needed"),
]
def on_worlds() -> list[Callable[[Callable[[Any], Any]], Any]]:
    return [CpuWorld(2, heap_bytes=128 << 10, signal_bytes=2048, sms=8).run, virtual_world(2, StandIn(sms=16)).run]


@pytest.mark.parametrize(("parts", "kind", "says"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_lengths_are_told_alike(parts: Any, kind: type[TileLinkError], says: str) -> None:
    for run in on_worlds():
        with pytest.raises(kind) as e:
            run(lambda group: GATHERED.on(group, schedule=SMALL["pull"], parts=parts))
        assert says in str(e.value)


def test_counts_of_other_strides_and_dtypes() -> None:
    world = CpuWorld(2, heap_bytes=128 << 10, signal_bytes=2048, sms=8)
    forms = [*COUNTED, lambda: torch.tensor(COUNTS)]
    check(ROUTED, world.run(lambda group: [ROUTED.on(group, counts=form()) for form in forms]))
    assert len(world.lane.prepared) == 2, "of int32, and of int64"
