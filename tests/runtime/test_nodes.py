"""A lane over several nodes: what its hosts do. The device and NVSHMEM are stand-ins; nothing crosses a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilelink as tk
from tests.runtime.cuda_stand_in import StandIn
from tests.runtime.inputs import SMALL as SMALL_TILES
from tests.runtime.nvshmem_stand_in import Library
from tests.runtime.processes import Pool
from tests.runtime.test_cuda_process_group import made
from tilelink.backend import nvshmem as bitcode
from tilelink.errors import FarAccessError, NvshmemError, RankMismatchError, Site, WorldError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.board import Post
from tilelink.runtime.cuda import nodes, nvshmem
from tilelink.runtime.cuda.nodes import NodesGroup
from tilelink.runtime.cuda.nvshmem import Nvshmem, initialised
from tilelink.runtime.lane import HOST, Reason, Report

ROOT = Path(__file__).parents[2]
WHEEL = ROOT / ".triton" / "nvshmem" / bitcode.FOLDER
SMALL = {"heap_bytes": 1 << 20, "signal_bytes": 1 << 12, "enter_timeout": 20.0, "stuck_timeout": 5.0}
THE_REAL_ONE = """
import ctypes, sys
from tilelink.runtime.cuda.nvshmem import Nvshmem, UniqueId
library = Nvshmem(ctypes.CDLL(sys.argv[1]))
assert not library.initialised()
unique_id = library.unique_id()
assert len(unique_id) == 128 and any(unique_id[4:])
where = UniqueId.from_buffer_copy(unique_id)
made = library.attributes(where, 3, 8)
args = made.args.unique_id
assert (args.rank, args.ranks, args.id) == (3, 8, ctypes.addressof(where)), (args.rank, args.ranks)
assert ctypes.sizeof(made) == 144 and made.version == (1 << 16) + 144
"""


def test_structures_are_those_of_the_library() -> None:
    """NVSHMEM itself makes a place to meet and fills the attributes in, without a GPU."""
    if not (WHEEL / bitcode.HOST).exists():
        pytest.skip("no NVSHMEM wheel; make test fetches it")
    mine = {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo", "LD_LIBRARY_PATH": str(WHEEL), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", THE_REAL_ONE, str(WHEEL / bitcode.HOST)]
    subprocess.run(command, env=os.environ | mine, check=True)


# ---- one process


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_it_is_initialised_once(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(nvshmem, "loaded", lambda: Nvshmem(library))
    initialised(alone), initialised(alone)
    assert library.calls == ["unique id", ("initialise", 8, 0, 1)]


def test_what_it_refuses_is_named(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(memory=1000)
    with pytest.raises(NvshmemError, match="no 4096 bytes of symmetric memory: set NVSHMEM_SYMMETRIC_SIZE to more"):
        Nvshmem(library).allocate(4096)
    library.nvshmemx_hostlib_init_attr = lambda *arguments: 7  # type: ignore[method-assign]
    monkeypatch.setattr(nvshmem, "loaded", lambda: Nvshmem(library))
    with pytest.raises(NvshmemError, match="could not initialise NVSHMEM: nvshmemx_hostlib_init_attr returned 7"):
        initialised(alone)

    def missing() -> Nvshmem:
        raise NvshmemError("there is no wheel")

    monkeypatch.setattr(nvshmem, "loaded", missing)
    with pytest.raises(NvshmemError, match="rank 0 has no NVSHMEM: there is no wheel"):
        initialised(alone)


# ---- a process a rank


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Four ranks on two nodes."""
    made = Pool(4)
    yield made
    made.close()


LIBRARIES: dict[str, Any] = {}


def lane(near: tuple[int, ...] | None = None) -> NodesGroup:
    """The lane of this process, on nodes of two ranks; `near`: the ranks that NVSHMEM maps, else those of the node."""
    rank = dist.get_rank()
    mine = rank // 2 * 2, rank // 2 * 2 + 1
    LIBRARIES["library"] = library = Library(pe=rank, near=mine if near is None else near)
    nvshmem.loaded = lambda: Nvshmem(library)  # type: ignore[assignment]
    nodes.CudaDevice = lambda: StandIn(sms=12)  # type: ignore[assignment, misc]
    found = tk.group(device="cuda", per_node=2, **SMALL)
    assert isinstance(found, NodesGroup)
    return found


def what_kernels_are_told() -> tuple[list[bool], list[int], bool, int | None, list[Any]]:
    group = lane()
    table = group.lane.tables[group.rank].tolist()
    own = table[group.rank] == group.lane.heaps[group.rank].data_ptr() and table[group.rank] % 256 == 0
    calls = LIBRARIES["library"].calls
    return [a > 0 for a in table], [a for a in table if a < 0], own and bool(group.lane.target.network), (
        group.lane.per_node
    ), calls


def test_near_ranks_have_addresses_and_far_ones_their_pes(ranks: Pool) -> None:
    for rank, (near, far, own, per_node, calls) in enumerate(ranks.results(what_kernels_are_told)):
        assert near == [r // 2 == rank // 2 for r in range(4)] and own and per_node == 2
        assert far == [-(r + 1) for r in range(4) if r // 2 != rank // 2]
        begun = ["unique id"] * (rank == 0) + [("initialise", 8, rank, 4)]
        assert calls[: len(begun)] == begun and calls[len(begun)][0] == "allocate"


def calls_are_compared() -> list[str]:
    group = lane()
    group.compare({"program": "alike"}, Site("here.py", 1))
    try:
        group.compare({"program": f"of node {group.rank // 2}"}, Site("here.py", 1))
    except RankMismatchError as e:
        differing = str(e)
    group.reset()
    group.compare({"program": "after a reset"}, Site("here.py", 1))
    said = LIBRARIES["library"].calls
    assert said.count("quiet") == said.count("barrier") == 1, "before words are zeroed"
    return [differing]


def test_calls_are_compared_through_the_store(ranks: Pool) -> None:
    for (differing,) in ranks.results(calls_are_compared):
        assert "call 1 of this group: rank 2 has program of node 1, rank 0 of node 0" in differing


def what_a_host_reaches() -> tuple[str, list[int]]:
    group = lane()
    far = (group.rank + 2) % 4
    with pytest.raises(FarAccessError, match=f"rank {far} is on another: copy engines do not cross nodes"):
        group.lane.memory(far, 0, (4,), torch.int32)
    group.lane.poison(Report(group.rank, 0, HOST, 0, 1, 0, Reason.NEVER_ENTERED))
    return str(group.report()), group.lane.reached()


def test_a_host_reaches_its_node(ranks: Pool) -> None:
    for rank, (report, reached) in enumerate(ranks.results(what_a_host_reaches)):
        assert f"rank={rank}, run=0" in report and reached == [rank // 2 * 2, rank // 2 * 2 + 1]


def prepared() -> tuple[list[str], bool]:
    """A program whose gather puts whole rows: compiled for far ranks, too, and made ready to be launched."""
    group = lane()
    x, weight = torch.ones(16, 16), torch.ones(16, 16)
    schedule = SMALL_TILES["push"].changed(gather={"tile": (16, None)})
    all_gather_matmul.prepare(x, weight, schedule=schedule, group=group)
    ((_, script),) = [item for kept in group._known.values() for item in kept.items() if item[0] == 0]
    source = script.record.prepared.lowered.source
    return group.lane.device.loads, "put_notify_far(" in source and script.record.prepared.lowered.target.network


def test_a_program_is_prepared_for_near_and_far_ranks(ranks: Pool) -> None:
    for loads, puts in ranks.results(prepared):
        assert "all_gather_matmul" in loads and puts


def nodes_that_are_others() -> None:
    lane(near=(0, 1, 2, 3))


def test_nodes_that_are_not_as_was_said(ranks: Pool) -> None:
    for failure in ranks.failures(nodes_that_are_others):
        assert failure.kind == WorldError.__name__
        assert "per_node=2, and NVSHMEM says otherwise of ranks [2, 3] as rank 0 reaches them" in failure.text


def test_a_rank_that_calls_and_ends_while_it_is_looked_for(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it posted before its end counts."""
    group = made(StandIn(sms=12), alone)
    seen = iter([False, False, True, True])
    board = SimpleNamespace(
        posted=lambda rank, number: next(seen), ended=lambda rank: True, post=lambda post: None,
        heartbeats=lambda: (0,), read=lambda rank, number: Post(0, {}),
    )  # fmt: skip
    monkeypatch.setattr(group, "board", board)
    group.compare({}, Site("here.py", 1))
