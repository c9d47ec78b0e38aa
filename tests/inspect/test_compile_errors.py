"""What Triton does not compile is an error at the user's line, with what Triton said and without its dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backend.small_programs import small
from tests.frontend.wrong import alone, changed, load, marked_line
from tilelink.backend.lower import lower
from tilelink.backend.targets import TARGETS
from tilelink.inspect.compile import CompileError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.programs.compiling import compiled

FUNCTIONS = """
@triton.jit
def half(a):
    return (a / 2).to(tl.float16)


@triton.jit
def missing(a):
    return tl.no_such_function(a)


@triton.jit
def inverted(a):
    return a.to(tl.float8e4nv) + a.to(tl.float8e4nv){mark}


@tk.tile
def role"""
WRONG = {
    "Loop-carried variable b": "for k in range(3):  # <-\n    b = half(b)",
    "no attribute 'no_such_function'": "b = b * 2\nb = missing(b)  # <-\nb = b * 2",
    "fadd": "b = b * 2\nb = inverted(b).to(tl.float32)\nb = b * 2",
}


@pytest.mark.parametrize("said", WRONG)
def test_the_users_line(said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error of MLIR stands at the line of a user's function, which MLIR names."""
    own = FUNCTIONS.format(mark="" if "# <-" in WRONG[said] else "  # <-")
    body = f"b = x[t.M, :].load()\n{WRONG[said]}\nout[t].store(b)"
    tile = {"\n@tk.tile\ndef role": own, "tile=(16, 16)": 'tile=(16, 32), whole={"K": 32}'}
    source = changed(alone(body), tile).replace("x, weight, out", "x, out").replace('weight: tk.Local("K", "N"), ', "")
    module = load(tmp_path, source)
    with pytest.raises(CompileError) as caught:
        module.program.show("ptx", module.schedule, world=2, dtypes="float32", M=32, K=32, N=32)
    place, *lines = str(caught.value).splitlines()
    assert place.startswith(f"{tmp_path / 'user.py'}:{marked_line(source)}: program for sm_90: Triton does not compile")
    assert said in place
    line = next(line for line in source.splitlines() if line.endswith("  # <-"))
    assert [line.removesuffix("  # <-").strip() for line in lines] == [line.removesuffix("  # <-").strip()]
    assert capfd.readouterr().err == ""


def test_assembly_of_another_vendor_is_an_error_and_not_the_end() -> None:
    """LLVM ends the process, which is forked for it; also if torch has threads that the fork does not have."""
    with torch.profiler.profile():
        torch.ones(1).sum()
    lowered, sizes = small("gfx942", all_gather_matmul, "push")
    foreign = lower(lowered.program, lowered.facts, replace(lowered.target, module=TARGETS["sm_90"].module))
    with pytest.raises(CompileError, match=r"all_gather_matmul for gfx942: .* the compiler ended its process"):
        compiled(foreign, sizes)
