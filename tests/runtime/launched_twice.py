"""Launches kernels through Triton and directly, and prints as JSON whether CUDA got the same. CUDA is a library of ours
that only writes down what it gets, so this runs in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from bench.gpu.no_cuda import NoDevice, in_place_of_cuda, loaded
from tilelink.backend.targets import FORMS
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.runtime.cuda.device import Kernel
from tilelink.runtime.cuda.driver import Driver
from tilelink.runtime.cuda.launches import Launch, fits, through_triton
from tilelink.runtime.cuda.script import KernelStep
from tilelink.runtime.cuda.virtual_world import VirtualWorld

STREAM = 0x5000


@triton.jit
def numbers(x, small, wide, one, none, out):  # type: ignore[no-untyped-def]
    tl.store(out, tl.load(x) + small + wide + one)


@triton.jit
def scaled(x, factor, out):  # type: ignore[no-untyped-def]
    tl.store(out, tl.load(x) * factor)


def main() -> None:
    library, folder = in_place_of_cuda(), Path(tempfile.mkdtemp())
    files = (folder / str(k) for k in range(1000))

    def written(launch: Launch, tensors: list[torch.Tensor]) -> bytes:
        file = next(files)
        library.no_cuda_write(str(file).encode())
        launch(tensors, STREAM)
        return file.read_bytes()

    def alike(name: str, kernel: Kernel, workers: int, values: Any, places: list[int]) -> Callable[..., Any]:
        by_triton = through_triton(kernel.compiled, workers, values, places)
        assert kernel.directly is not None, name
        direct = kernel.directly(kernel.compiled, workers, values, places)

        def compare(tensors: list[torch.Tensor]) -> dict[str, Any]:
            mine, theirs = written(direct, tensors), written(by_triton, tensors)
            return {"case": name, "bytes": len(mine), "same": mine == theirs}

        return compare

    found = list[dict[str, Any]]()
    x, out = torch.ones(8), torch.empty(8)
    values = {"x": x, "small": -3, "wide": -(2**40), "one": 1, "none": None, "out": out}
    kernel = loaded(library, numbers, values, num_warps=2)
    compare = alike("numbers", kernel, 5, (None, *list(values.values())[1:5], None), [0, 5])
    found += [compare([torch.ones(8), torch.empty(8)]) for _ in range(3)]
    assert loaded(library, scaled, {"x": x, "factor": 0.5, "out": out}, num_warps=1).directly is None

    for form, schedule in (("sm_90", pull), ("sm_90+warps", push)):
        for step, tensors in steps(library, form, schedule):
            places = [at for at, _ in step.of_caller]
            compare = alike(f"{form} {step.kernel.name}", step.kernel, step.workers, step.values, places)
            found += map(compare, tensors)
    described = with_tensors(step, tensors[0])
    assert fits(Driver(library), step.kernel.compiled, described)
    elsewhere = fits(Elsewhere(library), step.kernel.compiled, described)
    found.append({"case": "a map whose address is elsewhere", "same": not elsewhere})
    found.append({"case": "what does not fit", "same": not any(misfits(kernel))})
    print(json.dumps(found))


class Elsewhere(Driver):
    """A driver that writes the address of a map to another place than Triton."""

    def replace_address(self, tensor_map: int, address: int) -> None:
        super().replace_address(tensor_map + 8, address)


def with_tensors(step: KernelStep, tensors: list[torch.Tensor]) -> list[Any]:
    """The values of a kernel for these tensors of the caller."""
    values = list(step.values)
    for (at, _), tensor in zip(step.of_caller, tensors, strict=True):
        if hasattr(values[at], "block_shape"):
            values[at].base = tensor
        else:
            values[at] = tensor
    return values


def steps(library: Any, form: str, schedule: Any) -> Iterator[tuple[KernelStep, list[list[torch.Tensor]]]]:
    """Yields the kernels of a call, each with the tensors of three calls."""
    tiles = schedule.changed(gather={"count": 2, "tile": (64, 64)}, matmul={"tile": (64, 64, 64)})
    ranks = VirtualWorld(2, device=NoDevice(library, FORMS[form]), heap_bytes=1 << 20, signal_bytes=1 << 12)
    calls = [(torch.ones(64, 64).bfloat16(), torch.ones(128, 64).bfloat16()) for _ in range(3)]
    ranks.run(lambda group: [all_gather_matmul(x, w.T, schedule=tiles, group=group, slot=0) for x, w in calls])
    ((known,),) = (group._known.values() for group in ranks.groups[:1])
    for step in known.scripts[0].steps:
        assert isinstance(step, KernelStep)
        given = [{"x": x, "weight": w.T, "out": torch.empty(128, 128).bfloat16()} for x, w in calls]
        yield step, [[tensors[name] for _, name in step.of_caller] for tensors in given]


def misfits(kernel: Kernel) -> Iterator[bool]:
    """Yields whether a kernel fits of which CUDA knows other parameters, and one that CUDA does not tell of."""
    values = [torch.ones(8), -3, -(2**40), 1, None, torch.empty(8)]
    for sizes in ((8, 4, 8, 8, 8), (8, 8, 8, 8, 8, 8), None):
        driver: Any = SimpleNamespace(parameter_sizes=lambda function, sizes=sizes: sizes)
        yield fits(driver, kernel.compiled, values)


if __name__ == "__main__":
    main()
