"""Kernels on a device: compiled by Triton for the arguments of a launch, loaded, and launched with little host time.

Triton finds out anew at every launch which compiled kernel its arguments need. Here that is asked once: who calls sees
to it that the same kernel is launched with arguments alike in what Triton looks at, dtypes, values of 1, and multiples
of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from tilelink.errors import ResidencyError, ScheduleError, Site
from tilelink.runtime.cuda.driver import Driver


@dataclass(frozen=True)
class Kernel:
    """A kernel on a device. `registers` of a thread, `spills` in words of it, `shared_bytes` of a worker, and how many
    workers an SM holds. `names`: its parameters, in the order in which `launch` takes their values."""

    name: str
    names: tuple[str, ...]
    registers: int
    spills: int
    shared_bytes: int
    warps: int
    workers_per_sm: int
    compiled: Any

    def launcher(self, workers: int) -> Callable[..., None]:
        """`launch(*values, stream=handle)` of so many workers. A pointer's value is a tensor, or an address: an address
        is not looked at."""
        launch: Callable[..., None] = self.compiled[workers, 1, 1]
        return launch

    def check_resident(self, workers: int, sms: int, site: Site) -> None:
        """Raises ResidencyError where so many workers can't be on `sms` SMs at a time: they wait for each other."""
        most = self.workers_per_sm * sms
        if workers > most:
            raise ResidencyError(
                f"{self.name} has {workers} workers that wait for each other; {most} fit on the {sms} SMs it has: "
                f"{self.workers_per_sm} on each, with {self.registers} registers of {32 * self.warps} threads and "
                f"{self.shared_bytes} bytes of shared memory. Use fewer workers, a smaller tile or fewer stages",
                site,
            )


def load(
    jit: Any, arguments: Mapping[str, Any], driver: Driver, *, num_warps: int, warp_size: int = 32, **options: Any
) -> Kernel:
    """Compiles a `triton.jit` function for arguments like these and loads it on the current device, where it isn't yet.

    CUDA loads code late, and may wait for an idle device then, so this has to be done before a kernel runs that others
    wait for. Raises ScheduleError for one that no SM has room for, and what Triton raises.
    """
    compiled = jit.warmup(*arguments.values(), grid=(1,), num_warps=num_warps, **options)
    if hasattr(compiled, "result"):  # Triton compiles it on another thread, if it is told to
        compiled = compiled.result()
    try:
        compiled[1, 1, 1]  # this loads it
    except triton.OutOfResources as e:
        raise ScheduleError(f"{jit.fn.__name__} fits on no SM: {e}") from None
    shared = compiled.metadata.shared
    return Kernel(
        jit.fn.__name__,
        tuple(arguments),
        compiled.n_regs,
        compiled.n_spills,
        shared,
        num_warps,
        driver.workers_per_sm(compiled.function, num_warps * warp_size, shared),
        compiled,
    )


def alike(tensors: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """What of tensors decides about checks and kernels: where two calls have the same, what was found in one holds in
    the other."""
    return tuple(
        [None if t is None else (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in tensors]
    )
