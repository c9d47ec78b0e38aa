"""The other programs of the library, those of the examples, and several programs in one lane."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from bench.check import LIMIT_OF, relative_rms_of_all
from tests.kernels.gather_gemm import NAMED, Call, in_tiles, small_world
from tests.kernels.gemm_reduce import Sum
from tests.parameters import each_once, first_of
from tests.programs.alone import all_to_all, from_the_right, vector_from_the_right
from tests.programs.exchanges import broadcast
from tests.programs.reducing import rounded_reduce_scatter
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather import pull as gather_all
from tilelink.kernels.all_reduce import all_reduce
from tilelink.kernels.matmul import gemm, matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.reduce_scatter import reduce_scatter
from tilelink.runtime.cpu.world import Group

UNEVEN = [(32, 32), (5, 0, 20), (0, 1, 0, 0), (7,)]


@each_once("dtype, parts", [torch.float32, torch.bfloat16, torch.int8], UNEVEN)
def test_all_gather(parts: tuple[int, ...], dtype: torch.dtype) -> None:
    x = [torch.randint(-100, 100, (m, 37)).to(dtype) for m in parts]
    outs = small_world(len(parts)).run(lambda g: [all_gather(x[g.rank], group=g, parts={"M": parts}) for _ in range(3)])
    assert all(torch.equal(out, torch.cat(x)) for of_rank in outs for out in of_rank)


@each_once("program, parts", [reduce_scatter, all_reduce], UNEVEN, ids=lambda v: getattr(v, "name", str(v)))
def test_sums_of_what_all_ranks_have(program: Any, parts: tuple[int, ...]) -> None:
    x = [torch.randint(-9, 10, (sum(parts), 37)).to(torch.bfloat16) for _ in parts]
    total = torch.stack(x).double().sum(0).to(torch.bfloat16)
    scatters = program is reduce_scatter
    cut = {"parts": {"M": parts}} if scatters else {}
    outs = small_world(len(parts)).run(lambda g: [program(x[g.rank], group=g, **cut) for _ in range(2)])
    for of_rank, right in zip(outs, total.split(parts) if scatters else [total] * len(parts), strict=True):
        assert all(torch.equal(out, right) for out in of_rank)


def test_matmul_of_each_rank() -> None:
    x, weight, bias = torch.randn(3, 33, 40), torch.randn(3, 40, 20), torch.randn(3, 20)
    outs = small_world(3).run(lambda g: matmul(x[g.rank], weight[g.rank], bias=bias[g.rank], group=g))
    expected = x.double() @ weight.double() + bias.double()[:, None]
    assert relative_rms_of_all(outs, list(expected)) < LIMIT_OF[torch.float32]


def test_where_a_row_lies_in_a_block_does_not_matter_to_its_bits() -> None:
    x, weight, moved = torch.randn(33, 40), torch.randn(40, 20), torch.randperm(33)
    one, two = small_world(1).run(lambda g: [matmul(rows, weight, group=g) for rows in (x, x[moved])])[0]
    assert torch.equal(one[moved], two)


@each_once("dtype, schedule", list(LIMIT_OF), list(NAMED), dear=lambda _, named: named in ("push", "few", "pieces"))
def test_fused_and_unfused_have_the_same_bits(schedule: str, dtype: torch.dtype) -> None:
    """Sums go over K in the same steps, and what is gathered is not rounded."""
    parts, tile = (20, 3), (16, 16, 16)
    fused = in_tiles(schedule, (16, 16), tile)
    call = Call(parts, N=24, K=40, dtype=dtype, schedule=fused, bias=True)

    def both(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        r = group.rank
        one = call.on(group)
        full = all_gather(
            call.x[r], schedule=gather_all.changed(gather={"tile": (16, 16)}), group=group, parts={"M": parts}
        )
        two = matmul(
            full, call.weight[r], bias=call.biases[r], schedule=gemm.changed(multiply={"tile": tile}), group=group
        )
        return one, two

    for one, two in small_world(2).run(both):
        assert torch.equal(one, two)


def test_inputs_with_an_entry_a_rank_are_published() -> None:
    x = torch.randn(3, 3, 20, 24)
    outs = small_world(3).run(lambda g: [all_to_all(x[g.rank], group=g) for _ in range(3)])
    assert all(torch.equal(out, x[:, r]) for r, of_rank in enumerate(outs) for out in of_rank)


def test_inputs_of_one_and_three_dimensions_are_published() -> None:
    cubes, vectors = torch.randn(3, 3, 20, 24), torch.randn(3, 200)
    outs = small_world(3).run(
        lambda g: (
            from_the_right(cubes[g.rank], group=g),
            vector_from_the_right(vectors[g.rank], group=g),
        )
    )
    for r, (cube, vector) in enumerate(outs):
        assert torch.equal(cube, cubes[(r + 1) % 3])
        assert torch.equal(vector, vectors[(r + 1) % 3])


@pytest.mark.parametrize("parts", UNEVEN, ids=str)
def test_columns_are_sent_to_all_ranks(parts: tuple[int, ...]) -> None:
    x = [torch.randn(20, n) for n in parts]
    outs = small_world(len(parts)).run(lambda g: [broadcast(x[g.rank], group=g, parts={"B": parts}) for _ in range(3)])
    assert all(torch.equal(out, torch.cat(x, 1)) for of_rank in outs for out in of_rank)


@pytest.mark.parametrize("dtype", first_of([torch.bfloat16, torch.float16, torch.float32]), ids=str)
def test_a_role_in_an_epilogue_gives_the_bits_of_one_of_its_own(dtype: torch.dtype) -> None:
    """Also where the buffer that it would go through rounds."""
    case = Sum((20, 3, 9), N=20, K=24, dtype=dtype)

    def on(group: Group, schedule: str) -> torch.Tensor:
        given = case.x[group.rank], case.weight[group.rank]
        return rounded_reduce_scatter(*given, schedule=schedule, group=group, parts={"M": case.parts})

    push = small_world(3).run(lambda g: on(g, "push"))
    fused = small_world(3, slots=1).run(lambda g: [on(g, "fused") for _ in range(2)])
    assert all(torch.equal(a, b) for a, of_rank in zip(push, fused, strict=True) for b in of_rank)


@pytest.mark.parametrize("at", first_of(["home", "reader"]))
def test_engines_bring_two_tensors_of_several_dimensions(at: str, example: Any) -> None:
    """A tile copies rows and their scales, and gives two signals; the bits are those of a push from SMs."""
    module, parts = example("scaled_matmul"), (10, 17, 0)
    x = [module.quantized(torch.randn(m, 2, 32), 2) for m in parts]
    weight = [module.quantized(torch.randn(2, 32, 24), 1) for _ in parts]
    gemm = tk.SMs(tile=(16, 16), whole={"E": 32})

    def on(gather: tk.SMs | tk.CopyEngine) -> list[list[torch.Tensor]]:
        schedule = tk.Schedule(gather=gather, matmul=gemm)

        def rank(group: Group) -> list[torch.Tensor]:
            mine, how = (*x[group.rank], *weight[group.rank]), {"schedule": schedule, "parts": {"M": parts}}
            return [module.scaled_matmul(*mine, torch.empty(27, 24), group=group, **how) for _ in range(2)]

        return small_world(3, slots=1).run(rank)

    pushed = on(tk.SMs(2, tile=(16,), at="home"))
    for of_rank, right in zip(on(tk.CopyEngine(tile=(16,), at=at)), pushed, strict=True):
        assert all(torch.equal(y, right[0]) for y in of_rank)


@pytest.mark.versions
@pytest.mark.parametrize("seed", first_of(range(3)))
def test_programs_may_be_mixed_in_one_lane(example: Any, seed: int) -> None:
    """Over one slot, where buffers and signals of one program come to lie where another's were."""
    parts = (5, 0, 20)
    int8 = example("scaled_matmul").scaled_matmul
    gathering = Call(parts, N=20, K=24, bias=True)
    scattering = Sum(parts, N=20, K=24, integers=True)
    x = [torch.randint(-5, 6, (m, 2, 20), dtype=torch.int8) for m in parts]
    weight = torch.randint(-5, 6, (2, 20, 20), dtype=torch.int8)
    quartered = torch.cat(x).double().flatten(1) @ weight.double().flatten(0, 1) / 4
    activated = [torch.nn.functional.silu(quartered)] * 3

    def lane(group: Group) -> list[tuple[torch.Tensor, ...]]:
        halves = torch.full((parts[group.rank], 2), 0.5), torch.full((2, 20), 0.5)
        return [
            (
                gathering.on(group),
                scattering.by((matmul_reduce_scatter, schedule)).on(group),
                int8(
                    x[group.rank], halves[0], weight, halves[1], torch.full((25, 20), float("nan")),
                    schedule=schedule, group=group, parts={"M": parts},
                ),
            )
            for schedule in ("push", "pull")
        ]  # fmt: skip

    results = small_world(3, slots=1).run(lane, seed=seed)
    for k in range(2):
        gathered, scattered, scaled = zip(*(of_rank[k] for of_rank in results), strict=True)
        gathering.check(gathered)
        scattering.check(scattered)
        assert relative_rms_of_all(scaled, activated) < LIMIT_OF[torch.float32]
