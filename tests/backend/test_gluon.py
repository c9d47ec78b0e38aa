"""The specialised form: its source, what it takes and refuses, and gates that fire where warps hand over wrongly.

Compiled only: no GPU is here, and nothing interprets Gluon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import triton.language as tl

import tilelink as tk
from tests.backend.edited import in_function, own_cache, replaced
from tests.backend.small_programs import Made, small, verdict
from tests.programs.alone import KN, MK, MN, alone
from tests.programs.epilogues import half
from tests.verification.mutants.tools import Edit
from tilelink.backend.facts import Facts
from tilelink.backend.gluon.module import RING_MODULE
from tilelink.backend.lower import lower
from tilelink.backend.parameters import OWN_WARPS, RING
from tilelink.backend.targets import FORMS, TARGETS
from tilelink.errors import FormError, TargetError
from tilelink.inspect.compile import compiled
from tilelink.inspect.machine_code import inspected
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.tiles import product
from tilelink.programs.program import Program

__all__ = ["own_cache"]
WARPS = "sm_90+warps"
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
def multiplies_twice(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    out[t].store(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape, acc))


@tk.tile
def begins_with_ones(t, x, weight, out):
    ones = tl.full(t.shape, 1.0, tl.float32)
    out[t].store(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape, ones))


@tk.tile
def keeps_the_left(t, x, weight, out):
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    if t.cols.start == 0:
        out[t].store(acc)


def form(program: Program, schedule: Any = None, dtype: Any = "bfloat16", *, timed: bool = False, **sizes: Any) -> str:
    """The source of a program in its specialised form."""
    dims = {d for t in program.recorded(program.absent(dtype)).tensors for d in (*t.dims, *t.called)}
    known = {d: n for d, n in {**SIZES, **sizes}.items() if d in dims}
    bound, exact = program.bound_at(schedule, world=4, sizes=known, dtypes=dtype)
    return lower(bound, Facts.of(bound, exact, timed=timed), FORMS[WARPS]).source


def of_one(role: Any, tile: tuple[int, ...] = (128, 128, 64), dtype: str = "bfloat16", **sizes: int) -> str:
    program = alone(role.name, role, x=MK, weight=KN, out=MN)
    return form(program, tk.Schedule(**{role.name: tk.SMs(tile=tile, warps=8)}), dtype, **sizes)


def test_a_role_that_multiplies_is_a_function_for_each_of_its_warps() -> None:
    source = all_gather_matmul.show("gluon", "push", M=1024, N=1024, K=1024)
    compile(source, "shown", "exec")
    assert "[(matmul_multiply, (" in source and "), (matmul_load, (" in source and "matmul_tell" not in source
    assert "acc = multiply(full_ring.index(stage), weight_ring.index(stage).permute((1, 0)), acc, ready, free" in source
    assert "fetch(full_blocks_128_by_64, [M_lo + rows_ready, k_], full_ring, ready, stage)" in source
    assert source == all_gather_matmul.show("gluon", "push", target="sm_90", M=1024, N=1024, K=1024)
    told = matmul_reduce_scatter.show("gluon", "fused", M=1024, N=1024, K=1024)
    assert "(matmul_tell, (" in told and "owed" not in told, "nothing is told late: other warps tell it"


def test_what_is_stored_or_told_is_so_in_lanes_that_are_not_poisoned() -> None:
    lines = form(all_gather_matmul, "pull").splitlines()
    for k, line in enumerate(lines):
        if line.lstrip().startswith(("store(", "notify(", "leave(")):
            above = lines[k - 1] if "_block = " not in lines[k - 1] else lines[k - 2]
            assert above.strip() == "if alive(control):", line


REFUSED: list[tuple[str, Callable[[], str]]] = [
    ("no role multiplies", lambda: form(operators()["all_reduce"])),
    ("matmul_0 and matmul_1 multiply; it takes one", lambda: form(all_gather_matmul.of(2), "push")),
    ("it has a route, ", lambda: form(operators()["dispatch_matmul"])),
    ("its times are to be recorded", lambda: form(all_gather_matmul, "push", timed=True)),
    ("the parts of M differ in length", lambda: form(all_gather_matmul, "push", M=(512, 256, 128, 128))),
    ('gather has via="multicast"', lambda: form(all_gather_matmul, "multicast")),
    ("calls half, a Triton function of the user", lambda: form(all_gather_matmul.of(epilogue=half), "push")),
    ("says tl.flip, which Gluon has not", lambda: of_one(flips)),
    ("does more in its main loop than tl.dot", lambda: of_one(doubles)),
    ("has more than one loop", lambda: of_one(multiplies_twice)),
    ("does more before its main loop", lambda: of_one(begins_with_ones)),
    ("does more behind its main loop", lambda: of_one(keeps_the_left)),
    ("loads blocks of x that no descriptor describes", lambda: form(operators()["matmul"], K=1020)),
    ("multiplies float32; it takes bfloat16 and float16", lambda: form(operators()["matmul"], dtype="float32")),
    ("multiplies 32 x 64 by 64 x 128 with 8 warps", lambda: of_one(product_of_one, (32, 128, 64))),
]


@tk.tile
def product_of_one(t, x, weight, out):
    out[t].store(product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape))


@pytest.mark.parametrize(("why", "make"), REFUSED, ids=[why for why, _ in REFUSED])
def test_what_it_does_not_take_is_refused_by_name(why: str, make: Callable[[], str]) -> None:
    with pytest.raises(FormError, match="has no specialised form: ") as error:
        make()
    assert why in error.value.message and error.value.site is not None


def test_only_hopper_has_it_and_nothing_across_nodes() -> None:
    with pytest.raises(TargetError, match="sm_100 has no specialised form; sm_90 has one"):
        TARGETS["sm_100"].with_own_warps()
    with pytest.raises(TargetError, match="no network"):
        FORMS[WARPS].across_nodes()
    with pytest.raises(TargetError, match="sm_100 has no gluon; sm_90\\+warps has"):
        all_gather_matmul.show("gluon", "push", target="sm_100")
    with pytest.raises(TargetError, match="has no triton"):
        all_gather_matmul.show("triton", "push", target=WARPS)


def test_modules_have_what_is_imported_from_them() -> None:
    assert {*OWN_WARPS} <= vars(import_module(FORMS[WARPS].module)).keys()
    assert {*RING} <= vars(import_module(RING_MODULE)).keys()


# ---- compiled


def made(schedule: str) -> Made:
    return small(WARPS, all_gather_matmul if schedule in ("push", "pull") else matmul_reduce_scatter, schedule)


@pytest.mark.versions
@pytest.mark.parametrize("schedule", ["pull", "fused"])
def test_nothing_is_found_in_what_the_lowering_makes(schedule: str) -> None:
    found = verdict(made(schedule))
    assert found.findings == () and found.expected == found.found and found.spill_bytes == 0
    assert min(n for kind, n in found.found.items() if kind != "fence") > 0
    assert found.found["fence"] == (schedule == "pull"), "the TMA loads what is gathered; threads load what is added up"


def test_operands_come_by_copy_engine_and_a_step_is_short() -> None:
    bound, exact = all_gather_matmul.bound_at(push, world=8, sizes={"M": 8192, "N": 3584, "K": 8192}, dtypes="bf16")
    lowered = lower(bound, Facts.of(bound, exact), FORMS[WARPS])
    (kernel,) = inspected(lowered, compiled(lowered, exact))
    roles = {role.name: role for role in kernel.roles}
    assert roles["matmul_multiply"].step.total <= 60 and roles["matmul_multiply"].step.kinds["matrix"] == 4
    assert roles["matmul_load"].step.kinds["tma_load"] == 2 and not roles["matmul_multiply"].step.kinds["tma_load"]
    assert not any(role.step.kinds["async_copy"] for role in kernel.roles) and kernel.spill_bytes == 0


def test_tails_with_a_bias() -> None:
    """The mask of the bias lies along the sums of a tile, and that of the store as blocks are stored."""
    sizes, dtypes = {"M": 1024, "N": 1040, "K": 1040}, dict.fromkeys(["x", "weight", "out", "bias"], "bfloat16")
    bound, exact = all_gather_matmul.bound_at(push, world=4, sizes=sizes, dtypes=dtypes)
    found = verdict((lower(bound, Facts.of(bound, exact), FORMS[WARPS]), exact))
    assert found.findings == () and found.expected == found.found


SOURCE: list[tuple[str, str, Edit, str]] = [
    ("bytes", "pull", replaced(r"step, \d+, num_stages", "step, 64, num_stages"), "bytes come into a stage"),
    ("token", "pull", replaced(r" \+ rows_ready\b", ""), "guarded"),
    ("wait", "pull", replaced(r"rows_ready = wait\(.*\)", "rows_ready = 0"), "acquire"),
    ("hand over", "fused", replaced(r"^ +hand_over\(.*\n", ""), "wait at a barrier that no others arrive at"),
    ("take over", "fused", replaced(r"^ +take_over\(.*\n", ""), "it is told that a tile is stored, which nobody"),
    ("notify", "fused", replaced(r"^( +)notify\(.*\n", r"\1pass\n"), "release"),
    ("dot", "pull", replaced(r"acc = multiply\(.*\)", "acc += 1"), "mma"),
]  # fmt: skip
RING_CODE: list[tuple[str, str, Edit, str]] = [
    ("free", "pull", in_function("claim", r"^ +mbarrier.wait.*\n", ""), "blocks are loaded into a stage that nobody"),
    ("ready", "pull", in_function("multiply", r"^ +mbarrier.wait.*\n", ""), "a stage is multiplied that nobody"),
    ("given back", "pull", in_function("multiply", r"^ +mbarrier.arrive.*\n", ""), "a stage is not given back"),
    ("done", "pull", in_function("multiply", r"mma_wait\(1", "mma_wait(2"), "a stage is not given back"),
    ("barrier", "fused", in_function("hand_over", r"^ +debug_barrier.*\n", ""), "a tile is handed over before all"),
]  # fmt: skip


def cases(found: list[tuple[str, str, Edit, str]], first: int) -> list[Any]:
    marks = ([] if k < first else [pytest.mark.verify] for k in range(len(found)))
    return [pytest.param(*case[1:], id=case[0], marks=m) for case, m in zip(found, marks, strict=True)]


@pytest.mark.parametrize(("schedule", "edit", "kind"), cases(SOURCE, 5))
def test_one_call_less_is_found(schedule: str, edit: Edit, kind: str) -> None:
    assert any(kind in f for f in verdict(made(schedule), edit).findings)


@pytest.mark.parametrize(("schedule", "edit", "kind"), cases(RING_CODE, 5))
def test_one_step_of_the_ring_less_is_found(
    schedule: str, edit: Edit, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = import_module(RING_MODULE).__file__
    assert path is not None
    (tmp_path / "edited_ring.py").write_text(edit(Path(path).read_text()))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "edited_ring", raising=False)
    lowered, sizes = made(schedule)
    edited = replace(lowered, source=lowered.source.replace(RING_MODULE, "edited_ring"))
    assert any(kind in f for f in verdict((edited, sizes)).findings)
