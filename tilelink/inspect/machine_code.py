"""The contents of a kernel's machine code: for each role, its steady loop, and the code around that loop in a tile.

The steady loop is the innermost loop with matrix instructions. In a role without any, it is the loop with loads by TMA,
or else the loop that moves most bytes. Instructions are read from disassembled text with lines of the source. Each line
belongs to a function of the emitted module. Code is counted once, however often it runs. Nothing is run.
"""

from __future__ import annotations

import ast
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilelink.backend.cache import store
from tilelink.backend.lower import Lowered
from tilelink.backend.parameters import WORKERS
from tilelink.inspect.compile import Compiled, CompileError
from tilelink.inspect.instructions import Code, Stretch

SCHEDULERS = 4
SYSTEM_FENCE_US = 0.58
"""The time of a system fence: measured by others on an H200, assumed for other chips."""
BARRIER_US, MEMORY_US = 0.03, 0.7
"""Assumed times: a barrier of a block, and a trip to memory."""


@dataclass(frozen=True)
class RoleCode:
    """A role in machine code: the instructions that run in a tile if no wait has to wait. `stages`: the stages that its
    source asks for, 0 if no loop is pipelined. `step`: an iteration of the steady loop; `before` and `after`: the code
    around that loop in a tile. `slow`: instructions of a tile that only run if a wait has to wait, or fails. `order`:
    the notable instructions in the order of the code. `exposed_us`: an estimate (see the function `exposed_us`)."""

    name: str
    stages: int
    before: Stretch
    step: Stretch
    after: Stretch
    slow: int
    order: tuple[str, ...]
    exposed_us: float


@dataclass(frozen=True)
class KernelCode:
    """A kernel in machine code, with its roles that multiply or copy."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    instructions: int
    roles: tuple[RoleCode, ...]


def inspected(lowered: Lowered, kernels: Iterable[Compiled]) -> tuple[KernelCode, ...]:
    """The kernels of a lowered program, as they were compiled. Raises CompileError if nvdisasm fails."""
    source, file = ast.parse(lowered.source), store(lowered.source, lowered.program.name).name
    functions = [f for f in source.body if isinstance(f, ast.FunctionDef)]
    roles = {f.name: f for f in functions if any(a.arg == WORKERS for a in f.args.args)}
    lines = {line: f.name for f in roles.values() for line in range(f.lineno, (f.end_lineno or f.lineno) + 1)}
    made = []
    for kernel in kernels:
        code = Code.read(listing(kernel), lowered.target.backend, file, lines)
        found = [_role(code, name, _stages(f), lowered) for name, f in roles.items()]
        made.append(
            KernelCode(
                kernel.name, kernel.registers, kernel.spill_bytes, kernel.shared_bytes, len(code.instructions),
                tuple(role for role in found if role is not None),
            )
        )  # fmt: skip
    return tuple(made)


def listing(kernel: Compiled) -> str:
    """Machine code with lines of the source: GCN as it is compiled, SASS from the nvdisasm in Triton's wheel."""
    import triton

    if not kernel.cubin:
        return kernel.code
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-gi", "-c", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{kernel.name}: nvdisasm ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def exposed_us(around: Stretch, warps: int, clock_ghz: float) -> float:
    """Estimates the microseconds of a tile in which nothing is multiplied, if no wait has to wait.

    `around`: the code that runs in a tile around the steady loop; for a role that does not multiply, all code of a
    tile. Each of four schedulers issues it for a quarter of the warps, an instruction a cycle. Then each barrier, each
    system fence, and one trip to memory before the first product are added:

    instructions * warps / 4 / clock + barriers * 0.03 us + system fences * 0.58 us + 0.7 us.
    """
    issue = around.total * warps / SCHEDULERS / (clock_ghz * 1e3)
    return issue + around.kinds["barrier"] * BARRIER_US + around.kinds["system_fence"] * SYSTEM_FENCE_US + MEMORY_US


def _role(code: Code, name: str, stages: int, lowered: Lowered) -> RoleCode | None:
    """A role in the order of its code; None if it has no loop here."""
    steady = code.steady(name)
    if steady is None:
        return None
    tile = max((x for x in code.loops if x.function == name and x.body >= steady.body), key=lambda x: len(x.body))
    once = sorted(code.once(tile, steady), key=lambda k: (k < tile.header, k))  # a latch may stand above the header
    inside = [n for n, k in enumerate(once) if k in steady.body]
    parts = once[: inside[0]], once[inside[0] : inside[-1] + 1], once[inside[-1] + 1 :]
    before, step, after = map(code.stretch, parts)
    order = [*code.order(parts[0]), "loop(", *code.order(parts[1]), ")", *code.order(parts[2])]
    around = code.stretch([*parts[0], *parts[2]] if step.kinds["matrix"] else once)
    exposed = round(exposed_us(around, lowered.warps, lowered.target.clock_ghz), 2)
    return RoleCode(name, stages, before, step, after, len(tile.body) - len(once), tuple(order), exposed)


def _stages(function: ast.FunctionDef) -> int:
    keywords = (k for n in ast.walk(function) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "num_stages")
    return max((ast.literal_eval(k.value) for k in keywords), default=0)
