"""Lowering: a tile program becomes the source of a Triton module that a person can read beside it.

One persistent kernel: its workers enter the run, do the tiles of their role, and the last one out ends the run
(docs/protocol.md). Where peers read an input, a second kernel publishes it to the heap first; where roles are on the
copy engine, a third enters the run before their copies begin; and where these wait for tiles, a fourth ends the run
after them (`tilelink.backend.host` says in what order).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy

from tilelink.backend import descriptors
from tilelink.backend.across_nodes import NetworkEmitter, stage_bytes
from tilelink.backend.addresses import Addresses
from tilelink.backend.emit import RoleEmitter, Writer, write_expected
from tilelink.backend.facts import COPY_CHUNK, Facts
from tilelink.backend.multicast import MulticastEmitter
from tilelink.backend.nvshmem import libraries
from tilelink.backend.targets import Target, records, routing
from tilelink.errors import ScheduleError, Site
from tilelink.frontend.cells import cell_count, position
from tilelink.frontend.expressions import RANK, WORLD, Expr, symbol
from tilelink.frontend.ir import RANKS_DIM, Copy, For, Role, Signals, Statement, TileProgram, View, walk
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.routes import EXPERT, SEGMENT
from tilelink.frontend.schedule import SMs
from tilelink.frontend.turns import members, tiles_in_turn, turns
from tilelink.frontend.walk import make_walk
from tilelink.language import Space

DRAIN_BLOCK = 128
PRIMITIVES = ("peer", "wait", "notify", "enter", "entered", "credit", "last_out", "drain", "leave", "RUN", "SLOT_LEFT")
RECORDS = ("stamp", "TILE_ENDS", "WAIT_BEGINS", "WAIT_ENDS")
END_OF_RUN = "leave(heaps, control, rank, slot, run, world)"
MULTICAST_PRIMITIVES = ("multicast_store", "multicast_notify")
NETWORK_PRIMITIVES = ("is_far", "put_far", "put_notify_far", "notify_far", "fetch_far", "complete_far")
ALL_PRIMITIVES = (*PRIMITIVES, *MULTICAST_PRIMITIVES, *NETWORK_PRIMITIVES, "clock", "POISON")
STAMPS = "stamps"
"""Where workers record times, if they do: int64 of workers x records x 2, what and when."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. `kind`: "tensor", "stride", "size", "table" (where parts begin), "at" (bytes into the
    heap), "signals" (bytes into the heap), "stage" (bytes into the heap), "blocks" (a descriptor of the rank's own
    `of`, which loads blocks of the shape `block`), "workers", "stamps" and "records" (where workers record times, words
    of a worker), or "run" for heaps, multicast, rank, slot and world."""

    name: str
    kind: str
    of: str = ""
    dim: str = ""
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A kernel of a lowered program, with its parameters in order."""

    name: str
    parameters: tuple[Parameter, ...]


@hashed_once
@dataclass(frozen=True)
class Lowered:
    """A lowered program: the source of its module, and the kernels in it. None: the program needs no such kernel."""

    program: TileProgram
    facts: Facts
    target: Target
    source: str
    main: Kernel
    publish: Kernel | None
    enter: Kernel | None
    leave: Kernel | None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those that there are, the persistent one last."""
        return (*(k for k in (self.publish, self.enter, self.leave) if k is not None), self.main)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those of all kernels, some several times."""
        return tuple(p for kernel in self.kernels for p in kernel.parameters)

    @property
    def warps(self) -> int:
        """Warps of a worker: one kernel, so the same for all roles (the frontend sees to that)."""
        return next((r.resource.warps for r in self.program.roles if isinstance(r.resource, SMs)), SMs.warps)

    @cached_property
    def stage_bytes(self) -> int:
        """Memory of a worker, on the heap, for a block on its way to another node."""
        return stage_bytes(self.program) if self.target.network else 0

    @property
    def options(self) -> dict[str, Any]:
        """How Triton has to compile the kernels. Loops are pipelined only where their source says so, since Triton
        carries loads past a wait in a loop that it pipelines. A worker has all registers of its SM: assemblers that
        think of two workers on one spill for it. Across nodes, NVSHMEM's bitcode is linked in. Raises NvshmemError."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": 1}
        if self.target.registers is not None:
            options["maxnreg"] = min(255, self.target.registers // (self.warps * self.target.warp_size))
        if linked := libraries(self.target):
            options["extern_libs"] = linked
        return options

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @cached_property
    def sha256_everywhere(self) -> str:
        """What all ranks agree on, of which each may load its own tensors in its own way."""
        return lower(self.program, replace(self.facts, described=frozenset()), self.target).sha256


@kept(256)
def lower(program: TileProgram, facts: Facts, target: Target) -> Lowered:
    """The Triton source of a program, for a target and for sizes of which `facts` hold."""
    if target.network and program.on_engine:
        raise ScheduleError(
            f"{program.on_engine[0].name} is on the copy engine, which reaches the ranks of its own node only; the "
            "world has several: give it SMs",
            program.on_engine[0].site,
        )
    if not target.descriptors:
        facts = replace(facts, described=frozenset())
    everything = _parameters(program, facts)
    functions: list[list[str]] = []
    calls: list[str] = []
    for role in program.in_kernel:
        source, needed = _role_function(program, role, facts, target, everything)
        functions.append(source)
        calls.append((f"{STAMPS} = " if facts.timed else "") + _call(role.name, needed))
    drains: list[str] = []
    for signals in program.signals:
        source, needed = _drain_function(program, signals, facts, target, everything)
        functions.append(source)
        drains.append(_call(f"drain_{signals.tensor}", needed))
    source, main = _main(program, facts, calls, None if program.awaited_by_engines else drains, everything)
    functions.append(source)
    publish = enter = leave = None
    if program.published:
        made, publish = _publish(program, facts, target, everything)
        functions += made
    if program.on_engine:
        source, enter = _enter(program, everything)
        functions.append(source)
    if program.awaited_by_engines:
        source, leave = _leave(program, drains, everything)
        functions.append(source)
    body = [line for f in functions for line in ["", "", *f]]
    text = "\n".join(_header(program, facts, target, body) + body) + "\n"
    return Lowered(program, facts, target, text, main, publish, enter, leave)


# ---- parts of the module -----------------------------------------------------------------------------------------


def _header(program: TileProgram, facts: Facts, target: Target, body: list[str]) -> list[str]:
    """Always as long, because Triton's cache keys hold line numbers."""
    text = "\n".join(body)
    used = [p for p in ALL_PRIMITIVES if re.search(rf"\b{p}\b", text)]
    return [
        f'"""{program.name}, lowered by TileLink; {facts}."""',
        "",
        "import triton",
        "import triton.language as tl",
        f"from {target.module} import {', '.join(used)}",
        *([f"from {records.__name__} import {', '.join(RECORDS)}"] if facts.timed else []),
        *([f"from {routing.__name__} import segment_of"] if "segment_of(" in text else []),
    ]


def _parameters(program: TileProgram, facts: Facts) -> tuple[Parameter, ...]:
    """Everything a kernel of this program may need, in the order in which it takes it."""
    made: list[Parameter] = []
    for t in program.tensors:
        if t.kind in ("buffer", "token"):
            continue
        made.append(Parameter(t.name, "tensor", t.name))
        made += [Parameter(f"{t.name}_stride_{d}", "stride", t.name, d) for d in t.dims]
    made += [Parameter(descriptors.name(t, b), "blocks", t, block=b) for t, b in descriptors.blocks(program, facts)]
    made += [Parameter(n, "run") for n in ("heaps", "multicast", "rank", "slot")]
    made += [Parameter(d, "size", dim=d) for d in program.dims]
    made.append(Parameter("per_node", "size"))
    for d in program.cut:
        made.append(Parameter(f"{d}_part", "size", dim=d))
        if d not in facts.equal:
            made.append(Parameter(f"{d}_parts", "table", dim=d))
    for d in program.routed:
        made += [Parameter(f"{d}_{piece}", "size", dim=d) for piece in (SEGMENT, EXPERT)]
        made.append(Parameter(f"{d}_segments", "table", dim=d))
    made += [Parameter(f"{t.name}_at", "at", t.name) for t in program.on_heap]
    made.append(Parameter("stage_at", "stage"))
    made += [Parameter(f"{s.tensor}_signals", "signals", s.tensor) for s in program.signals]
    made += [Parameter(f"{r.name}_workers", "workers", r.name) for r in program.in_kernel if _counted(r)]
    if facts.timed:
        made += [Parameter(STAMPS, "stamps", STAMPS), Parameter(f"{STAMPS}_of_worker", "records", STAMPS)]
    return (*made, Parameter("world", "run"))


def _needed(lines: Iterable[str], parameters: tuple[Parameter, ...]) -> list[str]:
    """Names of the parameters that the lines mention."""
    words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(line.split("#")[0] for line in lines)))
    return [p.name for p in parameters if p.name in words]


def _signature(names: Iterable[str]) -> str:
    return ", ".join(f"{n}: tl.constexpr" if n == "world" else n for n in names)


def _call(function: str, names: list[str]) -> str:
    return f"{function}({', '.join(names)})"


def _role_function(
    program: TileProgram,
    role: Role,
    facts: Facts,
    target: Target,
    parameters: tuple[Parameter, ...],
    *,
    publishing: bool = False,
) -> tuple[list[str], list[str]]:
    """A function that does all tiles of one worker, and the names it takes."""
    kind = NetworkEmitter if target.network else MulticastEmitter if target.multicast else RoleEmitter
    emitter = kind(program, role, facts, target, publishing=publishing)
    before, body = emitter.emit()
    takes_turns = any(len(roles) > 1 and role in roles for roles in members(program.in_kernel))
    count = "last" if takes_turns else emitter.text(role.walk.count)
    running = [Parameter(n, "run") for n in ("worker", "workers", "control", "run", "before")]
    needed = _needed([*before, *body, count], (*running, *parameters))
    first = ["first", "last", "workers"] if takes_turns else ["worker", "workers"]
    needed = [*first, *(n for n in needed if n not in ("worker", "workers"))]
    return [
        "@triton.jit",
        f"def {role.name}({_signature(needed)}):",
        *(f"    {line}" for line in before),
        f"    for i in range({first[0]}, {count}, workers):",
        *body,
        *([f"    return {STAMPS}"] if emitter.timed else []),
    ], needed


def _drain_function(
    program: TileProgram, signals: Signals, facts: Facts, target: Target, parameters: tuple[Parameter, ...]
) -> tuple[list[str], list[str]]:
    """A function that waits for every notification of a tensor on this rank, and zeroes the signals."""
    addresses = Addresses(program, facts, lambda name, source: name, lambda name, source: name, {})
    write = Writer(1)
    write(f"signals = peer(heaps, rank, {signals.tensor}_signals, tl.{target.signal_dtype})")
    write(f"cells = {addresses.text(cell_count(signals))}")
    write(f"for first in range(0, cells, {DRAIN_BLOCK}):")
    write.depth += 1
    write(f"cell = tl.minimum(first + tl.arange(0, {DRAIN_BLOCK}), cells - 1)")
    write(f"here = first + tl.arange(0, {DRAIN_BLOCK}) < cells")
    known: dict[Expr, Expr] = {}
    for name, value in position(signals):
        write(f"{name} = {addresses.text(value)}")
        known[symbol(name)] = symbol(name)
    start = f"tl.zeros([{DRAIN_BLOCK}], tl.int32)"
    expected = write_expected(write, addresses, signals, known, inside=False, start=start)
    pointers = f"signals + {addresses.text(target.signal_words * symbol('cell'))}"
    write(f'drain(control, {pointers}, {expected}, here, "{signals.scope}")')
    needed = _needed(write.lines, (Parameter("control", "run"), *parameters))
    return ["@triton.jit", f"def drain_{signals.tensor}({_signature(needed)}):", *write.lines], needed


def _main(
    program: TileProgram, facts: Facts, calls: list[str], drains: list[str] | None, parameters: tuple[Parameter, ...]
) -> tuple[list[str], Kernel]:
    """The persistent kernel. `drains`: what its last worker does before it ends the run; None where it does not."""
    lines = [
        "    worker = tl.program_id(0)",
        "    control = peer(heaps, rank, 0, tl.int64)",
        "    run = tl.load(control + RUN)",
        "    before = tl.load(control + SLOT_LEFT + slot)",
    ]
    if any(p.kind == "records" for p in parameters):
        lines.append(f"    {STAMPS} += tl.cast(worker, tl.int64) * {STAMPS}_of_worker")
    if not program.on_engine:
        lines += ["    if worker == 0:", "        enter(heaps, control, rank, run, world)"]
    of_role = dict(zip([r.name for r in program.in_kernel], calls, strict=True))

    def tiles_of(roles: list[Role], first: str, workers: str) -> list[str]:
        if len(roles) == 1:
            return [_for_workers(of_role[roles[0].name], first, workers)]
        head = f"here, workers = {_less('worker', first)}, {workers}"
        return [head, *_in_turns(program, facts, roles, of_role)]

    first = "0"
    keyword = "if"
    for roles in members(program.in_kernel):
        if not _counted(roles[0]):
            continue
        workers = f"{roles[0].name}_workers"
        end = workers if first == "0" else f"{first} + {workers}"
        lines.append(f"    {keyword} worker < {end}:")
        lines += [f"        {line}" for line in tiles_of(roles, first, workers)]
        first, keyword = end, "elif"
    sharing = [r for r in members(program.in_kernel) if not _counted(r[0])]
    if sharing:
        indent = "    "
        if keyword == "elif":
            lines.append("    else:")
            indent = "        "
        rest = _less("tl.num_programs(0)", first)
        lines += [indent + line for roles in sharing for line in tiles_of(roles, first, rest)]
    if drains is not None:
        lines.append("    if last_out(control, tl.num_programs(0)):")
        lines += [f"        {line}" for line in (*drains, END_OF_RUN)]
    return _kernel(program.name, lines, parameters)


def _kernel(name: str, lines: list[str], parameters: tuple[Parameter, ...]) -> tuple[list[str], Kernel]:
    """A kernel of these lines, which takes the parameters that they mention."""
    taken = tuple(p for p in parameters if p.name in _needed(lines, parameters))
    stable = [p.name for p in taken if p.kind in ("at", "signals", "stage", "workers") or p.name in ("rank", "slot")]
    head = [f"@triton.jit(do_not_specialize={stable!r})", f"def {name}({_signature(p.name for p in taken)}):"]
    return head + lines, Kernel(name, taken)


def _counted(role: Role) -> bool:
    """Whether the schedule says how many workers a role has."""
    return isinstance(role.resource, SMs) and role.resource.count is not None


def _for_workers(call: str, first: str, workers: str) -> str:
    """The call of a role, for the worker's number inside the role."""
    name, rest = call.split("(", 1)
    arguments = rest[:-1].split(", ")[2:]
    return f"{name}({', '.join([_less('worker', first), workers, *arguments])})"


def _in_turns(
    program: TileProgram, facts: Facts, roles: list[Role], calls: dict[str, str]
) -> list[str]:
    """The calls of roles that take turns, for worker `here` of `workers`; see `tilelink.frontend.turns`."""
    addresses = Addresses(program, facts, lambda name, source: name, lambda name, source: name, {})
    names = [f"{r.name}_tiles" for r in roles]
    lines = [f"{n} = {addresses.text(tiles_in_turn(r))}" for n, r in zip(names, roles, strict=True)]
    lines.append(f"for turn in range({addresses.text(turns(roles))}):")
    lines.append(f"    first = turn * ({' + '.join(names)})")
    for name, role in zip(names, roles, strict=True):
        function, rest = calls[role.name].split("(", 1)
        own = f"turn * {name} + (here + workers - first % workers) % workers, (turn + 1) * {name}, workers"
        lines.append(f"    {function}({', '.join([own, *rest[:-1].split(', ')[3:]])})")
        lines.append(f"    first += {name}")
    return lines[:-1]


def _less(number: str, first: str) -> str:
    """`number - first`, as short as it can be written."""
    return number if first == "0" else f"{number} - ({first})" if "+" in first else f"{number} - {first}"


def _publish(
    program: TileProgram, facts: Facts, target: Target, parameters: tuple[Parameter, ...]
) -> tuple[list[list[str]], Kernel]:
    """A kernel that copies inputs to the heap, once the peers have left the previous run of the slot."""
    functions: list[list[str]] = []
    lines = [
        "    worker = tl.program_id(0)",
        "    control = peer(heaps, rank, 0, tl.int64)",
        "    before = tl.load(control + SLOT_LEFT + slot)",
    ]
    for role in publishing_roles(program):
        source, needed = _role_function(program, role, facts, target, parameters, publishing=True)
        functions.append(source)
        lines.append(f"    {_call(role.name, ['worker', 'tl.num_programs(0)', *needed[2:]])}")
    source, kernel = _kernel(f"{program.name}_publish", lines, parameters)
    return [*functions, source], kernel


def _enter(program: TileProgram, parameters: tuple[Parameter, ...]) -> tuple[list[str], Kernel]:
    """A kernel of one worker after which the copy engine may go to work: it has the credit of all ranks, has told them
    that this one has entered the run, and where engines read what peers publish, these have entered, too."""
    lines = [
        "    control = peer(heaps, rank, 0, tl.int64)",
        "    run = tl.load(control + RUN)",
        "    credit(control, tl.load(control + SLOT_LEFT + slot), world)",
        "    enter(heaps, control, rank, run, world)",
    ]
    read = {s.source.tensor for r in program.on_engine for s in walk(r.body) if isinstance(s, Copy) and s.source.remote}
    if read & set(program.published):
        lines += ["    for other in range(world):", "        entered(control, other, run)"]
    return _kernel(f"{program.name}_enter", lines, parameters)


def _leave(program: TileProgram, drains: list[str], parameters: tuple[Parameter, ...]) -> tuple[list[str], Kernel]:
    """A kernel of one worker that ends the run when the copy engine is done, too: until then what it reads lies in the
    slot. Where a wait of the lane has ended in vain nothing is told."""
    lines = [
        "    control = peer(heaps, rank, 0, tl.int64)",
        "    run = tl.load(control + RUN)",
        "    if tl.load(control + POISON) == 0:",
        *(f"        {line}" for line in (*drains, END_OF_RUN)),
    ]
    return _kernel(f"{program.name}_leave", lines, parameters)


@kept()
def publishing_roles(program: TileProgram) -> tuple[Role, ...]:
    """The copies of this rank's parts of inputs to their places on the heap."""
    return tuple(_publishing_role(program, name) for name in program.published)


def _publishing_role(program: TileProgram, name: str) -> Role:
    """The copy of one input, as a role: a tile at a time, and of a dimension with an entry a rank all entries."""
    tensor = program.tensor(name)
    dims = tuple(d for d in tensor.dims if d != RANKS_DIM)
    space = Space(dims, None if tensor.sharded is None else tensor.dims[tensor.sharded], {})
    resource = SMs(tile=(1,) * (len(dims) - 2) + (COPY_CHUNK,) * min(len(dims), 2))
    own = frozenset({tensor.dims[tensor.sharded]}) if tensor.sharded is not None else frozenset()
    site = Site(program.site.file, program.site.line)
    found, _ = make_walk(f"publish_{name}", space, resource, own, site)
    ranges = iter(found.ranges)
    index = tuple(symbol(f"index_{k}") if d == RANKS_DIM else next(ranges) for k, d in enumerate(tensor.dims))
    view = View(name, index, RANK)
    body: Statement = Copy(site, view, view)
    for entry in (i for i in index if isinstance(i, Expr)):
        body = For(site, str(entry), sympy.S.Zero, WORLD, 1, (body,))
    return Role(f"publish_{name}", resource, found, (body,), site)


