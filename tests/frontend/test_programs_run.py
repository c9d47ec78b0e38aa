"""What the front makes of the programs here runs: waits in loops, two views waited for at once, signals that are given
under conditions, from other ranks, and in loops. Small integers, so every sum is exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl

import tilelink as tk
from tests.analysis.runs import ATTENTION, BACKWARD, RING, notifying
from tests.parameters import each_once, seldom
from tests.programs import alone
from tests.programs.attention import gathered_attention
from tests.programs.entries import at_once, one_by_one, row_sums, sum_of_entries
from tests.programs.gathered import waits_for_two
from tests.programs.neighbours import both_neighbours, next_one, one_before
from tests.programs.notifying import NOTIFYING
from tests.programs.reducing import ring_reduce_scatter
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld

PARTS = (5, 20, 0, 2)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).float()


def run(program: Program, schedule: tk.Schedule, operands: list[list[torch.Tensor]], dim: str = "M") -> list[Any]:
    """The results of all ranks, of two calls in a row; `operands`: tensors by parameter, then by rank."""
    world = CpuWorld(len(PARTS), heap_bytes=1 << 20, sms=12)

    def rank(group: Any) -> list[Any]:
        mine = [o[group.rank] for o in operands]
        return [program(*mine, schedule=schedule, group=group, parts={dim: PARTS}) for _ in range(2)]

    first, second = zip(*world.run(rank), strict=True)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (a, b)), strict=True):
            assert torch.equal(x, y)
    return list(first)


def test_attention() -> None:
    """Each tile of 16 rows attends to all keys up to its last row."""
    q, k, v = ([numbers(n, 16) for n in PARTS] for _ in range(3))
    got = run(gathered_attention, ATTENTION, [q, k, v], "S")
    keys, values = torch.cat(k), torch.cat(v)
    begin = 0
    for rows, mine in zip(q, got, strict=True):
        for at in range(0, len(rows), 16):
            end = begin + min(at + 16, len(rows))
            assert torch.equal(mine[at : at + 16], rows[at : at + 16] @ keys[:end].T @ values[:end])
        begin += len(rows)


@pytest.mark.verify  # tests/kernels/test_backward.py has the program in every run
def test_backward() -> None:
    world, m = len(PARTS), sum(PARTS)
    dy, weight = [numbers(m, 33) for _ in range(world)], [numbers(40, 33) for _ in range(world)]
    x = [numbers(n, 40) for n in PARTS]
    got = run(all_gather_matmul_backward, BACKWARD, [dy, weight, x])
    assert torch.equal(torch.cat([dx for dx, _ in got]), sum(a @ b.T for a, b in zip(dy, weight, strict=True)))
    for (_, dw), mine in zip(got, dy, strict=True):
        assert torch.equal(dw, torch.cat(x).T @ mine)


def test_ring() -> None:
    world, m = len(PARTS), sum(PARTS)
    x, weight = [numbers(m, 33) for _ in range(world)], [numbers(33, 40) for _ in range(world)]
    got = run(ring_reduce_scatter, RING, [x, weight])
    assert torch.equal(torch.cat(got), sum(a @ b for a, b in zip(x, weight, strict=True)))


def test_two_views_at_once() -> None:
    x = [numbers(n, 48) for n in PARTS]
    schedule = tk.Schedule(gather=tk.SMs(3, tile=(16, 16), at="home"), two_at_once=tk.SMs(tile=(16, 16, 16)))
    got = run(waits_for_two, schedule, [x])
    blocks = torch.cat(x).reshape(-1, 3, 16)
    want = (3 * blocks + blocks.sum(1, keepdim=True)).reshape(-1, 48)
    assert all(torch.equal(mine, want) for mine in got)


def named(value: Any) -> str:
    return ["home", "reader"][value] if isinstance(value, int) else value.recorded().launches[0].function.name


@each_once("program, at", NOTIFYING, [0, 1], ids=named)
def test_signals_are_drained(program: Program, at: int, unchecked: None) -> None:
    """A run ends when all its signals have come: one too few or too many would stop it, or the next one. The check is
    off: a tile that notifies twice, which it does not like, is counted as well."""
    run(program, notifying(program)[at], [[numbers(n, 32) for n in PARTS]])


def test_numbers_are_stored_to_every_element() -> None:
    x = numbers(20, 24)

    def rank(group: Any) -> Any:
        ranks = torch.zeros(20, 24, dtype=torch.int32)
        return alone.numbers(x, ranks=ranks, group=group)

    for number, (halves, ranks, flags, out) in enumerate(CpuWorld(2, heap_bytes=1 << 20).run(rank)):
        assert torch.equal(out, x)
        assert (halves == 0.5).all() and (ranks == number + 1).all() and (flags == 1).all()


@tk.tile
def halve_if_large(t, x, out):  # type: ignore[no-untyped-def]
    block = x[t].load()
    if tl.max(block) > 1.0:  # noqa: SIM108
        made = block / 2.0
    else:
        made = block
    if tk.rank() > 0:  # noqa: SIM108
        shown = made
    else:
        shown = -made
    out[t].store(shown)


@tk.program
def branches(x: tk.Local("M", "K"), out: tk.Local("M", "K")):  # type: ignore[no-untyped-def, valid-type]
    halve_if_large[tk.tiles(out)](x, out)


@pytest.mark.versions
def test_a_variable_that_both_branches_make() -> None:
    """Triton compiles it; the kernel knows it behind the branches, and not where only one makes it."""
    schedule = tk.Schedule(halve_if_large=tk.SMs(2, tile=(16, 16)))
    x = torch.cat([torch.full((16, 20), 0.5), torch.full((8, 20), 4.0)])
    outs = CpuWorld(2).run(lambda group: branches(x, schedule=schedule, group=group))
    want = torch.where(x > 1, x / 2, x)
    assert torch.equal(outs[0], -want) and torch.equal(outs[1], want)
    assert "branches" in branches.show("ptx", schedule, world=2, target="sm_90", dtypes="float32", M=24, K=20)


@pytest.mark.parametrize("world", seldom([1, 2, 3], lambda world: world == 2))
def test_neighbours_are_read_where_there_are_some(world: int) -> None:
    """Whoever has no neighbour does not wait for it, nor looks where it would be."""
    x = [numbers(20, 33) for _ in range(world)]
    wanted = {
        both_neighbours: [sum(x[max(0, r - 1) : r + 2], torch.zeros(20, 33)) for r in range(world)],
        next_one: [x[min(r + 1, world - 1)] for r in range(world)],
        one_before: [x[r] + r * x[r - 1] for r in range(world)],
    }
    for program, right in wanted.items():
        (role,) = program.recorded().roles
        schedule = tk.Schedule(**{role: tk.SMs(2, tile=(16, 16))})
        made = CpuWorld(world, sms=4).run(
            lambda group, program=program, schedule=schedule: [
                program(x[group.rank], schedule=schedule, group=group) for _ in range(2)
            ]
        )
        for (one, other), y in zip(made, right, strict=True):
            assert torch.equal(one, y) and torch.equal(other, y), program


@pytest.mark.parametrize("columns", [0, 5, 16])
def test_a_block_over_a_whole_dimension(columns: int) -> None:
    """Also over one of no elements, whose sum is 0: the block is masked, in a kernel of its own."""
    x = numbers(20, columns)
    outs, doubled = CpuWorld(1).run(lambda g: row_sums(x, schedule=at_once, group=g))[0]
    assert torch.equal(outs, x.sum(1)) and torch.equal(doubled, 2 * x)
    assert row_sums.check(at_once, world=1, M=20, Q=columns).verdict == "safe"
    masked = "< Q)" in row_sums.show("triton", at_once, world=1, M=20, Q=columns)
    assert masked == (columns != 16)


def test_a_wait_for_entry_after_entry() -> None:
    x = [numbers(3, 20, 24) for _ in range(2)]
    outs = CpuWorld(2).run(lambda g: sum_of_entries(x[g.rank], schedule=one_by_one, group=g))
    assert all(torch.equal(out, 2 * mine.sum(0)) for out, mine in zip(outs, x, strict=True))


@tk.tile
def make(t, x, made):
    tk.notify(made[t].store(x[t].load()))


@tk.tile
def use_own(t, made, out):
    out[t].store(tk.wait(made[t]).at(tk.rank()).load())


@tk.program
def used_here(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    made = tk.local("M", "K")
    make[tk.tiles(made)](x, made)
    use_own[tk.tiles(out)](made, out)


def test_what_was_waited_for_is_read_where_it_was() -> None:
    """Though the view says once more whose memory it is."""
    tiles = tk.Schedule(make=tk.SMs(2, tile=(16, 16)), use_own=tk.SMs(2, tile=(16, 16)))
    x = torch.arange(2.0 * 20 * 24).view(2, 20, 24)
    outs = CpuWorld(2).run(lambda g: used_here(x[g.rank], schedule=tiles, group=g))
    assert torch.equal(torch.stack(outs), x)
