"""The functions of the specialised form, executed in any order of the warps: bit for bit what a role should compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.edited import in_function, replaced
from tests.backend.own_warps import Address, Described, HandedWrongly, Machine, functions
from tests.backend.small_programs import Made, small
from tests.verification.mutants.tools import Edit
from tilelink.backend.targets import FORMS
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter

REGISTERS, MEMORY = "sm_90+warps", "sm_100+warps"
WORLD, RANK, TILE = 4, 1, 64
M, N, K = 256, 136, 328
"""Twelve tiles of a worker, of six steps each, in a ring of four stages; with tails."""
PART, COLUMNS = M // WORLD, -(-N // TILE)
WORDS = FORMS[REGISTERS].signal_words
SEEDS = 12
Result = Callable[[int], bool]


def lowered(schedule: str, target: str) -> Made:
    program = matmul_reduce_scatter if schedule == "fused" else all_gather_matmul
    return small(target, program, schedule, M=M, N=N, K=K)


def executed(made: Made, seed: int, edit: Edit = lambda source: source) -> bool:
    """Whether the role gives what it should. Raises HandedWrongly."""
    rng = np.random.default_rng(seed)
    left, weight = (rng.integers(-3, 4, shape).astype(float) for shape in ((M, K), (N, K)))
    out, inbox = np.full((M, N), np.nan), np.full((WORLD, WORLD, PART, N), np.nan)
    told: list[bool] = []

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        (out if at.where == "out" else inbox[at.rank]).reshape(-1)[at.at[here]] = numbers[here]

    def notified(at: Address) -> None:
        first = at.at // WORDS % COLUMNS * TILE
        told.append(not np.isnan(inbox[at.rank, RANK, :, first : first + TILE]).any())

    program, _ = made
    machine = Machine(seed, stored, notified)
    given = {
        "worker": 0, "workers": 1, "control": 0, "heaps": 0, "before": 0, "rank": RANK, "world": WORLD, "K": K, "N": N,
        "M_part": PART, "inbox_at": "inbox", "inbox_signals": "signals", "full_signals": "signals",
        "out": Address(RANK, "out"), "out_stride_M": N, "out_stride_N": 1,
        **dict.fromkeys(("x_blocks_64_by_64", "full_blocks_64_by_64"), Described(left, (TILE, TILE))),
        "weight_blocks_64_by_64": Described(weight, (TILE, TILE)),
    }  # fmt: skip
    machine.run(functions(machine, program, edit)["matmul"], given)
    product = left @ weight.T
    if program.program.name == "all_gather_matmul":
        return np.array_equal(out, product)
    return np.array_equal(inbox[:, RANK], product.reshape(WORLD, PART, N)) and told == [True] * WORLD * COLUMNS


@pytest.mark.parametrize("target", [REGISTERS, MEMORY])
@pytest.mark.parametrize("schedule", ["push", "pieces", "fused"])
def test_every_order_of_the_warps_gives_the_same(schedule: str, target: str) -> None:
    made = lowered(schedule, target)
    assert all(executed(made, seed) for seed in range(SEEDS))


def without(function: str, line: str) -> Edit:
    return in_function(function, rf"^( +){line}.*$", r"\1pass")


TOLD_FIRST = replaced(r"( +if alive.*\n +store\(.*\n)((?: +#.*\n)? +if alive.*\n +notify\(.*\n)", r"\2\1")
WRONG: list[tuple[str, str, str, Edit]] = [
    ("a stage is loaded before it is free", REGISTERS, "push", without("claim_behind", "mbarrier.wait")),
    ("a stage is free a step too early", REGISTERS, "push", in_function("claim", r"step \+ 1", "step")),
    ("a stage is multiplied before it is ready", REGISTERS, "push", without("multiply", "mbarrier.wait")),
    ("a stage is never given back", REGISTERS, "push", without("multiply", "mbarrier.arrive")),
    ("a sum is stored before it is done", REGISTERS, "push", in_function("multiplied", r"wait\(0", "wait(1")),
    ("a tile is told before it is stored", REGISTERS, "fused", without("take_over", "mbarrier.wait")),
    ("a tile is handed over before the last is told", REGISTERS, "fused", without("hand_over", "mbarrier.wait")),
    ("a stage is loaded before it is free", MEMORY, "push", without("claim_behind", "mbarrier.wait")),
    ("a stage is free too early", MEMORY, "push", in_function("claim", r"step, step", "step, step - 1")),
    ("a stage is multiplied before it is ready", MEMORY, "push", without("multiply", "mbarrier.wait")),
    ("a stage is never given back", MEMORY, "push", in_function("multiply", r", mbarriers=.*\)", ")")),
    ("a sum is overwritten before it is read", MEMORY, "push", without("emptied", "mbarrier.wait")),
    ("a sum is read before it is full", MEMORY, "push", without("finished", "mbarrier.wait")),
    ("a sum is never given back", MEMORY, "push", without("finished", "mbarrier.arrive")),
    ("a sum is never complete", MEMORY, "push", replaced(r"^ +complete\(.*\n", "")),
    ("a sum goes on from the tile before", MEMORY, "push", replaced("adds = False", "adds = True")),
    ("a sum is only its last product", MEMORY, "push", replaced("adds = True", "adds = False")),
    ("another sum is complete", MEMORY, "push", in_function("complete", r"tile, SUMS", "tile + 1, SUMS")),
    ("a tile is told before it is stored", MEMORY, "fused", TOLD_FIRST),
]  # fmt: skip


@pytest.mark.parametrize(("target", "schedule", "edit"), [w[1:] for w in WRONG], ids=[f"{w[0]} {w[1]}" for w in WRONG])
def test_what_is_handed_over_wrongly_is_seen(target: str, schedule: str, edit: Edit) -> None:
    made = lowered(schedule, target)

    def right(seed: int) -> bool:
        try:
            return executed(made, seed, edit)
        except HandedWrongly:
            return False

    assert not all(right(seed) for seed in range(SEEDS))
