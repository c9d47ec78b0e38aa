"""Where two branches become one at a chosen place, where they stay two, and that both give right numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton.language as tl

import tilelink as tk
from tests.backend.edited import replaced
from tests.backend.small_programs import small
from tests.kernels.gather_gemm import Call, in_tiles, run_and_check, small_world
from tests.parameters import rarely
from tests.verification.mutants.tools import Edit, MutatedWorld
from tilelink.backend.targets import CPU, portable
from tilelink.emulator import Operation, RaceError
from tilelink.errors import FormError
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.trace import align

DESCRIBING = replace(CPU, name="cpu with descriptors", descriptors=True)
CHOSEN = "x_or_full = one_of((full_blocks_64_by_64, x_blocks_64_by_64,), home == rank)"
BEGIN = "[tl.where(home == rank, M_lo - M_part*rank, M_lo + rows_ready), k"


def products(source: str) -> int:
    """The dots that a source has. A main loop has one for each of its sums."""
    return len(re.findall(r"^ +\w+ = (?:tl\.dot|multiply)\(", source, flags=re.MULTILINE))


def in_small_tiles(schedule: str) -> tk.Schedule:
    return in_tiles(schedule, (16, 32), (16, 32, 16))


# ---- which main loops read a rank's own rows at a chosen place


@pytest.mark.parametrize("target", ["sm_90", "sm_90+warps"])
@pytest.mark.parametrize(("program", "schedule", "sums"), [
    (all_gather_matmul, "push", 1), (all_gather_matmul, "pull", 1), (all_gather_gated_matmul, "push", 2),
], ids=lambda v: getattr(v, "name", str(v)))  # fmt: skip
def test_where_descriptors_load_both_there_is_one_main_loop(
    program: Any, schedule: str, sums: int, target: str
) -> None:
    """The descriptor is chosen once a tile, and where its block begins in each step."""
    source = small(target, program, schedule)[0].source
    assert products(source) == sums
    assert source.count(CHOSEN) == source.count(BEGIN) == 1
    assert len(re.findall(r"x_or_full(?:\.load\(|, )\[", source)) == 1


@pytest.mark.parametrize("schedule", ["push", "pull"])
def test_where_no_descriptor_loads_them_the_pointer_is_chosen(schedule: str) -> None:
    """Rows of 500 elements of bf16 are no multiple of 16 bytes."""
    source = small("sm_90", all_gather_matmul, schedule, K=500)[0].source
    assert products(source) == 1 and "one_of(" not in source and "_blocks" not in source
    assert "x_or_full = tl.where(home == rank, x" in source and "full_block = tl.load(x_or_full + " in source
    with pytest.raises(FormError, match="loads blocks of full that no descriptor describes"):
        small("sm_90+warps", all_gather_matmul, schedule, K=500)


def test_strides_are_chosen_where_they_differ() -> None:
    """Rows of a caller's tensor need not lie like rows of a buffer; published ones do."""
    push, pull = (small("sm_90", all_gather_matmul, s, K=500)[0].source for s in ("push", "pull"))
    assert "x_or_full_stride_M = tl.where(home == rank, x_stride_M, K)" in push
    assert "x_or_full_stride" not in pull


@pytest.mark.parametrize(("sizes", "hint"), [({}, True), ({"K": 500}, False)])
def test_compilers_for_amd_choose_between_numbers(sizes: dict[str, int], hint: bool) -> None:
    """They fail at a choice between pointers. The compiler is told where rows begin at multiples of 16 bytes."""
    source = small("gfx942", all_gather_matmul, "push", **sizes)[0].source
    (chosen,) = re.findall(r"x_or_full = (.*)", source)
    assert ".to(tl.int64), (full_here).to(tl.int64)).to(tl.pointer_type(tl.bfloat16))" in chosen
    assert chosen.startswith("tl.multiple_of(") == hint


def test_where_blocks_end_early_the_end_is_chosen_too() -> None:
    source = small("sm_90", all_gather_matmul, "push", M=[130, 1, 7, 5])[0].source
    assert products(source) == 1 and CHOSEN in source
    assert "full_block = x_or_full.load([1073741824, tl.where(home == rank, tl.cast((" in source


CASES = [
    ("push", (48, 48), 64, True),
    ("pull", (16, 16, 16), 40, True),
    ("engine", (32, 32), 56, True),
    ("push", (32,), 48, True),
    ("push", (20, 20), 64, True),
    ("pull", (37, 0, 5), 52, False),
    ("engine", (0, 16, 33), 40, False),
    ("push", (5, 0, 17), 42, False),
    ("pull", (48, 48), 42, False),
    ("push", (0, 0, 0, 5), 42, False),
]


@pytest.mark.parametrize(
    ("schedule", "parts", "K", "described"),
    rarely(CASES, lambda schedule, parts, *_: (schedule, parts) in (("engine", (32, 32)), ("push", (20, 20)))),
)
def test_numbers_are_right(schedule: str, parts: tuple[int, ...], K: int, described: bool) -> None:
    """In two calls, one after the other, on other operands; and traces are those of the unrolled program. Without rows
    on a rank, there is no descriptor."""
    operations: list[Operation] = []
    world = small_world(len(parts), target=DESCRIBING, observer=operations.append)
    calls = [Call(parts, N=40, K=K, schedule=in_small_tiles(schedule), integers=True, seed=seed) for seed in (0, 1)]
    run_and_check(*calls, world=world)
    (prepared,) = world.lane.prepared.values()
    source = prepared.lowered.source
    assert products(source) == 1
    assert ("x_or_full = one_of(" in source, "x_or_full = tl.where(" in source) == (described, not described)
    for n in range(2):
        assert align(prepared.events, operations, f"all_gather_matmul run {n}").done


def test_rows_that_only_one_rank_can_describe() -> None:
    """The other rank chooses a pointer, and they agree all the same."""
    call = Call((32, 32), N=40, K=40, schedule=in_small_tiles("push"), integers=True)
    call.x[1] = torch.empty(32 * 40 + 1)[1:].view(32, 40).copy_(call.x[1])
    assert call.x[1].data_ptr() % 16
    world = small_world(2, target=DESCRIBING)
    run_and_check(call, call, world=world)
    sources = [p.lowered.source for p in world.lane.prepared.values()]
    assert sorted("x_or_full = one_of(" in source for source in sources) == [False, True]


descriptor = replaced(r"(x_or_full = .*, home) ==", r"\1 !=")
begin = replaced(r"(x_or_full\.load\(\[tl\.where\(home) ==", r"\1 !=")
TURNED = [
    ("the descriptor", descriptor),
    ("where its block begins", begin),
    ("both", lambda source: descriptor(begin(source))),
]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("schedule", ["push", "pull"])
@pytest.mark.parametrize(("what", "edit"), TURNED, ids=[what for what, _ in TURNED])
def test_a_choice_that_is_turned_round_is_found(what: str, edit: Edit, schedule: str) -> None:
    call = Call((48, 48), N=40, K=64, schedule=in_small_tiles(schedule), integers=True)
    world = MutatedWorld(2, kernel=edit, primitives=portable, target=DESCRIBING, heap_bytes=1 << 20, sms=20)
    with pytest.raises((AssertionError, RaceError)):
        run_and_check(call, call, world=world)


# ---- which branches stay two


@tk.tile
def gather(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def either(t, a, b, weight, out):
    """Two products that differ in a view: one is left."""
    acc = tl.zeros(t.shape, tl.float32)
    if t.rows.start == 0:
        for k in tk.steps(a.cols):
            acc = tl.dot(a[t.rows, k].load(), weight[k, t.cols].load(), acc)
    else:
        for k in tk.steps(a.cols):
            acc = tl.dot(b[t.rows, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.tile
def negative(t, a, b, weight, out):
    """They differ in what they compute, too."""
    acc = tl.zeros(t.shape, tl.float32)
    if t.rows.start == 0:
        for k in tk.steps(a.cols):
            acc = tl.dot(a[t.rows, k].load(), weight[k, t.cols].load(), acc)
    else:
        for k in tk.steps(a.cols):
            acc = tl.dot(-b[t.rows, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.tile
def longer(t, a, b, weight, out):
    """One has a statement more."""
    acc = tl.zeros(t.shape, tl.float32)
    if t.rows.start == 0:
        for k in tk.steps(a.cols):
            acc = tl.dot(a[t.rows, k].load(), weight[k, t.cols].load(), acc)
    else:
        for k in tk.steps(a.cols):
            acc = tl.dot(b[t.rows, k].load(), weight[k, t.cols].load(), acc)
            acc += 1
    out[t].store(acc)


def of_two(role: Any) -> tk.Program:
    """A program of one of these roles."""

    @tk.program
    def of_either(a: tk.Local("M", "K"), b: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
        role[tk.tiles(out)](a, b, weight, out)

    return of_either


@pytest.mark.parametrize(("role", "left"), [
    (either, 1), (negative, 2), (longer, 2),
], ids=lambda v: getattr(v, "name", v))  # fmt: skip
def test_branches_that_differ_in_more_than_views_stay_two(role: Any, left: int) -> None:
    program, schedule = of_two(role), tk.Schedule(**{role.name: tk.SMs(tile=(16, 16, 16), warps=4)})
    a, b, weight = (torch.randint(-3, 4, shape).float() for shape in ((32, 48), (32, 48), (48, 32)))
    world, outs = small_world(1, target=DESCRIBING), [torch.full((32, 32), torch.nan) for _ in range(2)]
    world.run(lambda g: [program(a, b, weight, out, schedule=schedule, group=g) for out in outs])
    others = {"either": b @ weight, "negative": -b @ weight, "longer": b @ weight + 3}[role.name]
    assert all(torch.equal(out, torch.cat([(a @ weight)[:16], others[16:]])) for out in outs)
    (prepared,) = world.lane.prepared.values()
    assert products(prepared.lowered.source) == left


@tk.tile
def of_types(t, a, b, va, vb, out):
    acc = tl.zeros(t.shape, tl.float32)
    if t.rows.start == 0:
        for k in tk.steps(a.cols):
            acc = tl.dot(a[t.rows, k].load(), va[k, t.cols].load(), acc)
    else:
        for k in tk.steps(a.cols):
            acc = tl.dot(b[t.rows, k].load(), vb[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def typed(
    a: tk.Local("M", "K"), b: tk.Local("M", "K"), va: tk.Local("K", "N"), vb: tk.Local("K", "N"),
    out: tk.Local("M", "N"),
):  # fmt: skip
    of_types[tk.tiles(out)](a, b, va, vb, out)


@pytest.mark.parametrize(("other", "left"), [("bf16", 1), ("float32", 2)])
def test_branches_that_load_other_dtypes_stay_two(other: str, left: int) -> None:
    """A descriptor has one dtype."""
    dtypes = {"a": "bf16", "va": "bf16", "b": other, "vb": other, "out": "float32"}
    schedule = tk.Schedule(of_types=tk.SMs(tile=(64, 64, 64)))
    assert products(typed.show("triton", schedule, target="sm_90", dtypes=dtypes, M=256, N=256, K=256)) == left


@tk.tile
def adds(t, full, out):
    """A loop without a dot."""
    rows = tk.wait(full[t.rows])
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        acc += rows[:, k].load()
    out[t].store(acc)


@tk.tile
def doubles(t, full, out):
    """No loop at all."""
    block = tk.wait(full[t])
    out[t].store(2 * block.load())


@tk.tile
def keeps(t, full, weight, out, kept):
    """A main loop that copies rows: those of x and full do not lie alike."""
    rows = tk.wait(full[t.rows])
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
        tk.copy(rows[:, k], kept[t.rows, k])
    out[t].store(acc)


@tk.tile
def has_loop(t, full, weight, out, kept):
    """A main loop with a loop in it that has no dot."""
    rows = tk.wait(full[t.rows])
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
        for r in tk.ranks():
            if r == 0:
                kept[t.rows, k].store(rows[:, k].load())
    out[t].store(acc)


@tk.tile
def picks(t, full, weight, wanted, out):
    """A main loop that loads some rows of a block."""
    rows = tk.wait(full[t.rows])
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(where=wanted[t.rows]), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def adding(x: tk.Sharded("M", "K"), out: tk.Local("M", "N")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    adds[tk.tiles(out)](full, out)


@tk.program
def doubling(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    doubles[tk.tiles(out)](full, out)


def keeping(role: Any) -> tk.Program:
    """A program of a role that multiplies rows and keeps them."""

    @tk.program
    def kept_too(
        x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N"), kept: tk.Local("M", "K")
    ):
        full = tk.local("M", "K")
        gather[tk.tiles(x, reader=tk.ranks)](x, full)
        role[tk.tiles(out)](full, weight, out, kept)

    return kept_too


@tk.program
def picking(
    x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), wanted: tk.Local("M", dtype=tl.int32), out: tk.Local("M", "N")
):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    picks[tk.tiles(out)](full, weight, wanted, out)


WANTED = torch.arange(32) % 3 - 1
OTHERS = [
    (adding, "adds", (16, 16, 16), lambda x, w: [x.view(32, 3, 16).sum(1)]),
    (doubling, "doubles", (16, 16), lambda x, w: [2 * x]),
    (keeping(keeps), "keeps", (16, 16, 16), lambda x, w: [x @ w, x]),
    (keeping(has_loop), "has_loop", (16, 16, 16), lambda x, w: [x @ w, x]),
    (picking, "picks", (16, 16, 16), lambda x, w: [x * (WANTED >= 0)[:, None] @ w]),
]


@pytest.mark.parametrize(("program", "role", "tile", "expected"), OTHERS, ids=[role for _, role, *_ in OTHERS])
def test_what_no_descriptor_loads_is_not_chosen(program: Any, role: str, tile: tuple[int, ...], expected: Any) -> None:
    """Lines of x lie further apart than those of full."""
    rows = tk.SMs(2, tile=(16, 16), at="home", own="read", warps=4)
    schedule = tk.Schedule(gather=rows, **{role: tk.SMs(tile=tile, warps=4)})
    x, weight = torch.randint(-3, 4, (32, 64)).float(), torch.randint(-3, 4, (48, 16)).float()
    right = expected(x[:, :48], weight)
    given = {"adds": [], "doubles": [], "picks": [weight, WANTED.int()]}.get(role, [weight])
    world = small_world(2, target=DESCRIBING)

    def rank(group: Any) -> list[list[torch.Tensor]]:
        made = [[torch.full(r.shape, torch.nan) for r in right] for _ in range(2)]
        for outs in made:
            program(x[16 * group.rank :][:16, :48], *given, *outs, schedule=schedule, group=group)
        return made

    for made in world.run(rank):
        assert all(torch.equal(out, r) for outs in made for out, r in zip(outs, right, strict=True))
    (prepared,) = world.lane.prepared.values()
    source = prepared.lowered.source
    assert "x_or_full" not in source and "tl.where(home == rank" not in source
    assert len(re.findall(r"^ +if home == rank:$", source, re.MULTILINE)) == 1


def test_rows_that_are_kept_behind_a_product_are_copied_from_two_places() -> None:
    """The loop that only copies is none that is pipelined, so it loads through pointers."""
    call = Call((16, 16), N=32, K=48, schedule=in_small_tiles("push"), integers=True)
    kept, world = [torch.full((32, 48), torch.nan) for _ in range(2)], small_world(2, target=DESCRIBING)
    for _ in range(2):
        outs = world.run(lambda g: call.on(g, gathered=kept[g.rank], out=call.poison()))
        call.check([out for out, _ in outs])
        assert all(torch.equal(k, torch.cat(call.x)) for k in kept)
    (prepared,) = world.lane.prepared.values()
    source = prepared.lowered.source
    assert products(source) == 1 and source.count("x_or_full = ") == 1
    assert len(re.findall(r"^ +if home == rank:$", source, re.MULTILINE)) == 1
