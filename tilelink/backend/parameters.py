"""The parameters of a program's kernels, and the names of its module. All names differ, whatever names the program
uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tilelink.backend import bulk
from tilelink.backend.facts import Facts
from tilelink.backend.kernel import Scope, Source, kernel_name
from tilelink.backend.pipelining import DescribedBlock
from tilelink.errors import LoweringError
from tilelink.frontend import expressions
from tilelink.frontend.expressions import PER_NODE, parts_of, running, shown, symbol
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.routes import counts_of
from tilelink.frontend.running import tables
from tilelink.frontend.walk import longest_part

PRIMITIVES = ("peer", "wait", "notify", "enter", "entered", "credit", "last_out", "drain", "leave", "RUN", "SLOT_LEFT")
MULTICAST_PRIMITIVES = ("multicast_store", "multicast_notify", "multicast_sum")
WAIT_ALL, WAIT_SOME = "wait_all", "wait_some"
NETWORK_PRIMITIVES = ("is_far", "put_far", "put_notify_far", "notify_far", "fetch_far", "complete_far")
OF_NODE = "alive", "settle", "POISON"
ALL_PRIMITIVES = (
    *PRIMITIVES, *MULTICAST_PRIMITIVES, *NETWORK_PRIMITIVES, WAIT_ALL, WAIT_SOME, "clock", *OF_NODE,
)  # fmt: skip
SEGMENT_OF, REFUSE, PICKED, ONE_OF = "segment_of", "refuse", "picked", "one_of"
SHARED = ("stamp", "TILE_ENDS", "WAIT_BEGINS", "WAIT_ENDS", SEGMENT_OF, REFUSE, PICKED, ONE_OF)
"""Names that modules import: from the target's module, and from the module that all targets share."""
OWN_WARPS = ("store", "as_stored", "laid", "loose", "reuse", "uniform", SEGMENT_OF, PICKED)
RING = (
    "ring", "barriers", "end", "place", "next_place", "fetch", "until_ready", "hand_over", "take_over", "give_back",
    "tile_out", "until_told", "lay_out", "send", "fence_async_shared",
)  # fmt: skip
IN_REGISTERS = "claim", "sums", "multiply", "give_back_stage", "multiplied"
IN_TENSOR_MEMORY = (
    "claim", "accumulators", "emptied", "multiply", "complete", "until_full", "of_tile", "or_zeros", "finished",
)  # fmt: skip
"""Names that modules of the specialised form import in addition: from the target's module, from `gluon/ring.py`, and
from `gluon/wgmma.py` or `gluon/tcgen05.py`."""
STAMPS, TIMES = "stamps", "recorded times"
"""The parameter with the memory where workers record times (int64, workers x records x 2: what and when), and the key
of that memory. No tensor has this key, because it contains a space."""

OF_RUN = ("heaps", "multicast", "rank", "slot", "world")
WORKING = ("worker", "workers", "control", "run", "before")
HEAPS, MULTICAST, RANK, SLOT, WORLD = OF_RUN
WORKER, WORKERS, CONTROL, RUN, BEFORE = WORKING
COUNTED = "counted"
"""Names that mean the same in all kernels."""
OF_TRITON = (
    "self", "grid", "warmup", "stream", "device", "device_type", "num_warps", "num_ctas", "num_stages", "warp_size",
    "waves_per_eu", "maxnreg", "ptx_version", "ptx_options", "ir_override", "enable_fp_fusion", "enable_reflect_ftz",
    "launch_cooperative_grid", "launch_pdl", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes",
    "default_dot_input_precision", "allowed_dot_input_precisions", "max_num_imprecise_acc_default", "extern_libs",
    "debug", "backend_name", "sanitize_overflow", "arch", "instrumentation_mode", "allow_flush_denorm",
    "matrix_instr_nonkdim", "kpack", "schedule_hint", "llvm_fn_attrs", "wgp_cu_mode", "clc", "sched4reg",
    "min_shared_mem", "fpsan_homomorphic_casts",
)  # fmt: skip
"""Keywords of Triton's launch and options of its compilers, in all supported versions. A parameter of a kernel can't
have such a name, because Triton would take the argument for the option."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. `kind`: "tensor", "stride", "size", "table" (the beginnings of parts), "running" (a
    running table), "at", "signals" or "stage" (bytes into the heap), "blocks" (a descriptor), "workers", "stamps" and
    "records" (where workers record times, words for each worker), or "run" (heaps, multicast, rank, slot, world). `of`:
    the tensor, the role, or the key of the size or table. A descriptor is of the rank's own tensor, or of the tensor of
    `peer`, and moves blocks of shape `block`. Elements are contiguous along `dim`, the last dimension of a block."""

    name: str
    kind: str
    of: str = ""
    dim: str = ""
    block: tuple[int, ...] = ()
    peer: int | None = None


class Names:
    """Makes the names of a program's module. `imported`: the names that the module may import."""

    def __init__(self, program: TileProgram, facts: Facts, imported: Iterable[str]) -> None:
        self.program, self.facts = program, facts
        self.module = Scope(taken=[*imported, *OF_RUN, *WORKING, STAMPS, COUNTED, *OF_TRITON])
        for suffix in ("", "_tables", "_publish", "_enter", "_leave"):
            self.kernel(suffix)
        for function, _ in program.functions:
            self.function(function)
        for role in program.in_kernel:
            self.role(role.name)
        self.module.names |= {expressions.RANK.name: RANK, expressions.WORLD.name: WORLD}
        self.parameters = tuple(self._made())

    def kernel(self, suffix: str) -> str:
        """The name of the main kernel, or of another one, which has a suffix."""
        like = self.kernel("") + suffix if suffix else kernel_name(self.program.name)
        return self.module.name(("kernel", suffix), like)

    def role(self, role: str) -> str:
        """The name of the function of a role."""
        return self.module.name(("role", role), role)

    def function(self, of_user: str) -> str:
        """The name of a Triton function of the user."""
        return self.module.name(("function", of_user), of_user)

    @property
    def functions(self) -> tuple[tuple[str, Any], ...]:
        """The user's Triton functions, with their names in the module."""
        return tuple((self.function(n), f) for n, f in self.program.functions)

    def of(
        self, kind: str, of: str = "", dim: str = "", block: tuple[int, ...] = (), peer: int | None = None
    ) -> Source:
        """The name of a parameter. Raises LoweringError if the program has no such parameter."""
        made = self.module.known((kind, of, dim, block, peer))
        if made is None:
            raise LoweringError(f"{self.program.name} has no parameter {kind} of {of} {dim}")
        return made

    def blocks(self, block: DescribedBlock, *, of_peers: bool) -> tuple[Source, ...]:
        """The descriptor of a block, or the descriptors of all ranks, in the order of the ranks."""
        known = "blocks", block.tensor, block.contiguous, block.shape
        return tuple(self.of(*known, peer) for peer in range(self.facts.peers)) if of_peers else (self.of(*known),)

    def _made(self) -> Iterator[Parameter]:
        """Every parameter that a kernel of this program may need, in the order in which kernels take them."""
        program, facts = self.program, self.facts

        def made(
            like: str, kind: str, of: str = "", dim: str = "", block: tuple[int, ...] = (), peer: int | None = None
        ) -> Parameter:
            meaning = of if kind in ("size", "table", "running") else (kind, of, dim, block, peer)
            return Parameter(self.module.name(meaning, like), kind, of, dim, block, peer)

        for t in program.tensors:
            if t.kind in ("buffer", "token"):
                continue
            yield made(t.name, "tensor", t.name)
            yield from (made(f"{t.name}_stride_{shown(d)}", "stride", t.name, d) for d in t.dims)
        for b, of_peers in bulk.descriptors(program, facts):
            like = f"{b.tensor}_blocks_{b.matrix[0]}_by_{b.matrix[1]}"
            if not of_peers:
                yield made(like, "blocks", b.tensor, b.contiguous, b.shape)
            for peer in range(facts.peers if of_peers else 0):
                yield made(f"{like}_of_{peer}", "blocks", b.tensor, b.contiguous, b.shape, peer)
        yield from (Parameter(n, "run") for n in OF_RUN[:-1])
        for d in program.dims:
            yield made(d, "size", symbol(d).name)
        yield made("per_node", "size", PER_NODE.name)
        for d in program.cut:
            yield made(f"{d}_part", "size", longest_part(d).name)
            if d not in facts.equal:
                yield made(f"{d}_parts", "table", parts_of(d))
        for route in program.routes:
            key = running(counts_of(route))
            yield made(shown(key), "running", key)
        yield from (made(shown(table.key), "running", table.key) for table in tables(program))
        yield from (made(f"{t.name}_at", "at", t.name) for t in program.on_heap)
        yield made("stage_at", "stage")
        yield from (made(f"{s.tensor}_signals", "signals", s.tensor) for s in program.signals)
        yield from (made(f"{r.name}_workers", "workers", r.name) for r in program.in_kernel if r.resource.count)
        if facts.timed:
            yield Parameter(STAMPS, "stamps", TIMES)
            yield made(f"{STAMPS}_of_worker", "records", TIMES)
        yield Parameter("world", "run")
