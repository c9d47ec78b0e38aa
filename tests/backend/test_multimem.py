"""Multicast as a target has it: what is stored where, by a stand-in that the interpreter runs; and what NVIDIA's
multimem becomes, compiled only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import tilelink as tk
from tests.backend import multicast_by_loops, multicast_in_nodes
from tests.backend.edited import replaced
from tests.backend.small_programs import lowered, small, verdict
from tests.kernels.gather_gemm import Call, small_world
from tests.kernels.gemm_reduce import Sum, in_tiles
from tests.parameters import each_once
from tests.programs.exchanges import telling
from tests.programs.gathered import gathered
from tilelink.backend.parameters import Parameter
from tilelink.backend.targets import CPU
from tilelink.backend.targets.multimem import multicast_notify, multicast_store, multicast_sum
from tilelink.errors import FarAccessError
from tilelink.kernels.all_gather_matmul import all_gather_matmul, multicast, push
from tilelink.kernels.matmul_fabric_all_reduce import matmul_fabric_all_reduce
from tilelink.runtime.cpu.world import LATE, CpuWorld
from tilelink.runtime.launch import Run

TARGET = replace(CPU, name="multicast", module=multicast_by_loops.__name__, multicast=True)


def source(schedule: tk.Schedule, dtype: str = "bfloat16", **sizes: Any) -> str:
    fitted = all_gather_matmul.fit(schedule, world=3, **sizes)
    return all_gather_matmul.lowered_at(fitted, target=TARGET, world=3, sizes=sizes, dtypes=dtype)[0].source


def gather(text: str) -> str:
    return text.split("def gather(")[1].split("\n\n\n")[0]


@pytest.mark.parametrize(("M", "K"), [(48, 64), ((16, 0, 24), 72), ((1, 2, 3), 8)])
def test_stores_and_notifications_go_to_all_at_once(M: Any, K: int) -> None:
    body = gather(source(multicast, M=M, N=16, K=K))
    assert (
        body.count("multicast_store(multicast, full_at, ")
        == body.count("multicast_notify(multicast, full_signals")
        == 1
    )
    assert "range(world)" not in body and "peer(" not in body


@pytest.mark.parametrize(
    ("schedule", "dtype", "K"), [(multicast, "bfloat16", 68), (multicast, "float32", 6), (push, "bfloat16", 64)]
)
def test_rows_of_other_lengths_and_other_schedules_loop(schedule: tk.Schedule, dtype: str, K: int) -> None:
    text = source(schedule, dtype, M=48, N=16, K=K)
    assert "multicast_store" not in text and "notify(peer(" in gather(text)


@pytest.mark.parametrize(("dtype", "at_once"), [("bool", False), ("int64", False), ("int8", True)])
def test_dtypes_whose_elements_are_not_packed_loop(dtype: str, at_once: bool) -> None:
    """Blocks of bool have one bit an element: Triton packs none of them into words."""
    schedule = tk.Schedule(gather=tk.SMs(2, tile=(16, 32), at="home", via="multicast"), take=tk.SMs(tile=(16, 32)))
    found = gathered.lowered_at(schedule, target=TARGET, world=3, sizes={"M": 48, "K": 160}, dtypes=dtype)[0].source
    assert ("multicast_store(" in gather(found)) == at_once


@pytest.fixture(autouse=True)
def table_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels get the table of heaps for a multicast address."""
    value = Run.value

    def of(run: Run, parameter: Parameter) -> Any:
        return run.lane.tables[run.rank] if parameter.name == "multicast" else value(run, parameter)

    monkeypatch.setattr(Run, "value", of)


def with_multicast() -> CpuWorld:
    return small_world(3, target=TARGET, sms=12)


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@each_once("sizes, dtype", [((16, 16, 16), 64), ((5, 0, 20), 40), ((1, 7, 0), 24)], DTYPES,
           dear=lambda sizes, _: sizes[1] == 64)  # fmt: skip
def test_every_rank_gets_it(sizes: tuple[tuple[int, ...], int], dtype: torch.dtype) -> None:
    """Two calls in a row; the kernel of K = 40 has tails that 16 bytes divide."""
    parts, K = sizes
    tiles = multicast.changed(gather={"tile": (16, 16)}, matmul={"tile": (16, 16, 16)})
    call = Call(parts, N=20, K=K, dtype=dtype, schedule=tiles, integers=True)
    world = with_multicast()
    results = world.run(lambda group: [call.on(group, out=call.poison()) for _ in range(2)])
    (prepared,) = world.lane.prepared.values()
    assert "multicast_store(" in prepared.lowered.source
    for outs in zip(*results, strict=True):
        call.check(outs)


@pytest.mark.parametrize(("M", "at_once"), [(20, True), (32, True), (17, False)])
def test_vectors_with_an_entry_a_rank(M: int, at_once: bool) -> None:
    """A store from registers to views of all ranks, in a role that has no rank axis."""
    schedule = tk.Schedule(tell=tk.SMs(2, tile=(16,), via="multicast"), add_told=tk.SMs(tile=(16,)))
    world = with_multicast()
    outs = world.run(lambda group: telling(torch.full((M,), float("nan")), schedule=schedule, group=group))
    assert all(torch.equal(out, torch.full((M,), 6.0)) for out in outs)
    (prepared,) = world.lane.prepared.values()
    assert ("multicast_store(" in prepared.lowered.source) == at_once


SUMMED = in_tiles(matmul_fabric_all_reduce, "multicast", (16, 16, 16), (16, 16))


@each_once("sizes, dtype", [(17, 40, True), (2, 20, False), (48, 32, True)], DTYPES,
           dear=lambda sizes, _: sizes[0] == 48)  # fmt: skip
def test_a_sum_over_all_ranks_is_read_at_once(sizes: tuple[int, int, bool], dtype: torch.dtype) -> None:
    """Two calls in a row, of rows that no tile divides; 20 columns are no whole 16 bytes of 16-bit elements."""
    rows, N, at_once = sizes
    call = Sum((rows, 0, 0), N=N, K=24, dtype=dtype, schedule=SUMMED, integers=True, program=matmul_fabric_all_reduce)
    world = with_multicast()
    results = world.run(lambda group: [call.on(group, out=call.poison()) for _ in range(2)])
    (prepared,) = world.lane.prepared.values()
    assert ("multicast_sum(" in prepared.lowered.source) == (at_once or dtype == torch.float32)
    for outs in zip(*results, strict=True):
        call.check(outs)


# ---- inside nodes, with a network between them

IN_NODES = replace(LATE, name="multicast in nodes", module=multicast_in_nodes.__name__, multicast=True)


def nodes_with_multicast() -> CpuWorld:
    """Two nodes of two ranks each."""
    return CpuWorld(4, per_node=2, heap_bytes=2 << 20, sms=12, target=IN_NODES)


@pytest.mark.parametrize(("tile", "put"), [
    ((16, None), "put_notify_far("), pytest.param((16, 32), "put_far(", marks=pytest.mark.verify),
])  # fmt: skip
def test_one_kernel_multicasts_in_its_node_and_puts_to_others(tile: tuple[int, int | None], put: str) -> None:
    schedule = multicast.changed(gather={"tile": tile}, matmul={"tile": (16, 32, 32)})
    call = Call((9, 20, 1, 16), N=24, K=40, schedule=schedule, integers=True)
    world = nodes_with_multicast()
    results = world.run(lambda group: [call.on(group, out=call.poison()) for _ in range(2)])
    (prepared,) = world.lane.prepared.values()
    body = gather(prepared.lowered.source)
    assert body.count("multicast_store(") == body.count("multicast_notify(") == body.count(put) == 1
    assert " notify(peer(" not in body, "near ranks are told at once"
    for outs in zip(*results, strict=True):
        call.check(outs)


@pytest.mark.parametrize("M", [20, 17])
def test_blocks_from_registers_go_to_the_node_at_once_and_to_others_by_way_of_a_stage(M: int) -> None:
    schedule = tk.Schedule(tell=tk.SMs(2, tile=(16,), via="multicast"), add_told=tk.SMs(tile=(16,)))
    world = nodes_with_multicast()
    outs = world.run(lambda group: telling(torch.full((M,), float("nan")), schedule=schedule, group=group))
    assert all(torch.equal(out, torch.full((M,), 12.0)) for out in outs)
    (prepared,) = world.lane.prepared.values()
    assert ("multicast_store(" in prepared.lowered.source) == (M % 4 == 0)
    assert "put_far(" in prepared.lowered.source


def test_no_network_adds() -> None:
    x, weight = torch.ones(32, 16), torch.ones(16, 32)
    with pytest.raises(FarAccessError, match="may be on another node, and no network loads into registers"):
        nodes_with_multicast().run(lambda g: matmul_fabric_all_reduce(x, weight, schedule=SUMMED, group=g))


POINTERS = {"bf16": 16, "fp16": 16, "fp32": 32, "i8": 8, "fp8e4nv": 8}


@triton.jit
def send(x, multicast, M, K):
    tile = tl.program_id(0)
    block = tl.load(x + tile * 64 + tl.arange(0, 32)[:, None] * K + tl.arange(0, 64)[None, :])
    width: tl.constexpr = 128 // block.dtype.primitive_bitwidth
    rows = tl.arange(0, 32)[:, None]
    offsets = tile * 64 + rows * K + tl.arange(0, 64 // width)[None, :] * width
    multicast_store(multicast, 256, offsets, block, rows < M)
    multicast_notify(multicast, 512, tile)


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("dtype", list(POINTERS))
def test_multimem_stores_16_bytes_as_they_were_loaded(dtype: str, arch: int) -> None:
    """Compiled only. Vectors stay in the registers they were loaded to: no way through shared memory."""
    signature = {"x": f"*{dtype}", "multicast": "i64", "M": "i32", "K": "i32"}
    aligned = {(k,): [["tt.divisibility", 16]] for k in (0, 3)}
    made = triton.compile(ASTSource(send, signature, {}, aligned), target=GPUTarget("cuda", arch, 32))
    ptx = made.asm["ptx"]
    bytes_of_a_thread = 32 * 64 * POINTERS[dtype] // 8 // 128
    assert (
        ptx.count("multimem.st.relaxed.sys.global.v4.f32") == ptx.count("ld.global.v4.b32") == bytes_of_a_thread // 16
    )
    assert ptx.count("multimem.red.release.sys.global.add.u32") == ptx.count("fence.proxy.alias") == 1
    assert made.metadata.shared == 0


@triton.jit
def read(out, multicast, M, N):
    tile = tl.program_id(0)
    rows = tl.arange(0, 32)[:, None]
    width: tl.constexpr = 128 // out.dtype.element_ty.primitive_bitwidth
    offsets = tile * 64 + rows * N + tl.arange(0, 64 // width)[None, :] * width
    block = multicast_sum(multicast, 256, offsets, rows < M, out.dtype.element_ty)
    tl.store(out + tile * 64 + rows * N + tl.arange(0, 64)[None, :], block, mask=rows < M)


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize(
    ("dtype", "kind"), [("bf16", "acc::f32.v4.bf16x2"), ("fp16", "acc::f32.v4.f16x2"), ("fp32", "v4.f32")]
)
def test_multimem_loads_16_bytes_of_sums(dtype: str, kind: str, arch: int) -> None:
    """Compiled only. What a thread loads it stores as 16 bytes: no way through shared memory."""
    aligned = {(k,): [["tt.divisibility", 16]] for k in (0, 3)}
    signature = {"out": f"*{dtype}", "multicast": "i64", "M": "i32", "N": "i32"}
    made = triton.compile(ASTSource(read, signature, {}, aligned), target=GPUTarget("cuda", arch, 32))
    ptx, each = made.asm["ptx"], 32 * 64 * POINTERS[dtype] // 8 // 128 // 16
    assert ptx.count(f"multimem.ld_reduce.relaxed.sys.global.add.{kind}") == ptx.count("st.global.v4.b32") == each
    assert ptx.count("fence.proxy.alias") == 1 and ptx.index("fence.proxy.alias") < ptx.index("multimem.ld_reduce")
    assert made.metadata.shared == 0


def test_gates_see_what_sums_depend_on() -> None:
    """A sum that is read whether or not its tiles have come."""
    made = small("sm_90", matmul_fabric_all_reduce, "multicast")
    whole = verdict(made)
    assert whole.findings == () and whole.expected == whole.found
    early = verdict(made, replaced(r"(multicast_sum\(.*) \+ ready, ", r"\1, "))
    assert any(finding.startswith("guarded") for finding in early.findings)


def test_gates_count_what_multimem_does() -> None:
    """One notification of all ranks is one release, and without it something is missing."""
    made = lowered("sm_90", "multicast")
    assert "multicast_notify(multicast, full_signals" in made[0].source
    whole = verdict(made)
    assert whole.findings == () and whole.expected == whole.found
    less = verdict(made, replaced(r"^( +)multicast_notify\(.*\n", ""))
    assert any(finding.startswith("release") for finding in less.findings)
