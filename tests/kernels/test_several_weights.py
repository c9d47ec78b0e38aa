"""all_gather_matmul with several weights on one gather, and with functions of the user's as epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF, relative_rms_of_all
from tests.kernels.gather_gemm import in_tiles, small_world
from tests.parameters import first_cases
from tests.programs.epilogues import gelu, half
from tilelink import Schedule
from tilelink.errors import ArgumentError, DtypeError, RankMismatchError, ShapeError
from tilelink.kernels.all_gather_matmul import all_gather_matmul

Tensors = list[torch.Tensor]


EPILOGUES = {None: lambda x: x, half: lambda x: x / 2, gelu: torch.nn.functional.gelu}
"""Functions of a user, and what they are in torch."""


def numbers(*shape: int, dtype: torch.dtype, integers: bool, salt: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(salt)
    if integers:
        return torch.randint(-4, 5, shape, generator=generator).to(dtype)
    return torch.randn(*shape, generator=generator).to(dtype)


def call(
    parts: Sequence[int],
    N: Sequence[int],
    *,
    K: int = 40,
    dtype: torch.dtype = torch.float32,
    schedule: Schedule | str = "push",
    biases: bool = False,
    transposed: bool = False,
    integers: bool = False,
    epilogue: Any = None,
    times: int = 2,
    seed: int = 0,
) -> list[list[Tensors]]:
    """Calls `times` in a row on all ranks with poisoned outputs; checks all results, and returns those of the last."""
    ranks = range(len(parts))
    kinds: dict[str, Any] = {"dtype": dtype, "integers": integers}
    x = [numbers(m, K, salt=r, **kinds) for r, m in enumerate(parts)]
    weights = [[numbers(K, n, salt=10 + 10 * r + j, **kinds) for j, n in enumerate(N)] for r in ranks]
    if transposed:
        weights = [[w.T.contiguous().T for w in of_rank] for of_rank in weights]
    bias = [[numbers(n, salt=900 + 10 * r + j, **kinds) if biases and j != 1 else None for j, n in enumerate(N)]
            for r in ranks]  # fmt: skip

    def on(group: Any) -> list[Tensors]:
        r = group.rank
        results = []
        for _ in range(times):
            out = [torch.full((sum(parts), n), float("nan"), dtype=dtype) for n in N]
            made = all_gather_matmul(
                x[r], weights[r], out, bias[r] if biases else None, epilogue,
                schedule=schedule, group=group, parts={"M": parts},
            )  # fmt: skip
            assert all(a is b for a, b in zip(made, out, strict=True))
            results.append(made)
        return results

    results = small_world(len(parts)).run(on, seed=seed)
    full = torch.cat(x).double()
    for r, of_rank in enumerate(results):
        for made in of_rank:
            pairs = zip(weights[r], bias[r], strict=True)
            sums = [full @ w.double() + (0 if b is None else b.double()) for w, b in pairs]
            expected = [EPILOGUES[epilogue](s) for s in sums]
            if integers:
                assert all(torch.equal(y, e.to(dtype)) for y, e in zip(made, expected, strict=True))
            else:
                assert not any(y.isnan().any() for y in made)
                assert relative_rms_of_all(made, expected) < LIMIT_OF[dtype]
    return [of_rank[-1:] for of_rank in results]


def tiles(schedule: str) -> Schedule:
    return in_tiles(schedule, (16, 32), (16, 16, 32))


@pytest.mark.versions
@pytest.mark.parametrize(
    ("schedule", "parts"),
    first_cases([("push", (20,)), ("engine", (5, 17)), ("pull", (20, 7)), ("multicast", (5, 0, 33)),
                 ("push", (9, 16, 1, 0))], 2),
    ids=str,
)
def test_three_weights_exactly(schedule: str, parts: tuple[int, ...]) -> None:
    call(parts, (17, 16, 3), K=20, schedule=tiles(schedule), integers=True, biases=True, transposed=len(parts) % 2 == 0)


PAIRS = list(zip(("pull", "multicast", "engine"), LIMIT_OF, strict=True))


@pytest.mark.parametrize(("schedule", "dtype"), PAIRS, ids=str)
def test_dtypes(schedule: str, dtype: torch.dtype) -> None:
    call((18, 7), (33, 16), dtype=dtype, schedule=schedule, biases=True, transposed=True)


@pytest.mark.parametrize(("epilogue", "dtype"), list(zip((gelu, half, gelu), LIMIT_OF, strict=True)))
def test_epilogues(epilogue: Any, dtype: torch.dtype) -> None:
    call((18, 0, 7), (20, 16), dtype=dtype, epilogue=epilogue, biases=True, times=1)


def test_a_member_each_tile_of_its_own() -> None:
    schedule = tiles("push").changed(**{"matmul[1]": {"tile": (32, 32, 16)}, "matmul": {"count": 3}})
    call((20, 40), (40, 33, 16), schedule=schedule, integers=True)


def test_bits_do_not_depend_on_the_order_of_execution() -> None:
    first, *others = (call((20, 7), (24, 16), schedule=tiles("push"), seed=seed, times=1) for seed in range(2))
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert all(torch.equal(p, q) for p, q in zip(a[0], b[0], strict=True))


def test_one_tensor_is_no_list_and_a_list_of_one_is_one() -> None:
    x, w = torch.randn(2, 20, 40), torch.randn(40, 16)
    world = small_world(2)
    single = world.run(lambda g: all_gather_matmul(x[g.rank], w, group=g))
    listed = world.run(lambda g: all_gather_matmul(x[g.rank], [w], group=g))
    assert all(isinstance(y, list) and torch.equal(y[0], z) for y, z in zip(listed, single, strict=True))


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"weight": 2, "bias": 1}, ArgumentError, "lists of one length, of 1 member or more: weight has 2, bias has 1"),
        ({"weight": 0}, ArgumentError, "weight has 0"),
        ({"weight": 2, "epilogue": torch.relu}, ArgumentError, "epilogue is of type .*; it must be .* @triton.jit"),
        ({"weight": [(40, 16), (24, 16)]}, ShapeError, r"weight_1 has shape \(24, 16\), so K is 24 there; x makes"),
        ({"weight": [(40, 16), torch.float16]}, DtypeError, "operands of one dtype"),
        ({"weight": 2, "x": "list"}, ArgumentError, "x is a list, not a tensor"),
    ],
    ids=["lengths differ", "no weight", "no function of Triton", "K differs", "dtypes differ", "x is a list"],
)
def test_errors_before_anything_is_launched(given: dict[str, Any], kind: type[Exception], says: str) -> None:
    def members(asked: Any, *shape: int) -> Any:
        if isinstance(asked, int):
            return [torch.randn(shape)] * asked
        shapes = [shape if isinstance(a, torch.dtype) else a for a in asked]
        dtypes = [a if isinstance(a, torch.dtype) else torch.float32 for a in asked]
        return [torch.randn(s).to(d) for s, d in zip(shapes, dtypes, strict=True)]

    x = torch.randn(20, 40)
    named = {"x": [x] if "x" in given else x, "weight": members(given["weight"], 40, 16)}
    named |= {"bias": members(given["bias"], 16)} if "bias" in given else {}
    named |= {"epilogue": given["epilogue"]} if "epilogue" in given else {}
    with pytest.raises(kind, match=says):
        small_world(2).run(lambda g: all_gather_matmul(group=g, **named))


def test_ranks_that_give_lists_of_different_lengths() -> None:
    x, w = torch.randn(20, 40), torch.randn(40, 16)
    with pytest.raises(RankMismatchError):
        small_world(2).run(lambda g: all_gather_matmul(x, [w] * (1 + g.rank), group=g))
