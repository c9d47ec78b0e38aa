"""The programs of the examples in lanes: every world, parts of any length, two calls in a row, and what each lowered
kernel does is what its unrolled program says."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.check import LIMIT_OF, relative_rms_of_all
from tests.parameters import covering, first_cases, first_of, rarely, seldom
from tilelink.backend.targets import CPU
from tilelink.emulator import Operation
from tilelink.frontend.schedule import smallest_tile
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.trace import align

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS = [(7,), (20, 13), (5, 0, 20), (0, 1, 0, 0), (40, 0, 33, 7), (3, 0, 17, 1, 0, 0, 5, 2)]
"""Rows of each rank: worlds of 1, 2, 3, 4 and 8; one row in all of them; parts that are empty."""


@pytest.fixture(autouse=True)
def _as_a_user(example: Callable[[str], ModuleType]) -> None:
    """Modules of the examples are imported by name."""


@dataclass
class Case:
    """A call of every rank. `operands`: tensors of each rank; `expected`: of each rank, in float64; `parts`: lengths by
    dimension; `per_node`: ranks of a node."""

    module: str
    program: str
    operands: list[tuple[torch.Tensor, ...]]
    expected: list[torch.Tensor]
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    per_node: int | None = None

    def run(self, schedule: Any = None, calls: int = 2, seed: int = 0) -> list[list[torch.Tensor]]:
        """The results by rank and call; every run's trace is held against its events."""
        program = getattr(importlib.import_module(self.module), self.program)
        operations: list[Operation] = []
        several = self.per_node is not None and self.per_node < len(self.operands)
        target = CPU.across_nodes() if several else CPU  # puts at once: a trace is in the order of the program
        world = CpuWorld(
            len(self.operands), target=target, per_node=self.per_node, heap_bytes=4 << 20, signal_bytes=8 << 10, sms=24,
            observer=operations.append,
        )  # fmt: skip
        results = world.run(
            lambda g: [
                program(*self.operands[g.rank], schedule=schedule, group=g, parts=self.parts) for _ in range(calls)
            ],
            seed=seed,
        )
        (prepared,) = world.lane.prepared.values()
        for n in range(calls):
            align(prepared.events, operations, f"{self.program} run {n}")
        return results

    def check(self, schedule: Any = None, **options: Any) -> None:
        """Raises AssertionError unless all calls of all ranks are right, and alike."""
        for again in zip(*(r for r in self.run(schedule, **options)), strict=True):
            error = relative_rms_of_all(again, self.expected)
            assert all(not y.isnan().any() for y in again)
            assert error < LIMIT_OF[again[0].dtype], f"relative RMS {error}"


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def gathered(parts: tuple[int, ...], per_node: int) -> Case:
    x, weight = [normal(m, 70) for m in parts], [normal(70, 20) for _ in parts]
    full = torch.cat(x).double()
    return Case(
        "hierarchical_gather", "hierarchical_all_gather_matmul", list(zip(x, weight, strict=True)),
        [full @ w.double() for w in weight], {"M": parts}, per_node,
    )  # fmt: skip


def exchanged(tokens: tuple[int, ...], heads: tuple[int, ...]) -> Case:
    x, weight = [normal(m, 40) for m in tokens], normal(40, sum(heads))
    full = torch.cat(x).double() @ weight.double()
    operands = [(part, weight) for part in x]
    return Case(
        "matmul_all_to_all", "matmul_all_to_all", operands, list(full.split(heads, 1)), {"M": tokens, "N": heads}
    )


def scaled(parts: tuple[int, ...], B: int = 3, E: int = 40, N: int = 20) -> Case:
    quantized = importlib.import_module("scaled_matmul").quantized
    x = [quantized(normal(m, B, E), 2) for m in parts]
    weight = [quantized(normal(B, E, N), 1) for _ in parts]
    rows = torch.cat([(v * s[..., None]).double().flatten(1) for v, s in x])
    want = [torch.nn.functional.silu(rows @ (v * s[:, None]).double().flatten(0, 1)) for v, s in weight]
    outs = [torch.full((sum(parts), N), torch.nan) for _ in parts]
    operands = [(*a, *b, out) for a, b, out in zip(x, weight, outs, strict=True)]
    return Case("scaled_matmul", "scaled_matmul", operands, want, {"M": parts})


def attention(parts: tuple[int, ...], heads: int = 2, size: int = 20, dtype: torch.dtype = torch.float32) -> Case:
    q, k, v = (normal(sum(parts), heads, size, dtype=dtype) for _ in range(3))
    by_head = (x.double().transpose(0, 1) for x in (q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(*by_head, is_causal=True).transpose(0, 1)
    shards = list(zip(*(x.split(parts) for x in (q, k, v)), strict=True))
    return Case("gathered_attention", "gathered_attention", shards, list(want.split(parts)), {"S": parts})


FORMS = ["attention", "all to all", "scaled push", "scaled pull"]


def parts_for(form: str) -> list[Any]:
    """The parts of ranks that a program is run with: in every run a few, and all of them by some program."""
    of_forms = covering(product(FORMS, PARTS))
    return [pytest.param(case.values[1], marks=case.marks) for case in of_forms if case.values[0] == form]


@pytest.mark.parametrize("parts", parts_for("attention"), ids=str)
def test_attention(parts: tuple[int, ...]) -> None:
    attention(parts).check()


@pytest.mark.parametrize(
    "tile", seldom([16, 32, 64], lambda tile: tile < 64), ids=lambda t: f"gathered in blocks of {t}"
)
def test_attention_in_tiles_of_any_size(tile: int) -> None:
    """What is gathered at once holds several steps of the loop over keys, one, or a part of one."""
    causal = importlib.import_module("gathered_attention").causal
    attention((40, 0, 33, 7), heads=1).check(
        causal.changed(gather={"tile": (tile, 1)}, attend={"tile": (16, 1, 32), "whole": {"D": 32}})
    )


@pytest.mark.verify
@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(0, 70), min_size=1, max_size=4).filter(any).map(tuple),
    heads=st.integers(1, 3),
    size=st.integers(1, 40),
    gathered=st.sampled_from([16, 32, 64]),
    queries=st.sampled_from([16, 32]),
    step=st.sampled_from([16, 32, 64]),
    reader=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_attention_of_any_size(
    parts: tuple[int, ...], heads: int, size: int, gathered: int, queries: int, step: int, reader: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    causal = importlib.import_module("gathered_attention").causal
    most = smallest_tile(max(parts))
    schedule = causal.changed(
        gather={"tile": (min(gathered, most), 1), "at": "reader" if reader else "home"},
        attend={"tile": (min(queries, most), 1, min(step, most)), "whole": {"D": smallest_tile(size)}},
    )
    attention(parts, heads, size).check(schedule, seed=seed)


def test_attention_in_bfloat16() -> None:
    """Weights are rounded before they meet the values: a few times what one rounding costs."""
    case = attention((40, 0, 33, 7), dtype=torch.bfloat16)
    results = [calls[0] for calls in case.run(calls=1)]
    assert relative_rms_of_all(results, case.expected) < 2 * LIMIT_OF[torch.bfloat16]


@pytest.mark.parametrize("tokens", rarely(parts_for("all to all"), lambda tokens: len(tokens) == 8), ids=str)
def test_all_to_all(tokens: tuple[int, ...]) -> None:
    heads = (8, 40, 0, 16, 1, 24, 0, 33)[: len(tokens)]
    exchanged(tokens, heads).check()


@pytest.mark.parametrize("at", first_of(["N_home", "home"]))
def test_either_home_may_execute_a_tile(at: str) -> None:
    """The owner of the tokens sends, or the owner of the heads computes: x is published for it then."""
    schedule = importlib.import_module("matmul_all_to_all").exchange.changed(
        matmul={"tile": (16, 16, 16), "at": at}, take={"tile": (16, 16)}
    )
    exchanged((5, 0, 20), (17, 16, 0)).check(schedule)


@pytest.mark.parametrize("parts", parts_for("scaled push"), ids=str)
def test_scaled_matmul(parts: tuple[int, ...]) -> None:
    scaled(parts).check("push")


@pytest.mark.parametrize("parts", parts_for("scaled pull"), ids=str)
def test_scaled_matmul_that_pulls(parts: tuple[int, ...]) -> None:
    scaled(parts).check("pull")


@pytest.mark.parametrize(
    ("parts", "per_node"),
    first_cases([((7,), 1), ((20, 13), 2), ((5, 0, 20), 3), ((40, 0, 33, 7), 2), ((20, 13), 1), ((0, 1, 0, 0), 4),
                 (PARTS[-1], 2)], 3),
    ids=str,
)
def test_hierarchical_gather(parts: tuple[int, ...], per_node: int) -> None:
    gathered(parts, per_node).check()
