"""The specialised form: its source, what it takes and refuses, and gates that fire where warps hand over wrongly.

Compiled only: no GPU is here (`test_own_warps.py` executes what warps hand over, on a model)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

import tilelink as tk
from tests.backend.edited import KEPT_EARLY, in_function, replaced
from tests.backend.small_programs import Made, small, verdict
from tests.parameters import each_once, first_cases, first_of
from tests.programs.alone import KN, MK, MN, alone
from tests.programs.epilogues import quartered_gelu
from tests.verification.mutants.tools import Edit
from tilelink.backend.gluon.module import RING_MODULE, TCGEN05, WGMMA
from tilelink.backend.parameters import IN_REGISTERS, IN_TENSOR_MEMORY, OWN_WARPS, RING
from tilelink.backend.targets import FORMS, TARGETS
from tilelink.errors import FormError, TargetError
from tilelink.inspect.compile import compiled
from tilelink.inspect.machine_code import inspected
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.tiles import product
from tilelink.programs.program import Program

pytestmark = pytest.mark.usefixtures("own_cache")
WARPS, IN_MEMORY = "sm_90+warps", "sm_100+warps"
SIZES = {"M": 1024, "N": 1024, "K": 1024, "S": 1024, "sent": 1024, "routed": 1024, "experts": 2,
         "tokens": 1024}  # fmt: skip


@tk.tile
def flips(t, x, weight, out):
    out[t].store(tl.flip(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)))


@tk.tile
def doubles(t, x, weight, out):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load() * 2, weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.tile
def product_of_one(t, x, weight, out):
    out[t].store(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape))


@tk.tile
def multiplies_by_halves(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    for k in tk.steps(x.cols, by=32):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.tile
def multiplies_and_doubles(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    acc *= 2
    out[t].store(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape, acc))


@tk.tile
def multiplies_in_turn(t, x, weight, out):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@triton.jit
def adds_up(x):
    return x + tl.sum(x, 1)


@triton.jit
def indexes(x):
    return x + x[None, 0]


@triton.jit
def adds_index(x):
    return x + tl.arange(0, 256)


@triton.jit
def by_another(x):
    return adds_up(x) * 2


@triton.jit
def cuts_off(x):
    return tl.where(x > 0, x, tl.zeros_like(x))


MOVING = adds_up, indexes, adds_index, by_another, cuts_off


@tk.tile
def begins_with_ones(t, x, weight, out):
    ones = tl.full(t.shape, 1.0, tl.float32)
    out[t].store(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape, ones))


@tk.tile
def doubles_the_left(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    if t.cols.start == 0:
        acc *= 2
    out[t].store(acc)


@tk.tile
def multiplies_again(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(tl.dot(acc.to(tl.bfloat16), acc.to(tl.bfloat16)))


@tk.tile
def masks(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    i = tl.arange(0, len(t.rows))
    out[t].store(tl.where(i[:, None] >= i[None, :], acc, 0))


@tk.tile
def adds_columns(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(tl.maximum(acc + tl.arange(0, len(t.cols)), tl.arange(0, len(t.cols))))


@tk.tile
def sorts(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(acc.sort())


@tk.tile
def finds_the_most(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    most, at = tl.max(acc, 1, return_indices=True)
    out[t].store(acc + most[:, None] + at[:, None])


@tk.tile
def reduces_twice(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    most = tl.max(acc, 1) * 2
    out[t].store(acc - most[:, None] - most[None, :])


@tk.tile
def stores_less(t, x, weight, out):
    """A number, and then a line for all rows."""
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(tl.sum(acc))
    out[t].store(tl.sum(acc, 0))


@triton.jit
def squared(x):
    return x * x


@triton.jit
def added(x, y):
    return x + y


@tk.tile
def adds_a_line(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(added(acc, weight[0, t.cols].load()))


@tk.tile
def adds_a_line_of_unknown_shape(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    line = squared(weight[0, t.cols].load())
    out[t].store(acc + line)


@tk.tile
def transposes(t, x, weight, out):
    out[t].store(tl.trans(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)))


@tk.tile
def adds_turned(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(acc + acc.permute((1, 0)))


@tk.tile
def turns(t, x, out):
    block = x[t].load()
    out[t].store(block + block.permute((1, 0)))


@tk.tile
def adds_all(t, x, out):
    total = tl.sum(x[t].load().to(tl.float32))
    out[t].store(x[t].load() + total)


@tk.tile
def adds_what_it_stores(t, x, out):
    block = x[t].load().to(tl.float32)
    out[t].store(block + tl.sum(block))


@tk.tile
def keeps_sums(t, x, out):
    block = x[t].load().to(tl.float32)
    out[t].store(block)
    out[t.S, 0].store(tl.sum(block, 1))


@tk.tile
def masks_alone(t, x, out):
    i = tl.arange(0, len(t.S))
    j = i + 1
    out[t].store(tl.where(i[:, None] >= j[None, :], x[t].load(), 0))


@tk.tile
def reduces(t, x, out):
    block = x[t].load().to(tl.float32)
    i = tl.arange(0, len(t.S)) + 1
    most = tl.max(block, 1) + i
    i = tl.arange(0, len(t.S2)) + 1
    out[t].store(block * 2 + most[:, None] + i[None, :])


@triton.jit
def both_signs(x):
    return x, -x


@tk.tile
def says_all_by_name(t, x, out):
    block = x[t].load().to(tl.float32)
    total = tl.sum(input=block, axis=1)
    most = tl.max(block, 1, return_indices=False)
    left, right = both_signs(block)
    out[t].store(left - right + total[:, None] * most[:, None])


def beside(role: Any) -> Program:
    """A role beside one that multiplies."""

    def both(
        x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N"), square: tk.Local("S", "S2"),
        made: tk.Local("S", "S2"),
    ):  # fmt: skip
        product_of_one[tk.tiles(out)](x, weight, out)
        role[tk.tiles(made)](square, made)

    return tk.program(both)


def beside_form(role: Any) -> str:
    tiles = {"product_of_one": tk.SMs(tile=(128, 128, 64)), role.name: tk.SMs(4, tile=(32, 32))}
    return form(beside(role), tk.Schedule(**tiles), S2=1024)


def form(
    program: Program, schedule: Any = None, dtype: Any = "bfloat16", *, timed: bool = False, target: str = WARPS,
    **sizes: Any,
) -> str:  # fmt: skip
    """The source of a program in its specialised form."""
    dims = {d for t in program.recorded(program.absent(dtype)).tensors for d in (*t.dims, *t.called)}
    known = {d: n for d, n in {**SIZES, **sizes}.items() if d in dims}
    return program.lowered_at(schedule, target=FORMS[target], timed=timed, world=4, sizes=known, dtypes=dtype)[0].source


def of_one(role: Any, tile: tuple[int, ...] = (128, 128, 64), warps: int = 8, target: str = WARPS) -> str:
    program = alone(role.name, role, x=MK, weight=KN, out=MN)
    return form(program, tk.Schedule(**{role.name: tk.SMs(tile=tile, warps=warps)}), target=target)


def test_a_role_that_multiplies_is_a_function_for_each_of_its_warps() -> None:
    source = all_gather_matmul.show("gluon", "push", M=1024, N=1024, K=1024)
    compile(source, "shown", "exec")
    assert "[(matmul_multiply, (" in source and "), (matmul_load, (" in source and "matmul_tell" not in source
    assert "acc = multiply(full_ring.index(stage), weight_ring.index(stage).permute((1, 0)), acc)" in source
    assert "x_or_full = one_of((full_blocks_128_by_64, x_blocks_128_by_64,), home == rank)" in source
    row = "tl.where(home == rank, M_lo - M_part*rank, M_lo + rows_ready)"
    assert f"fetch(x_or_full, [{row}, k_], full_ring, ready, stage)" in source
    assert source == all_gather_matmul.show("gluon", "push", target="sm_90", M=1024, N=1024, K=1024)
    told = matmul_reduce_scatter.show("gluon", "fused", M=1024, N=1024, K=1024)
    assert "(matmul_tell, (" in told and "owed" not in told, "nothing is told late: other warps tell it"


def test_a_sum_in_tensor_memory_is_finished_while_the_next_is_multiplied() -> None:
    source = matmul_reduce_scatter.show("gluon", "fused", target="sm_100", M=1024, N=1024, K=1024)
    compile(source, "shown", "exec")
    functions = {f.split("(")[0]: f for f in source.split("\ndef ")[1:]}
    finish, multiply = functions["matmul_finish"], functions["matmul_multiply"]
    assert "[(matmul_finish, (" in source and "), (matmul_multiply, (" in source and "matmul_tell" not in source
    assert "sums = accumulators((128, 256))" in functions["matmul"] and "full = barriers(2)" in functions["matmul"]
    for words in ("acc = emptied(sums, empty, tiles)\n        adds = False", "adds = True", "complete(full, tiles)"):
        assert words in multiply
    assert "acc = of_tile(sums, tiles)\n        finished(empty, tiles)" in finish
    assert "for k" not in finish.replace("# for k", "")
    assert finish.index("finished(") < finish.index("lay_out(") < finish.index("send(") < finish.index("notify(")
    assert functions["matmul_load"] in matmul_reduce_scatter.show("gluon", "fused", M=1024, N=1024, K=1024).replace(
        "laid_out, ready, free, stored, told", "sums, laid_out, ready, free, full, empty"
    ), "who loads does the same on Hopper"


@pytest.mark.parametrize("target", [WARPS, IN_MEMORY])
def test_what_is_stored_or_told_is_so_in_lanes_that_are_not_poisoned(target: str) -> None:
    lines = form(all_gather_matmul, "pull", target=target).splitlines()
    for k, line in enumerate(lines):
        if line.lstrip().startswith(("store(", "carry(", "lay_out(", "notify(", "leave(")):
            above = next(line for line in reversed(lines[:k]) if "_block = " not in line and "_there = " not in line)
            assert above.strip() == "if alive(control):", line


REFUSED: list[tuple[str, Callable[[], str]]] = [
    ("no role multiplies", lambda: form(operators()["all_reduce"])),
    ("matmul takes turns with dispatch, which does not multiply", lambda: in_turns()),
    ("its times are to be recorded", lambda: form(all_gather_matmul, "push", timed=True)),
    ("the parts of M differ in length", lambda: form(all_gather_matmul, "push", M=(512, 256, 128, 128))),
    ('gather has via="multicast"', lambda: form(all_gather_matmul, "multicast")),
    *((f"calls {f.fn.__name__}, a Triton function", lambda f=f: form(all_gather_matmul.of(epilogue=f), "push"))
      for f in MOVING),
    ("uses tl.flip, which Gluon lacks", lambda: of_one(flips)),
    ("does more in its main loop than to load blocks, and tl.dot", lambda: of_one(doubles)),
    ("does more in its main loop than to load blocks, and tl.dot", lambda: of_one(multiplies_in_turn)),
    ("blocks of 131072 bytes a step, and needs room for 2", lambda: of_one(product_of_one, (128, 128, 256))),
    ("has main loops whose blocks or sums differ", lambda: of_one(multiplies_by_halves)),
    ("does more between its main loops than to wait", lambda: of_one(multiplies_and_doubles)),
    ("does more before its main loop", lambda: of_one(begins_with_ones)),
    ("does more behind its main loop", lambda: of_one(doubles_the_left)),
    ("does more behind its main loop than to finish its sum", lambda: of_one(multiplies_again)),
    ("uses sort, which needs a layout in Gluon", lambda: of_one(sorts)),
    ("asks for the indices of a reduction", lambda: of_one(finds_the_most)),
    ("to which Gluon adds none: added(", lambda: of_one(adds_a_line)),
    ("to which Gluon adds none: acc + line", lambda: of_one(adds_a_line_of_unknown_shape)),
    ("256 with 16 warps: groups of 4 warps", lambda: of_one(product_of_one, (256, 256, 32), 16)),
    ("256 with 32 warps: groups of 4 warps", lambda: of_one(product_of_one, (128, 256, 64), 32)),
    ("transposes uses tl.trans, which Gluon lacks", lambda: of_one(transposes)),
    ("loads blocks of x that no descriptor describes", lambda: form(operators()["matmul"], K=1020)),
    ("multiplies float32; the form takes bfloat16 and float16", lambda: form(operators()["matmul"], dtype="float32")),
    ("multiplies 32 x 64 by 64 x 128 with 8 warps", lambda: of_one(product_of_one, (32, 128, 64))),
    ("a thread has 128 numbers of the sums", lambda: of_one(product_of_one, (256, 256, 32))),
    ("multiplies 32 x 64 by 64 x 128 and reads", lambda: in_memory((32, 128, 64))),
    ("64 x 512 and reads the sums with 8 warps: tensor memory takes", lambda: in_memory((64, 512, 64))),
    ("2 of each in 512 columns", lambda: in_memory((256, 256, 64))),
    ("groups of 4 warps read them, 128 numbers a thread", lambda: in_memory((128, 256, 64), warps=4)),
    ("without one, what others see of it would not wait", lambda: claims()),
]


def in_turns() -> str:
    """A product of experts whose workers go on with the copies for the next experts."""
    turns = {"dispatch": {"count": None, "wave": 1}, "matmul": {"wave": 1}}
    program = operators()["dispatch_matmul"]
    return form(program, program.schedule("push").changed(**turns))


@tk.tile
def sums_of_others(t, x, weight, ring):
    there = tk.claim(ring[1, t.M, t.N])
    acc = tl.zeros((len(t.M), len(t.N)), tl.float32)
    if tk.rank() > 0:
        for k in tk.steps(x.cols):
            acc = tl.dot(x[t.M, k].load(), weight[k, t.N].load(), acc)
    tk.notify(there.store(acc))


@tk.tile
def begins(t, ring):
    tk.notify(ring[0, t].store(0.0))


@tk.tile
def frees(t, ring, out):
    tk.release(tk.wait(ring[0, t]))
    tk.copy(tk.wait(ring[1, t]), out[t])


@tk.program
def claiming(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    ring = tk.local(tk.ranks, "M", "N", buffers=1)
    begins[tk.tiles(out)](ring)
    sums_of_others[tk.tiles(out)](x, weight, ring)
    frees[tk.tiles(out)](ring, out)


def claims() -> str:
    """On rank 0 no step of the product would make the store wait for the claim."""
    tiles = tk.SMs(4, tile=(64, 64))
    return form(claiming, tk.Schedule(begins=tiles, frees=tiles, sums_of_others=tk.SMs(tile=(128, 128, 64))))


def in_memory(tile: tuple[int, ...], warps: int = 8) -> str:
    return of_one(product_of_one, tile, warps, IN_MEMORY)


OFTEN = adds_columns, adds_turned, says_all_by_name
"""The others compile in long suites alone."""


def each_form(*roles: Any) -> Any:
    cases = [(role, target) for role in roles for target in (WARPS, IN_MEMORY)]
    return pytest.mark.parametrize(("role", "target"), [
        pytest.param(r, t, marks=() if r in OFTEN and t == WARPS else pytest.mark.verify, id=f"{r.name} {t}")
        for r, t in cases
    ])  # fmt: skip


@each_form(reduces, adds_all, adds_what_it_stores, keeps_sums, turns, masks_alone, says_all_by_name)
def test_blocks_are_laid_out_in_roles_that_copy(role: Any, target: str) -> None:
    program, sizes = beside(role), {"M": 128, "K": 64, "N": 128, "S": 64, "S2": 64}
    tiles = tk.Schedule(**{"product_of_one": tk.SMs(tile=(128, 128, 64)), role.name: tk.SMs(4, tile=(32, 32))})
    made = program.lowered_at(tiles, target=FORMS[target], world=4, sizes=sizes, dtypes="bf16")
    assert verdict(made).findings == ()


@each_form(adds_columns, stores_less, masks, reduces_twice, adds_turned)
def test_blocks_are_laid_out_behind_a_product(role: Any, target: str) -> None:
    program = alone(role.name, role, x=MK, weight=KN, out=MN)
    tiles = tk.Schedule(**{role.name: tk.SMs(tile=(64, 64, 64), warps=4)})
    made = program.lowered_at(tiles, target=FORMS[target], world=4, sizes={"M": 128, "K": 64, "N": 128}, dtypes="bf16")
    assert verdict(made).findings == ()


def test_threads_store_tiles_with_lines_of_less_than_32_bytes() -> None:
    program = alone("product_of_one", product_of_one, x=MK, weight=KN, out=MN)
    tiles = tk.Schedule(product_of_one=tk.SMs(tile=(64, 16, 64), warps=4, via="tma"))
    at = {"world": 4, "sizes": {"M": 128, "K": 64, "N": 128}}
    for dtype, calls in (("bfloat16", 1), ("float8_e4m3fn", 0)):
        dtypes = {"x": "bfloat16", "weight": "bfloat16", "out": dtype}
        made = program.lowered_at(tiles, target=FORMS[WARPS], dtypes=dtypes, **at)
        assert made[0].source.count(" send(") == calls
    assert not [f for f in verdict(made).findings if "slow" not in f]


@pytest.mark.parametrize(("tile", "warps", "stages", "dtype"), [
    ((128, 128, 32), 8, 12, "bfloat16"), ((128, 256, 64), 16, 3, "bfloat16"),
    pytest.param((128, 128, 64), 8, 6, "float64", marks=pytest.mark.verify),
])  # fmt: skip
def test_shared_memory_has_room_for_the_conversion_of_a_tile(
    tile: tuple[int, ...], warps: int, stages: int, dtype: str
) -> None:
    program = alone("product_of_one", product_of_one, x=MK, weight=KN, out=MN)
    tiles = tk.Schedule(product_of_one=tk.SMs(tile=tile, warps=warps, stages=stages))
    dtypes = {"x": "bfloat16", "weight": "bfloat16", "out": dtype}
    at = {"world": 4, "sizes": {"M": 512, "K": 512, "N": 512}, "dtypes": dtypes}
    assert verdict(program.lowered_at(tiles, target=FORMS[WARPS], **at)).findings == ()


@pytest.mark.parametrize(("why", "make"), REFUSED, ids=[why for why, _ in REFUSED])
def test_what_it_does_not_take_is_refused_by_name(why: str, make: Callable[[], str]) -> None:
    with pytest.raises(FormError, match="has no specialised form: ") as error:
        make()
    assert why in error.value.message and error.value.site is not None


def test_two_chips_have_it_and_nothing_across_nodes() -> None:
    with pytest.raises(TargetError, match="sm_80 has no specialised form; sm_90, sm_100 have one"):
        TARGETS["sm_80"].with_own_warps()
    with pytest.raises(TargetError, match="no network"):
        FORMS[WARPS].across_nodes()
    with pytest.raises(TargetError, match="sm_80 has no gluon; sm_90\\+warps, sm_100\\+warps have"):
        all_gather_matmul.show("gluon", "push", target="sm_80")
    with pytest.raises(TargetError, match="has no triton"):
        all_gather_matmul.show("triton", "push", target=WARPS)


def test_modules_have_what_is_imported_from_them() -> None:
    assert {*OWN_WARPS} <= vars(import_module(FORMS[WARPS].module)).keys()
    for module, names in ((RING_MODULE, RING), (WGMMA, IN_REGISTERS), (TCGEN05, IN_TENSOR_MEMORY)):
        assert {*names} <= vars(import_module(module)).keys()


# ---- compiled


def made(schedule: str, target: str = WARPS) -> Made:
    return small(target, all_gather_matmul if schedule in ("push", "pull") else matmul_reduce_scatter, schedule)


@cache
def findings(schedule: str, target: str, edit: Edit) -> tuple[str, ...]:
    return tuple(verdict(made(schedule, target), edit).findings)


@pytest.mark.versions
@each_once("schedule, target", ["pull", "fused"], [WARPS, IN_MEMORY])
def test_nothing_is_found_in_what_the_lowering_makes(schedule: str, target: str) -> None:
    found = verdict(made(schedule, target))
    assert found.findings == () and found.expected == found.found and found.spill_bytes == 0
    assert min(n for kind, n in found.found.items() if kind != "fence") > 0
    of_engine = {"pull": 3, "fused": 1}  # what is gathered, what peers have published, and what it stores to; the last
    assert found.found["fence"] == of_engine[schedule]


def test_rows_that_are_kept_before_the_product_are_found() -> None:
    tiles = {role: {"tile": (64,) * n, "warps": 4} for role, n in (("gather", 2), ("matmul", 3))}
    dtypes = dict.fromkeys(("x", "weight", "gathered"), "bf16")
    made = all_gather_matmul.lowered_at(
        all_gather_matmul.schedule("push").changed(**tiles), target=FORMS[WARPS], world=4,
        sizes={"M": 256, "N": 256, "K": 256}, dtypes=dtypes,
    )  # fmt: skip
    assert verdict(made).findings == ()
    assert any("rows are read before the product of their tile" in f for f in verdict(made, KEPT_EARLY).findings)


def test_one_thread_looks_whether_a_lane_is_poisoned() -> None:
    """Threads that found different answers would not all reach the barriers behind the branch."""
    code = "".join(kernel.code for kernel in compiled(*made("pull")))
    looks = re.findall(r"^.*ld\.global\.sys\.relaxed\.b64 .*$", code, re.MULTILINE)
    assert looks and all(line.lstrip().startswith("@%p") for line in looks)
    assert "ld.volatile" not in code


@pytest.mark.parametrize("target", first_of([IN_MEMORY, WARPS]))
def test_operands_come_by_copy_engine_and_a_step_is_short(target: str) -> None:
    at = {"world": 8, "sizes": {"M": 8192, "N": 3584, "K": 8192}, "dtypes": "bf16"}
    lowered, exact = all_gather_matmul.lowered_at(push, target=FORMS[target], **at)
    (kernel,) = inspected(lowered, compiled(lowered, exact))
    roles = {role.name: role for role in kernel.roles}
    assert roles["matmul_multiply"].step.total <= 60 and roles["matmul_multiply"].step.kinds["matrix"] == 4
    assert roles["matmul_load"].step.kinds["tma_load"] == 2 and not roles["matmul_multiply"].step.kinds["tma_load"]
    assert not any(role.step.kinds["async_copy"] for role in kernel.roles) and kernel.spill_bytes == 0


@pytest.mark.parametrize("target", first_of([WARPS, IN_MEMORY]))
def test_tails_with_a_bias(target: str) -> None:
    """The mask of the bias lies along the sums of a tile, and that of the store as blocks are stored."""
    sizes, dtypes = {"M": 1024, "N": 1040, "K": 1040}, dict.fromkeys(["x", "weight", "out", "bias"], "bfloat16")
    at = {"target": FORMS[target], "world": 4, "sizes": sizes, "dtypes": dtypes}
    found = verdict(all_gather_matmul.lowered_at(push, **at))
    assert found.findings == () and found.expected == found.found


@pytest.mark.parametrize("target", first_of([WARPS, IN_MEMORY]))
def test_functions_of_users_that_compute_by_element(target: str) -> None:
    program = all_gather_matmul.of(epilogue=quartered_gelu)
    found = verdict(small(target, program, "push"))
    assert found.findings == () and found.expected == found.found and found.spill_bytes == 0


@pytest.mark.parametrize("target", [WARPS, pytest.param(IN_MEMORY, marks=pytest.mark.verify)])
def test_two_products_of_one_block(target: str) -> None:
    made = small(target, operators()["all_gather_gated_matmul"], "push")
    found = verdict(made)
    assert found.findings == () and found.expected == found.found and found.spill_bytes == 0
    assert "fetch(x_or_full" in made[0].source and made[0].source.count("fetch(") == 3, "the rows come once"


SEVERAL = (
    ("all_gather_matmul", "push", 2, WARPS), ("all_gather_matmul_backward", "pull", 1, WARPS),
    ("mixture_of_experts", "push", 1, WARPS), ("all_gather_matmul", "pull", 3, IN_MEMORY),
    ("matmul_reduce_scatter_backward", "engine", 1, WARPS), ("dispatch_matmul_backward", "push", 1, WARPS),
    ("matmul_combine_backward", "push", 1, WARPS),
)  # fmt: skip


@pytest.mark.parametrize(("name", "schedule", "members", "target"), first_cases(SEVERAL))
def test_several_roles_multiply(name: str, schedule: str, members: int, target: str) -> None:
    """One after the other, in turns with one ring, or in turns each with its own ring."""
    program = operators()[name]
    dims = {d for t in program.recorded(program.absent("bf16")).tensors for d in (*t.dims, *t.called)}
    sizes: dict[str, Any] = {d: n for d, n in {**SIZES, "top": 2}.items() if d in dims}
    if members > 1:
        program, sizes["N"] = program.of(members), (1024, 512, 256)[:members]
    found = verdict(program.lowered_at(schedule, target=FORMS[target], world=4, sizes=sizes, dtypes="bf16"))
    assert found.findings == () and found.expected == found.found and found.spill_bytes == 0


WITH_ROUTES = (
    ("dispatch_matmul push", WARPS), ("grouped_matmul_reduce_scatter push", WARPS),
    ("all_gather_grouped_matmul engine", WARPS), ("expert_weight_gradient gemm", WARPS),
    ("matmul_combine push", IN_MEMORY), ("all_gather_grouped_matmul push", IN_MEMORY),
)  # fmt: skip


@pytest.mark.parametrize(("named", "target"), first_cases(WITH_ROUTES))
def test_rows_of_experts(named: str, target: str) -> None:
    """Their tables are made in Triton's language."""
    name, schedule = named.split()
    program = operators()[name]
    dims = {d for t in program.recorded(program.absent("bf16")).tensors for d in (*t.dims, *t.called)}
    sizes = {d: n for d, n in {**SIZES, "top": 2}.items() if d in dims}
    made, exact = program.lowered_at(schedule, target=FORMS[target], world=4, sizes=sizes, dtypes="bf16")
    found = verdict((made, exact))
    assert found.findings == () and found.expected == found.found and found.spill_bytes == 0
    assert made.beside is not None and made.tables == made.beside.main


NOT_TAKEN_OVER = replaced(r"^ +take_over\(.*\n", "")
SOURCE: list[tuple[str, str, Edit, str]] = [
    ("bytes", "pull", replaced(r"step, \d+, num_stages", "step, 64, num_stages"), "bytes come into a stage"),
    ("token", "pull", replaced(r" \+ rows_ready\b", ""), "guarded"),
    ("wait", "pull", replaced(r"rows_ready \+= wait\(.*\)", "rows_ready += 0"), "acquire"),
    ("hand over", "fused", replaced(r"^ +hand_over\(.*\n", ""), "wait at a barrier that no others arrive at"),
    ("take over", "fused", NOT_TAKEN_OVER, "a tile is told, but nobody"),
    ("take over what is sent", "fused", NOT_TAKEN_OVER, "a tile is sent that nobody waited for"),
    ("send", "fused", replaced(r"^( +)send\(.*\n", r"\1pass\n"), "bulk"),
    ("complete", "fused", replaced(r", bulk=True", ""), "complete"),
    ("notify", "fused", replaced(r"^( +)notify\(.*\n", r"\1pass\n"), "release"),
    ("dot", "pull", replaced(r"acc = multiply\(.*\)", "acc += 1"), "mma"),
]  # fmt: skip
NOT_READY = "a stage is multiplied that nobody"
RING_CODE: list[tuple[str, str, Edit, str]] = [
    ("free", "pull", in_function("claim_behind", r"^ +mbarrier.wait.*\n", ""), "blocks are loaded into a stage that"),
    ("ready", "pull", in_function("until_ready", r"^( +)mbarrier.wait.*", r"\1pass"), NOT_READY),
    ("given back", "pull", in_function("give_back_stage", r"^( +)mbarrier.arrive.*", r"\1pass"), "not given back"),
    ("done", "pull", in_function("multiply", r"mma_wait\(1", "mma_wait(2"), "a stage is not given back"),
    ("barrier", "fused", in_function("hand_over", r"^ +debug_barrier.*\n", ""), "a tile is handed over before all"),
    ("fence", "fused", in_function("lay_out", r"^ +fence_async.*", ""), "no fence lets the copy engine see it"),
]
SUMS_SOURCE: list[tuple[str, str, Edit, str]] = [
    ("complete", "pull", replaced(r"^ +complete\(.*\n", ""), "a sum is read before its products are done"),
    ("early", "pull", replaced(r"^( +acc = of_tile.*\n)( +finished.*\n)", r"\2\1"), "not read yet"),
    ("notify", "fused", replaced(r"^( +)notify\(.*\n", r"\1pass\n"), "release"),
    ("bytes", "pull", replaced(r"step, \d+, num_stages", "step, 64, num_stages"), "bytes come into a stage"),
]
SUMS_CODE: list[tuple[str, str, Edit, str]] = [
    ("empty", "pull", in_function("emptied", r"^ +mbarrier.wait.*\n", ""), "into a sum that is not read yet"),
    ("read", "pull", in_function("finished", r"^ +mbarrier.arrive.*\n", ""), "into a sum that is not read yet"),
    ("full", "pull", in_function("until_full", r"^ +mbarrier.wait.*\n", ""), "a sum is read before its products"),
    ("barrier", "pull", in_function("finished", r"^ +debug_barrier.*\n", ""), "given back before all warps have read"),
    ("free", "pull", in_function("claim_behind", r"^ +mbarrier.wait.*\n", ""), "blocks are loaded into a stage that"),
    ("ready", "pull", in_function("until_ready", r"^( +)mbarrier.wait.*", r"\1pass"), NOT_READY),
    ("given back", "pull", in_function("multiply", r", mbarriers=.*\)", ")"), "a stage is not given back"),
    ("fence", "fused", in_function("lay_out", r"^ +fence_async.*", ""), "no fence lets the copy engine see it"),
]


def cases(target: str, found: list[tuple[str, str, Edit, str]], every_run: str) -> list[Any]:
    """Every run has those named. The others, of `make verify`, have the finding of one named, or of one that
    `tests/inspect/test_gates.py` has."""
    assert {*every_run.split(", ")} <= {case[0] for case in found}
    marks = ([pytest.mark.verify] * (case[0] not in every_run.split(", ")) for case in found)
    return [
        pytest.param(target, *case[1:], id=f"{case[0]} {target}", marks=m) for case, m in zip(found, marks, strict=True)
    ]


@pytest.mark.parametrize(
    ("target", "schedule", "edit", "kind"),
    [
        *cases(WARPS, SOURCE, "bytes, hand over, take over, take over what is sent"),
        *cases(IN_MEMORY, SUMS_SOURCE, "complete"),
    ],
)
def test_one_call_less_is_found(target: str, schedule: str, edit: Edit, kind: str) -> None:
    assert any(kind in f for f in findings(schedule, target, edit))


@pytest.mark.parametrize(
    ("target", "schedule", "edit", "kind"),
    [
        *cases(WARPS, RING_CODE, "free, ready, given back, barrier, fence"),
        *cases(IN_MEMORY, SUMS_CODE, "empty"),
    ],
)
def test_one_step_less_is_found(
    target: str, schedule: str, edit: Edit, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of the one module that has the function, which all import under another name."""
    folder = Path(str(import_module(RING_MODULE).__file__)).parent
    for name in ("ring", "wgmma" if target == WARPS else "tcgen05"):
        text = (folder / f"{name}.py").read_text().replace("tilelink.backend.gluon.", "edited_")
        with suppress(ValueError):  # the other module has it
            text = edit(text)
        (tmp_path / f"edited_{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"edited_{name}", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    lowered, sizes = made(schedule, target)
    source = re.sub(r"tilelink\.backend\.gluon\.(ring|wgmma|tcgen05)\b", r"edited_\1", lowered.source)
    edited = replace(lowered, source=source)
    assert any(kind in f for f in verdict((edited, sizes)).findings)
