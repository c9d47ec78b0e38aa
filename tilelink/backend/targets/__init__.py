"""Targets: the kinds of chips that kernels are lowered for.

A target names its module of primitives, the only code that depends on a vendor, and says what its chip has. Kernels and
lowering ask what a target has, never which vendor makes it. `portable` runs everywhere, also in the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.errors import TargetError
from tilelink.frontend.kept import hashed_once


@hashed_once
@dataclass(frozen=True)
class Target:
    """A kind of chip that kernels are lowered for.

    `module`: dotted name of the primitives. `backend`, `arch`, `warp_size`: the arguments of Triton's `GPUTarget`;
    `backend` is "" if the interpreter runs the kernel. `shared_bytes`: the most shared memory of a worker, None without
    a limit; `stages_in_registers`: stages of a pipelined loop that take none of it. `registers`: registers of an SM, if
    kernels say how many a thread may have; else None. `matrix_dtypes`: dtypes that matrix instructions multiply
    exactly. `one_dot_a_sum`: in a pipelined loop, Triton's compiler handles only one dot into a sum (triton-lang/triton
    10821). `sum_columns`: columns of tensor memory for sums of matrix instructions; 0 if sums are in registers.
    `descriptors`: blocks are loaded through tensor descriptors if their tensors allow it. `multicast`: the fabric
    stores to, and adds up over, all ranks of a node. `network`: some ranks are on other nodes, and puts reach them. A
    network's additions to a word are not atomic with a GPU's. There a signal is therefore two words of 64 bits, one for
    each, and a wait adds them up. `signal_bytes`: bytes from one signal to the next. `specialised`: a role that
    multiplies has separate warps for loading and notifying. `wide_polls`: each thread of a warp polls a signal, so a
    tile waits for all its signals at once. `tick_ns`: nanoseconds of a step of the chip's clock; None if time is
    logical. `clock_ghz`: assumed clock of the chip under load.
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
        """The name of the chip's target, without the network or the form."""
        return self.name.partition("+")[0]

    @property
    def waits_for_all(self) -> bool:
        """Whether a main loop waits for all pieces that have come at once. A network's signals have two words; separate
        warps wait for one piece after the other."""
        return self.wide_polls and not self.network and not self.specialised

    @property
    def signal_dtype(self) -> str:
        """The dtype of the words of a signal."""
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
"""For each backend of Triton: the name of the network, and the module of primitives with a network."""
SPECIALISED = dict.fromkeys(["sm_90", "sm_100"], "tilelink.backend.gluon.primitives")
"""The targets that have a specialised form, each with its module of primitives."""
SECTOR = 32
"""Bytes that the cache of a GPU reads at once. Each signal has its own sector, so polls of one signal do not disturb
notifications of others."""
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
"""Targets by name. The last ones are chips that resemble one of those before them."""
FORMS = TARGETS | {t.name: t for t in (TARGETS[name].with_own_warps() for name in SPECIALISED)}
"""All targets, the targets of the specialised form included."""
CPU = TARGETS["cpu"]
