"""Lowered programs are compiled for GPUs without one, as Triton would specialise them; nothing of it runs."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backend.small_programs import small
from tests.parameters import first_of
from tilelink.backend.facts import Facts
from tilelink.backend.lower import Lowered, lower
from tilelink.backend.targets import TARGETS
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import Compiled, CompileError, compiled, each_compiled
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul import matmul


def test_a_kernel_and_its_figures() -> None:
    (kernel,) = compiled(*small(), sass=True)
    assert "wgmma.mma_async" in kernel.code and "HGMMA" in kernel.sass
    assert "ttng.warp_group_dot" in kernel.ttgir
    assert 32 < kernel.registers <= 255 and kernel.spill_bytes == 0
    assert kernel.shared_bytes >= 2 * 64 * 64 * 2 * 3, "three stages of two blocks"


def test_programs_that_publish_are_two_kernels_in_the_order_of_their_launch() -> None:
    kernels = compiled(*small(program=all_gather_matmul, schedule="pull"))
    assert [k.name for k in kernels] == ["all_gather_matmul_publish", "all_gather_matmul"]


@pytest.mark.parametrize("sizes", [{}, {"N": 50, "K": 70}])
def test_sizes_are_specialised_as_triton_does_it(sizes: dict[str, Any]) -> None:
    """Strides of 1 are constants, multiples of 16 are known to be; a slot may change without another compilation."""
    (kernel,) = compiled(*small(program=all_gather_matmul, schedule="push", **sizes))
    head = next(line for line in kernel.ttgir.splitlines() if "tt.func" in line)
    assert "%out_stride_N" not in head
    assert ("%N: i32 {tt.divisibility = 16" in head) == (not sizes)
    assert re.search(r"%slot: i32 loc|%slot: i32\b(?! \{)", head)


def test_a_compiler_that_ends_its_process_once_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def ends_once(lowered: Lowered, sizes: Sizes, sass: bool) -> tuple[str, ...]:
        if not begun.exists():
            begun.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (lowered.program.name,)

    monkeypatch.setattr("tilelink.inspect.compile._compiled_here", ends_once)
    assert compiled(*small()) == ("matmul",)


def test_what_triton_refuses_is_an_error_with_all_its_causes() -> None:
    lowered, sizes = small()
    wrong = replace(lowered, source=lowered.source.replace("tl.dot(", "tl.no_dot("))
    with pytest.raises(CompileError, match="no_dot"):
        compiled(wrong, sizes)


def test_results_come_in_the_order_of_the_programs() -> None:
    jobs = [small("sm_90"), small("sm_100", all_gather_matmul, "push"), small("sm_90", N=128)]
    jobs[1] = (replace(jobs[1][0], source="import nothing_at_all"), jobs[1][1])
    first, second, third = each_compiled(jobs, lambda _, kernels: kernels, processes=2)
    assert isinstance(second, CompileError)
    assert isinstance(first, tuple) and isinstance(third, tuple) and isinstance(first[0], Compiled)


@pytest.mark.parametrize("dtype", first_of(["float8_e4m3fn", "float8_e5m2"]))
def test_floats_of_8_bits_whose_sizes_leave_a_rest(dtype: str) -> None:
    """Triton makes none of the integer that stands for what is masked."""
    sizes = {"M": 100, "N": 96, "K": 80}
    schedule = matmul.fit("gemm", world=1, **sizes)
    bound = matmul.bind(schedule.changed(multiply={"tile": (64, 64, 64), "warps": 4}), dtype, matmul.optional)
    exact = Sizes.of(bound, 1, sizes)
    lowered = lower(bound, Facts.of(bound, exact, lying=frozenset()), TARGETS["sm_90"])
    assert "other=0.0" in lowered.source
    (kernel,) = compiled(lowered, exact)
    assert "wgmma.mma_async" in kernel.code
