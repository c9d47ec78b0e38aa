"""One process a rank: the same results as in one process."""

from __future__ import annotations

import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

from tests.parameters import rarely
from tests.programs.exchanges import own_workers, readers_first
from tests.runtime.processes import SMALL, Pool, members
from tests.runtime.ranks import TILED, WORLD, K, N, drawn, everybody, gathered, in_processes, lane, three_calls
from tilelink.emulator import Execution, Region, Words, interpreted
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.board import share
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

CASES = [
    ((5,), "push", torch.float32),
    ((5, 0), "pull", torch.bfloat16),
    ((1, 40, 3), "tiled", torch.float32),
    ((16, 16, 16, 16), "pull", torch.float32),
    ((0, 33, 2, 7), "push", torch.float16),
    ((6, 0, 20, 1), "engine", torch.float32),
    ((8, 8), "multicast", torch.float32),
    ((5, 40, 0), "engine", torch.bfloat16),
]


MORE = {(1, 40, 3), (16, 16, 16, 16), (0, 33, 2, 7), (5, 40, 0)}
"""In `make verify`: others have their schedules, or their numbers of ranks."""


@pytest.mark.parametrize(("parts", "schedule", "dtype"), rarely(CASES, lambda parts, *_: parts in MORE))
def test_same_bits_as_in_one_process(pool: Pool, parts: tuple[int, ...], schedule: str, dtype: torch.dtype) -> None:
    ranks = tuple(range(WORLD))[-len(parts) :]
    found = pool.results(in_processes, three_calls, ranks, parts, schedule, dtype)
    expected = CpuWorld(len(parts), **SMALL).run(lambda group: three_calls(group, parts, schedule, dtype))
    assert [y is None for y in found] == [r not in ranks for r in range(WORLD)]
    for mine, theirs in zip([f for f in found if f is not None], expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def on_nodes(group: Group) -> torch.Tensor:
    """The program of the example, whose ranks go through one rank of each node."""
    example = Path(__file__).parents[2] / "examples" / "hierarchical_gather.py"
    program = runpy.run_path(str(example))["hierarchical_all_gather_matmul"]
    call, rank = drawn((5, 0, 17, 2)), group.rank
    return program(call.x[rank], call.weight[rank], parts={"M": call.parts}, group=group)


def nodes() -> torch.Tensor:
    return on_nodes(everybody(per_node=2))


def test_nodes_of_processes(pool: Pool) -> None:
    expected = CpuWorld(WORLD, per_node=2, **SMALL).run(on_nodes)
    assert all(torch.equal(a, b) for a, b in zip(pool.results(nodes), expected, strict=True))


def read_first(group: Group) -> list[torch.Tensor]:
    x = torch.full((8, K), float(group.rank))
    return [readers_first(x, schedule=own_workers, group=group) for _ in range(2)]


def timeline(group: Group) -> Any:
    x = torch.ones(8, K)
    all_gather_matmul(x, torch.ones(K, N), schedule=TILED, group=group, timed=True)
    return group.timeline()


def test_a_timeline_of_processes_is_the_same_on_all(pool: Pool) -> None:
    found = [f for f in pool.results(in_processes, timeline, (0, 1, 2)) if f is not None]
    assert len(found) == 3 and found[0] == found[1] == found[2]
    assert found[0].ranks == (0, 1, 2) and set(found[0].roles) == {"gather", "matmul"}


@pytest.mark.versions
def test_a_consumer_may_come_before_the_producer_of_its_own_rank(pool: Pool) -> None:
    for outs in pool.results(in_processes, read_first, tuple(range(WORLD))):
        for y in outs:
            assert torch.equal(y, torch.arange(WORLD).repeat_interleave(8)[:, None].expand(-1, K).float())


def across_groups() -> list[list[float]]:
    """Pairs, other pairs, and all of them in turns: what each gathers."""
    me = dist.get_rank()
    pairs, crossed = (me // 2 * 2, me // 2 * 2 + 1), (me % 2, me % 2 + 2)
    for ranks in ((0, 1), (2, 3), (0, 2), (1, 3), tuple(range(WORLD))):
        members(*ranks)
    lanes = [lane(*pairs), lane(*crossed), lane(*range(WORLD)), lane(*pairs, slots=1)]
    return [gathered(g, 1)[:, 0].tolist() for g in lanes * 2]


def test_several_groups_at_once(pool: Pool) -> None:
    for found in pool.results(across_groups):
        assert found == [[0, 1], [0, 1], [0, 1, 2, 3], [0, 1]] * 2


@pytest.mark.verify
def test_eight_ranks() -> None:
    pool, parts = Pool(8), (3, 0, 17, 1, 5, 16, 2, 8)
    try:
        found = pool.results(in_processes, three_calls, tuple(range(8)), parts, "push", torch.float32)
    finally:
        pool.close()
    expected = CpuWorld(8, **SMALL).run(lambda group: three_calls(group, parts, "push", torch.float32))
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@triton.jit
def add_ones(word, n):  # type: ignore[no-untyped-def]
    for _ in range(n):
        tl.atomic_add(word, 1, sem="relaxed", scope="sys")


def count_together(times: int) -> int:
    """All ranks count in one word of rank 0: by a kernel's additions, and by compare-and-swap."""
    group = members(*range(WORLD))
    memory = share(group, 4096)[0]
    word, swapped = memory[:4].view(torch.int32), Words(memory[8:16].view(torch.int64))
    execution = Execution(1, races=False)
    dist.barrier(group)
    kernel, region = interpreted(add_ones), Region("word", 0, word, "signal")
    execution.run(lambda rank: execution.launch(kernel, 1, {"word": word, "n": times}, [region], rank))
    for _ in range(times):
        while swapped.compare_and_swap(0, seen := swapped.load(0), seen + 1) != seen:
            pass
    dist.barrier(group)
    assert swapped.load(0) == int(word)
    return int(word)


@pytest.mark.versions
def test_atomics_are_atomic_across_processes(pool: Pool) -> None:
    assert pool.results(count_together, 1000) == [1000 * WORLD] * WORLD


@pytest.mark.verify
def test_it_runs_under_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    """A process a rank gives the bits that ranks in one process give."""
    root = Path(__file__).parents[2]
    example = root / "examples" / "one_process_a_rank.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run([*torchrun, example], capture_output=True, text=True, env=environment, check=True).stdout
    runpy.run_path(str(example), run_name="__main__")
    alone = capsys.readouterr().out
    said = done.replace("rank ", "\nrank ").replace("\n\n", "\n")  # processes may end their lines at the same time
    lines = sorted(re.findall(r"^rank \d of .*$", said, flags=re.MULTILINE))
    assert len(lines) == WORLD and lines == sorted(alone.splitlines())


def random_calls(group: Group, seed: int, count: int) -> list[torch.Tensor]:
    """Calls of any sizes, dtypes, schedules and slots, one after the other."""
    numbers, outs = random.Random(seed), []
    for k in range(count):
        parts = tuple(numbers.choice((0, 1, 4, 7, 16, 33)) for _ in range(group.world))
        dtype = numbers.choice((torch.float32, torch.float16, torch.bfloat16))
        schedule, slot = numbers.choice(("push", "pull", "engine", "multicast")), numbers.choice((None, 0, 1))
        outs.append(drawn(parts, dtype=dtype, schedule=schedule, slot=slot, seed=k).on(group))
    return outs


@pytest.mark.verify
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_random_calls(pool: Pool, world: int) -> None:
    found = pool.results(in_processes, random_calls, tuple(range(world)), world, 40)
    expected = CpuWorld(world, races=False, **SMALL).run(lambda group: random_calls(group, world, 40))
    for mine, theirs in zip(found[:world], expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
