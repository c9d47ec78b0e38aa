"""Runs hand-written Triton kernels of N ranks in one process on the CPU, on symmetric memory.

    world = KernelWorld(2)
    inbox = world.symmetric("inbox", (64,), torch.float32)
    ready = world.signals("ready")
    world.run(lambda rank: rank.launch(push, 4, inbox.table, ready.table, rank=rank.rank, BLOCK=16))

Kernels are plain `@triton.jit` functions. They reach a peer through a table of addresses, as on GPUs whose memory is
mapped, or by the operations of `tilelink.emulator.shmem`, as over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import torch

from tilelink.emulator import Admission, Execution, InterpretedKernel, Operation, PolicyWord, Region, interpreted
from tilelink.emulator.execution import Races, Switch
from tilelink.emulator.memory import Kind
from tilelink.emulator.options import checked
from tilelink.errors import ArgumentError, DeviceError, DtypeError, ShapeError, Site, WorldError, public
from tilelink.frontend.sizes import check_rank, check_world

T = TypeVar("T")
COMPILER_OPTIONS = {"num_warps", "num_stages", "num_ctas"}
"""Options of a launch that only a compiler reads; the interpreter ignores them."""


class Symmetric:
    """A tensor of the same shape and dtype on every rank. `symmetric[rank]` is the tensor of one rank; `table` (int64,
    one entry a rank) has their addresses, for kernels."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor], kind: Kind) -> None:
        self.name, self.shape, self.dtype = name, tuple(tensors[0].shape), tensors[0].dtype
        self.regions = [Region(name, rank, tensor, kind) for rank, tensor in enumerate(tensors)]
        self.table = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64)

    def __getitem__(self, rank: int) -> torch.Tensor:
        check_rank(rank, len(self.regions))
        return self.regions[rank].tensor


class KernelWorld:
    """A world of ranks that launch their own kernels, under the deterministic scheduler.

    `seed` and `policy` fix the schedule of `run`. `resident`: the most programs of a rank that are under way at a time;
    `admit` lets them begin "in order" or "last first". `races`: True raises RaceError, "collect" only keeps races in
    `latest.races`, False does not look for them. `switch`: programs take turns at "atomics", or at every access to
    "memory". `observer` gets every operation.

    Raises WorldError and ArgumentError."""

    def __init__(
        self,
        world: int,
        *,
        seed: int = 0,
        policy: PolicyWord = "random",
        resident: int | None = None,
        admit: Admission = "in order",
        races: Races = True,
        switch: Switch = "memory",
        observer: Callable[[Operation], None] | None = None,
    ) -> None:
        check_world(world)
        self.world, self.seed = world, seed
        self.options = checked(
            seed=seed, policy=policy, resident=resident, admit=admit, races=races, switch=switch, observer=observer
        )
        self.tensors: dict[str, Symmetric] = {}
        self.latest: Execution | None = None
        """The execution of the latest run, finished or not: its races, schedule and number of operations."""
        self.running = False

    # ---- memory

    def symmetric(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Symmetric:
        """Makes a tensor on every rank, which all ranks reach. At first its elements are NaN (integers: all bits set).

        Raises ArgumentError for a name in use, ShapeError, DtypeError."""
        return self._allocate(name, shape, dtype, "data", 0xFF)

    def signals(self, name: str, count: int = 1, dtype: torch.dtype = torch.int32) -> Symmetric:
        """Makes words on every rank that kernels signal and poll, int32 or int64, 0 at first. Raises as `symmetric`."""
        if dtype not in (torch.int32, torch.int64):
            raise DtypeError(f"signals {name} of {dtype}: int32 or int64", Site.of_user())
        return self._allocate(name, (count,), dtype, "signal", 0)

    def _allocate(self, name: str, shape: Sequence[int], dtype: torch.dtype, kind: Kind, fill: int) -> Symmetric:
        if name in self.tensors:
            raise ArgumentError(f"{name} is the name of another symmetric tensor", Site.of_user())
        if not isinstance(dtype, torch.dtype):
            raise DtypeError(f"{name} of {dtype!r}: a dtype of torch", Site.of_user())
        sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            raise ShapeError(f"{name} of shape {shape!r}: a positive number of elements a dimension", Site.of_user())
        size = dtype.itemsize * prod(sizes)
        memories = [torch.full((size,), fill, dtype=torch.uint8) for _ in range(self.world)]
        self.tensors[name] = Symmetric(name, [m.view(dtype).view(sizes) for m in memories], kind)
        return self.tensors[name]

    # ---- runs

    @public
    def run(self, on_rank: Callable[[KernelRank], T], *, seed: int | None = None) -> list[T]:
        """Runs `on_rank(rank)` and everything it launches, for every rank; returns the results by rank.

        Memory stays as the run leaves it. Raises what a rank raises, and the errors of the execution, with the lines of
        the kernels: RaceError, DeadlockError, LivelockError, OutOfBoundsError, KernelError."""
        if self.running:
            raise WorldError("this world is running: one run at a time", Site.of_user())
        self.latest = Execution(self.world, self.seed if seed is None else seed, **self.options)
        ranks = [KernelRank(self, self.latest, rank) for rank in range(self.world)]
        self.running = True
        try:
            return self.latest.run(lambda rank: on_rank(ranks[rank]))
        finally:
            self.running = False


class KernelRank:
    """A rank of a `KernelWorld` in a run, as the code of its host sees it."""

    def __init__(self, owner: KernelWorld, execution: Execution, rank: int) -> None:
        self.rank, self.world = rank, owner.world
        self._owner, self._execution = owner, execution
        self._calls: dict[str, int] = {}

    def launch(
        self,
        kernel: Any,
        grid: int | tuple[int, ...],
        *arguments: Any,
        stream: object = 0,
        name: str | None = None,
        **named: Any,
    ) -> None:
        """Launches `grid` programs of a `@triton.jit` function on a stream; launches on one stream run in order.

        The kernel's arguments are given in order or by name. A launch may touch the symmetric memory of all ranks and
        the tensors among its arguments; reports call these tensors by the parameter's name. `name`: the name of the
        launch in reports, by default the kernel's name and the number of the call, from 1.

        Raises ArgumentError for arguments that the kernel does not take, DeviceError, and WorldError outside a run."""
        site = Site.of_user()
        twin, values = _bound(kernel, arguments, named, site)
        shape = _grid(grid, twin.name, site)
        call = self._calls[twin.name] = self._calls.get(twin.name, 0) + 1
        name = name or f"{twin.name} call {call}"
        regions = self._regions(values, site)
        try:
            self._running("launch").launch(twin, shape, values, regions, self.rank, stream, name)
        except TypeError as error:
            raise ArgumentError(f"{twin.name}: {error}", site) from None

    def synchronize(self, stream: object | None = None) -> None:
        """Waits until this rank's launches on one stream, or on all its streams, are done."""
        self._running("synchronize").synchronize(self.rank, stream)

    def follow(self, stream: object, *others: object) -> None:
        """Makes later launches on a stream begin after everything that is on other streams of this rank now."""
        self._running("follow").follow(self.rank, stream, others)

    def _running(self, caller: str) -> Execution:
        if self._owner.latest is not self._execution or not self._owner.running:
            raise WorldError(f"{caller} is called outside of KernelWorld.run, where no rank runs", Site.of_user())
        return self._execution

    def _regions(self, values: Mapping[str, Any], site: Site) -> list[Region]:
        """The regions that a launch may touch. Raises DeviceError."""
        tensors = self._owner.tensors.values()
        regions = [region for symmetric in tensors for region in symmetric.regions]
        regions += [Region(f"{s.name} table", self.rank, s.table, "control") for s in tensors]
        known = {region.tensor.untyped_storage().data_ptr() for region in regions}
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if value.device.type != "cpu":
                    raise DeviceError(f"{name} is on {value.device}: these ranks are on the CPU", site)
                if value.untyped_storage().data_ptr() not in known:
                    regions.append(Region(name, self.rank, value))
        return regions


def _bound(
    kernel: Any, arguments: Sequence[Any], named: Mapping[str, Any], site: Site
) -> tuple[InterpretedKernel, dict[str, Any]]:
    """The kernel's twin for the interpreter, and its arguments by name. Raises ArgumentError."""
    if not hasattr(kernel, "fn") or not hasattr(kernel, "signature"):
        raise ArgumentError(f"{kernel!r} is no kernel: a function with @triton.jit", site)
    twin = interpreted(kernel)
    parameters = twin.signature.parameters
    if len(arguments) > len(parameters):
        raise ArgumentError(f"{twin.name} takes {len(parameters)} arguments, not {len(arguments)}", site)
    values = dict(zip(parameters, arguments, strict=False))
    if twice := sorted(values.keys() & named.keys()):
        raise ArgumentError(f"{twin.name} is given {', '.join(twice)} twice", site)
    values |= {name: value for name, value in named.items() if name in parameters or name not in COMPILER_OPTIONS}
    for name, value in values.items():
        if isinstance(value, Symmetric):
            raise ArgumentError(
                f"{name}={value.name} of all ranks: say {value.name}[rank], the tensor of one, or {value.name}.table",
                site,
            )
    return twin, values


def _grid(grid: int | tuple[int, ...], kernel: str, site: Site) -> tuple[int, ...]:
    """The programs along each of up to three axes. Raises ArgumentError."""
    shape = grid if isinstance(grid, tuple) else (grid,)
    if not 1 <= len(shape) <= 3 or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ArgumentError(f"a grid of {grid!r} for {kernel}: one to three numbers of programs", site)
    return shape
