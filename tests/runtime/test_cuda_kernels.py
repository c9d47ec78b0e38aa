"""Kernels on their way to a GPU: compiled by Triton for the arguments of a call, loaded once, launched with the right
arguments. Triton's own path is taken; the driver at its end is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton.language as tl
from triton import jit
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as triton_driver

from tests.parameters import first_cases
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.small_worlds import whole
from tilelink.backend.targets import FORMS, TARGETS, Target
from tilelink.errors import ResidencyError, ScheduleError, Site
from tilelink.inspect.compile import CompileError, compiled
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.ops import rows_of_experts
from tilelink.programs.compiling import placed_errors
from tilelink.runtime.cuda.device import Kernel, load
from tilelink.runtime.cuda.driver import Driver
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.prepare import Prepared

HOPPER = TARGETS["sm_90"]
SCHEDULES = {
    name: schedule.changed(gather={"count": 2, "tile": (16, 16)}, matmul={"tile": (64, 16, 16)})
    for name, schedule in {"push": push, "pull": pull}.items()
}


class TritonDriver:
    """The part of Triton's driver that compiling, loading and launching use. It loads and launches nothing.
    `launched`: (kernel, grid, stream, arguments) of each launch."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=self.load, unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": HOPPER.shared_bytes},
        )  # fmt: skip
        self.launched: list[tuple[str, tuple[int, int, int], int, tuple[Any, ...]]] = []
        self.loaded: list[str] = []

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(HOPPER.backend, HOPPER.arch, HOPPER.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return -1  # of no launch: each says on which stream

    def load(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        assert binary[:4] == b"\x7fELF"
        self.loaded.append(name)
        return 1, 0x7000 + len(self.loaded), 128, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            # Triton's own: packed metadata, launch metadata, two hooks; then the kernel's.
            self.launched.append((metadata.name, (x, y, z), stream, rest[4:]))

        return launch


class Library:
    """Two workers of any kernel, of `threads` (of the kernels that make tables: 256), fit on an SM; each thread has
    `local` bytes of local memory, and 1024 on the device."""

    def __init__(self, local: int = 0, threads: int = 256, tables: bool = False) -> None:
        self.local, self.threads, self.tables = local, threads, tables
        self.grown: list[tuple[int, int]] = []

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, function: Any, threads: Any, shared: Any) -> int:
        assert function.value > 0x7000 and threads.value in (self.threads, 256 if self.tables else self.threads)
        found._obj.value = 2
        return 0

    def cuFuncGetAttribute(self, found: Any, attribute: Any, function: Any) -> int:
        assert attribute.value == 3 and function.value > 0x7000, "local memory of a kernel that is loaded"
        found._obj.value = self.local
        return 0

    def cuCtxGetLimit(self, found: Any, limit: Any) -> int:
        found._obj.value = 1024
        return 0

    def cuCtxSetLimit(self, limit: Any, size: Any) -> int:
        self.grown.append((limit.value, size.value))
        return 0


class Compiling(StandIn):
    """A device whose kernels are compiled for Hopper."""

    def __init__(self, library: Library | None = None, target: Target = HOPPER) -> None:
        super().__init__(sms=12)
        self.target, self.library = target, library or Library()

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        self.loads.append(kernel)
        with placed_errors(prepared.lowered):
            return load(getattr(prepared.module, kernel), arguments, Driver(self.library), **prepared.lowered.options)


@pytest.fixture
def triton() -> Iterator[TritonDriver]:
    stand_in = TritonDriver()
    triton_driver.set_active(stand_in)
    yield stand_in
    triton_driver.set_active(None)


@pytest.mark.versions
@pytest.mark.parametrize("schedule", ["push", "pull"])
def test_arguments_of_a_launch(triton: TritonDriver, schedule: str) -> None:
    device = Compiling()
    ranks = virtual_world(2, device)
    sets = [whole((64, 64), seed=s) for s in range(3)]
    outs = ranks.run(lambda group: [i.on(group, schedule=SCHEDULES[schedule], slot=0) for i in sets])
    names = ["all_gather_matmul"] if schedule == "push" else ["all_gather_matmul_publish", "all_gather_matmul"]
    assert [name for name, _, _, _ in triton.launched] == names * 2 * len(sets)
    assert device.loads == names * 2, "a call like one before loads nothing"
    (known,) = ranks.groups[1]._known.values()
    step = known.scripts[0].steps[-1]
    mine = triton.launched[len(names) - 1 :: len(names)][1::2]
    for inputs, out, (_, grid, stream, values) in zip(sets, outs[1], mine, strict=True):
        by_name = dict(zip(step.kernel.names, values, strict=True))  # type: ignore[union-attr]
        assert grid == (6, 1, 1) and stream == ranks.groups[1].stream.cuda_stream
        (blocks,) = (v for n, v in by_name.items() if n.startswith("weight_blocks"))
        assert blocks.base is inputs.weight[1] and by_name["out"] is out
        assert by_name["rank"] == 1 and by_name["world"] == 2 and by_name["heaps"] is ranks.lane.tables[1]
        assert by_name["N"] == inputs.weight[1].shape[1] and by_name["gather_workers"] == 2


@pytest.mark.versions
@pytest.mark.parametrize(("schedule", "target"), [(push, "sm_90"), (pull, "sm_90"), (push, "sm_90+warps")])
def test_descriptors_of_peers_are_of_what_lies_in_their_heaps(
    schedule: Any, target: str, triton: TritonDriver
) -> None:
    """In every call, also where that is what they have published: only descriptors of the own tensors change."""
    ranks = virtual_world(2, Compiling(Library(threads=384 if "warps" in target else 256), FORMS[target]))
    calls = [(torch.ones(64, 64).bfloat16(), torch.ones(128, 64).bfloat16()) for _ in range(3)]
    tiles = schedule.changed(gather={"count": 2, "tile": (64, 64)}, matmul={"tile": (64, 64, 64)})
    ranks.run(lambda group: [all_gather_matmul(x, w.T, schedule=tiles, group=group, slot=0) for x, w in calls])
    (known,) = ranks.groups[1]._known.values()
    step, heaps = known.scripts[0].steps[-1], ranks.lane.tables[1].tolist()
    peers, own = ("x", "full") if schedule is pull else ("full", "x")
    launches = [rest for name, *_, rest in triton.launched if name == "all_gather_matmul"]
    assert len(launches) == 6
    for rest in launches:
        by_name = dict(zip(step.kernel.names, rest, strict=True))  # type: ignore[union-attr]
        of_peers = [by_name[f"{peers}_blocks_64_by_64_of_{rank}"].base.data_ptr() for rank in range(2)]
        first, second = (lies - heap for lies, heap in zip(of_peers, heaps, strict=True))
        assert first == second > 0, "at one place of both heaps"
        mine = by_name[f"{own}_blocks_64_by_64"].base.data_ptr()
        assert (mine in [x.data_ptr() for x, _ in calls]) == (own == "x")


@pytest.mark.versions
def test_kernels_that_lay_rows_out(triton: TritonDriver) -> None:
    ids = torch.zeros(6, 2, dtype=torch.int32)
    for given in (ids, ids.long()):
        rows_of_experts.laid_out(given, 4, 2, 1, by_kernels=True)
    rows_of_experts.met(ids, 4, 1, 0, 2, 12, by_kernels=True)
    launched = [(name, grid) for name, grid, *_ in triton.launched]
    assert launched[:2] == [("_lay_out", (5, 1, 1))] * 2
    assert launched[2:] == [("_count", (4, 2, 1)), ("_lay_out", (3, 1, 1)), ("_meet", (1, 1, 1))]


def test_other_alignments_are_other_kernels(triton: TritonDriver) -> None:
    """Triton compiles for addresses that are multiples of 16, and a call with others may not get that kernel."""
    device = Compiling()
    ranks, inputs = virtual_world(1, device), whole((64,))
    shifted = torch.zeros(inputs.x[0].numel() + 1)[1:].view(inputs.x[0].shape)

    def body(group: CudaGroup) -> None:
        for x in (inputs.x[0], shifted, inputs.x[0], shifted):
            all_gather_matmul(x, inputs.weight[0], schedule=SCHEDULES["push"], group=group, slot=0)

    ranks.run(body)
    assert len(device.loads) == 2 and len(triton.launched) == 4


WIDE = push.changed(gather={"count": 2, "tile": (32, 64)}, matmul={"tile": (64, 64, 64)})


@pytest.mark.versions
def test_arguments_of_the_specialised_form(triton: TritonDriver) -> None:
    """Its descriptors say how blocks lie in shared memory; a worker has the warps that load, too."""
    device = Compiling(Library(threads=384), FORMS["sm_90+warps"])
    ranks = virtual_world(2, device)
    x, weight = torch.ones(64, 64).bfloat16(), torch.ones(128, 64).bfloat16()
    ranks.run(lambda group: [all_gather_matmul(x, weight.T, schedule=WIDE, group=group, slot=0) for _ in range(2)])
    assert device.loads == ["all_gather_matmul"] * 2 and len(triton.launched) == 4
    (known,) = ranks.groups[1]._known.values()
    assert "warp_specialize" in known.scripts[0].record.prepared.lowered.source
    by_name = dict(zip(known.scripts[0].steps[-1].kernel.names, triton.launched[-1][-1], strict=True))  # type: ignore[union-attr]
    (blocks,) = (v for n, v in by_name.items() if n.startswith("weight_blocks"))
    assert blocks.base.data_ptr() == weight.data_ptr()
    assert blocks.layout.swizzle_byte_width == 128 and list(blocks.block_shape) == [64, 64]


@pytest.mark.versions
def test_rows_of_experts_in_the_specialised_form(triton: TritonDriver) -> None:
    """The kernel that makes the tables comes first. It is of another module; both have the same tables."""
    device = Compiling(Library(threads=384, tables=True), FORMS["sm_90+warps"])
    ranks, x = virtual_world(2, device), torch.ones(64, 64).bfloat16()
    weight, order = torch.ones(2, 128, 64).bfloat16().transpose(1, 2), torch.arange(64, dtype=torch.int32)
    counts = torch.full((4, 2), 16, dtype=torch.int32)
    tiles = dispatch_matmul.schedule("push").changed(dispatch={"count": 2}, matmul={"tile": (64, 64, 64)})
    ranks.run(lambda group: [
        dispatch_matmul(x, weight, counts, order, schedule=tiles, group=group, slot=0) for _ in range(2)
    ])  # fmt: skip
    assert device.loads == ["dispatch_matmul_tables", "dispatch_matmul"] * 2
    assert [name for name, *_ in triton.launched] == ["dispatch_matmul_tables", "dispatch_matmul"] * 4
    (known,) = ranks.groups[1]._known.values()
    given = [dict(zip(s.kernel.names, launched[-1], strict=True))  # type: ignore[union-attr]
             for s, launched in zip(known.scripts[0].steps, triton.launched[-2:], strict=True)]
    tables = {n for n in given[0] if n.endswith("_running")}
    assert len(tables & given[1].keys()) == 4
    assert all(given[0][n] is given[1][n] for n in tables & given[1].keys())


@pytest.mark.usefixtures("triton")
def test_a_call_that_the_specialised_form_does_not_take_has_the_portable_one() -> None:
    """Each rank decides for its own tensors: where its weight lies, blocks can't be described on rank 1."""
    device = Compiling(Library(threads=384), FORMS["sm_90+warps"])
    ranks, x = virtual_world(2, device), torch.ones(64, 64).bfloat16()
    weights = torch.ones(64, 128).bfloat16(), torch.ones(64, 129).bfloat16()[:, :128]

    def body(group: CudaGroup) -> None:
        device.library.threads = 256 if group.rank else 384
        all_gather_matmul(x, weights[group.rank], schedule=WIDE, group=group, slot=0)

    ranks.run(body)
    scripts = [known.scripts[0] for group in ranks.groups for known in group._known.values()]
    forms = ["warp_specialize" in script.record.prepared.lowered.source for script in scripts]
    assert forms == [True, False]


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(("local", "grown"), [(1024, []), (12_000, [(0, 12_000)])])
def test_local_memory_grows_when_a_kernel_is_loaded(local: int, grown: list[Any]) -> None:
    """A launch that lets it grow waits for the device: for the kernels of ranks that wait for this one."""
    library = Library(local)
    virtual_world(1, Compiling(library)).run(lambda group: whole((64,)).on(group, schedule=SCHEDULES["push"]))
    assert library.grown == grown


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("dtype", "tile"), first_cases([(torch.float32, (64, 64, 32)), (torch.bfloat16, (128, 64, 64))])
)
def test_exact_products_have_tiles_that_fit_in_registers(
    dtype: torch.dtype, tile: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 has no matrix instructions: with the tile of bfloat16 each thread would spill 26 KB. Who shows the
    program for the target, or compiles it, takes the same; what follows a name is taken as it is."""
    device, kept = Compiling(), list[Prepared]()
    monkeypatch.setattr(Compiling, "load", lambda self, prepared, *rest: kept.append(prepared) or _loaded(prepared))
    ranks = virtual_world(1, device)
    x, weight = torch.zeros(256, 128, dtype=dtype), torch.zeros(128, 64, dtype=dtype)
    ranks.run(lambda group: all_gather_matmul.prepare(x, weight, schedule="push", group=group))
    assert {r.resource.tile for p in kept for r in p.program.roles if r.name == "matmul"} == {tile}
    asked: dict[str, Any] = {"dtypes": str(dtype)[6:], "sizes": {"M": 256, "N": 64, "K": 128}}
    shown = all_gather_matmul.bound_at("push", world=1, target=device.target, **asked)[0]
    assert shown == kept[0].program
    said = all_gather_matmul.fit("push,matmul.tile=128x64x64", target=device.target, **asked)
    assert said["matmul"].tile == (128, 64, 64)
    (made,) = compiled(kept[0].lowered, kept[0].sizes)
    assert made.spill_bytes < 1024, "what a thread has without more memory"


def _loaded(prepared: Prepared) -> Kernel:
    return Kernel("none", (), 64, 0, 1024, 4, 1, {(n, 1, 1): None for n in range(20)})


def test_a_kernel_that_fits_on_no_sm(triton: TritonDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton says what it lacks; we say which call it was, and where the schedule stands that asks for so much."""
    monkeypatch.setattr("triton.compiler.compiler.max_shared_mem", lambda device: 1024)
    other = SCHEDULES["push"].changed(matmul={"tile": (32, 16, 16)})  # which no test has loaded
    x, weight = torch.ones(64, 16), torch.ones(16, 24)
    with pytest.raises(ScheduleError, match=r"fits on no SM: .*shared memory") as e:
        virtual_world(1, Compiling()).run(lambda group: all_gather_matmul(x, weight, schedule=other, group=group))
    assert e.value.site is not None and "all_gather_matmul(" in e.value.site.text
    assert e.value.message.endswith(f"; the schedule: {other.site}")


@jit
def missing(block):  # type: ignore[no-untyped-def]
    return tl.no_such_function(block)


def test_what_triton_does_not_compile(triton: TritonDriver) -> None:
    """The error of a call is at the user's line, and short."""
    x, weight = torch.ones(64, 16), torch.ones(16, 24)
    program = all_gather_matmul.of(epilogue=missing)
    with pytest.raises(CompileError, match=r"Triton does not compile this: .*no_such_function") as e:
        virtual_world(1, Compiling()).run(lambda group: program(x, weight, schedule=SCHEDULES["push"], group=group))
    assert e.value.site is not None and "epilogue(" in e.value.site.text
    assert len(str(e.value).splitlines()) == 2


def test_workers_that_are_not_resident() -> None:
    kernel = Kernel("matmul", ("x",), 128, 0, 100_000, 8, 2, None)
    kernel.check_resident(24, 12, Site("here.py", 1))
    with pytest.raises(ResidencyError, match=r"matmul has 25 workers .*; 24 fit on the 12 SMs .*: 2 on each"):
        kernel.check_resident(25, 12, Site("here.py", 1))
