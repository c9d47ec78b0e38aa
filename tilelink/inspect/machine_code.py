"""The contents of a kernel's machine code: for each role, its steady loop, and the code around that loop in a tile.

The steady loop is the innermost loop with matrix instructions. In a role without any, it is the loop with loads by TMA,
or else the loop that moves most bytes. Instructions are read from disassembled text with lines of the source. Each line
belongs to a function of the emitted module. Code is counted once, however often it runs. Of the ways of a branch, a
tile runs one: the dearest counts. Nothing is run.
"""

from __future__ import annotations

import ast
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilelink.backend.cache import store
from tilelink.backend.lower import Lowered
from tilelink.backend.parameters import WORKERS
from tilelink.inspect.compile import Compiled, CompileError
from tilelink.inspect.instructions import Code, Instruction, Stretch

SCHEDULERS = 4
WAITS_US = {"system_fence": 0.58, "barrier": 0.03}
"""The time of a system fence: measured by others on an H200, assumed for other chips. And that of a barrier of a block:
assumed."""
MEMORY_US = 0.7
"""The assumed time of a trip to memory."""


@dataclass(frozen=True)
class RoleCode:
    """A role in machine code: the instructions that run in a tile if no wait has to wait, on the dearest path through
    its branches. `stages`: the stages that its source asks for, 0 if no loop is pipelined. `step`: an iteration of the
    steady loop; `before` and `after`: the code around that loop in a tile. `slow`: instructions of a tile that only run
    if a wait has to wait, or fails. `cheaper`: instructions on the other ways of branches. `order`: the notable
    instructions in the order in which they run.

    `exposed_us`: an estimate of the time of a tile in which nothing is multiplied: the sum of `cost_us` over `before`
    and `after`, and one trip to memory before the first product. For a role that does not multiply: over all parts.
    """

    name: str
    stages: int
    before: Stretch
    step: Stretch
    after: Stretch
    slow: int
    cheaper: int
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


def cost_us(x: Instruction, warps: int, clock_ghz: float) -> float:
    """Estimates the microseconds that an instruction takes: each of four schedulers issues it for a quarter of the
    warps, an instruction a cycle. A barrier takes 0.03 us more, and a system fence 0.58 us."""
    return warps / SCHEDULERS / (clock_ghz * 1e3) + WAITS_US.get(x.kind, 0.0)


def _role(code: Code, name: str, stages: int, lowered: Lowered) -> RoleCode | None:
    """A role in the order in which its code runs; None if it has no loop here."""
    steady = code.steady(name)
    if steady is None:
        return None
    us = partial(cost_us, warps=lowered.warps, clock_ghz=lowered.target.clock_ghz)
    tile = max((x for x in code.loops if x.function == name and x.body >= steady.body), key=lambda x: len(x.body))
    once, path = code.once(tile, steady), code.path(tile, steady, us)
    inside = [n for n, k in enumerate(path) if k in steady.body]
    parts = path[: inside[0]], path[inside[0] : inside[-1] + 1], path[inside[-1] + 1 :]
    before, step, after = map(code.stretch, parts)
    order = [*code.order(parts[0]), "loop(", *code.order(parts[1]), ")", *code.order(parts[2])]
    around = [*parts[0], *parts[2]] if step.kinds["matrix"] else path
    exposed = round(sum(us(code.instructions[k]) for k in around) + MEMORY_US, 2)
    return RoleCode(
        name, stages, before, step, after, len(tile.body) - len(once), len(once) - len(path), tuple(order), exposed
    )  # fmt: skip


def _stages(function: ast.FunctionDef) -> int:
    keywords = (k for n in ast.walk(function) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "num_stages")
    return max((ast.literal_eval(k.value) for k in keywords), default=0)
