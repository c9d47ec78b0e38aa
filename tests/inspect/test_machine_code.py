"""Machine code as instructions: kinds, lines of the source, loops, and the parts of a tile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.gates import lowered_for
from tests.backend.small_programs import small
from tests.parameters import first_of
from tilelink.inspect.compile import CompileError, compiled
from tilelink.inspect.dialects import KINDS
from tilelink.inspect.instructions import Code
from tilelink.inspect.machine_code import RoleCode, inspected, listing
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

SASS = """\
	.section	.text.k,"ax",@progbits
k:
.text.k:
	//## File "/cache/k_0.py", line 30
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_tile:
	//## File "/tilelink/cuda.py", line 9 inlined at "/cache/k_0.py", line 11
	//## File "/cache/k_0.py", line 11 inlined at "/cache/k_0.py", line 31
        /*0010*/                   MEMBAR.ALL.GPU ;
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_poll:
	//## File "/tilelink/cuda.py", line 8
        /*0030*/                   LDG.E.STRONG.SYS R2, desc[UR4][R2.64] ;
        /*0040*/               @P0 BRA `(.L_x_come) ;
        /*0050*/                   LDG.E.64 R4, desc[UR4][R2.64+0x8] ;
        /*0060*/              @!P1 BRA `(.L_x_poll) ;
        /*0070*/                   MEMBAR.ALL.SYS ;
        /*0080*/                   BRA `(.L_x_come) ;
.L_x_come:
	//## File "/cache/k_0.py", line 12
        /*0090*/                   UTMALDG.2D [UR8], [UR4] ;
.L_x_step:
	//## File "/cache/k_0.py", line 13
        /*00a0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
        /*00b0*/              @!P1 BRA `(.L_x_slow) ;
.L_x_came:
        /*00c0*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*00c8*/               @P5 BRA.U.ANY `(.L_x_came) ;
        /*00d0*/                   LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR4][R2.64] ;
        /*00e0*/                   LDGSTS.E [R3], desc[UR4][R2.64] ;
        /*00f0*/                   UIADD3 UR4, UR4, 0x1, URZ ;
        /*0100*/                   IADD3 R2, R2, 0x40, RZ ;
        /*0110*/                   FADD R8, R8, R9 ;
        /*0120*/              @!P0 BRA `(.L_x_step) ;
	//## File "/cache/k_0.py", line 14
        /*0130*/                   STG.E.128 desc[UR4][R2.64], R24 ;
        /*0140*/               @P2 BRA `(.L_x_told) ;
        /*0150*/                   MEMBAR.SC.SYS ;
        /*0160*/                   FENCE.VIEW.ASYNC.G ;
        /*0170*/                   REDG.E.ADD.S32.STRONG.SYS desc[UR4][R4.64], R7 ;
.L_x_told:
        /*0180*/              @!P3 BRA `(.L_x_tile) ;
.L_x_copy:
	//## File "/cache/k_0.py", line 21
        /*0190*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*01a0*/                   STG.E.64 desc[UR4][R6.64], R4 ;
        /*01b0*/               @P0 BRA `(.L_x_copy) ;
        /*01c0*/                   EXIT ;
.L_x_slow:
	//## File "/cache/k_0.py", line 13
        /*01d0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
        /*01e0*/              @!P1 BRA `(.L_x_slow) ;
        /*01f0*/                   BRA `(.L_x_came) ;
.L_x_end:
        /*0200*/                   BRA `(.L_x_end);
"""
DISPATCHED = """\
.L_x_dispatch:
	//## File "/cache/k_0.py", line 30
        /*0000*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*0010*/               @P0 BRA `(.L_x_send) ;
.L_x_tile:
	//## File "/cache/k_0.py", line 11
        /*0020*/               @P1 BRA `(.L_x_dispatch) ;
.L_x_step:
        /*0030*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0040*/              @!P0 BRA `(.L_x_step) ;
        /*0050*/               @P2 BRA `(.L_x_other) ;
        /*0060*/                   STG.E.128 desc[UR4][R2.64], R24 ;
        /*0070*/                   STG.E.128 desc[UR4][R2.64], R24 ;
        /*0080*/                   BRA `(.L_x_done) ;
.L_x_other:
        /*0090*/                   STG.E.64 desc[UR4][R2.64], R24 ;
        /*00a0*/               @P3 BRA `(.L_x_done) ;
        /*00b0*/                   MEMBAR.SC.SYS ;
.L_x_done:
        /*00c0*/              @!P4 BRA `(.L_x_tile) ;
        /*00d0*/                   BRA `(.L_x_dispatch) ;
.L_x_send:
	//## File "/cache/k_0.py", line 21
        /*00e0*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*00f0*/               @P0 BRA `(.L_x_send) ;
        /*0100*/              @!P1 BRA `(.L_x_dispatch) ;
        /*0110*/                   EXIT ;
"""
"""Warps wait in a loop for their function. One function has a tile with a branch."""
GCN = """\
k:
.Lfunc_begin0:
	.loc	1 30 0 prologue_end             ; k_0.py:30:0
	s_load_dwordx2 s[2:3], s[0:1], 0x0
	s_branch .LBB0_2
.LBB0_1:                                ;   in Loop: Header=BB0_2 Depth=1
	.loc	1 14 3                          ; k_0.py:14:3 @[ k_0.py:31:5 ]
	global_store_dwordx4 v[0:1], v[2:5], off
	buffer_wbl2 sc0 sc1
	global_atomic_add_u32 v[0:1], v2, off sc1
	s_cbranch_scc0 .LBB0_4
.LBB0_2:                                ; =>This Loop Header: Depth=1
	.loc	2 60 19                         ; amd.py:60:19 @[ k_0.py:11:7 @[ k_0.py:31:5 ] ]
	buffer_inv sc1
	s_barrier
.LBB0_3:                                ;   Parent Loop BB0_2 Depth=1
	.loc	1 13 3 is_stmt 0                ; k_0.py:13:3 @[ k_0.py:31:5 ]
	buffer_load_dwordx4 v[74:77], v143, s[28:31], 0 offen
	buffer_load_dword v143, s[28:31], 0 offen lds
	ds_read2st64_b64 v[90:93], v90 offset1:32
	ds_write_b64 v90, v[2:3]
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x8_bf16 v[50:65], v[90:91], v[94:95], v[50:65]
	v_add_u32_e32 v140, 0x80, v140
	v_mul_f32_e32 v1, v2, v3
	s_cbranch_scc1 .LBB0_3
	s_branch .LBB0_1
.LBB0_4:
	s_endpgm
	.section	.rodata,"a",@progbits
amdhsa.version:
  - 1
    .name:           k
"""
FUNCTIONS = dict.fromkeys(range(10, 20), "multiply") | dict.fromkeys(range(20, 30), "send")


def read(text: str, backend: str) -> Code:
    return Code.read(text, backend, "k_0.py", FUNCTIONS)


def kinds(code: Code, where: Any) -> dict[str, int]:
    return {kind: n for kind, n in code.stretch(where).kinds.items() if n}


def test_sass_is_read_as_loops_of_the_functions_that_its_lines_stand_in() -> None:
    code = read(SASS, "cuda")
    assert len(code.instructions) == 34
    assert code.instructions[1].function == "multiply", "a line of primitives is where these are inlined"
    tile, step, poll, copy = code.loops
    assert [x.function for x in code.loops] == ["multiply", "multiply", "multiply", "send"]
    assert (tile.header, step.header, poll.header, copy.header) == (1, 10, 3, 26)
    assert step.body < tile.body and poll.body < tile.body and not copy.body & tile.body
    assert code.steady("multiply") == step and code.steady("send") == copy
    assert code.steady("nobody") is None


def test_the_parts_of_a_tile_in_sass() -> None:
    code = read(SASS, "cuda")
    tile, step, *_ = code.loops
    assert kinds(code, step.body) == {
        "matrix": 1, "async_copy": 2, "mbarrier": 1, "uniform": 1, "integer": 1, "floating_point": 1, "branch": 3,
    }, "without the slow path of the wait, which stands behind the end"  # fmt: skip
    assert code.stretch(step.body).widths["async_copy"] == {4: 1, 16: 1}
    once = code.once(tile, step)
    assert kinds(code, {k for k in once if k < step.header}) == {
        "fence": 1, "barrier": 1, "global_load": 1, "branch": 1, "tma_load": 1,
    }, "a poll is passed through once, and what it does when it is stuck is not"  # fmt: skip
    assert kinds(code, {k for k in once if k > max(step.body)}) == {
        "global_store": 1, "branch": 2, "system_fence": 1, "proxy_fence": 1, "atomic": 1,
    }, "what one thread does belongs to a tile"  # fmt: skip
    assert list(code.order(sorted(once)[-5:])) == ["1 system_fence", "1 proxy_fence", "1 atomic"]


def test_the_loop_in_which_warps_wait_for_their_function_is_no_tile() -> None:
    dispatch, tile, *_ = read(DISPATCHED, "cuda").loops
    assert dispatch.body > tile.body and (dispatch.function, tile.function) == ("", "multiply")


def test_a_tile_takes_the_dearest_way_at_a_branch() -> None:
    code = read(DISPATCHED, "cuda")
    _, tile, *_ = code.loops
    step = code.steady("multiply")
    assert step is not None and len(code.once(tile, step)) == 11
    dear = {"system_fence": 9.0, "global_store": 1.0}
    assert code.path(tile, step, lambda x: dear.get(x.kind, 0.1)) == [2, 3, 4, 5, 9, 10, 11, 12]
    assert code.path(tile, step, lambda x: 1.0 if x.kind == "global_store" else 0.1) == [2, 3, 4, 5, 6, 7, 8, 12]


def test_gcn_is_read_with_a_latch_above_its_header() -> None:
    code = read(GCN, "hip")
    tile, step = code.loops
    assert (tile.header, tile.function, step.function) == (6, "multiply", "multiply")
    assert code.steady("multiply") == step
    assert kinds(code, step.body) == {
        "matrix": 1, "async_copy": 1, "global_load": 1, "shared_load": 1, "shared_store": 1, "wait": 1, "integer": 1,
        "floating_point": 1, "branch": 1,
    }  # fmt: skip
    assert code.stretch(step.body).widths["global_load"] == {16: 1}
    assert kinds(code, tile.body - step.body) == {
        "fence": 1, "barrier": 1, "branch": 2, "global_store": 1, "system_fence": 1, "atomic": 1,
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_no_code_has_no_loops(backend: str) -> None:
    code = read("", backend)
    assert (code.instructions, code.loops, code.steady("multiply")) == ((), (), None)


def roles(target: str) -> dict[str, RoleCode]:
    lowered, sizes = lowered_for(all_gather_matmul, "push", target)
    (kernel,) = inspected(lowered, compiled(lowered, sizes))
    assert kernel.registers <= 512 and kernel.spill_bytes == 0 < kernel.shared_bytes < kernel.instructions * 1000
    return {role.name: role for role in kernel.roles}


def test_all_gather_matmul_on_sm_90() -> None:
    """79 instructions a step when this was written, both operands by TMA."""
    found = roles("sm_90")
    matmul, gather = found["matmul"], found["gather"]
    assert 70 <= matmul.step.total <= 86
    assert set(matmul.step.kinds) == set(KINDS) and sum(matmul.step.kinds.values()) == matmul.step.total
    step = [matmul.step.kinds[k] for k in ("matrix", "tma_load", "async_copy", "global_load", "system_fence", "local")]
    assert step == [4, 2, 0, 0, 0, 0]
    assert matmul.stages == 3 and matmul.after.widths["global_store"] == {16: 16}
    assert matmul.slow > 50 and not matmul.before.kinds["system_fence"], "fences of a wait that failed are no fences"
    assert 0.7 < matmul.exposed_us < 5
    assert gather.stages == 6 and [gather.step.kinds[k] for k in ("tma_load", "tma_store", "system_fence")] == [1, 1, 0]
    assert gather.step.kinds["global_load"] == gather.step.kinds["global_store"] == 0
    told = gather.order[gather.order.index(")") :]
    assert told.index("1 system_fence") < told.index("1 atomic")


@pytest.mark.parametrize("program", first_of([matmul_reduce_scatter, matmul_all_reduce]), ids=lambda p: p.name)
def test_the_fence_of_a_late_signal_stands_behind_the_next_main_loop_on_sm_90(program: Program) -> None:
    """Before the tile's own stores, which it does not wait for."""
    lowered, sizes = lowered_for(program, "fused", "sm_90")
    (kernel,) = inspected(lowered, compiled(lowered, sizes))
    order = next(role for role in kernel.roles if role.name == "matmul").order
    behind = [what.split()[-1] for what in order[order.index(")") :]]
    assert behind.index("system_fence") < behind.index("atomic") < behind.index("global_store")
    assert kernel.spill_bytes == 0


def test_a_tile_of_own_warps_takes_one_way_and_has_no_code_of_other_roles() -> None:
    """Of an AllGather-GEMM that keeps the gathered rows, tiles of the first columns keep them behind the product. The
    epilogue of a GEMM-ReduceScatter has one way: it stores a tile to the rank's own inbox, or for other ranks, by the
    same instructions."""

    def roles_of(program: Program, schedule: str, *asked: str) -> dict[str, RoleCode]:
        lowered, sizes = lowered_for(program, schedule, "sm_90+warps", frozenset(asked))
        (kernel,) = inspected(lowered, compiled(lowered, sizes))
        return {role.name: role for role in kernel.roles}

    keeping = roles_of(all_gather_matmul, "push", "gathered")["matmul_multiply"]
    assert keeping.after.widths["global_store"] == {16: 16} and keeping.cheaper > 80
    found = roles_of(matmul_reduce_scatter, "pull")
    multiply, load, tell = (found[f"matmul_{what}"] for what in ("multiply", "load", "tell"))
    assert multiply.after.widths["global_store"] == {16: 16} and multiply.cheaper == 0
    assert load.order == ("loop(", "2 tma_load", ")") and load.slow == 0
    assert tell.order == ("loop(", "2 global_load", "1 system_fence", "1 atomic", ")") and tell.slow == 0
    assert tell.exposed_us < 1.6


@pytest.mark.verify
def test_matmul_reduce_scatter_on_sm_100() -> None:
    """Lanes take turns at a matrix instruction there, which is no loop."""
    lowered, sizes = lowered_for(matmul_reduce_scatter, "fused", "sm_100")
    (kernel,) = inspected(lowered, compiled(lowered, sizes))
    step = kernel.roles[0].step.kinds
    assert (step["matrix"], step["tma_load"], step["async_copy"]) == (4, 2, 0)


@pytest.mark.verify
def test_all_gather_matmul_on_gfx942() -> None:
    found = roles("gfx942")
    assert found["matmul"].step.kinds["matrix"] == 32 and found["matmul"].step.widths["global_load"] == {16: 6}
    told = found["gather"].order[found["gather"].order.index(")") + 1 :]
    assert [what.split()[-1] for what in told[-4:]] == ["system_fence", "barrier", "system_fence", "atomic"]


def test_what_nvdisasm_does_not_read_is_an_error(tmp_path: Path) -> None:
    (kernel,) = compiled(*small())
    with pytest.raises(CompileError, match="matmul: nvdisasm ended with"):
        listing(type(kernel)(**{**vars(kernel), "cubin": b"nothing"}))
