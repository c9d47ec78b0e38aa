"""Bulk copies: which writes go through the copy engine for tiles, what they say, and that CPU ranks, whose hosts make
descriptors for that, get the right numbers by them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink as tk
from tests.backend.edited import replaced
from tests.backend.small_programs import Made, small, verdict
from tests.kernels.gather_gemm import Call, run_and_check, small_world
from tests.kernels.gather_gemm import in_tiles as gather_in_tiles
from tests.kernels.gemm_reduce import Sum
from tests.programs.by_engine import (
    ALONE,
    EACH,
    OF_THREE,
    OVER,
    SPREAD,
    TWICE,
    filled_twice,
    kept_of_three,
    left_alone,
    passed_each,
    spread,
    stored_over,
)
from tests.verification.mutants.tools import Edit
from tilelink.backend.targets import CPU, FORMS
from tilelink.emulator import Operation
from tilelink.errors import ScheduleError
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter
from tilelink.runtime.trace import align

DESCRIBING = replace(CPU, name="cpu with descriptors", descriptors=True, shared_bytes=1 << 17)
PARTS = [(48,), (32, 32), (16, 16, 16), (16, 16, 16, 16), (5, 0, 17)]
"""Rows of the ranks of worlds of 1 to 4: also parts that no tile divides, and an empty one."""
EIGHT = (5, 1, 0, 17, 3, 3, 16, 2)
SPANNING = re.MULTILINE | re.DOTALL


def of_engine(source: str) -> tuple[int, int]:
    """Copies and other stores by the engine that a source has: those with a load, and all."""
    stores = re.findall(r"\w+\.store\(\[.*\n", source)
    return sum(".load([" in s for s in stores), len(stores)


def on_describing(call: Call) -> str:
    """Makes a call twice on CPU ranks whose hosts make descriptors, checks it and its trace; the source that ran."""
    operations: list[Operation] = []
    world = small_world(call.world, target=DESCRIBING, observer=operations.append)
    run_and_check(call, call, world=world)
    (prepared,) = world.lane.prepared.values()
    for n in range(2):
        assert align(prepared.events, operations, f"{call.program.name} run {n}").done
    return prepared.lowered.source


@pytest.mark.versions
@pytest.mark.parametrize(("schedule", "parts"), [
    *(pytest.param("push", p, marks=pytest.mark.verify if len(p) > 2 else ()) for p in (*PARTS, EIGHT)),
    ("pull", PARTS[1]),
], ids=str)  # fmt: skip
def test_gathered_rows_are_right(schedule: str, parts: tuple[int, ...]) -> None:
    """The last block of a line is a rest, and where parts are uneven, blocks end inside of the tensor that they are
    stored to: a descriptor is told so, and leaves the rows of the next rank alone."""
    tiles = gather_in_tiles(schedule, (16, 128), (16, 16, 16))
    source = on_describing(Call(parts, N=8, K=136, schedule=tiles, integers=True))
    if 0 not in parts:
        assert of_engine(source) == (1, 1)
        assert ("reshape(1, 1, 16, 64)" in source) == (schedule == "push" and parts[0] % 16 > 0)


@pytest.mark.versions
@pytest.mark.parametrize(("program", "schedule", "also", "engine", "parts"), [
    (matmul_reduce_scatter, "push", "reduce", (1, 2), (16, 16)),
    pytest.param(matmul_reduce_scatter, "pull", "reduce", (1, 2), (17, 5, 1), marks=pytest.mark.verify),
    (matmul_all_reduce, "push", "take", (2, 2), (5, 0, 17)),
], ids=lambda v: getattr(v, "name", str(v)))  # fmt: skip
def test_partial_sums_are_right(
    program: Any, schedule: str, also: str, engine: tuple[int, int], parts: tuple[int, ...]
) -> None:
    """Where the engine also stores what registers have added up, and where homes have parts of several lengths."""
    call = Sum(parts, N=136, K=24, integers=True).by((program, schedule), matmul=(16, 32, 16), moved=(16, 128))
    assert isinstance(call.schedule, tk.Schedule)
    source = on_describing(replace(call, schedule=call.schedule.changed(**{also: {"via": "tma"}})))
    assert of_engine(source) == engine


def test_a_tile_tells_what_is_stored_when_it_is_complete() -> None:
    """Each notification of a role whose stores the engine does waits for these; no other does."""

    def told(program: Any, schedule: str) -> list[bool]:
        source = small("sm_90", program, schedule)[0].source
        return [", bulk=True" in line for line in re.findall(r"^ +notify\(.*\)$", source, re.MULTILINE)]

    assert told(all_gather_matmul, "push") == [True]
    assert told(matmul_reduce_scatter, "push") == [False, False, True], "matmul tells of its own rows, too"
    assert told(matmul_reduce_scatter, "fused") == [False], "threads store what they multiply"


@pytest.mark.parametrize("target", ["sm_90", "sm_90+warps"])
def test_a_block_that_goes_to_one_of_two_places_is_stored_once(target: str) -> None:
    """If rows lie alike in both, only the place is chosen: a store in each branch would take more registers."""

    def stores(program: Any, schedule: str, role: str) -> tuple[int, int]:
        """The stores of a role to a place that is chosen, and all."""
        functions = re.findall(rf"^def {role}\w*\(.*?(?=^\n|\Z)", small(target, program, schedule)[0].source, SPANNING)
        (places,) = (found for f in functions if (found := re.findall(r" (?:tl\.)?store\(([\w.]+)", f)))
        return places.count("tl.where"), len(places)

    assert stores(matmul_reduce_scatter, "push", "matmul") == (1, 1)
    assert stores(matmul_ring_reduce_scatter, "ringed", "ring") == (0, 2), "the caller's rows need not lie like ours"


def made(program: Any, schedule: tk.Schedule, world: int = 2) -> Made:
    dims = {d for t in program.recorded(program.optional).tensors for d in t.dims}
    sizes = {d: {"M": 256, "K": 128}[d.split("_")[0]] for d in dims}
    return program.lowered_at(schedule, target=FORMS["sm_90"], world=world, sizes=sizes, dtypes="bf16")


@pytest.mark.parametrize(("program", "schedule", "settled"), [
    (filled_twice, TWICE, [r"( +)settle\(\)\n +ready = wait\("]), (stored_over, OVER, []), (spread, SPREAD, []),
    (left_alone, ALONE, [r"\n    settle\(\)\n"]), pytest.param(passed_each.of(2), EACH, [], marks=pytest.mark.verify),
], ids=lambda v: getattr(v, "name", ""))  # fmt: skip
def test_what_nobody_is_told_of_is_complete_when_it_has_to_be(
    program: Any, schedule: tk.Schedule, settled: list[str]
) -> None:
    """Before a worker stores the same bytes again, behind a wait, and before a rank leaves with stores to heaps."""
    kernel = made(program, schedule)
    source = kernel[0].source
    assert source.count("settle()") == len(settled) and all(re.search(s, source) for s in settled)
    found = verdict(kernel)
    assert found.findings == () and found.expected == found.found and found.found["bulk"] > 0


@pytest.mark.parametrize(("program", "schedule", "edit", "kind"), [
    pytest.param(filled_twice, TWICE, replaced(r"^ +settle\(\)\n", ""), "complete", marks=pytest.mark.verify),
    (left_alone, ALONE, replaced(r"^ +settle\(\)\n", ""), "complete"),
    (stored_over, OVER, replaced(r'(ready = wait\(.*"gpu"), tma=True', r"\1"), "fence"),
], ids=["stored again too early", "left too early", "stored over what threads have stored"])  # fmt: skip
def test_a_gate_sees_what_does_not_wait(program: Any, schedule: tk.Schedule, edit: Edit, kind: str) -> None:
    assert any(f.startswith(kind) for f in verdict(made(program, schedule), edit).findings)


@pytest.mark.versions
def test_what_is_stored_again_is_what_stays() -> None:
    """Twice on CPU ranks, whose hosts make descriptors."""
    world = small_world(2, target=DESCRIBING)
    for call in range(2):
        x, out = torch.full((64, 64), -1.0), [torch.full((64, 64), torch.nan) for _ in range(2)]
        y = [torch.full((32, 64), float(2 * call + rank)) for rank in range(2)]
        world.run(lambda g: filled_twice(x, y[g.rank], out[g.rank], schedule=TWICE, group=g))  # noqa: B023, it runs in this turn
        assert all(torch.equal(mine, torch.cat(y)) for mine in out)


def test_what_peers_have_published_is_read_behind_a_fence() -> None:
    push, pull = (small("sm_90", all_gather_matmul, s)[0].source for s in ("push", "pull"))
    assert "entered(control, home, run, tma=True)" in pull and "entered(" not in push
    assert "credit(control, before, world, tma=True)" in push and "credit(control, before, world, tma=True)" in pull


@pytest.mark.parametrize("target", ["cpu", "sm_80", "gfx942"])
def test_chips_without_such_an_engine_copy_through_registers(target: str) -> None:
    source = small(target, all_gather_matmul, "push")[0].source
    assert of_engine(source) == (0, 0) and "tma=True" not in source and "bulk=True" not in source


@pytest.mark.parametrize(("what", "sizes"), [
    ("rows of 500 elements of bf16 are no multiple of 16 bytes", {"K": 500}),
    ("a rank without rows has none to describe", {"M": [130, 0, 7, 5]}),
])  # fmt: skip
def test_what_no_descriptor_describes_goes_through_registers(what: str, sizes: dict[str, Any]) -> None:
    assert of_engine(small("sm_90", all_gather_matmul, "push", **sizes)[0].source) == (0, 0), what


@pytest.mark.parametrize(("dtype", "copies"), [("int8", 1), ("float32", 1), ("int64", 0), ("float64", 0), ("bool", 0)])
def test_elements_that_triton_describes_are_copied_in_bulk(dtype: str, copies: int) -> None:
    schedule = all_gather.schedule("pull").changed(gather={"via": "tma"})
    shown = all_gather.show("triton", schedule, target="sm_90", world=4, dtypes=dtype, M=1024, K=1024)
    assert of_engine(shown) == (copies, copies)


def test_the_ring_has_the_stages_that_shared_memory_holds() -> None:
    """A block is 16 KB; a chip of the consumers' kind has room for six of them."""

    def stages(target: str, wanted: int) -> int:
        schedule = all_gather_matmul.schedule("push").changed(gather={"stages": wanted})
        shown = all_gather_matmul.show("triton", schedule, target=target, world=4, M=1024, N=512, K=4096)
        (found,) = re.findall(r"for K_at in .*num_stages=(\d+)", shown)
        return int(found)

    assert [stages("sm_90", n) for n in (1, 6, 99)] == [1, 6, 14]
    assert stages("sm_120", 99) == 6


def test_few_lines_are_copied_in_longer_pieces() -> None:
    """A block of 16 lines takes 512 elements of each, or as many as the tile has."""
    for columns, step in ((2048, 512), (256, 256)):
        schedule = all_gather_matmul.schedule("push").changed(gather={"tile": (16, columns)})
        shown = all_gather_matmul.show("triton", schedule, target="sm_90", world=4, M=1024, N=512, K=4096)
        assert f"x_blocks_16_by_{step}.load(" in shown


def test_the_specialised_form_copies_without_registers() -> None:
    for program, schedule in ((all_gather_matmul, "push"), (matmul_reduce_scatter, "pull")):
        source = program.show("gluon", schedule, target="sm_90", world=4, M=1024, N=1024, K=1024)
        assert re.search(r"^ +carry\(\w+, \(.*\), \w+, \w+, \(.*, \), .*, num_stages=6\)$", source, re.MULTILINE)
        assert ".store([" not in source


@pytest.mark.parametrize(("program", "schedule", "sizes"), [
    (all_gather_matmul, all_gather_matmul.schedule("push").changed(gather={"tile": (128, 8)}), {}),
    (all_gather_matmul, all_gather_matmul.schedule("push").changed(gather={"tile": (4, 256)}), {}),
    (matmul_reduce_scatter, matmul_reduce_scatter.schedule("push").changed(send={"via": "load-store"},
                                                                          reduce={"via": "tma"}), {}),
    (kept_of_three, OF_THREE, {"S": 4, "R": 1024}),
], ids=["lines of 16 bytes", "4 lines", "what registers hold", "three dimensions"])  # fmt: skip
def test_the_specialised_form_leaves_other_copies_to_threads(
    program: Any, schedule: tk.Schedule, sizes: dict[str, int]
) -> None:
    """Gluon lays no such blocks out in shared memory."""
    portable, specialised = (
        program.show(stage, schedule, target="sm_90", world=4, M=1024, N=1024, K=1024, **sizes)
        for stage in ("triton", "gluon")
    )
    assert of_engine(portable)[1] > 0
    assert of_engine(specialised) == (0, 0) and " carry(" not in specialised


def test_large_blocks_that_registers_hold_are_stored_by_threads() -> None:
    """They would leave no shared memory."""
    for rows, stores in ((128, 1), (256, 0)):
        schedule = tk.Schedule(spreads=tk.SMs(2, tile=(rows, 256), via="tma"))
        assert of_engine(spread.show("triton", schedule, target="sm_90", world=2, M=1024, K=1024))[1] == stores


@pytest.mark.parametrize(("target", "sends"), [("sm_90", "matmul_tell"), ("sm_100", "matmul_finish")])
def test_the_specialised_form_sends_what_it_multiplies(target: str, sends: str) -> None:
    """From shared memory: so it has a stage less of a ring."""

    def form(**changes: Any) -> str:
        schedule = matmul_reduce_scatter.schedule("fused").changed(matmul=changes) if changes else "fused"
        return matmul_reduce_scatter.show("gluon", schedule, target=target, world=4, M=1024, N=1024, K=1024)

    functions = dict(re.findall(r"^def (\w+)\(.*\n((?: +.*\n)+)", form(), re.MULTILINE))
    assert {name for name, body in functions.items() if " send(" in body} == {sends}
    assert "bulk=True" in functions[sends] and "x_ring = ring(x_blocks_128_by_64, (128, 64), 3)" in functions["matmul"]
    assert "bulk=True" not in form(via="load-store")
    assert "x_ring = ring(x_blocks_128_by_64, (128, 64), 4)" in form(via="load-store")


def test_across_nodes_no_peer_has_descriptors() -> None:
    shown = all_gather_matmul.show("triton", "push", target="sm_90", world=4, per_node=2, M=1024, N=512, K=512)
    assert of_engine(shown) == (0, 0)


def test_there_is_no_other_way() -> None:
    with pytest.raises(ScheduleError, match=r"via='bulk': it is one of 'load-store', 'tma', 'multicast'"):
        tk.SMs(8, tile=(128, 128), via="bulk")
