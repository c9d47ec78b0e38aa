"""A lane over several nodes: what its hosts do. The device and NVSHMEM are stand-ins; nothing crosses a network."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import warnings
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilelink as tk
from tests.runtime.cuda_stand_in import StandIn, rank_on
from tests.runtime.nvshmem_stand_in import Library
from tests.runtime.processes import Pool, members
from tests.runtime.small_worlds import SMALL as SMALL_TILES
from tilelink.backend import nvshmem as bitcode
from tilelink.errors import FarAccessError, NvshmemError, RankDiedError, RankMismatchError, Site, WorldError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.board import Post
from tilelink.runtime.cuda import multicast, nodes, nvshmem
from tilelink.runtime.cuda.nodes import NodesGroup
from tilelink.runtime.cuda.nvshmem import Nvshmem, UniqueId, initialised
from tilelink.runtime.lane import HOST, Reason, Report

ROOT = Path(__file__).parents[2]
WHEEL = ROOT / ".triton" / "nvshmem" / bitcode.FOLDER
SMALL = {"heap_bytes": 1 << 20, "signal_bytes": 1 << 12, "enter_timeout": 20.0, "stuck_timeout": 5.0}


def the_real_one(path: str, called: set[str]) -> None:
    """What NVSHMEM itself says of our structures and names, in a process that nobody else loads it in."""
    os.environ["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] = "lo"
    library = Nvshmem(ctypes.CDLL(path))
    assert not library.initialised()
    unique_id = library.unique_id()
    assert len(unique_id) == 128 and any(unique_id[4:])
    where = UniqueId.from_buffer_copy(unique_id)
    made = library.attributes(where, 3, 8)
    args = made.args.unique_id
    assert (args.rank, args.ranks, args.id) == (3, 8, ctypes.addressof(where)), (args.rank, args.ranks)
    assert ctypes.sizeof(made) == 144 and made.version == (1 << 16) + 144
    missing = [name for name in sorted(called) if not hasattr(library.library, name)]
    assert not missing, missing


def test_structures_and_names_are_those_of_the_library() -> None:
    """NVSHMEM itself makes a place to meet and fills the attributes in, without a GPU; and has all that we call."""
    if not (WHEEL / bitcode.HOST).exists():
        pytest.skip("no NVSHMEM wheel; make test fetches it")
    called = {n for file in (nvshmem, bitcode) for n in re.findall(r"\bnvshmemx?_\w+", Path(file.__file__).read_text())}
    called -= {"nvshmem_types", "nvshmem_uniqueid"}  # files
    called = {n for n in called if not n.endswith("_v1")}  # structures
    assert "nvshmem_team_split_strided" in called and "nvshmemx_cumodule_init" in called
    process = get_context("fork").Process(target=the_real_one, args=(str(WHEEL / bitcode.HOST), called))
    process.start()
    process.join(60)
    assert process.exitcode == 0


# ---- one process


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


def lane(
    near: tuple[int, ...] | None = None, fabric: bool = False, of: Any = None, per_node: int = 2, **options: Any
) -> NodesGroup:
    """The lane of this process, on nodes of two ranks; `near`: the ranks that NVSHMEM maps, else those of the node;
    `fabric`: whether a store reaches all of these; `of`: a group of some ranks, of which a node has `per_node`."""
    rank = dist.get_rank()
    mine = rank // 2 * 2, rank // 2 * 2 + 1
    LIBRARIES["library"] = library = Library(rank, mine if near is None else near, pes=4, fabric=fabric)
    nvshmem.loaded = lambda: Nvshmem(library)  # type: ignore[assignment]
    nodes.CudaDevice = lambda: StandIn(sms=12)  # type: ignore[assignment, misc]
    found = tk.group(of, device="cuda", per_node=per_node, **SMALL | options)
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
    assert said.count(("barrier", (0, 1, 2, 3))) == 1, "before words are zeroed"
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
    ((_, script),) = [item for known in group._known.values() for item in known.scripts.items() if item[0] == 0]
    source = script.record.prepared.lowered.source
    return group.lane.device.loads, "put_notify_far(" in source and script.record.prepared.lowered.target.network


def test_a_program_is_prepared_for_near_and_far_ranks(ranks: Pool) -> None:
    for loads, puts in ranks.results(prepared):
        assert "all_gather_matmul" in loads and puts


def adds_up(right: bool) -> tuple[bool, list[str]]:
    """Whether kernels get the multicast address of a node whose fabric adds up the words of its two ranks, or not; and
    what is warned of."""
    first = dist.get_rank() // 2 * 2
    read = partial(
        multicast.multicast_address, read=lambda *where: sum(map(multicast._word, (first, first + 1))) + (not right)
    )
    nodes.multicast_address = read
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RuntimeWarning)
            group = lane(fabric=True)
    finally:
        nodes.multicast_address = multicast.multicast_address
    told = [str(w.message) for w in said if issubclass(w.category, RuntimeWarning)]
    return group.lane.multicast == group.lane.heaps[group.rank].data_ptr(), told


def test_a_node_has_its_multicast_address(ranks: Pool) -> None:
    """Where its heaps lie one over the other, which is found out by the sum of a word of each."""
    assert ranks.results(adds_up, True) == [(True, [])] * 4
    first, *others = ranks.results(adds_up, False)
    assert not first[0] and "no multicast: words whose sum is" in first[1][0] and others == [(False, [])] * 3
    assert ranks.results(what_kernels_are_told)[0][2], "without a fabric there is none"


def of_every_other_rank() -> tuple[list[int], list[Any]]:
    """What a sub-group's kernels know of far ranks, and what NVSHMEM was asked for; one sub-group alone is reset."""
    mine = [members(0, 2), members(1, 3)][dist.get_rank() % 2]
    group = lane(of=mine, per_node=1)
    if dist.get_rank() % 2:
        group.reset()
    table: list[int] = group.lane.tables[group.rank].tolist()
    return [a for a in table if a < 0], [c for c in LIBRARIES["library"].calls if c[0] in ("team", "barrier")]


def test_sub_groups_have_teams(ranks: Pool) -> None:
    """Memory and teams are made by all processes together; what comes after is a sub-group's own business."""
    for rank, (far, calls) in enumerate(ranks.results(of_every_other_rank)):
        mine = (rank % 2, rank % 2 + 2)
        assert far == [-((rank + 2) % 4 + 1)]
        assert calls == [("team", mine), ("team", (rank,)), *[("barrier", mine)] * (rank % 2)]


def some_alone(which: tuple[int, ...], of: tuple[int, ...], patience: float) -> str:
    """What some ranks are told that make a lane of a sub-group while the others make none."""
    mine = members(*of)
    if dist.get_rank() not in which:
        return ""
    try:
        lane(of=mine, per_node=1, enter_timeout=patience)
    except NvshmemError as e:
        return e.message
    return "nothing"


def test_a_sub_group_that_not_all_processes_make(ranks: Pool) -> None:
    """NVSHMEM would wait for them without a bound."""
    told = ranks.results(some_alone, (0, 2), (0, 2), 0.2)
    assert told[1::2] == ["", ""]
    assert all("PEs [1, 3] of NVSHMEM made no lane within 0.2 s: it makes memory" in t for t in told[::2]), told
    told = ranks.results(some_alone, (0, 1, 3), (0, 1, 3), 20.0)
    assert told[3] == "PEs [0, 1, 3] are no team of NVSHMEM: the PEs of a team rise in equal steps"
    assert ranks.results(of_every_other_rank)[0][0] == [-3], "and the next ones are made as if nothing had been"


def of_other_sizes() -> str:
    mine = [members(0, 2), members(1, 3)][dist.get_rank() % 2]
    lane(of=mine, per_node=1, heap_bytes=(1 + dist.get_rank() % 2) << 20)
    return "nothing"


def test_sub_groups_whose_heaps_differ(ranks: Pool) -> None:
    for failure in ranks.failures(of_other_sizes):
        assert failure.kind == NvshmemError.__name__ and "rank 1 has heap_bytes 2097152, rank 0 1048576" in failure.text


def killed_elsewhere() -> list[str]:
    """Rank 3 is killed, and is the only one of its machine that could tell. What the others say: in a call, and in a
    reset, which does not come to NVSHMEM."""
    nodes.socket = SimpleNamespace(gethostname=lambda: f"machine {dist.get_rank()}")  # type: ignore[assignment]
    group, said = lane(), list[str]()
    group.compare({"program": "alike"}, Site("here.py", 1))
    if group.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    for do in (lambda: group.compare({"program": "another"}, Site("here.py", 1)), group.reset):
        try:
            do()
        except RankDiedError as e:
            said.append(str(e))
    assert not [c for c in LIBRARIES["library"].calls if c[0] == "barrier"]
    child = os.fork()
    if not child:
        os._exit(len(group.processes._wires))  # type: ignore[attr-defined]
    assert os.waitpid(child, 0)[1] == 0, "what a fork holds open would look as if this process lived"
    return said


def test_a_process_of_another_machine_that_dies_is_named() -> None:
    pool = Pool(4)
    try:
        *alive, dead = pool.run(killed_elsewhere)
        assert dead is None
        for in_a_call, in_a_reset in alive:
            gone = f"rank 3 has died: its process, {pool.processes[3].pid} on machine 3, is gone"
            assert f"{gone}, before call 1 (" in in_a_call and f"{gone}, and the lane can't be reset" in in_a_reset
    finally:
        pool.close()


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
    group = rank_on(StandIn(sms=12), alone)
    seen = iter([False, False, True, True])
    board = SimpleNamespace(
        posted=lambda rank, number: next(seen), ended=lambda rank: True, post=lambda post: None,
        heartbeats=lambda: (0,), read=lambda rank, number: Post(0, {}),
    )  # fmt: skip
    monkeypatch.setattr(group, "board", board)
    group.compare({}, Site("here.py", 1))
