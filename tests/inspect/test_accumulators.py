"""The gate for sums in tensor memory: each is read behind the barrier of the last matrix instruction into it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import triton

from tests.backend.small_programs import verdict
from tests.programs.alone import gemm, two_dots
from tilelink.backend.targets import TARGETS
from tilelink.inspect.accumulators import read_too_early
from tilelink.inspect.ttgir import Kernel

pytestmark = pytest.mark.usefixtures("own_cache")
ONE_AFTER_THE_OTHER = """\
tt.func public @kernel(%a: i32, %b: i32, %some: i1) attributes {noinline = false} {
  %sum = ttng.tmem_alloc : () -> !ttg.memdesc<128x64xf32>
  %half = ttng.tmem_subslice %sum {N = 0 : i32} : !ttg.memdesc<128x64xf32> -> !ttg.memdesc<128x32xf32>
  %first = ttg.memdesc_index %barriers[%c0] : !ttg.memdesc<2x1xi64> -> !ttg.memdesc<1xi64>
  %second = ttg.memdesc_index %barriers[%c1] : !ttg.memdesc<2x1xi64> -> !ttg.memdesc<1xi64>
  ttng.tc_gen5_mma %a, %b, %sum, %false, %true, %first[%true] {is_async} : !ttg.memdesc<128x64xf32>
  ttng.tc_gen5_mma %a, %b, %sum, %true, %true, %second[%true] {is_async} : !ttg.memdesc<128x64xf32>
  scf.if %some {
    ttng.wait_barrier %second, %c0 deps %a, %b : !ttg.memdesc<1xi64>
  }
  %read = ttng.tmem_load %half : !ttg.memdesc<128x32xf32> -> tensor<128x32xf32>
  tt.return
}
"""
IN_A_LOOP = """\
tt.func public @kernel(%a: i32, %b: i32, %some: i1) attributes {noinline = false} {
  %sum = ttng.tmem_alloc : () -> !ttg.memdesc<128x64xf32>
  %first = ttg.memdesc_index %barriers[%c0] : !ttg.memdesc<2x1xi64> -> !ttg.memdesc<1xi64>
  ttng.tc_gen5_mma %a, %b, %sum, %false, %true, %first[%true] {is_async} : !ttg.memdesc<128x64xf32>
  %out:2 = scf.for %k = %c0 to %c8 step %c1 iter_args(%before = %first, %phase = %c0) -> (i64, i32) : i32 {
    ttng.wait_barrier %before, %phase, %true deps %a, %b : !ttg.memdesc<1xi64>
    %scaled = ttng.tmem_load %sum : !ttg.memdesc<128x64xf32> -> tensor<128x64xf32>
    %next = ttg.memdesc_index %barriers[%k] : !ttg.memdesc<2x1xi64> -> !ttg.memdesc<1xi64>
    ttng.tc_gen5_mma %a, %b, %sum, %true, %true, %next[%true] {is_async} : !ttg.memdesc<128x64xf32>
    scf.yield %next, %phase : i64, i32
  } {tt.num_stages = 3 : i32}
  ttng.wait_barrier %out#0, %out#1 deps %a, %b : !ttg.memdesc<1xi64>
  %read = ttng.tmem_load %sum : !ttg.memdesc<128x64xf32> -> tensor<128x64xf32>
  tt.return
}
"""
"""As Triton hands on the barrier of one step to the next and to what comes after the loop."""


def early(ttgir: str) -> list[str]:
    return [o.results[0].split("@")[0] for o in read_too_early(Kernel(ttgir))]


@pytest.mark.parametrize("ttgir", [ONE_AFTER_THE_OTHER, IN_A_LOOP])
def test_reads_behind_the_barrier_are_right(ttgir: str) -> None:
    assert not early(ttgir)


@pytest.mark.parametrize(
    ("ttgir", "old", "new", "found"),
    [
        (ONE_AFTER_THE_OTHER, "wait_barrier %second", "wait_barrier %first", ["%read"]),
        (ONE_AFTER_THE_OTHER, ", %second[%true] {is_async}", "", ["%read"]),
        (IN_A_LOOP, "wait_barrier %before", "wait_barrier %other", ["%scaled"]),
        (IN_A_LOOP, "scf.yield %next", "scf.yield %before", ["%scaled", "%read"]),
        (IN_A_LOOP, "wait_barrier %out#0", "wait_barrier %first", ["%read"]),
        (IN_A_LOOP, "wait_barrier %out#0", "wait_barrier %out#1", ["%read"]),
    ],
)
def test_reads_that_come_too_early_are_found(ttgir: str, old: str, new: str, found: list[str]) -> None:
    assert old in ttgir
    assert early(ttgir.replace(old, new)) == found


@pytest.mark.parametrize("one_dot_a_sum", [False, pytest.param(True, marks=pytest.mark.verify)])
def test_what_triton_compiles_wrongly(one_dot_a_sum: bool) -> None:
    """triton-lang/triton 10821, where nothing is done about it: two dots into one sum in a pipelined loop."""
    if not one_dot_a_sum and triton.__version__ >= "3.9":
        pytest.skip("mended in Triton 3.9")
    schedule, sizes = gemm.changed(twice={"tile": (128, 64, 64)}), {"M": 256, "N": 256, "K": 512}
    target = replace(TARGETS["sm_100"], one_dot_a_sum=one_dot_a_sum)
    findings = verdict(two_dots.lowered_at(schedule, target=target, world=1, sizes=sizes, dtypes="bfloat16")).findings
    wrong = [f for f in findings if f.endswith("a sum is read before the last matrix instruction into it is done")]
    assert not findings if one_dot_a_sum else wrong
