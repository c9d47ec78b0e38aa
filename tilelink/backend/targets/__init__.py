"""Targets: what lowered kernels are made for.

A target names its module of primitives, the only code that depends on a vendor, and says what its chip has. Kernels
and lowering ask for what a target has, never for who makes it. `portable` runs everywhere, in the interpreter too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.errors import TargetError
from tilelink.frontend.kept import hashed_once


@hashed_once
@dataclass(frozen=True)
class Target:
    """What a kernel is lowered for.

    `module`: dotted name of the primitives. `backend`, `arch`, `warp_size`: what Triton's `GPUTarget` takes; `backend`
    is "" where the interpreter runs the kernel. `shared_bytes`: shared memory that a worker may have, None where
    nothing limits it; `stages_in_registers`: so many stages of a pipelined loop take none. `registers`: of an SM, where
    kernels have to say how many a thread may have. `matrix_dtypes`: those that matrix instructions multiply exactly.
    `one_dot_a_sum`: in a pipelined loop, Triton's compiler handles one dot into a sum only (triton-lang/triton 10821).
    `sum_columns`: columns of tensor memory, in which matrix instructions keep sums; 0 where registers do.
    `descriptors`: blocks are loaded through tensor descriptors, where their tensors allow it. `multicast`: the fabric
    stores to, and reduces over, all ranks of a node. `network`: some ranks are on other nodes, and reached by puts. A
    network's additions to a word are not atomic with a GPU's, so each has its own: there, a signal is two words of 64
    bits, which a wait adds up. `signal_bytes`: from one signal to the next. `specialised`: a role that multiplies has
    warps of its own for loading and notifying.
    `wide_polls`: threads of a warp poll a signal each, so that a tile waits for all its signals at once.
    `tick_ns`: nanoseconds of a step of the chip's clock; None where time is logical. `clock_ghz`: assumed, that which
    the chip holds at work.
    """

    name: str
    module: str
    backend: str = ""
    arch: int | str = ""
    warp_size: int = 32
    shared_bytes: int | None = None
    stages_in_registers: int = 0
    registers: int | None = None
    matrix_dtypes: frozenset[str] = frozenset()
    one_dot_a_sum: bool = False
    sum_columns: int = 0
    descriptors: bool = False
    multicast: bool = False
    network: bool = False
    signal_bytes: int = 4
    specialised: bool = False
    wide_polls: bool = False
    tick_ns: float | None = None
    clock_ghz: float = 1.0

    @property
    def chip(self) -> str:
        """The name of the target that it is made of, for the same chip."""
        return self.name.partition("+")[0]

    @property
    def waits_for_all(self) -> bool:
        """Whether a wait takes a block of signals. A network's are two words each, and own warps take one at a time."""
        return self.wide_polls and not self.network and not self.specialised

    @property
    def signal_dtype(self) -> str:
        """Of the words of a signal."""
        return "int64" if self.network else "int32"

    @property
    def signal_words(self) -> int:
        """Words from one signal to the next."""
        return self.signal_bytes // (8 if self.network else 4)

    def across_nodes(self) -> Target:
        """The target of programs whose world spans nodes, on the same chips. Raises TargetError."""
        if self.network:
            return self
        if self.backend not in NETWORKS or self.specialised:
            with_network = ", ".join(t.name for t in TARGETS.values() if t.backend in NETWORKS)
            raise TargetError(f"{self.name} has no network to other nodes here; these have: {with_network}")
        name, module = NETWORKS[self.backend]
        apart = max(self.signal_bytes, 16)
        return replace(self, name=f"{self.name}+{name}", module=module, network=True, signal_bytes=apart)

    def with_own_warps(self) -> Target:
        """The target of the specialised form, on the same chip. Raises TargetError."""
        if self.network or self.name not in SPECIALISED:
            raise TargetError(f"{self.name} has no specialised form; {', '.join(SPECIALISED)} have one")
        return replace(self, name=f"{self.name}+warps", module=SPECIALISED[self.name], specialised=True)

    @property
    def unspecialised(self) -> Target:
        """The target of the portable form, on the same chip."""
        if not self.specialised:
            return self
        return replace(self, name=self.chip, module=TARGETS[self.chip].module, specialised=False)


PORTABLE, CUDA, AMD = (f"tilelink.backend.targets.{name}" for name in ("portable", "cuda", "amd"))
NETWORKS = {
    "": ("network", f"{PORTABLE}_network"),
    "cuda": ("nvshmem", "tilelink.backend.targets.nvshmem"),
}
"""By Triton's backend: what the network is called, and the module of primitives that has it too."""
SPECIALISED = dict.fromkeys(["sm_90", "sm_100"], "tilelink.backend.gluon.primitives")
"""The targets that have a specialised form, with its module of primitives."""
SECTOR = 32
"""Bytes that the cache of a GPU reads at once. Signals lie in sectors of their own: who polls one is not in the way of
those that give others."""
AMPERE = frozenset(["bfloat16", "float16", "int8", "uint8"])
NARROW = AMPERE | {"float8_e4m3fn", "float8_e5m2"}

_ampere = Target(
    "sm_80", CUDA, "cuda", 80, shared_bytes=166_912, registers=65_536, matrix_dtypes=AMPERE,
    stages_in_registers=1, signal_bytes=SECTOR, wide_polls=True, tick_ns=1, clock_ghz=1.41,
)  # fmt: skip
_hopper = replace(
    _ampere, name="sm_90", arch=90, shared_bytes=232_448, matrix_dtypes=NARROW, stages_in_registers=0,
    descriptors=True, multicast=True, clock_ghz=1.755,
)  # fmt: skip
_cdna3 = Target(
    "gfx942", AMD, "hip", "gfx942", warp_size=64, shared_bytes=65_536, stages_in_registers=1,
    matrix_dtypes=NARROW | {"float32", "float64"}, signal_bytes=SECTOR, tick_ns=10, clock_ghz=2.1,
)  # fmt: skip
_blackwell = replace(_hopper, name="sm_100", arch=100, one_dot_a_sum=True, sum_columns=512, clock_ghz=1.85)
_geforce = replace(
    _hopper, name="sm_120", arch=120, shared_bytes=101_376, stages_in_registers=1, multicast=False, clock_ghz=2.4,
)  # fmt: skip
_siblings = (_ampere, replace(_blackwell, name="sm_103", arch=103), _geforce)
TARGETS = {t.name: t for t in (Target("cpu", PORTABLE), _hopper, _blackwell, _cdna3, *_siblings)}
"""By name; the last are chips that are like one of those before them."""
FORMS = TARGETS | {t.name: t for t in (TARGETS[name].with_own_warps() for name in SPECIALISED)}
"""Targets, and those of the specialised form."""
CPU = TARGETS["cpu"]
