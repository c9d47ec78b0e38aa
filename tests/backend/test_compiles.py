"""What the lowering makes is Triton for GPUs too, not only for the interpreter. Compiled only: nothing runs."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilelink.backend.cache import load
from tilelink.backend.facts import Facts
from tilelink.backend.lower import Lowered, Parameter, lower
from tilelink.backend.targets import TARGETS, Target
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul

POINTERS = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}


def compiled(lowered: Lowered, name: str, parameters: tuple[Parameter, ...], target: Target) -> Any:
    """The kernel as Triton compiles it for row-major tensors of even sizes."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], int] = {}
    for k, p in enumerate(parameters):
        if p.kind == "tensor":
            signature[p.name] = POINTERS[lowered.program.tensor(p.of).dtype]
        elif p.name == "world" or (p.kind == "stride" and p.dim == lowered.program.tensor(p.of).dims[-1]):
            signature[p.name] = "constexpr"
            constants[(k,)] = 4 if p.name == "world" else 1
        elif p.name == "heaps" or p.kind == "table":
            signature[p.name] = "*i64"
        else:
            signature[p.name] = "i64" if p.kind in ("at", "signals") else "i32"
    kernel = getattr(load(lowered), name)
    on = GPUTarget(target.backend, target.arch, target.warp_size)
    return triton.compile(ASTSource(kernel, signature, constants), target=on, options={"num_warps": 8})


@pytest.mark.parametrize("schedule", ["push", "pull"])
@pytest.mark.parametrize("sizes", [{"M": 512, "N": 512, "K": 512}, {"M": [5, 0, 30, 1], "N": 50, "K": 70}])
def test_lowered_source_compiles_for_hopper(schedule: str, sizes: dict[str, Any]) -> None:
    target = TARGETS["sm_90"]
    program = all_gather_matmul.bind(all_gather_matmul.fit(schedule, **sizes), "bf16")
    lowered = lower(program, Facts.of(program, Sizes.of(program, 4, sizes)), target)
    main = compiled(lowered, lowered.main, lowered.main_parameters, target)
    assert "mma" in main.asm["ptx"]
    assert target.shared_bytes and main.metadata.shared <= target.shared_bytes
    if lowered.publish:
        compiled(lowered, lowered.publish, lowered.publish_parameters, target)
