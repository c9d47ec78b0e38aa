"""Gates on the machine code of a kernel: the operations of signals, as often as in TTGIR; matrix instructions; spills,
shared memory, and the width of copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod

from tilelink.backend.lower import Lowered
from tilelink.frontend.ir import Code, walk
from tilelink.inspect.compile import Compiled
from tilelink.inspect.dialects import DIALECTS
from tilelink.inspect.gates_ttgir import Read, kinds_of
from tilelink.inspect.ttgir import Operation

DOTS = frozenset(["tt.dot", "ttng.warp_group_dot", "ttng.tc_gen5_mma"])
COUNTED = r"\bred\.release\S*\.add\.[us](\d+)"
"""The instruction of a notification, with the bits of the word that it adds to."""
SIGNAL_BITS = 32


def dotting(lowered: Lowered) -> Iterator[Code]:
    """The code of a program with dots that the target has matrix instructions for."""
    program, target = lowered.program, lowered.target
    for role in program.in_kernel:
        for s in walk(role.body):
            for code in (c for c in s.codes if c.dots):
                dtypes = {program.tensor(load.view.tensor).dtype for load in code.loads}
                dtypes = dtypes or {program.inputs[0].dtype}
                if dtypes <= target.matrix_dtypes or (dtypes == {"float32"} and "ieee" not in code.text):
                    yield code


def matrix(read: Read, code: str, lowered: Lowered) -> tuple[int, int]:
    """The number of matrix instructions for one copy of each dot, and of the multiplications that they do for a block.
    If a block has more warps than instructions fill, several warps do the same work, which counts once. If a warp
    issues products into tensor memory, LLVM peels its first step; each copy arrives at one barrier."""
    dots: dict[tuple[int, int], list[Operation]] = {}
    for o in read.kernel.named(*DOTS):
        dots.setdefault(o.site(read.file)[0], []).append(o)
    instructions: Counter[tuple[int, int]] = Counter()
    work: Counter[tuple[int, int]] = Counter()
    barriers: Counter[tuple[int, int]] = Counter()
    for site, line in _located(code, read.file, called=lowered.target.specialised):
        for m, n, k, threads in _matrix_instructions(line, dots.get(site, [])):
            instructions[site] += 1
            work[site] += m * n * k * max(1, lowered.warps * read.target.warp_size // threads)
        barriers[site] += lowered.target.specialised and "tcgen05.commit" in line
    times = {s: max(_copies(lowered, dots[s]), barriers[s]) if s in dots else 1 for s in instructions}
    same = {s: _same(read, dots[s][0]) if s in dots else 1 for s in instructions}
    done = sum(n // times[s] // same[s] for s, n in work.items())
    return sum(n // times[s] for s, n in instructions.items()), done


def _copies(lowered: Lowered, dots: list[Operation]) -> int:
    """How many copies of a dot there are. Parts, into which Triton may split its sums, make one copy together."""
    depths, sums = [_depth(o) for o in dots], re.search(r"-> tensor<((?:\d+x)+)", dots[0].text)
    numbers = prod(int(n) for n in sums[1].split("x") if n) if sums else None
    shapes = {shape for code in dotting(lowered) for shape in code.dots}
    whole = [k for m, n, k in shapes if k >= max(depths) and numbers in (None, m * n)]
    return max(1, sum(depths) // min(whole)) if all(depths) and whole else len(dots)


def _depth(dot: Operation) -> int:
    """The length of the sums of a dot, 0 if its text does not say it: the last dimension of the left operand."""
    found = re.search(r" : (?:!ttg\.memdesc|tensor)<((?:\d+x)+)", dot.text)
    return int(found[1].split("x")[-2]) if found else 0


def _same(read: Read, dot: Operation) -> int:
    """How many warps do the same part of a dot. The first of three dimensions of a layout counts its products."""
    result = re.search(r"-> tensor<((?:\d+x)+)[a-z]+\d+, (#\w+)>", dot.text)
    layout = read.kernel.layouts.get(result[2], "") if result else ""
    made = re.search(r"warpsPerCTA = \[([\d, ]+)\].*instrShape = \[([\d, ]+)\]", layout)
    if result is None or made is None:
        return 1
    shape = [int(n) for n in result[1].split("x") if n]
    warps, instruction = ([int(n) for n in text.split(", ")] for text in made.groups())
    one = [1] * (len(shape) - 2) + [n for n in instruction if n > 1][:2]
    return prod(max(1, w * i // n) for w, i, n in zip(warps, one, shape, strict=True))


def findings_in_code(kernel: Compiled, read: Read, lowered: Lowered) -> Iterator[str]:
    """Yields the faults of the machine code."""
    target = lowered.target
    for kind, instruction in DIALECTS[target.backend].signals.items():
        has = len(re.findall(instruction, kernel.code))
        needs = sum(1 for o in read.kernel.operations for k, _ in kinds_of(o) if k == kind)
        if kind == "barrier" and target.backend == "hip" and lowered.warps == 1:
            continue  # LLVM leaves out barriers in a block of one wave
        if has < needs:
            yield f"{kind}: {needs} in TTGIR, {has} in the machine code"
    for bits in sorted({int(b) for b in re.findall(COUNTED, kernel.code)} - {SIGNAL_BITS}):
        yield f"signal: a word of {SIGNAL_BITS} bits is counted up by an instruction of {bits} bits"
    if kernel.spill_bytes:
        yield f"{kernel.spill_bytes} bytes of registers are spilled"
    if target.shared_bytes is not None and kernel.shared_bytes > target.shared_bytes:
        yield f"{kernel.shared_bytes} bytes of shared memory; {target.name} has {target.shared_bytes}"
    yield from (f"the assembler says: {w}" for w in kernel.warnings)
    yield from _narrow(kernel, read, lowered)


def _matrix_instructions(line: str, dots: list[Operation]) -> Iterator[tuple[int, int, int, int]]:
    """The shape and threads of the matrix instruction in a line of machine code, if there is one. An instruction of
    Blackwell has its shape in a register: it is the largest that the dot allows, and one thread issues it."""
    for pattern, threads in (found for dialect in DIALECTS.values() for found in dialect.matrix):
        for m, n, k in re.findall(pattern, line):
            yield int(m), int(n), int(k), threads
    if re.search(r"\btcgen05\.mma\b", line) and dots:
        (m, _), (_, n) = (map(int, s) for s in re.findall(r"memdesc<(\d+)x(\d+)x", dots[0].text)[:2])
        bits = re.findall(r"memdesc<\d+x\d+x\D+(\d+)", dots[0].text)[0]
        yield min(m, 128), min(n, 256), 256 // int(bits), 1 << 30


WIDE = 16
"""Bytes that a thread should copy at a time."""
_PTX_WIDTH = (
    r"\b(?:ld|st)\.(?:\w+\.)*?global\S*?(?:\.v(\d))?\.[bsuf](\d+)\b"
    r"|cp\.async\.\w+\.shared\.global.*?, (0x\w+|\d+)"
)


def _located(code: str, file: str, *, called: bool) -> Iterator[tuple[tuple[int, int], str]]:
    """Yields the lines of machine code that come from a file, with line and column there. `called`: also code of
    functions that the file calls, with the innermost call in the file."""
    name = re.escape(file.rsplit("/", 1)[-1])
    places = [rf"[/;]\s+{name}:(\d+):(\d+)"]
    if called:  # in the notation of Triton up to 3.7, and in the notation from 3.8 on
        number = re.search(rf'\.file\s+(\d+) .*{name}"', code)
        places += [rf"@\[ {name}:(\d+):(\d+)", rf"inlined_at {number[1] if number else '-'} (\d+) (\d+)"]
    here: tuple[int, int] | None = None
    for line in code.splitlines():
        if ".loc" in line:
            found = next((f for place in places if (f := re.search(place, line))), None)
            here = (int(found[1]), int(found[2])) if found else None
        elif here is not None:
            yield here, line


def _narrow(kernel: Compiled, read: Read, lowered: Lowered) -> Iterator[str]:
    """Yields copies of blocks in pieces of less than 16 bytes, if a thread has that much to copy."""
    wide: dict[tuple[int, int], int] = {}
    for o in read.blocks_copied():
        block = re.search(r"tensor<(\d+)x(\d+)x!tt\.ptr<[a-z]+(\d+)", o.text)
        if block is not None and o.site(read.file):
            bytes_of_thread = prod(map(int, block.groups())) // 8 // (lowered.warps * lowered.target.warp_size)
            wide[o.site(read.file)[0]] = min(WIDE, bytes_of_thread)
    for site, line in _located(kernel.code, read.file, called=lowered.target.specialised):
        width = _width(line, lowered.target.backend)
        if width and width < wide.get(site, 0):
            yield (
                f"line {site[0]}: copies {width} bytes at a time: {line.strip()} (right, but slow: {WIDE} bytes are "
                "copied at once where rows are multiples of 16 elements, and each thread copies 16 bytes of a row)"
            )
            del wide[site]


def _width(line: str, backend: str) -> int:
    """Bytes that an instruction moves between a thread and global memory; 0 for any other instruction."""
    if backend != "cuda":
        access = re.search(r"\b(?:global|buffer)_(?:load|store)_\w+", line)
        return DIALECTS[backend].bytes_of(access[0]) if access else 0
    found = re.search(_PTX_WIDTH, line)
    if found is None:
        return 0
    vector, bits, copied = found.groups()
    return int(copied, 0) if copied else int(vector or 1) * int(bits) // 8
