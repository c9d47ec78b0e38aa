"""Targets: what lowered kernels are made for.

A target names its module of primitives, the only code that depends on a vendor, and says what its chip has. Kernels
and lowering ask for what a target has, never for who makes it. `portable` runs everywhere, in the interpreter too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What a kernel is lowered for.

    `module`: dotted name of the primitives. `backend`, `arch`, `warp_size`: what Triton's `GPUTarget` takes; `backend`
    is "" where the interpreter runs the kernel. `shared_bytes`: shared memory that a worker may have, None where
    nothing limits it. `descriptors`: blocks are loaded through tensor descriptors, where their tensors allow it.
    `multicast`: the fabric stores to, and reduces over, all ranks of a node.
    """

    name: str
    module: str
    backend: str = ""
    arch: int | str = ""
    warp_size: int = 32
    shared_bytes: int | None = None
    descriptors: bool = False
    multicast: bool = False


PORTABLE = "tilelink.backend.targets.portable"

TARGETS = {
    t.name: t
    for t in (
        Target("cpu", PORTABLE),
        Target("sm_90", PORTABLE, "cuda", 90, shared_bytes=232_448),
        Target("sm_100", PORTABLE, "cuda", 100, shared_bytes=232_448),
        Target("gfx942", PORTABLE, "hip", "gfx942", warp_size=64, shared_bytes=65_536),
    )
}
CPU = TARGETS["cpu"]
