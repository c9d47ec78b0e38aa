"""One process a rank: the same results as in one process, and errors with names on every rank where one can't go on."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

import tilelink as tk
from tests.backend.orphans import lower_rows
from tests.runtime.processes import SMALL, Failure, Pool, members
from tests.runtime.test_cpu_world import own_workers, readers_first
from tilelink.backend import cache as kernels
from tilelink.errors import NeverEnteredError, StuckError, WorldError
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cpu import Execution, Region, Words, interpreted
from tilelink.runtime.cpu_world import CpuWorld
from tilelink.runtime.group import Group
from tilelink.runtime.shared import share

WORLD = 4
K, N = 24, 20
TILED = push.changed(gather={"count": 2, "tile": (16, 16)}, matmul={"tile": (16, 16, 16)})


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(WORLD)
    yield made
    made.close()


# ---- What ranks do, in a process each or in one process.


@cache
def lane(*ranks: int, **options: Any) -> Group:
    """The lane of these ranks, made once in each of their processes."""
    return tk.group(members(*ranks), **{**SMALL, **options})


def operands(parts: Sequence[int], dtype: torch.dtype, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    numbers = torch.Generator().manual_seed(seed)
    x = [torch.randn(m, K, generator=numbers).to(dtype) for m in parts]
    return x, [torch.randn(K, N, generator=numbers).to(dtype) for _ in parts]


def three_calls(group: Group, parts: tuple[int, ...], schedule: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Calls in a row with other numbers each."""
    made = [operands(parts, dtype, seed) for seed in range(3)]
    r, how = group.rank, TILED if schedule == "tiled" else schedule
    return [all_gather_matmul(x[r], w[r], schedule=how, parts={"M": parts}, group=group) for x, w in made]


def in_processes(function: Callable[..., Any], ranks: tuple[int, ...], *arguments: Any) -> Any:
    """What a rank of the group does; the other ranks of the pool only help to make the group."""
    members(*ranks)
    if dist.get_rank() in ranks:
        return function(lane(*ranks), *arguments)
    return None


def gathered(group: Group, rows: int = 4) -> torch.Tensor:
    return all_gather(torch.full((rows, K), float(group.rank)), group=group)


def check_usable(pool: Pool, function: Callable[[], Group]) -> None:
    """The lane that `function` gives works."""
    for y in pool.results(_use, function):
        assert torch.equal(y, torch.arange(WORLD).repeat_interleave(4)[:, None].expand(-1, K).float())


def _use(function: Callable[[], Group]) -> torch.Tensor:
    """A call for which there is time."""
    group: Any = function()
    bounds, group.bounds = group.bounds, Bounds(300, 30)
    try:
        return gathered(group)
    finally:
        group.bounds = bounds


# ---- Results.

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


@pytest.mark.parametrize(("parts", "schedule", "dtype"), CASES)
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
    x, w = operands((5, 0, 17, 2), torch.float32, 0)
    return program(x[group.rank], w[group.rank], parts={"M": (5, 0, 17, 2)}, group=group)


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
        while swapped.compare_and_swap(0, seen := swapped.peek(0), seen + 1) != seen:
            pass
    dist.barrier(group)
    assert swapped.load(0) == int(word)
    return int(word)


@pytest.mark.versions
def test_atomics_are_atomic_across_processes(pool: Pool) -> None:
    assert pool.results(count_together, 1000) == [1000 * WORLD] * WORLD


def test_it_runs_under_torchrun() -> None:
    """A process a rank gives the bits that ranks in one process give."""
    root = Path(__file__).parents[2]
    example = root / "examples" / "one_process_a_rank.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done, alone = (
        subprocess.run([*command, example], capture_output=True, text=True, env=environment, check=True).stdout
        for command in (torchrun, [sys.executable])
    )
    lines = sorted(line for line in done.splitlines() if line.startswith("rank "))
    assert len(lines) == WORLD and lines == sorted(alone.splitlines())


def random_calls(group: Group, seed: int, count: int) -> list[torch.Tensor]:
    """Calls of any sizes, dtypes, schedules and slots, one after the other."""
    numbers, outs = random.Random(seed), []
    for k in range(count):
        parts = tuple(numbers.choice((0, 1, 4, 7, 16, 33)) for _ in range(group.world))
        dtype = numbers.choice((torch.float32, torch.float16, torch.bfloat16))
        schedule, slot = numbers.choice(("push", "pull", "engine", "multicast")), numbers.choice((None, 0, 1))
        x, w = operands(parts, dtype, k)
        mine = x[group.rank], w[group.rank]
        outs.append(all_gather_matmul(*mine, schedule=schedule, parts={"M": parts}, slot=slot, group=group))
    return outs


@pytest.mark.verify
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_random_calls(pool: Pool, world: int) -> None:
    found = pool.results(in_processes, random_calls, tuple(range(world)), world, 40)
    expected = CpuWorld(world, races=False, **SMALL).run(lambda group: random_calls(group, world, 40))
    for mine, theirs in zip(found[:world], expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


# ---- Ranks that do not agree: nothing is launched, and the lane goes on.


def everybody(**options: Any) -> Group:
    return lane(*range(WORLD), **options)


def odd_one(case: str) -> Any:
    """A call in which rank 2 differs."""
    group = everybody()
    odd = group.rank == 2
    x, w = operands((4,) * WORLD, torch.float16 if odd and case == "dtypes" else torch.float32, 0)
    parts = {"M": (4, 4, 4, 5 if odd and case == "sizes" else 4)}
    schedule: Any = TILED if odd and case == "schedule" else "push"
    slot = 1 if odd and case == "slot" else 0
    if odd and case == "program":
        return gathered(group)
    if odd and case == "raised":
        return all_gather_matmul(x[2], w[2][:-1], schedule="push", parts=parts, slot=slot, group=group)
    return all_gather_matmul(x[group.rank], w[group.rank], schedule=schedule, parts=parts, slot=slot, group=group)


@pytest.mark.parametrize("case", ["program", "sizes", "dtypes", "schedule", "slot"])
def test_ranks_have_to_agree(pool: Pool, case: str) -> None:
    failures = pool.failures(odd_one, case)
    assert {f.kind for f in failures} == {"RankMismatchError"}
    for f in failures:
        assert re.search(rf"call \d+ of this group: rank 2 has {case} .*, rank 0 ", f.text), f.text
        assert "test_process_group.py:" in f.text
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


# ---- Waits that end in vain.


def impatient() -> Group:
    return everybody(stuck_timeout=2.0)


def withheld(program: str) -> Any:
    """Rank 1 does not tell rank 0 of its rows. All ranks call twice."""
    group = impatient()
    if group.rank == 1:
        prepare = group.prepare

        def mutated(*arguments: Any) -> Any:
            prepared = prepare(*arguments)
            lowered = prepared.lowered
            source, count = re.subn(r"^( +)(notify\(.*)", r"\1if reader != 0:\n\1    \2", lowered.source, flags=re.M)
            assert count == 1
            return dataclasses.replace(prepared, module=kernels.load(dataclasses.replace(lowered, source=source)))

        group.prepare = mutated  # type: ignore[method-assign]
    try:
        x, w = operands((4,) * WORLD, torch.float32, 0)
        for _ in range(2):
            if program == "gather":
                all_gather_matmul(x[group.rank], w[group.rank], schedule="push", group=group)
            else:
                lower_rows(x[group.rank], group=group)
    finally:
        vars(group).pop("prepare", None)


def reset(function: Callable[[], Group]) -> None:
    function().reset()


def test_a_withheld_signal_is_named_on_every_rank(pool: Pool) -> None:
    failures = pool.failures(withheld, "gather")
    assert {f.kind for f in failures} == {"StuckError"}
    (line,) = {f.text.splitlines()[1] for f in failures}
    assert re.fullmatch(
        r"  rank 0 worker \d+ of all_gather_matmul run 0: role matmul, tile \d+, waits for full\[M\[4:8\], K\[0:24\]\] "
        r"of rank 0 \(signal 1\): expected 1, observed 0 \(.*all_gather_matmul.py:\d+: tk.wait\(full\[t.rows\]\)\)",
        line,
    )
    assert all("nothing moved for 2 s" in f.text for f in failures)
    again = pool.failures(_use, impatient)
    assert [f.text.splitlines()[1] for f in again] == [line] * WORLD
    pool.results(reset, impatient)
    check_usable(pool, impatient)


def test_a_withheld_signal_that_no_tile_waits_for(pool: Pool) -> None:
    """The last worker of the run does: it would count in the next one."""
    failures = pool.failures(withheld, "lower")
    assert {f.kind for f in failures} == {"StuckError"}
    (line,) = {f.text.splitlines()[1] for f in failures}
    assert re.fullmatch(
        r"  rank 0 worker \d+ of lower_rows run 1: leaving the run, waits for all notifications of full on rank 0 "
        r"\(signal 1\): expected 1, observed 0",
        line,
    )
    pool.results(reset, impatient)
    check_usable(pool, impatient)


def hurried() -> Group:
    return everybody(enter_timeout=2.0)


def one_stays_away() -> None:
    """Rank 3 comes to the second call when the others have given up."""
    group = hurried()
    _use(hurried)
    if group.rank == 3:
        dist.barrier(members(*range(WORLD)))
    try:
        gathered(group)
    finally:
        if group.rank != 3:
            dist.barrier(members(*range(WORLD)))


def test_a_rank_that_does_not_come_is_named_on_every_rank(pool: Pool) -> None:
    assert issubclass(NeverEnteredError, StuckError)
    failures = pool.failures(one_stays_away)
    assert {f.kind for f in failures} == {"NeverEnteredError"}
    (line,) = {f.text.splitlines()[1] for f in failures}
    assert re.fullmatch(
        r"  rank \d host of run 1: waits for rank 3 to go on, which has left run 0: expected 3, observed 2",
        line,
    )
    assert all("within 2 s" in f.text and "rank 2 made 2 calls, rank 3 made 1 call" in f.text for f in failures)
    pool.results(reset, hurried)
    check_usable(pool, hurried)


def fails_in_the_run() -> None:
    group = everybody()
    if group.rank == 2:
        group.cpu.launch = _fail  # type: ignore[attr-defined]
    try:
        gathered(group)
    finally:
        vars(group.cpu).pop("launch", None)  # type: ignore[attr-defined]


def _fail(*arguments: Any) -> None:
    raise LookupError("of a kernel")


def test_a_rank_that_raises_in_a_run_ends_it_for_all(pool: Pool) -> None:
    failures = pool.failures(fails_in_the_run)
    assert [f.kind for f in failures] == ["RankFailedError", "RankFailedError", "LookupError", "RankFailedError"]
    assert all("rank 2 raised LookupError: of a kernel" in failures[r].text for r in (0, 1, 3))
    pool.results(reset, everybody)
    check_usable(pool, everybody)


def killed(before: int, in_run: bool) -> None:
    """Rank 1 dies after some calls, at the beginning of a run or between two of them."""
    group = tk.group(**SMALL)
    for _ in range(before):
        gathered(group)
    if group.rank == 1:
        if not in_run:
            os.kill(os.getpid(), signal.SIGKILL)
        group.cpu.launch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
    gathered(group)


@pytest.mark.parametrize("in_run", [False, True])
def test_a_process_that_is_killed_is_named(in_run: bool) -> None:
    names = set(os.listdir("/dev/shm"))
    pool = Pool(3)
    try:
        alive, dead, other = pool.run(killed, 1, in_run)
        assert dead is None and pool.processes[1].exitcode == -signal.SIGKILL
        for f in (alive, other):
            assert f.kind == "RankDiedError"
            when = "in all_gather run 1" if in_run else "before call 1"
            assert f"rank 1 has died: its process, {pool.processes[1].pid}, is gone, {when} (" in f.text
            assert "test_process_group.py:" in f.text and f"rank 1 made {1 + in_run} call" in f.text
    finally:
        pool.close()
    assert set(os.listdir("/dev/shm")) <= names
