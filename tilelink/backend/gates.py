"""Gates: what a compiled kernel holds, against what its tile program and the run protocol say. No GPU is needed.

Signals are counted in TTGIR, by the calls in the generated source that they come from: LLVM unrolls loops and doubles
assembly, and Triton's pipeliner doubles loads and dots, but a call stays one call. What stands in TTGIR has to stand in
the machine code at least as often. Matrix instructions are counted in the machine code, with the copies that the
pipeliner made of a dot divided out, and weighed: their multiplications have to be those of the program's dots.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilelink.backend.cache import store
from tilelink.backend.compile import Compiled
from tilelink.backend.lower import Lowered
from tilelink.backend.pipelining import enters
from tilelink.backend.targets import Target
from tilelink.backend.ttgir import Kernel, Operation
from tilelink.frontend.expressions import Expr
from tilelink.frontend.ir import Code, Copy, Notify, Role, Store, TileProgram, View, Wait, loads_of, walk

DOES = {
    "wait": ("acquire", "poll", "fence"),
    "notify": ("barrier", "release"),
    "enter": ("release",),
    "entered": ("acquire", "poll"),
    "credit": ("acquire", "poll", "barrier"),
    "last_out": ("barrier", "acquire", "release"),
    "drain": ("acquire", "poll", "barrier"),
    "leave": ("barrier", "release"),
}
"""What each primitive has to do. A fence is for readers that are another proxy, where the target has such."""

LOADS = frozenset(
    ["tt.load", "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local", "tt.descriptor_load"]
    + [f"{dialect}.buffer_load{to}" for dialect in ("amdg", "amdgpu") for to in ("", "_to_local")]
)
DOTS = frozenset(["tt.dot", "ttng.warp_group_dot", "ttng.tc_gen5_mma"])
KINDS = ("acquire", "poll", "release", "barrier", "fence", "guarded", "mma")


@dataclass(frozen=True)
class Verdict:
    """What the gates found in the kernels of a program. `findings`: what is wrong, in words; none if all is well."""

    expected: dict[str, int]
    found: dict[str, int]
    findings: tuple[str, ...]
    registers: int
    spill_bytes: int
    shared_bytes: int


def judge(lowered: Lowered, kernels: tuple[Compiled, ...]) -> Verdict:
    """Holds compiled kernels against the program they were lowered from."""
    program, target = lowered.program, lowered.target
    file = str(store(lowered.source, program.name))
    read = [(k, _Read(Kernel(k.ttgir), file, target)) for k in kernels]
    signals = sum((r.signals() for _, r in read), Counter[tuple[str, str]]())
    wanted = Counter(
        {(kind, scope): n for (kind, scope), n in _signals(program).items() if kind != "fence" or target.descriptors}
    )
    work, count = _work(lowered), Counter[str]()
    for (kind, _), n in signals.items():
        count[kind] += n
    instructions, done = 0, 0
    for k, r in read:
        more, weight = r.matrix(k.code, lowered)
        instructions, done = instructions + more, done + weight
    found = {**{k: count[k] for k in KINDS}, "guarded": sum(r.guarded() for _, r in read), "mma": instructions}
    expected = {k: sum(n for (kind, _), n in wanted.items() if kind == k) for k in KINDS}
    expected["guarded"] = sum(1 for _ in guarded_reads(program))
    expected["mma"] = round(instructions * work / done) if done else work and 1
    findings = [f"{k}: the program says {expected[k]}, found {found[k]}" for k in KINDS if expected[k] != found[k]]
    if not findings and signals != wanted:
        findings.append(f"scopes: the program says {_spelled(wanted)}, found {_spelled(signals)}")
    for k, r in read:
        findings += [f"{k.name}: {f}" for f in (*r.findings(), *_of_code(k, r, lowered))]
    return Verdict(
        expected, found, tuple(findings),
        max(k.registers for k in kernels), max(k.spill_bytes for k in kernels), max(k.shared_bytes for k in kernels),
    )  # fmt: skip


# ---- what the program says ---------------------------------------------------------------------------------------


def calls(program: TileProgram) -> Counter[tuple[str, str]]:
    """How often the kernels of a program have to call each primitive, and with what scope."""
    made = Counter({("enter", "sys"): 1, ("last_out", "gpu"): 1, ("leave", "sys"): 1})
    made["credit", "sys"] += len(program.published)
    heap = {t.name for t in program.on_heap}
    for signals in program.signals:
        made["drain", signals.scope] += 1
    if program.on_engine:
        made["credit", "sys"] += 1
        sources = {s.source for r in program.on_engine for s in walk(r.body) if isinstance(s, Copy)}
        made["entered", "sys"] += any(v.remote and v.tensor in program.published for v in sources)
    for role in program.in_kernel:
        made["entered", "sys"] += len(_homes_entered(program, role))
        fills = False
        for s in walk(role.body):
            if isinstance(s, Wait | Notify):
                for view in s.views:
                    made[type(s).__name__.lower(), program.signals_of(view.tensor).scope] += 1
            fills |= isinstance(s, Notify) or (isinstance(s, Copy | Store) and s.target.tensor in heap)
        made["credit", "sys"] += fills
    return made


def guarded_reads(program: TileProgram) -> Iterator[View]:
    """The reads that may only happen after a wait, or after a peer has entered."""
    for role in program.in_kernel:
        for view in _reads(role):
            if view.guard or (view.tensor in program.published and view.remote):
                yield view


def _signals(program: TileProgram) -> Counter[tuple[str, str]]:
    """How often the kernels have to do each kind of thing, and how far it has to reach (barriers: "")."""
    made: Counter[tuple[str, str]] = Counter()
    for (primitive, scope), n in calls(program).items():
        for kind in DOES[primitive]:
            made[kind, scope if kind in ("acquire", "release") else ""] += n
    return +made


def _reads(role: Role) -> Iterator[View]:
    for s in walk(role.body):
        yield from (load.view for load in loads_of(s))
        if isinstance(s, Copy):
            yield s.source


def _homes_entered(program: TileProgram, role: Role) -> list[Expr | str | None]:
    """The peers whose entry a tile of a role awaits: each once, or once a read where it changes inside the tile."""
    views = [v for v in _reads(role) if v.tensor in program.published and v.remote]
    changing = [v.home for v in views if enters(v, role, program)]
    return [*dict.fromkeys(v.home for v in views if not enters(v, role, program)), *changing]


def _work(lowered: Lowered) -> int:
    """Multiplications of the dots of a program that the target has matrix instructions for, one tile of a role, one
    step of a loop."""
    return sum(prod(shape) for code in _dotting(lowered) for shape in code.dots)


def _dotting(lowered: Lowered) -> Iterator[Code]:
    program, target = lowered.program, lowered.target
    for role in program.in_kernel:
        for s in walk(role.body):
            for code in (v for v in vars(s).values() if isinstance(v, Code) and v.dots):
                dtypes = {program.tensor(load.view.tensor).dtype for load in code.loads}
                dtypes = dtypes or {program.inputs[0].dtype}
                if dtypes <= target.matrix_dtypes or (dtypes == {"float32"} and "ieee" not in code.text):
                    yield code


# ---- what is in a kernel -----------------------------------------------------------------------------------------


class _Read:
    """A kernel as it was compiled for a target; `file`: its source."""

    def __init__(self, kernel: Kernel, file: str, target: Target) -> None:
        self.kernel, self.file, self.target = kernel, file, target
        self.sites: dict[tuple[tuple[int, int], ...], list[Operation]] = {}
        for o in kernel.operations:
            self.sites.setdefault(o.site(file), []).append(o)

    def signals(self) -> Counter[tuple[str, str]]:
        """What the calls do, by kind and scope."""
        found: Counter[tuple[str, str]] = Counter()
        for operations in self.sites.values():
            kinds = {kind for o in operations for kind in _kinds(o)}
            if any(o.name == "scf.condition" for o in operations) and any(k == "acquire" for k, _ in kinds):
                kinds.add(("poll", ""))
            found.update(kinds)
        return found

    def guarded(self) -> int:
        """How many reads depend on a word that was acquired."""
        return len({o.site(self.file) for o in self.kernel.named(*LOADS) if _is_block(o) and self._acquired(o)})

    def _acquired(self, load: Operation) -> bool:
        """Whether the address of a load depends on a word that was acquired."""
        behind = self.kernel.depends_on(load.address)
        makers = (self.kernel.made_by[v] for v in behind if v in self.kernel.made_by)
        return any(kind == "acquire" for o in makers for kind, _ in _kinds(o))

    def matrix(self, code: str, lowered: Lowered) -> tuple[int, int]:
        """Matrix instructions for one copy of each dot, and the multiplications they do for a block, each once: where
        there are more warps than instructions fill, several do the same."""
        dots: dict[tuple[int, int], list[Operation]] = {}
        for o in self.kernel.named(*DOTS):
            dots.setdefault(o.site(self.file)[0], []).append(o)
        instructions: Counter[tuple[int, int]] = Counter()
        work: Counter[tuple[int, int]] = Counter()
        for site, line in _located(code, self.file):
            for m, n, k, threads in _matrix_instructions(line, dots.get(site, [])):
                instructions[site] += 1
                work[site] += m * n * k * max(1, lowered.warps * self.target.warp_size // threads)
        times = {s: len(dots[s]) if s in dots else 1 for s in instructions}
        same = {s: self._same(dots[s][0]) if s in dots else 1 for s in instructions}
        return sum(n // times[s] for s, n in instructions.items()), sum(
            n // times[s] // same[s] for s, n in work.items()
        )

    def _same(self, dot: Operation) -> int:
        """How many warps do the same part of a dot."""
        layout = re.search(r"-> tensor<(\d+)x(\d+)xf32, (#\w+)>", dot.text)
        made = re.search(
            r"warpsPerCTA = \[(\d+), (\d+)\].*instrShape = \[(\d+), (\d+)", self.kernel.layouts.get(layout[3], "")
        ) if layout else None  # fmt: skip
        if layout is None or made is None:
            return 1
        (rows, columns), (down, across, m, n) = map(int, layout.groups()[:2]), map(int, made.groups())
        return max(1, down * m // rows) * max(1, across * n // columns)

    def findings(self) -> Iterator[str]:
        """What is wrong whatever the counts say."""
        for site, operations in self.sites.items():
            order = [kind for o in operations for kind in _steps(o)]
            if "release" not in order or "barrier" not in order:
                continue
            line = f"line {site[0][0]}" if site else "somewhere"
            barrier, release = order.index("barrier"), order.index("release")
            if release < barrier:
                yield f"{line}: released before the barrier"
            if "store" in order[barrier:release]:
                yield f"{line}: stores after the barrier that comes before the release"
            if self.target.backend == "hip" and "stored" not in order[: order.index("barrier")]:
                yield f"{line}: waves come to the barrier without waiting for their stores"
        if self.kernel.named("ttg.warp_specialize"):
            yield "warps are specialised automatically, which deletes signals"

    def blocks_copied(self) -> Iterator[Operation]:
        """Loads of blocks of two dimensions, and stores of what was just loaded."""
        for o in self.kernel.operations:
            if o.name in ("tt.load", "ttg.async_copy_global_to_local"):
                yield o
            elif o.name == "tt.store" and len(o.operands) > 1:
                made = self.kernel.made_by.get(o.operands[1])
                if made is not None and made.name == "tt.load":
                    yield o


_POLL = re.compile(r"(\w+_\$\{:uid\}):\s+ld\.relaxed\S+ \S+ \[\$1\].*\bbra \1.*bar\.warp\.sync", re.DOTALL)
"""A label, a load of the word that is waited for, a branch back, and a meeting of the lanes when that is over."""


def _kinds(o: Operation) -> Iterator[tuple[str, str]]:
    """What an operation does for signals, and how far."""
    if o.name in ("gpu.barrier", "ttg.barrier"):
        yield "barrier", ""
    if o.name == "tt.atomic_rmw":
        order, scope = re.findall(r"\b(relaxed|acquire|release|acq_rel), (cta|gpu|sys)\b", o.text)[0]
        yield from ((kind, scope) for kind in ("acquire", "release") if order in (kind, "acq_rel"))
    if _POLL.search(o.assembly):
        yield "poll", ""
    for acquire in re.findall(r"ld\.acquire\.(\w+)\S* \S+ \[\$1\]", o.assembly):
        yield "acquire", acquire
    for release in re.findall(r"(?:red\.release|fence\.acq_rel)\.(\w+)", o.assembly):
        yield "release", release
    for reach in re.findall(r"buffer_inv (sc0 sc1|sc1)", o.assembly):
        yield "acquire", "sys" if "sc0" in reach else "gpu"
    if "fence.proxy.async" in o.assembly:
        yield "fence", ""


def _is_block(o: Operation) -> bool:
    """Whether a load is of a block, not of a word."""
    return "tensor<" in o.text or "tensordesc<" in o.text


def _steps(o: Operation) -> Iterator[str]:
    """What an operation does for what is released: stores, meets, releases."""
    yield from (kind for kind, _ in _kinds(o))
    if o.name == "tt.store":
        yield "store"
    if "s_waitcnt vmcnt(0)" in o.assembly and "load" not in o.assembly:
        yield "stored"


# ---- what is in the machine code ---------------------------------------------------------------------------------

MACHINE = {
    "cuda": {
        "acquire": r"\bld\.acquire\S* %word|\batom\.\S*acq\S*\.add",
        "release": r"\bred\.release|\bfence\.acq_rel|\batom\.\S*(?:release|acq_rel)\S*\.add",
        "barrier": r"\bbar(?:rier)?\.(?:cta\.)?sync",
        "fence": r"\bfence\.proxy\.async\.global",
    },
    "hip": {"acquire": r"\bbuffer_inv\b", "release": r"\bbuffer_wbl2\b", "barrier": r"\bs_barrier\b"},
}
"""Instructions by which each kind of thing is done."""


def _of_code(kernel: Compiled, read: _Read, lowered: Lowered) -> Iterator[str]:
    """What is wrong with the machine code."""
    target = lowered.target
    for kind, instruction in MACHINE[target.backend].items():
        has, needs = len(re.findall(instruction, kernel.code)), 0
        needs = sum(1 for o in read.kernel.operations for k, _ in _kinds(o) if k == kind)
        if has < needs:
            yield f"{kind}: {needs} in TTGIR, {has} in the machine code"
    if kernel.spill_bytes:
        yield f"{kernel.spill_bytes} bytes of registers are spilled"
    if target.shared_bytes is not None and kernel.shared_bytes > target.shared_bytes:
        yield f"{kernel.shared_bytes} bytes of shared memory; {target.name} has {target.shared_bytes}"
    yield from (f"the assembler says: {w}" for w in kernel.warnings)
    yield from _narrow(kernel, read, lowered)


_MATRIX = (
    (r"wgmma\.mma_async\S*\.m(\d+)n(\d+)k(\d+)", 128),
    (r"\bmma\.sync\S*\.m(\d+)n(\d+)k(\d+)", 32),
    (r"v_mfma_\w+?_(\d+)x(\d+)x(\d+)", 64),
)
"""Matrix instructions with their shapes, and how many threads carry out one together."""


def _matrix_instructions(line: str, dots: list[Operation]) -> Iterator[tuple[int, int, int, int]]:
    """Shape and threads of the matrix instruction in a line of machine code, if there is one. That of Blackwell has its
    shape in a register: it is the largest that the dot allows, and one thread has it done."""
    for pattern, threads in _MATRIX:
        for m, n, k in re.findall(pattern, line):
            yield int(m), int(n), int(k), threads
    if re.search(r"\btcgen05\.mma\b", line) and dots:
        (m, _), (_, n) = (map(int, s) for s in re.findall(r"memdesc<(\d+)x(\d+)x", dots[0].text)[:2])
        bits = re.findall(r"memdesc<\d+x\d+x\D+(\d+)", dots[0].text)[0]
        yield min(m, 128), min(n, 256), 256 // int(bits), 1 << 30


WIDE = 16
"""Bytes that a thread should copy at a time."""
_WIDTHS = {
    "cuda": r"\b(?:ld|st)\.(?:\w+\.)*?global\S*?(?:\.v(\d))?\.[bsuf](\d+)\b"
    r"|cp\.async\.\w+\.shared\.global.*?, (0x\w+|\d+)",
    "hip": r"\b(?:global|buffer)_(?:load|store)_(\w+)",
}


def _located(code: str, file: str) -> Iterator[tuple[tuple[int, int], str]]:
    """The lines of machine code that come from a file, with the line and column there."""
    name = re.escape(file.rsplit("/", 1)[-1])
    here: tuple[int, int] | None = None
    for line in code.splitlines():
        if ".loc" in line:
            found = re.search(rf"[/;]\s+{name}:(\d+):(\d+)", line)
            here = (int(found[1]), int(found[2])) if found else None
        elif here is not None:
            yield here, line


def _narrow(kernel: Compiled, read: _Read, lowered: Lowered) -> Iterator[str]:
    """Copies of blocks in pieces of less than 16 bytes, where a thread has as many to copy."""
    wide: dict[tuple[int, int], int] = {}
    for o in read.blocks_copied():
        block = re.search(r"tensor<(\d+)x(\d+)x!tt\.ptr<[a-z]+(\d+)", o.text)
        if block is not None and o.site(read.file):
            bytes_of_thread = prod(map(int, block.groups())) // 8 // (lowered.warps * lowered.target.warp_size)
            wide[o.site(read.file)[0]] = min(WIDE, bytes_of_thread)
    for site, line in _located(kernel.code, read.file):
        width = _width(line, lowered.target.backend)
        if width and width < wide.get(site, 0):
            yield (
                f"line {site[0]}: copies {width} bytes at a time: {line.strip()} (right, but slow: {WIDE} bytes are "
                f"copied at once where rows of the tensor are multiples of {WIDE} bytes)"
            )
            del wide[site]


def _width(line: str, backend: str) -> int:
    """Bytes that an instruction moves between a thread and global memory, 0 for any other instruction."""
    found = re.search(_WIDTHS[backend], line)
    if found is None:
        return 0
    if backend == "hip":
        return {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4}.get(found[1], 2)
    vector, bits, copied = found.groups()
    return int(copied, 0) if copied else int(vector or 1) * int(bits) // 8


def _spelled(signals: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{n} {kind}{f'.{scope}' if scope else ''}" for (kind, scope), n in sorted(signals.items()))
