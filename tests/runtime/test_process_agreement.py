"""One process a rank: ranks that do not agree launch nothing, each is told why, and the lane goes on."""

from __future__ import annotations

import gc
import os
import re
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilelink as tk
from tests.runtime.processes import SMALL, Failure, Pool, members
from tests.runtime.ranks import TILED, WORLD, check_usable, drawn, everybody, gathered
from tilelink.errors import WorldError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.group import Group


def odd_one(case: str) -> Any:
    """A call in which rank 2 differs."""
    group = everybody()
    odd = group.rank == 2
    call = drawn(dtype=torch.float16 if odd and case == "dtypes" else torch.float32)
    parts = {"M": (4, 4, 4, 5 if odd and case == "sizes" else 4)}
    schedule: Any = TILED if odd and case == "schedule" else "push"
    slot = 1 if odd and case == "slot" else 0
    if odd and case == "program":
        return gathered(group)
    if odd and case == "raised":
        return all_gather_matmul(call.x[2], call.weight[2][:-1], schedule="push", parts=parts, slot=slot, group=group)
    return call.on(group, schedule=schedule, parts=parts, slot=slot)


@pytest.mark.parametrize("case", ["program", "sizes", "dtypes", "schedule", "slot"])
def test_ranks_have_to_agree(pool: Pool, case: str) -> None:
    failures = pool.failures(odd_one, case)
    assert {f.kind for f in failures} == {"RankMismatchError"}
    for f in failures:
        assert re.search(rf"call \d+ of this group: rank 2 has {case} .*, rank 0 ", f.text), f.text
        assert re.search(r"(gather_gemm|ranks)\.py:\d+: call", f.text), f.text
    check_usable(pool, everybody)


def test_a_call_that_one_rank_can_not_make(pool: Pool) -> None:
    failures = pool.failures(odd_one, "raised")
    assert [f.kind for f in failures] == ["RankFailedError", "RankFailedError", "ShapeError", "RankFailedError"]
    assert all("rank 2 raised ShapeError: weight has shape" in f.text for f in failures if f.kind != "ShapeError")
    check_usable(pool, everybody)


def let_go(group: Group | None = None) -> None:
    """Rank 1 makes one call less than the others, and no more."""
    group = tk.group(members(*range(WORLD)), **SMALL)
    gathered(group)
    if group.rank == 1:
        del group
        gc.collect()
        raise RankLeft
    gathered(group)


class RankLeft(Exception):
    pass


def test_ranks_call_in_different_numbers(pool: Pool) -> None:
    failures = pool.failures(let_go)
    assert [f.kind for f in failures] == ["RankMismatchError", "RankLeft", "RankMismatchError", "RankMismatchError"]
    assert all("call 1 of this group: rank 1 has ended (rank 0 made " in failures[r].text for r in (0, 2, 3))
    assert all("rank 1 made 1 call, rank 2 made" in failures[r].text for r in (0, 2, 3))


def fork_ends() -> torch.Tensor:
    group = everybody()
    child = os.fork()
    if child == 0:
        weakref.finalize._exitfunc()  # type: ignore[attr-defined]  # what ends with a process
        os._exit(0)
    os.waitpid(child, 0)
    return gathered(group)


def test_a_fork_of_a_rank_may_end(pool: Pool) -> None:
    pool.results(fork_ends)
    check_usable(pool, everybody)


def other_heap() -> None:
    tk.group(members(*range(WORLD)), heap_bytes=(1 if dist.get_rank() != 3 else 2) << 20)


def test_lanes_are_made_alike(pool: Pool) -> None:
    for f in pool.failures(other_heap):
        assert f.kind == "RankMismatchError" and "rank 3 has heap_bytes 2097152, rank 0 1048576" in f.text


def no_member() -> None:
    group = members(0, 1)
    if dist.get_rank() > 1:
        tk.group(group)


def test_who_is_no_member_is_told_so(pool: Pool) -> None:
    found = pool.run(no_member)
    assert found[:2] == [None, None]
    assert all(isinstance(f, Failure) and f.kind == "RankError" for f in found[2:])


def wrong_option(options: dict[str, Any]) -> None:
    tk.group(members(*range(WORLD)), **options)


@pytest.mark.parametrize(
    ("options", "kind"), [({"stuck_timeout": 0}, "WorldError"), ({"heap_bytes": 1 << 10}, "HeapError")]
)
def test_options_that_can_not_be(pool: Pool, options: dict[str, Any], kind: str) -> None:
    assert {f.kind for f in pool.failures(wrong_option, options)} == {kind}


def refused(function: str) -> None:
    """The system does not let rank 1 do something."""

    def refuse(*arguments: Any) -> Any:
        raise PermissionError("it is not allowed here")

    with pytest.MonkeyPatch.context() as patches:
        if dist.get_rank() == 1:
            patches.setattr(os, function, refuse)
        tk.group(members(*range(WORLD)), **SMALL)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("memfd_create", "make memory to share"),
        ("open", "reach the memory of its peers"),
        ("pidfd_open", "watch the processes of its peers"),
    ],
)
def test_what_the_system_refuses_to_one_rank(pool: Pool, function: str, what: str) -> None:
    for f in pool.failures(refused, function):
        assert f.kind == "WorldError" and f"rank 1 can't {what}: it is not allowed here" in f.text


def test_without_processes_there_is_no_group() -> None:
    with pytest.raises(WorldError, match=r"init_process_group\(\"gloo\"\)"):
        tk.group()
