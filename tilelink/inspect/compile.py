"""Compiles lowered programs for GPUs, on a machine that needs none.

Kernels are compiled as on a GPU: Triton itself specialises them for arguments of the given sizes, with a driver that
claims to be the target. This happens in a child process, because some failures end the process that compiles, such as
assembly of another vendor. Nothing is run, and nothing stays on disk.
"""

from __future__ import annotations

import gc
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from ctypes import CDLL
from dataclasses import dataclass, replace
from io import StringIO
from math import prod
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, TypeVar

from tilelink.backend.cache import load
from tilelink.backend.descriptors import descriptor
from tilelink.backend.lower import Lowered
from tilelink.backend.parameters import Parameter
from tilelink.backend.pipelining import check_fits
from tilelink.backend.targets import Target
from tilelink.errors import TileLinkError
from tilelink.frontend.expressions import WORLD
from tilelink.frontend.ir import RANKS_DIM, Tensor
from tilelink.frontend.sizes import Sizes

A = TypeVar("A")
R = TypeVar("R")


class CompileError(TileLinkError):
    """Triton did not compile a lowered kernel."""


@dataclass(frozen=True)
class Compiled:
    """A kernel as Triton compiled it. `code`: PTX or amdgcn; `sass`: "" if there is none, or if it was not asked for.

    `registers`: of a thread. `spill_bytes`: memory of a thread for values that did not fit into registers.
    `shared_bytes`: shared memory of a block. `warnings`: warnings of the vendor's assembler. `cubin`: NVIDIA's binary.
    `constants`: sizes that its code has as constants, by their keys: the world, and sizes of 1.
    """

    name: str
    triton: str
    ttgir: str
    code: str
    sass: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]
    cubin: bytes = b""
    constants: tuple[tuple[str, int], ...] = ()


def compiled(lowered: Lowered, sizes: Sizes, *, sass: bool = False) -> tuple[Compiled, ...]:
    """The kernels of a lowered program, in the order of their launches, compiled for tensors of these sizes in their
    declared layout. Raises CompileError, and TileSizeError for tiles that are far too large."""
    check_fits(lowered.program, lowered.target)
    (made,) = each_compiled([(lowered, sizes)], lambda _, kernels: kernels, sass=sass)
    if isinstance(made, CompileError):
        raise made
    return made


def each_compiled(
    programs: Iterable[tuple[Lowered, Sizes]],
    read: Callable[[Lowered, tuple[Compiled, ...]], R],
    *,
    sass: bool = False,
    processes: int = 1,
) -> Iterator[R | CompileError]:
    """Yields the result of `read` for the kernels of each program, in order, or the error if Triton does not compile
    one. `read` runs where the kernels are compiled, in up to `processes` processes at once."""

    def one(program: tuple[Lowered, Sizes]) -> R:
        return read(program[0], _compiled_here(*program, sass))

    jobs = [(lowered, sizes) for lowered, sizes in programs if lowered.options]  # may raise: here, not in a child
    _prepare()
    for (lowered, _), (result, problem) in zip(jobs, _in_children(one, jobs, processes), strict=True):
        yield result or CompileError(f"{lowered.program.name} for {lowered.target.name}: {problem}")


def stand_ins(lowered: Lowered, parameters: Iterable[Parameter], sizes: Sizes) -> dict[str, Any]:
    """Arguments for which Triton specialises a kernel as for tensors of these sizes, in their declared layout."""
    import torch

    values: dict[str, Any] = {"heaps": torch.empty(1, dtype=torch.int64), "rank": 0, "slot": 0, "world": sizes.world}
    values["multicast"] = 2**40  # an address
    for p in parameters:
        if p.kind == "tensor":
            values[p.name] = torch.empty(1, dtype=getattr(torch, lowered.program.tensor(p.of).dtype))
        elif p.kind == "stride":
            values[p.name] = strides(lowered.program.tensor(p.of), sizes)[p.dim]
        elif p.kind == "blocks":
            tensor = lowered.program.tensor(p.of)
            line, dims = max(strides(tensor, sizes).values()), len(tensor.dims)
            empty = torch.empty(0, dtype=getattr(torch, tensor.dtype), device="meta")
            lines = empty.as_strided([1] * dims, [*[line] * (dims - 1), 1])
            values[p.name] = descriptor(lines, p.block, lowered.target)
        elif p.kind == "size":
            values[p.name] = sizes.values[p.of]
        elif p.kind in ("table", "stamps", "running"):
            values[p.name] = torch.empty(1, dtype=torch.int32 if p.kind == "running" else torch.int64)
        elif p.kind in ("at", "signals", "stage", "workers", "records"):
            values[p.name] = 16
    return {p.name: values[p.name] for p in parameters}


def _prepare() -> None:
    """Does once, before the forks, what would take each child longer than most kernels: the imports, and Triton's hash
    of its source files."""
    import torch  # noqa: F401
    import triton.experimental.gluon  # noqa: F401
    from triton.runtime.cache import triton_key

    triton_key()


def strides(tensor: Tensor, sizes: Sizes) -> dict[str, int]:
    """The strides in elements of a rank's tensor in its declared layout, by dimension."""
    parts = {d: max(lengths) for d, lengths in sizes.parts}
    lengths = {**dict(sizes.dims), RANKS_DIM: sizes.world}
    if tensor.sharded is not None:
        lengths[tensor.dims[tensor.sharded]] = parts[tensor.dims[tensor.sharded]]
    lies = [*(d for k, d in enumerate(tensor.dims) if k != tensor.contiguous), tensor.dims[tensor.contiguous]]
    return {d: prod(lengths[after] for after in lies[lies.index(d) + 1 :]) for d in tensor.dims}


# ---- in the child ------------------------------------------------------------------------------------------------


def _compiled_here(lowered: Lowered, sizes: Sizes, sass: bool) -> tuple[Compiled, ...]:
    """Compiles in this process. Afterwards its Triton can do nothing else."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = lowered.target
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: gpu, get_current_device=lambda: 0, get_current_stream=lambda device: 0
        )
    )
    triton.knobs.compilation.always_compile = True
    triton.knobs.nvidia.dump_ptxas_log = True
    module = load(lowered)
    ones = [key for key, n in sizes.values.items() if isinstance(n, int) and n == 1]
    made = []
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        for kernel in lowered.kernels:
            arguments = stand_ins(lowered, kernel.parameters, sizes)
            with redirect_stdout(StringIO()) as log:
                code = getattr(module, kernel.name).warmup(grid=(1,), **arguments, **lowered.options)
            read = _read(code, kernel.name, target, log.getvalue(), triton.__version__, sass)
            made.append(replace(read, constants=((WORLD.name, sizes.world), *((key, 1) for key in ones))))
    return tuple(made)


def _read(kernel: Any, name: str, target: Target, log: str, version: str, sass: bool) -> Compiled:
    asm, shared = kernel.asm, int(kernel.metadata.shared)
    if target.backend == "hip":
        code = asm["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", code)
        scratch = _number(r"\.private_segment_fixed_size:\s+(\d+)", code)
        return Compiled(name, version, asm["ttgir"], code, "", registers, scratch, shared, ())
    spills = sum(_number(rf"(\d+) bytes spill {which}", log) for which in ("stores", "loads"))
    warnings = tuple(line for line in log.splitlines() if "C75" in line or "warning" in line.lower())
    text = asm["sass"] if sass else ""
    return Compiled(
        name, version, asm["ttgir"], asm["ptx"], text, _number(r"Used (\d+) registers", log), spills, shared, warnings,
        asm["cubin"],
    )  # fmt: skip


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's output has no {pattern}")
    return int(found[1])


# ---- children ----------------------------------------------------------------------------------------------------


def _in_children(function: Callable[[A], R], arguments: list[A], processes: int) -> Iterator[tuple[R | None, str]]:
    """`function` of each argument, in order, each in a fork of this process: arguments need not be sent, and what the
    child does to itself stays there. (None, problem) if `function` raises, or ends its process twice."""
    forking = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[int, Any]] = {}
    done: dict[int, tuple[R | None, str]] = {}
    to_begin = list(range(len(arguments)))
    ended: set[int] = set()  # LLVM fails by a signal once in thousands of compilations: a child has a second try
    for wanted in range(len(arguments)):
        while wanted not in done:
            while to_begin and len(running) < processes:
                number = to_begin.pop(0)
                here, there = forking.Pipe(duplex=False)
                child = forking.Process(target=_send, args=(function, arguments[number], there))
                child.start()
                there.close()
                running[here] = number, child
            ready = wait(list(running))
            for here in [h for h in running if h in ready]:
                number, child = running.pop(here)
                try:
                    done[number] = here.recv()
                    child.join()
                except EOFError:
                    child.join()
                    if number in ended:
                        done[number] = None, f"the compiler ended its process with {child.exitcode}"
                    else:
                        to_begin.insert(0, number)
                        ended.add(number)
        yield done.pop(wanted)


def _send(function: Callable[[A], R], argument: A, there: Connection) -> None:
    gc.freeze()  # the parent's garbage is not finalised here
    libc = CDLL(None)
    libc.on_exit(libc._exit, None)  # LLVM calls exit() at some errors; torch would then wait for its profiler's thread
    try:
        there.send((function(argument), ""))
    except Exception as e:
        causes: list[BaseException] = [e]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)  # Triton's own errors are the innermost of a chain, one link for each function
        there.send((None, "\n".join(f"{type(c).__name__}: {c}" for c in causes)))
