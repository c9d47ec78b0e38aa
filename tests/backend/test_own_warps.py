"""The functions of the specialised form, executed in any order of the warps: bit for bit what a role should compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.backend.edited import KEPT_EARLY, in_function, replaced
from tests.backend.own_warps import Address, Block, Described, Ending, HandedWrongly, Machine, Table, functions
from tests.backend.small_programs import Made, small
from tests.verification.mutants.tools import Edit
from tilelink.backend.lower import lower_at
from tilelink.backend.targets import FORMS
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.expert_weight_gradient import expert_weight_gradient
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter

REGISTERS, MEMORY = "sm_90+warps", "sm_100+warps"
WORLD, RANK, TILE = 4, 1, 64
M, N, K = 256, 136, 328
"""Twelve tiles of a worker, of six steps each, in a ring of four stages; with tails."""
PART, COLUMNS = M // WORLD, -(-N // TILE)
OWN = slice(RANK * PART, (RANK + 1) * PART)
"""The rows of this rank, which are read where they lie."""
WORDS = FORMS[REGISTERS].signal_words
SEEDS = 12
COPIED, STEP = 512, 128
"""Columns that are copied at a time, and in a step of that, through a ring of two blocks."""
Result = Callable[[int], bool]


def fetched(rows: np.ndarray) -> np.ndarray:
    """The rows of all ranks as this rank gets them: nobody copies its own."""
    full = rows.copy()
    full[OWN] = np.nan
    return full


def lowered(schedule: str, target: str) -> Made:
    """`sent`: where results go to memory by the copy engine, and nobody is told. `gated`: with two products. `kept`:
    where a rank's own rows are stored where they belong, and others where they are fetched."""
    if schedule == "gated":
        return small(target, all_gather_gated_matmul, "push", M=M, N=N, K=K)
    program = matmul_reduce_scatter if schedule in ("fused", "kept") else all_gather_matmul
    sent = {"sent": all_gather_matmul.schedule("push").changed(matmul={"via": "tma"}), "kept": "push"}
    named = sent.get(schedule, schedule)
    return small(target, program, named, M=M, N=N, K=K)


def executed(made: Made, seed: int, edit: Edit = lambda source: source) -> bool:
    """Whether the role gives what it should. Raises HandedWrongly."""
    rng = np.random.default_rng(seed)
    left, weight, up = (rng.integers(-3, 4, shape).astype(float) for shape in ((M, K), (N, K), (N, K)))
    out, inbox = np.full((M, N), np.nan), np.full((WORLD, WORLD, PART, N), np.nan)
    places = {"out": [out] * WORLD, "partial": [out] * WORLD, "inbox": inbox}
    told: list[bool] = []

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        places[at.where][at.rank].reshape(-1)[at.at[here]] = numbers[here]

    def notified(at: Address) -> None:
        part, first = at.at // WORDS // COLUMNS, at.at // WORDS % COLUMNS * TILE
        rows = out[part * PART :][:PART] if at.where == "signals of partial" else inbox[at.rank, RANK]
        told.append(not np.isnan(rows[:, first : first + TILE]).any())

    program, _ = made
    gathers = "gather" in {role.name for role in program.program.roles}
    machine = Machine(seed, stored, notified)
    given = {
        "worker": 0, "workers": 1, "control": 0, "heaps": 0, "before": 0, "rank": RANK, "world": WORLD, "K": K, "N": N,
        "M_part": PART, "inbox_at": "inbox", "inbox_signals": "signals", "full_signals": "signals",
        "partial_at": "partial", "partial_signals": "signals of partial",
        "out": Address(RANK, "out"), "out_stride_M": N, "out_stride_N": 1,
        "full_blocks_64_by_64": Described(fetched(left), (TILE, TILE)),
        "x_blocks_64_by_64": Described(left[OWN] if gathers else left, (TILE, TILE)),
        "out_blocks_64_by_64": Described(out, (TILE, TILE)),
        **{f"inbox_blocks_64_by_64_of_{r}": Described(inbox[r], (1, TILE, TILE)) for r in range(WORLD)},
        **dict.fromkeys(("weight_blocks_64_by_64", "gate_blocks_64_by_64"), Described(weight, (TILE, TILE))),
        "up_blocks_64_by_64": Described(up, (TILE, TILE)),
    }  # fmt: skip
    found = functions(machine, program, edit)
    found["silu_gate"] = lambda gate, up: Block(gate.numbers * up.numbers)
    product = left @ weight.T
    if program.program.name == "all_gather_gated_matmul":
        machine.run(found["gated_matmul"], given)
        return np.array_equal(out, product * (left @ up.T))
    machine.run(found["matmul"], given)
    if program.program.name == "all_gather_matmul":
        return np.array_equal(out, product)
    sent, here = inbox[:, RANK], out.reshape(WORLD, PART, N)
    placed = np.where(np.isnan(sent), here, sent)
    once = (np.isnan(sent) != np.isnan(here)).all() and not np.isnan(sent[RANK]).any()
    return bool(once) and np.array_equal(placed.reshape(M, N), product) and told == [True] * WORLD * COLUMNS


def keeping(seed: int, edit: Edit = lambda source: source) -> bool:
    """Whether a role multiplies rows that come when the warps that load have waited for them, and keeps them, too.
    Raises HandedWrongly."""
    rng = np.random.default_rng(seed)
    left, weight = (rng.integers(-3, 4, shape).astype(float) for shape in ((M, K), (N, K)))
    full, found = np.full((M, K), np.nan), {"out": np.full((M, N), np.nan), "gathered": np.full((M, K), np.nan)}
    tiles = {"gather": {"tile": (TILE, TILE), "warps": 4}, "matmul": {"tile": (TILE,) * 3, "warps": 4}}
    tiles["matmul"]["order"] = tk.grouped(4, tk.next_rank_first)  # a tile that waits comes first
    program, _ = all_gather_matmul.lowered_at(
        all_gather_matmul.schedule("push").changed(**tiles), target=FORMS[REGISTERS], world=WORLD,
        sizes={"M": M, "N": N, "K": K}, dtypes=dict.fromkeys(("x", "weight", "gathered"), "bf16"),
    )  # fmt: skip

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        found[at.where].reshape(-1)[at.at[here]] = numbers[here]

    def arrives(control: object, word: Address, *_: object, **__: object) -> int:
        part = int(word.at) // WORDS
        full[part * TILE :][:TILE] = fetched(left)[part * TILE :][:TILE]
        return 0

    machine = Machine(seed, stored, lambda at: None, {"full": full, "x": left[OWN]})
    given = {
        "worker": 0, "workers": 1, "control": 0, "heaps": 0, "rank": RANK, "world": WORLD, "K": K, "N": N,
        "M_part": PART, "full_signals": "signals", "full_at": "full", "x_stride_M": K, "x_stride_K": 1,
        **{name: Address(RANK, name) for name in ("x", *found)}, "out_stride_M": N, "out_stride_N": 1,
        "gathered_stride_M": K, "gathered_stride_K": 1, "full_blocks_64_by_64": Described(full, (TILE, TILE)),
        "x_blocks_64_by_64": Described(left[OWN], (TILE, TILE)),
        "weight_blocks_64_by_64": Described(weight, (TILE, TILE)),
    }  # fmt: skip
    functions_of_role = functions(machine, program, edit)
    functions_of_role["wait"] = arrives
    machine.run(functions_of_role["matmul"], given)
    return np.array_equal(found["gathered"], left) and np.array_equal(found["out"], left @ weight.T)


WIDTHS = 136, 72


def listed(seed: int, target: str, edit: Edit = lambda source: source) -> bool:
    """Whether roles that take turns multiply by each weight of a list, with one ring. Raises HandedWrongly."""
    rng = np.random.default_rng(seed)
    left, *weights = (rng.integers(-3, 4, (n, K)).astype(float) for n in (M, *WIDTHS))
    outs = {f"out_{k}": np.full((M, n), np.nan) for k, n in enumerate(WIDTHS)}
    tiles = {"gather": {"tile": (TILE, TILE), "warps": 4}, "matmul": {"tile": (TILE,) * 3, "warps": 4}}
    program, _ = all_gather_matmul.of(2).lowered_at(
        all_gather_matmul.schedule("push").changed(**tiles), target=FORMS[target], world=WORLD,
        sizes={"M": M, "N": WIDTHS, "K": K}, dtypes="bf16",
    )  # fmt: skip

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        outs[at.where].reshape(-1)[at.at[here]] = numbers[here]

    given = {
        "workers": 2, "control": 0, "heaps": 0, "rank": RANK, "world": WORLD, "K": K, "M_part": PART,
        "full_signals": "signals", "full_blocks_64_by_64": Described(fetched(left), (TILE, TILE)),
        "x_blocks_64_by_64": Described(left[OWN], (TILE, TILE)),
    }  # fmt: skip
    for k, (n, weight) in enumerate(zip(WIDTHS, weights, strict=True)):
        out = f"out_{k}"
        given |= {f"N_{k}": n, out: Address(RANK, out), f"{out}_stride_M": n, f"{out}_stride_N_{k}": 1}
        given[f"weight_{k}_blocks_64_by_64"] = Described(weight, (TILE, TILE))
    for worker in range(2):
        machine = Machine(seed, stored, lambda at: None)
        machine.run(functions(machine, program, edit)["matmul"], {**given, "worker": worker})
    return all(np.array_equal(outs[f"out_{k}"], left @ w.T) for k, w in enumerate(weights))


def of_two_weights(seed: int, target: str, edit: Edit = lambda source: source) -> bool:
    """Whether a role with two main loops, one behind the other, adds up the products of both by one ring. Raises
    HandedWrongly."""
    rng = np.random.default_rng(seed)
    dys = [rng.integers(-3, 4, (M, n)).astype(float) for n in WIDTHS]
    weights = [rng.integers(-3, 4, (n, K)).astype(float) for n in WIDTHS]
    partial, inbox = np.full((M, K), np.nan), np.full((WORLD, PART, K), np.nan)
    roles = {n: {"tile": (TILE, TILE), "warps": 4} for n in ("gather", "send", "reduce", "weight_gradient")}
    roles["weight_gradient"] = {"tile": (TILE, TILE, 32), "warps": 4}
    roles["input_gradient"] = {"tile": (TILE,) * 3, "warps": 4}
    program, _ = all_gather_matmul_backward.of(2).lowered_at(
        all_gather_matmul_backward.schedule("push").changed(**roles), target=FORMS[target], world=WORLD,
        sizes={"M": M, "N": WIDTHS, "K": K}, dtypes="bf16",
    )  # fmt: skip

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        (partial if at.where == "partial" else inbox).reshape(-1)[at.at[here]] = numbers[here]

    given = {
        "worker": 0, "workers": 1, "control": 0, "before": 0, "heaps": 0, "rank": RANK, "world": WORLD, "K": K,
        "M_part": PART, "partial_at": "partial", "inbox_at": "inbox", "partial_signals": "", "inbox_signals": "",
    }  # fmt: skip
    for k, (dy, weight) in enumerate(zip(dys, weights, strict=True)):
        given |= {f"N_{k}": WIDTHS[k], f"dy_{k}_blocks_64_by_64": Described(dy, (TILE, TILE))}
        given[f"weight_{k}_blocks_64_by_64"] = Described(weight, (TILE, TILE))
    machine = Machine(seed, stored, lambda at: None)
    machine.run(functions(machine, program, edit)["input_gradient"], given)
    partial[RANK * PART :][:PART] = inbox[RANK]
    return np.array_equal(partial, sum(dy @ w for dy, w in zip(dys, weights, strict=True)))


def gradient(seed: int, target: str, edit: Edit = lambda source: source) -> bool:
    """Whether a role whose loops wait for the rows of one rank after the other adds up the product of all rows. Raises
    HandedWrongly."""
    rng = np.random.default_rng(seed)
    full, dy = (rng.integers(-3, 4, (M, n)).astype(float) for n in (K, N))
    dweight, awaited = np.full((K, N), np.nan), list[int]()
    roles = {n: {"tile": (TILE, TILE), "warps": 4} for n in ("gather", "send", "reduce")}
    roles["input_gradient"] = {"tile": (TILE,) * 3, "warps": 4}
    roles["weight_gradient"] = {"tile": (TILE, TILE, 32), "warps": 4}
    program, _ = all_gather_matmul_backward.lowered_at(
        all_gather_matmul_backward.schedule("push").changed(**roles), target=FORMS[target], world=WORLD,
        sizes={"M": M, "N": N, "K": K}, dtypes="bf16",
    )  # fmt: skip

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        dweight.reshape(-1)[at.at[here]] = numbers[here]

    machine = Machine(seed, stored, lambda at: None)
    given = {
        "worker": 0, "workers": 1, "control": 0, "heaps": 0, "rank": RANK, "world": WORLD, "K": K, "N": N,
        "M_part": PART, "full_signals": "signals", "dweight": Address(RANK, "dweight"), "dweight_stride_K": N,
        "dweight_stride_N": 1, "full_blocks_32_by_64": Described(fetched(full), (32, TILE)),
        "x_blocks_32_by_64": Described(full[OWN], (32, TILE)), "dy_blocks_32_by_64": Described(dy, (32, TILE)),
    }  # fmt: skip
    found = functions(machine, program, edit)
    found["wait"] = lambda control, word, *_, **__: awaited.append(int(word.at) // WORDS) or 0
    machine.run(found["weight_gradient"], given)
    return np.array_equal(dweight, full.T @ dy) and {*awaited} == {*range(WORLD)} - {RANK}


EXPERTS, ROUTED, WIDTH = 3, 200, 136
COUNTS = np.array([[5, 0, 60, 70], [0, 0, 0, 0], [1, 40, 0, 24]])
"""Rows of each expert from each source: two tiles and a rest, none, and one tile and a row."""


def running(lengths: np.ndarray, first: int = 0) -> Table:
    """The running table of these lengths, with a row for each rank; only this rank reads its own."""
    row = np.concatenate([[0], np.cumsum(lengths)]) + first
    return Table(np.concatenate([np.full(RANK * len(row), -1), row]))


def of_experts(seed: int, target: str, edit: Edit = lambda source: source) -> bool:
    """Whether a role multiplies the rows of each expert by its weight, behind waits for all sources of a tile's rows.
    Raises HandedWrongly."""
    rng = np.random.default_rng(seed)
    rows, weight = (rng.integers(-3, 4, shape).astype(float) for shape in ((ROUTED, K), (EXPERTS, WIDTH, K)))
    out = np.full((ROUTED + TILE, WIDTH), np.nan)
    tiled = {role: {"tile": tile, "warps": 4} for role, tile in (("dispatch", (32, None)), ("matmul", (TILE,) * 3))}
    bound = dispatch_matmul.bind(dispatch_matmul.schedule("push").changed(**tiled), "bf16", dispatch_matmul.optional)
    sizes = {"K": K, "N": WIDTH, "experts": EXPERTS, "routed": WORLD * ROUTED, "sent": WORLD * ROUTED, "tokens": 256}
    exact = Sizes.of(bound, WORLD, sizes, counted=False)

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        here = np.broadcast_to(mask, numbers.shape)
        out.reshape(-1)[np.broadcast_to(at.at, numbers.shape)[here]] = numbers[here]

    machine = Machine(seed, stored, lambda at: None)
    given = {
        "worker": 0, "workers": 1, "control": 0, "heaps": 0, "rank": RANK, "world": WORLD, "K": K, "N": WIDTH,
        "experts": EXPERTS, "routed_part": ROUTED, "out": Address(RANK, "out"), "out_stride_routed": WIDTH,
        "out_stride_N": 1, "rows_signals": "signals", "routed_running": running(COUNTS.reshape(-1), RANK * ROUTED),
        "tiles_matmul_running": running(-(-COUNTS.sum(1) // TILE)),
        "rows_blocks_64_by_64": Ending(rows, (1, 1, TILE, TILE)),
        "weight_blocks_64_by_64": Described(weight, (1, TILE, TILE)),
    }  # fmt: skip
    machine.run(functions(machine, lower_at(bound, exact, FORMS[target]), edit)["matmul"], given)
    last = COUNTS.sum()
    experts = np.repeat(np.arange(EXPERTS), COUNTS.sum(1))
    right = np.einsum("rk,rnk->rn", rows[:last], weight[experts])
    sources = {(WORDS * k, -(-n // 32)) for k, n in enumerate(COUNTS.reshape(-1)) if n}
    awaited = {(at, n) for at, n in machine.awaited if n}
    return np.array_equal(out[:last], right) and bool(np.isnan(out[last:]).all()) and awaited == sources


def gradient_of_experts(seed: int, target: str, edit: Edit = lambda source: source) -> bool:
    """Whether a role gives each expert the transpose of its rows of one matrix times those of another: zeros, where it
    has no rows. Raises HandedWrongly."""
    rng = np.random.default_rng(seed)
    dout, rows = (rng.integers(-3, 4, (ROUTED, TILE)).astype(float) for _ in range(2))
    found = np.full((EXPERTS, TILE, TILE), np.nan)
    tiles = expert_weight_gradient.schedule("gemm").changed(weight_gradient={"tile": (None, *[TILE] * 3), "warps": 4})
    bound = expert_weight_gradient.bind(tiles, "bf16")
    sizes = {"N": TILE, "K": TILE, "experts": EXPERTS, "routed": WORLD * ROUTED, "sent": WORLD * ROUTED}
    made = lower_at(bound, Sizes.of(bound, WORLD, sizes, counted=False), FORMS[target])

    def stored(at: Address, numbers: Any, mask: Any) -> None:
        found.reshape(-1)[at.at] = numbers

    machine = Machine(seed, stored, lambda at: None)
    given = {
        "worker": 0, "workers": 1, "control": 0, "rank": RANK, "world": WORLD, "K": TILE, "N": TILE,
        "experts": EXPERTS, "routed_part": ROUTED, "routed_running": running(COUNTS.reshape(-1), RANK * ROUTED),
        "tiles_weight_gradient_running": running(np.ones(EXPERTS, int)), "dweight": Address(RANK, "dweight"),
        "dweight_stride_experts": TILE * TILE, "dweight_stride_N": TILE, "dweight_stride_K": 1,
        "dout_blocks_64_by_64": Ending(dout, (1, 1, TILE, TILE)),
        "rows_blocks_64_by_64": Ending(rows, (1, 1, TILE, TILE)),
    }  # fmt: skip
    machine.run(functions(machine, made, edit)["weight_gradient"], given)
    ends = np.cumsum(COUNTS.sum(1))
    parts = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    return np.array_equal(found, np.stack([dout[p].T @ rows[p] for p in parts]))


def copied(seed: int, edit: Edit = lambda source: source, stages: int = 2) -> bool:
    """Whether the role that copies brings all rows of a rank to all others, and tells of each tile when it is there.
    Raises HandedWrongly."""
    numbers = np.random.default_rng(seed).integers(-3, 4, (PART, K)).astype(float)
    full, told = [np.full((M, K), np.nan) for _ in range(WORLD)], list[bool]()

    def notified(at: Address) -> None:
        told.append(not np.isnan(full[at.rank][OWN]).any())

    schedule = all_gather_matmul.schedule("push")
    copies = {"tile": (PART, COPIED), "stages": stages}
    tiles = schedule.changed(gather=copies, matmul={"tile": (TILE, TILE, TILE)})
    program, _ = bound(tiles)
    machine = Machine(seed, lambda *_: None, notified)
    given = {
        "worker": 0, "workers": 1, "control": 0, "heaps": 0, "before": 0, "rank": RANK, "world": WORLD, "K": K,
        "M_part": PART, "full_signals": "signals", "x_blocks_64_by_128": Described(numbers, (PART, STEP)),
        **{f"full_blocks_64_by_128_of_{r}": Described(full[r], (PART, STEP)) for r in range(WORLD)},
    }  # fmt: skip
    machine.run(functions(machine, program, edit)["gather"], given, specialised=False)
    others = [full[r] for r in range(WORLD) if r != RANK]
    return all(np.array_equal(f[OWN], numbers) for f in others) and told == [True] * len(others)


def bound(schedule: Any) -> Made:
    """AllGather-GEMM by a schedule, in its specialised form."""
    program = all_gather_matmul.bind(schedule, "bf16")
    exact = Sizes.of(program, WORLD, {"M": M, "N": N, "K": K})
    return lower_at(program, exact, FORMS[REGISTERS]), exact


FEW = {"fused": (REGISTERS,), "kept": (REGISTERS, MEMORY), "sent": (MEMORY,), "gated": (REGISTERS, MEMORY)}


@pytest.mark.parametrize(("schedule", "target"), [
    pytest.param(s, t, marks=() if t in FEW.get(s, ()) else pytest.mark.verify)
    for s in ("push", "pieces", "fused", "kept", "sent", "gated") for t in (REGISTERS, MEMORY)
])  # fmt: skip
def test_every_order_of_the_warps_gives_the_same(schedule: str, target: str) -> None:
    made = lowered(schedule, target)
    assert all(executed(made, seed) for seed in range(SEEDS))


@pytest.mark.parametrize("target", [REGISTERS, MEMORY])
def test_rows_of_experts_are_multiplied_behind_their_waits(target: str) -> None:
    assert all(of_experts(seed, target) for seed in range(SEEDS))


@pytest.mark.parametrize("target", [REGISTERS, MEMORY])
def test_members_of_a_list_take_turns_with_one_ring(target: str) -> None:
    assert all(listed(seed, target) for seed in range(SEEDS))


@pytest.mark.parametrize("edit", [
    in_function("matmul_1_load", r"return step", "return 0"),
    in_function("matmul_0_multiply", r"return stage, phase", "return stage, phase ^ 1"),
    in_function("matmul_multiply", r"tiles_before \+= matmul_0_last - matmul_0_first", "tiles_before += 2"),
], ids=["who loads begins again", "who multiplies is a round behind", "who multiplies takes other tiles"])
def test_turns_that_do_not_go_on_are_seen(edit: Edit) -> None:
    def right(seed: int) -> bool:
        try:
            return listed(seed, REGISTERS, edit)
        except HandedWrongly:
            return False

    assert not all(right(seed) for seed in range(SEEDS))


@pytest.mark.parametrize("target", [REGISTERS, MEMORY])
def test_products_of_two_weights_are_added_up(target: str) -> None:
    assert all(of_two_weights(seed, target) for seed in range(SEEDS))
    assert not of_two_weights(0, target, replaced(r"fetch\(dy_1_blocks_64_by_64", "fetch(dy_0_blocks_64_by_64"))


def test_rows_are_kept_when_they_are_here() -> None:
    assert all(keeping(seed) for seed in range(SEEDS))


def test_rows_that_are_kept_before_they_are_here_are_seen() -> None:
    assert not all(keeping(seed, KEPT_EARLY) for seed in range(SEEDS))


@pytest.mark.parametrize("target", [REGISTERS, MEMORY])
def test_a_product_of_rows_as_they_come(target: str) -> None:
    assert all(gradient(seed, target) for seed in range(SEEDS))
    assert not gradient(0, target, in_function("weight_gradient_load", r" m \+ rows_ready", " m_cell + rows_ready"))


@pytest.mark.parametrize("target", [REGISTERS, MEMORY])
def test_gradients_of_experts_are_of_their_rows(target: str) -> None:
    """The second expert has none."""
    assert all(gradient_of_experts(seed, target) for seed in range(SEEDS))


@pytest.mark.parametrize("edit", [
    replaced(r"dout_ring.index\(stage\).permute\(\(1, 0\)\)", "dout_ring.index(stage)"),
    replaced(r"tl.cast\(\(-rank\*routed_part \+ routed_to\), tl.int32\)", "200"),
    replaced(r"has_step = False", "has_step = True"),
], ids=["not transposed", "with rows of the next expert", "of no rows"])
def test_gradients_of_experts_that_are_wrong_are_seen(edit: Edit) -> None:
    assert not gradient_of_experts(0, MEMORY, edit)


@pytest.mark.parametrize("edit", [
    replaced(r"fetch\(weight_blocks_64_by_64, \[expert,", "fetch(weight_blocks_64_by_64, [0,"),
    replaced(r"tl.cast\(\(-rank\*routed_part \+ routed_to\), tl.int32\)", "200"),
    replaced(r"mask=\(routed_lo .*\)\[:, None\] & ", "mask="),
    replaced(r"\+ 1 - 1$", "+ 1 - 2"),
], ids=["the weight of another expert", "rows of the next expert", "stored over the next expert", "a source less"])
def test_rows_of_experts_that_are_taken_wrongly_are_seen(edit: Edit) -> None:
    assert not all(of_experts(seed, REGISTERS, edit) for seed in range(SEEDS))


def without(function: str, line: str) -> Edit:
    return in_function(function, rf"^( +){line}.*$", r"\1pass")


TOLD_FIRST = replaced(r"( +if alive.*\n(?: {12}.*\n)+)((?: +#.*\n)? +if alive.*\n +notify\(.*\n)", r"\2\1")
WRONG: list[tuple[str, str, str, Edit]] = [
    ("a stage is loaded before it is free", REGISTERS, "push", without("claim_behind", "mbarrier.wait")),
    ("a stage is free a step too early", REGISTERS, "push", in_function("claim", r"step \+ 1", "step")),
    ("a stage is multiplied before it is ready", REGISTERS, "push", without("until_ready", "mbarrier.wait")),
    ("a stage is never given back", REGISTERS, "push", without("give_back_stage", "mbarrier.arrive")),
    ("a sum is stored before it is done", REGISTERS, "push", in_function("multiplied", r"wait\(0", "wait(1")),
    ("a tile is told before it is stored", REGISTERS, "fused", without("take_over", "mbarrier.wait")),
    ("a tile is laid out before the last is sent", REGISTERS, "fused", without("until_told", "mbarrier.wait")),
    ("a tile is given back before it is read", REGISTERS, "sent", without("send", "tma.store_wait")),
    ("a tile is told before it is complete", REGISTERS, "fused", replaced(r", bulk=True", "")),
    ("a tile is told before it is complete", MEMORY, "fused", replaced(r", bulk=True", "")),
    ("a tile is laid out before the last is read", MEMORY, "sent", without("send", "tma.store_wait")),
    ("a stage is loaded before it is free", MEMORY, "push", without("claim_behind", "mbarrier.wait")),
    ("a stage is free too early", MEMORY, "push", in_function("claim", r"step, step", "step, step - 1")),
    ("a stage is multiplied before it is ready", MEMORY, "push", without("until_ready", "mbarrier.wait")),
    ("a stage is free after one of two products", MEMORY, "gated", replaced(r"barriers\(4, 2\)", "barriers(4)")),
    ("a sum is stored before it is done", REGISTERS, "gated", in_function("multiplied", r"wait\(0", "wait(2")),
    ("both products have one weight", MEMORY, "gated", replaced(r"up_ring\.index", "gate_ring.index")),
    ("both products have one sum", MEMORY, "gated", replaced(r"emptied\(sums_1", "emptied(sums")),
    ("a stage is never given back", MEMORY, "push", in_function("multiply", r", mbarriers=.*\)", ")")),
    ("a sum is overwritten before it is read", MEMORY, "push", without("emptied", "mbarrier.wait")),
    ("a sum is read before it is full", MEMORY, "push", without("until_full", "mbarrier.wait")),
    ("a sum is never given back", MEMORY, "push", without("finished", "mbarrier.arrive")),
    ("a sum is never complete", MEMORY, "push", replaced(r"^ +complete\(.*\n", "")),
    ("a sum goes on from the tile before", MEMORY, "push", replaced("adds = False", "adds = True")),
    ("a sum is only its last product", MEMORY, "push", replaced("adds = True", "adds = False")),
    ("another sum is complete", MEMORY, "push", in_function("complete", r"tile, SUMS", "tile + 1, SUMS")),
    ("a tile is told before it is stored", MEMORY, "fused", TOLD_FIRST),
    ("a tile is told before it is stored", REGISTERS, "kept", without("take_over", "mbarrier.wait")),
    ("own rows are told of as others are", REGISTERS, "kept", in_function("matmul_tell", "home == rank", "home < 0")),
    ("own rows are stored as others are", MEMORY, "kept", replaced("home == rank", "home != rank")),
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


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_copies_are_right_in_every_order_of_loads_reads_and_writes(stages: int) -> None:
    assert all(copied(seed, stages=stages) for seed in range(2 * SEEDS))


@pytest.mark.parametrize("edit", [
    without("carry", "mbarrier.wait"), without("carry", r"tma.store_wait\(1\)"), replaced(", bulk=True", ""),
    in_function("carry", r"store_wait\(1\)", "store_wait(2)"),
], ids=["stored before it is loaded", "loaded before the last is read", "told before it is complete",
        "loaded a step too early"])  # fmt: skip
def test_a_copy_that_does_not_wait_is_seen(edit: Edit) -> None:
    def right(seed: int) -> bool:
        try:
            return copied(seed, edit)
        except HandedWrongly:
            return False

    assert not all(right(seed) for seed in range(2 * SEEDS))
