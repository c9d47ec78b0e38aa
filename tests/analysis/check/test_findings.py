"""Each check fires: the finding names both tiles and ranks, the regions, both lines, a chain of events and a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilelink as tk
from tests.analysis.check.damage import rows_of, without
from tests.frontend.test_folding import SEND, SOURCE
from tests.frontend.test_folding import WAIT as WAIT_AT_SOURCE
from tests.frontend.wrong import changed, load
from tests.programs import alone, reducing, unsafe
from tests.programs.attention import gathered_attention
from tests.programs.exchanges import readers_first
from tests.programs.lines import line_of
from tests.programs.notifying import NOTIFYING
from tests.programs.reducing import ring_reduce_scatter
from tests.programs.ring_attention import (
    ring_attention,
    ring_attention_unasked,
    ring_in_one_buffer,
    stale_after_release,
    stale_entry,
    waits_for_whole_entries,
)
from tests.programs.ring_maximum import ring_off_by_one, ring_twice, taken
from tilelink.analysis.check import Report, check_events
from tilelink.analysis.check.findings import Finding
from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE
from tilelink.errors import ArgumentError, BudgetError, DtypeError, RankError, UnguardedReadError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

started_first = tk.order(lambda step, rank, world: (rank - step - 1) % world)
TWO = tk.SMs(2, tile=(16, 16))
HOME = tk.SMs(2, tile=(16, 16), at="home")
SHARED = tk.Schedule(gather=tk.SMs(tile=(16, 16), at="home"), take=tk.SMs(tile=(16, 16)))


def find(program: Program, schedule: tk.Schedule, kind: str, **options: Any) -> Finding:
    """The finding of a kind; the report has no other kind."""
    report = program.check(schedule, **{"world": 2, "sms": 8, "M": 40, "K": 32} | options)
    assert report.verdict == "unsafe" and report.proof == "unrolled"
    assert {f.kind for f in report.findings} == {kind}, report
    assert all(f.remedy for f in report.findings)
    return report.findings[0]


def line(program: Program, role: str, text: str) -> int:
    """The number of the first line with a text in a role's function."""
    function = next(launch.function for launch in program.recorded().launches if launch.function.name == role)
    return line_of(function, text)


def lines(finding: Finding) -> list[int]:
    return [int(text.split(": ")[0].rpartition(":")[2]) for text in finding.lines]


# ---- races


def test_store_after_the_notification() -> None:
    program = unsafe.stores_after_notify
    found = find(program, tk.Schedule(store_after_notify=HOME, take=TWO), "race")
    assert found.tensor == "full"
    assert found.tiles == ("store_after_notify tile 0", "take tile 0")
    assert found.ranks == (0, 0)
    assert found.regions == ("full[M[0:16], K[0:16]] at rank 0",) * 2
    assert lines(found) == [line(program, "store_after_notify", "* 2"), line(program, "take", "tk.wait")]
    assert [step.split(": ")[1].split(" ")[0] for step in found.chain] == ["notify", "wait", "read", "write"]
    assert found.remedy.startswith("notify what") and "there.store(x[t].load() * 2)" in found.remedy


def test_store_that_is_not_notified() -> None:
    found = find(unsafe.stores_without_notify, tk.Schedule(store_without_notify=HOME, take=TWO), "race")
    assert found.tiles == ("store_without_notify tile 4", "take tile 0")
    assert found.remedy.startswith("notify what") and "(t.reader + 1)" in found.remedy


def test_a_role_that_overwrites_what_another_wrote() -> None:
    schedule = tk.Schedule(put_first=TWO, sum_with_right=TWO, put_back=TWO)
    found = find(unsafe.puts_back_early, schedule, "race")
    assert "overwrites what others may still read" in found.remedy and "a[t].store(got)" in found.remedy


def test_two_ranks_store_to_one_place() -> None:
    found = find(reducing.one_place_for_all, tk.Schedule(add_here=TWO, take_sum=TWO), "race")
    assert "two writes of sums[M[0:16], K[0:16]] at rank 0" in found.what
    assert found.ranks == (0, 1) and "written by one tile" in found.remedy


def test_read_beyond_what_was_waited_for() -> None:
    program, sizes = unsafe.one_row_too_many, {"M": 40, "K": 32}
    schedule = tk.Schedule(gather=HOME, below=tk.SMs(2, tile=(16, 16, 16)))
    found = find(program, schedule, "unguarded read", **sizes)
    assert found.tiles == ("gather tile 2", "below tile 0") and found.ranks == (0, 0)
    assert found.regions == ("full[M[16:20], K[0:16]] at rank 0", "full[M[16:17], K[0:16]] at rank 0")
    assert lines(found) == [line(program, "gather", "tk.copy"), line(program, "below", "mine[s].load()")]
    assert "read no further than full[M[0:16], K[0:16]], or let this tile wait for full[M[16:17]" in found.remedy


def test_what_is_read_is_overwritten() -> None:
    """The writer has waited for the readers' own signal, so it is the readers that have to tell."""
    program = unsafe.overwrites_what_is_read
    found = find(program, tk.Schedule(gather=HOME, take=TWO, add_in_place=TWO), "race")
    assert found.tiles[0].startswith("add_in_place") and found.tiles[1].startswith("take")
    read, write = found.lines[1], found.lines[0]
    assert write.endswith("full[t].store(tk.wait(full[t]).load() + 1)") and read.endswith("tk.wait(full[t]).load())")
    assert found.remedy == (
        f"{write} overwrites what others may still read: let the tile that reads ({read}) notify a buffer after the "
        "read, and let the tile that writes wait for it before the write; or write to another buffer"
    )


# ---- waits that never end


def test_a_worker_waits_for_itself() -> None:
    found = find(readers_first, SHARED, "deadlock")
    assert found.tiles == ("take tile 0", "gather tile 0")
    launches = [f"{launch.function.name} ({launch.site}: {launch.site.text})" for launch in
                readers_first.recorded().launches]  # fmt: skip
    assert found.remedy == f"launch {launches[1]} before {launches[0]}, or give one of them separate SMs"
    apart = SHARED.changed(gather={"count": 2})
    assert readers_first.check(apart, world=2, sms=8, M=40, K=32).verdict == "safe"


@pytest.mark.parametrize(
    ("program", "role", "whose"),
    [
        (unsafe.waits_for_itself, "add_own", "the tile waits for its own later notification"),
        (unsafe.waits_for_each_other, "exchange", "tiles wait for each other"),
    ],
)
def test_no_order_of_tiles_helps(program: Program, role: str, whose: str) -> None:
    found = find(program, tk.Schedule(**{role: TWO}), "deadlock")
    wait, notify = found.lines[0], found.chain[1].partition(" (")[2].partition("); step 1 needs")[0]
    assert "tk.wait(full[t])" in wait and "tk.notify(" in notify
    assert found.remedy == f"{whose}, and no order of tiles helps: notify ({notify}) before the wait ({wait})"


def test_an_entry_is_claimed_while_another_is_held() -> None:
    """With one buffer, each rank holds the entry that its neighbour's claim waits for."""
    program = ring_in_one_buffer
    found = find(program, tk.Schedule(pass_on=TWO, own_rows_released=TWO), "deadlock", world=3, M=16, K=16)
    assert re.fullmatch(
        r"use more buffers: a tile claims an entry \(.*: tk.claim\(.*\) before it releases the one it holds \(.*: "
        r"tk.release\(here\)\)",
        found.remedy,
    )


def test_waits_do_not_run_ahead() -> None:
    """Where each step of a loop waits for what the step before sent, the kernel must not put waits ahead."""
    schedule = tk.Schedule(pass_on=tk.SMs(2, tile=(16, 16), stages=3))
    options: dict[str, Any] = {"world": 3, "M": 16, "K": 64}
    assert unsafe.pipelined_ring.check(schedule, **options).verdict == "safe"
    assert "num_stages=1)" in unsafe.pipelined_ring.show("triton", schedule, **options)


def test_a_ring_in_the_wrong_order() -> None:
    """Each rank comes to what it starts last, and nobody starts."""
    schedule = tk.Schedule(
        matmul=tk.SMs(2, tile=(16, 16, 16)),
        ring=tk.SMs(1, tile=(16, 16), order=tk.own_rank_first),
    )
    options: dict[str, Any] = {"M": 48, "N": 16, "K": 16}
    found = find(ring_reduce_scatter, schedule, "deadlock", world=3, **options)
    assert len(found.chain) == 7  # a wait and a notification of each of three ranks, and round again
    assert len(set(found.ranks)) == 2 and "an order for ring" in found.remedy
    right = schedule.changed(ring={"order": started_first})
    assert ring_reduce_scatter.check(right, world=3, **options).verdict == "safe"


def test_a_signal_that_is_lost() -> None:
    events = gathering()
    found = report_of(check_events(without(events, np.flatnonzero(events.op == NOTIFY)[:1])), "lost signal")
    assert found.tiles == ("matmul tile 0",) and "it expects 1 notifications of cell 0" in found.what


def test_not_all_workers_are_resident() -> None:
    found = find(all_gather_matmul, gemm(), "residency", sms=8, reserve=3, M=64, N=64)
    assert "6 workers a rank, 4 of them wait; 5 are resident (8 SMs, 3 of them reserved)" in found.what
    assert "sms=5" in found.remedy and re.search(r"in the schedule: .*test_findings.py:\d+$", found.remedy)


def test_the_heap_is_too_small() -> None:
    """As on GPUs, where signals lie apart: 16 of them take 512 bytes."""
    sizes: dict[str, Any] = {"world": 2, "M": 256, "N": 64, "K": 32}
    found = find(all_gather_matmul, gemm(), "heap", slot_bytes=33_279, **sizes)
    assert "holds 33279 bytes, and the run needs 33280: 32768 for full[M, K] and 512 for signals" in found.what
    assert all_gather_matmul.check(gemm(), slot_bytes=33_280, **sizes).verdict == "safe"


def test_the_heap_is_too_small_across_nodes() -> None:
    """A network sends from the heap alone: published inputs, and blocks that workers have put there."""
    sizes: dict[str, Any] = {"world": 4, "per_node": 2, "M": 512, "N": 256, "K": 128}
    (found,) = all_gather_matmul.check("push", slot_bytes=327_935, **sizes).findings
    assert "the run needs 327936: 327680 for x[M, K], full[M, K] and 256 for signals" in found.what
    assert all_gather_matmul.check("push", slot_bytes=327_936, **sizes).verdict == "safe"
    report = matmul_reduce_scatter.check("fused", slot_bytes=1, **sizes)
    staged = next(f.what for f in report.findings if f.kind == "heap")
    needed = int(staged.split("the run needs ")[1].split(":")[0])
    assert needed > 131_072 and ", and blocks that are sent, and" in staged
    assert matmul_reduce_scatter.check("fused", slot_bytes=needed, **sizes).verdict == "safe"


# ---- signals


def test_signals_that_are_not_given_as_often_as_derived() -> None:
    schedule = tk.Schedule(half=tk.SMs(2, tile=(16, 16), at="home"), take=tk.SMs(2, tile=(16, 32)))
    found = find(unsafe.half_of_it, schedule, "signal count")
    assert lines(found) == [line(unsafe.half_of_it, "half", "tk.notify")]


def test_a_wait_for_too_few() -> None:
    events = gathering(gather=(16, 16))
    early = events.expected.copy()
    early[early > 1] -= 1
    object.__setattr__(events, "expected", early)
    found = report_of(check_events(events), "signal count")
    assert found.tiles == ("gather tile 1", "matmul tile 0")
    assert "a wait ends after 1 of 2 notifications" in found.what


def test_signals_for_nobody_are_noted() -> None:
    report = unsafe.part_of_the_output.check(tk.Schedule(gather=HOME, use_own=TWO), world=2, sms=8, M=40, K=32)
    (note,) = report.notes
    assert note.startswith("nobody waits for 8 notifications of 8 signals of full;")
    assert "for full[M[0:16], K[0:16]], rank 0 waits and rank 1 does not, which is right if rank 1" in note
    assert "(the wait: " in note and "tk.wait(" in note


SENT_HOME = {'send=tk.Epilogue("make")': 'send=tk.SMs(2, tile=(16, 16), at="home")'}
OF_OWN_RANK = "    mine = tk.wait(partial[t])"


@pytest.mark.parametrize("world", [2, 4])
def test_tiles_of_an_axis_that_all_wait_for_their_own_rank_are_noted(world: int, tmp_path: Path) -> None:
    """The home of the rows does not look at what the other ranks made, since a view lacks .at(t.source)."""
    source = changed(SOURCE, SENT_HOME)
    clean = load(tmp_path, source, "clean")
    wrong = load(tmp_path, changed(source, {WAIT_AT_SOURCE: OF_OWN_RANK}), "wrong")
    assert not clean.program.check(clean.schedule, world=world, M=32 * world, K=16).notes
    report = wrong.program.check(wrong.schedule, world=world, M=32 * world, K=16)
    (note,) = report.notes
    assert report.verdict == "safe"
    assert "send has a tile for each source, and all of these wait for memory of their own rank: rank 1 waits" in note
    assert f" {world} times for its own partial[M[32:48], K[0:16]], and nobody waits for that of rank 0 (the " in note
    assert f"wrong.py:{line(wrong.program, 'send', 'tk.wait')}: " in note
    assert "If a tile needs the memory of its source, write .at(t.source). " in note


def test_a_wait_in_one_tile_of_an_axis_is_not_taken_for_a_mistake(tmp_path: Path) -> None:
    once = f"    if t.source == tk.rank():\n    {OF_OWN_RANK}"
    sent = "        tk.notify(tk.copy(mine, inbox[t.source, t]))"
    summed = "    for source in range(tk.rank(), tk.rank() + 1):"
    module = load(tmp_path, changed(SOURCE, SENT_HOME | {
        WAIT_AT_SOURCE: once, SEND: sent, "    for source in tk.ranks():": summed,
    }))  # fmt: skip
    (note, *_) = module.program.check(module.schedule, world=2, M=64, K=16).notes
    assert "Other ranks wait for the same regions of their partial" in note and "each source" not in note


def test_signals_that_no_rank_hears_are_noted_without_an_excuse() -> None:
    report = unsafe.half_unheard.check(tk.Schedule(gather=HOME, use_first=TWO), world=2, sms=8, M=40, K=32)
    (note,) = report.notes
    assert note.startswith("nobody waits for 8 notifications of 8 signals of full;") and "Other ranks" not in note


def test_all_that_is_refused_is_reported_and_the_first_is_raised() -> None:
    program, schedule = unsafe.refused_three_times, tk.Schedule(reach_beyond=TWO)
    report = program.check(schedule, world=3, M=16, K=16)
    assert [(f.kind, f.ranks) for f in report.findings] == [
        ("no such rank", (2,)), ("out of bounds", (0,)), ("foreign output", (0,))
    ]  # fmt: skip
    texts = ["tk.copy(x[t]", "tk.wait(full", "out[t].at"]
    assert [lines(f) for f in report.findings] == [[line(program, "reach_beyond", text)] for text in texts]
    assert [f.tensor for f in report.findings] == ["full", "full", "out"]
    with pytest.raises(RankError, match="rank 3 in a world of 3"):
        program.unroll(schedule, world=3, M=16, K=16)


def test_a_wrong_rank_is_one_finding_and_a_lost_signal_names_who_notifies() -> None:
    """What goes to no rank is lost where it is waited for: that is no second finding."""
    schedule = tk.Schedule(to_the_next=TWO, take=TWO)
    found = find(unsafe.beyond_the_last_rank, schedule, "no such rank", M=32)
    assert lines(found) == [line(unsafe.beyond_the_last_rank, "to_the_next", "tk.copy")]
    found = find(unsafe.to_itself, tk.Schedule(to_own=HOME, take=TWO), "lost signal")
    assert lines(found) == [line(unsafe.to_itself, "take", "tk.wait")]
    notifies = line(unsafe.to_itself, "to_own", "tk.notify")
    assert f"unsafe.py:{notifies} notifies full in the memory of the executing rank only: its tiles have" in found.what
    assert found.what.endswith("a rank axis reader that no view names; write full[...].at(t.reader)")


# ---- coverage


def test_read_of_what_nobody_writes() -> None:
    events = gathering()
    full = [t.name for t in events.program.tensors].index("full")
    gone = np.flatnonzero((events.op == WRITE) & (events.tensor == full))[:1]
    found = report_of(check_events(without(events, gone)), "unwritten read")
    assert found.what == "full[M[0:16], K[0:32]] at rank 0 is read, and no tile of the run has written it before"
    assert found.tiles == ("matmul tile 0",)


def test_read_before_the_write() -> None:
    """Ordered, but the wrong way: the reader tells the writer that it has read."""
    schedule = tk.Schedule(later=tk.SMs(1, tile=(16, 16), at="home"))
    like = NOTIFYING[0].unroll(schedule, world=2, M=48, K=16)
    tells = (0, 0, NOTIFY, {"home": 1})
    asks, writes = (1, 1, WAIT, {}), (1, 1, WRITE, {"hi": 16})
    right = rows_of(like, [(1, 1, WRITE, {"hi": 16}), (1, 1, NOTIFY, {}), (0, 0, WAIT, {}), (0, 0, READ, {"hi": 16})])
    assert check_events(right).verdict == "safe"
    report_of(check_events(rows_of(like, [(0, 0, READ, {"hi": 16}), tells, asks, writes])), "unwritten read")


def test_part_of_an_output() -> None:
    found = find(unsafe.part_of_the_output, tk.Schedule(gather=HOME, use_own=TWO), "unwritten output")
    assert found.ranks == (0,) and found.regions == ("out[M[20:40], K[0:32]] at rank 0",)
    store = line(unsafe.part_of_the_output, "use_own", "out[t].store")
    assert lines(found) == [store]
    assert found.remedy == (
        f"store out on every path of use_own (line {store} is under an if), and launch use_own over tk.tiles(out)"
    )
    found = find(unsafe.own_rows_only, tk.Schedule(copy_own=TWO), "unwritten output")
    assert found.remedy == "launch copy_own over tk.tiles(out), and let each tile store all of out[t]"


def test_an_output_that_no_tile_stores() -> None:
    schedule = tk.Schedule(gather=HOME, forget=TWO)
    found = find(unsafe.forgotten_output, schedule, "unwritten output")
    assert found.what == "no tile of forgotten_output reads out, or stores to it"
    x, out = torch.ones(16, 16), torch.empty(16, 16)
    with pytest.raises(ArgumentError, match="reads out, or stores to it; a result is stored, out"):
        tk.CpuWorld(1).run(lambda g: unsafe.forgotten_output(x, out, group=g, schedule=schedule))
    with pytest.raises(ArgumentError, match="reads out, or stores to it; a result is stored, out"):
        unsafe.forgotten_output.show("program", schedule)


def test_parts_that_lie_over_each_other_are_noted() -> None:
    """On one worker the parts are stored in order, which is no race; all but the last are lost."""
    sizes = {"world": 1, "sms": 5, "S": 3, "M": 20, "N": 16}
    one, four = (tk.Schedule(put_part=tk.SMs(n, tile=(1, 16, 16)), take_sum=tk.SMs(1, tile=(16, 16))) for n in (1, 4))
    report = unsafe.parts_in_one_place.check(one, **sizes)
    (note,) = (n for n in report.notes if "before anybody reads it" in n)
    assert report.verdict == "safe"
    where, twice = "sums[M[0:16], N[0:16]] at rank 0", "put_part tile 0, and again by put_part tile 2"
    assert note.startswith(f"{where} is written by {twice}") and "sums[t.M, t.N].store" in note
    assert unsafe.parts_in_one_place.check(four, **sizes).verdict == "unsafe"


def test_an_output_twice() -> None:
    schedule = tk.Schedule(gather=HOME, take=TWO, use_again=TWO)
    report = unsafe.output_written_twice.check(schedule, world=2, sms=8, M=40, K=32)
    assert [f.kind for f in report.findings] == ["written twice"]
    assert report.findings[0].tiles == ("take tile 0", "use_again tile 0")


@pytest.mark.parametrize(
    ("program", "role", "text"),
    [(unsafe.notifies_twice, "tell_twice", "notify"), (unsafe.notifies_in_a_loop, "tell_in_a_loop", "notify")],
)
def test_a_region_is_notified_once(program: Program, role: str, text: str) -> None:
    found = find(program, tk.Schedule(**{role: HOME}, take=TWO), "notified twice")
    first = line(program, role, text)
    assert lines(found) == [first, first + (role == "tell_twice")]
    assert found.tiles == (f"{role} tile 0",) * 2 and found.remedy.startswith("notify a region once")


def test_outputs_are_not_added_to() -> None:
    """So an element of one is reduced once: in registers, from what was waited for."""
    with pytest.raises(UnguardedReadError, match="out\\[M"):
        alone.adds_to_its_output.unroll(tk.Schedule(add=TWO), world=2, M=40, K=32)
    schedule = tk.Schedule(store_each_step=tk.SMs(2, tile=(16, 16)))
    report = alone.sum_in_its_output.check(schedule, world=2, M=40, K=32)
    assert [(f.kind, f.tensor) for f in report.findings] == [("written twice", "out")]


# ---- entries that take turns


def ring(attend: str = "attend", pass_on: str = "pass_on") -> tk.Schedule:
    return tk.Schedule(**{pass_on: tk.SMs(2, tile=(16, 16)), attend: tk.SMs(4, tile=(16, 16, 16))})


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_a_ring_of_two_buffers(world: int) -> None:
    """With four tiles on four workers it is live; with eight, from three ranks on, the second four never begin."""
    options: dict[str, Any] = {"world": world, "T": 20, "D": 16}
    report = ring_attention.check(ring(), Q=64, **options)
    assert (report.verdict, report.notes) == ("safe", ()) and "take turns in 2 buffers" in report.because
    report = ring_attention.check(ring(), Q=128, **options)
    assert [f.kind for f in report.findings] == (["deadlock"] if world > 2 else [])
    if report.findings:
        assert "as many workers as tiles for the roles that release" in report.findings[0].remedy


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_ring_without_claims(world: int) -> None:
    schedule = ring("attend_unsaid", "pass_on_unasked")
    report = ring_attention_unasked.check(schedule, world=world, Q=64, T=20, D=16)
    assert {f.kind for f in report.findings} == ({"race"} if world > 2 else set())
    assert all("tk.claim(...)" in f.remedy and "tk.release(...)" in f.remedy for f in report.findings)


@pytest.mark.parametrize(
    ("program", "role"), [(stale_entry, "own_rows_last"), (stale_after_release, "own_rows_released")]
)
def test_an_entry_whose_place_another_has_taken(program: Program, role: str) -> None:
    """Ordered, so no race: the reader has waited for entry 2, too."""
    schedule, sizes = tk.Schedule(**{"pass_on": TWO, role: TWO}), {"M": 16, "K": 16}
    assert program.check(schedule, world=2, sms=8, **sizes).verdict == "safe"
    found = find(program, schedule, "stale read", **sizes, world=3)
    assert found.what == "a tile reads entry 0 of ring at rank 0, but entry 2 has taken its place"
    assert found.tiles == ("pass_on tile 0", f"{role} tile 0") and found.ranks == (2, 0)
    assert found.regions == (
        "ring[entry 2 in buffer 0, M[0:16], K[0:16]] at rank 0",
        "ring[entry 0 in buffer 0, M[0:16], K[0:16]] at rank 0",
    )
    assert lines(found) == [line(program, "pass_on", "copy(here"), line(program, role, "first.load()")]
    assert found.remedy == (
        "read entry 0 of ring before entry 2 may take its place: tk.release(...) it after the last read, in "
        "every tile that reads it, or give ring more buffers"
    )


def test_a_claim_that_nobody_releases_comes_behind_its_cause() -> None:
    """In the user's words, claim and release. The wait for the wrong entry is the cause, and is named first."""
    report = ring_off_by_one.check("mistaken", world=4, T=32, D=32)
    wait, claim = report.findings
    assert [f.kind for f in (wait, claim)] == ["lost signal"] * 2 and [f.tensor for f in (wait, claim)] == ["ring"] * 2
    assert lines(wait) == [line(ring_off_by_one, "turn_off_by_one", "tk.wait")]
    assert wait.remedy.endswith("a view without .at(...) is on the rank that executes the tile")
    assert lines(claim) == [line_of(taken, "tk.claim")]
    assert claim.what.startswith("ring[s + 1, T[T_lo:+16], D[D_lo:+32]].at((rank + 1) % world): the claim waits for ")
    assert "the release of ring[ranks[0:1], T[0:16], D[0:32]], which had the same buffer before" in claim.what
    released = line(ring_off_by_one, "turn_off_by_one", "tk.release")
    assert f"ring is released: tests/programs/ring_maximum.py:{released}" in claim.what
    assert claim.regions == ("ring[ranks[2:3], T[0:16], D[0:32]]",)
    assert claim.remedy == (
        "a claim of entry e of ring waits for the release of entry e - 2: let every tile that waits for an entry "
        "release it, tk.release(...) of what tk.wait(ring[...]) returned, after its last read"
    )
    assert ".free" not in str(report) and "notif" not in str(claim)


def test_an_entry_is_released_once() -> None:
    report = ring_twice.check("twice", world=4, T=32, D=32)
    (found,) = report.findings
    first = line(ring_twice, "turn_twice", "tk.release")
    assert (found.kind, found.tensor, lines(found)) == ("notified twice", "ring", [first, first + 1])
    assert found.what == (
        "a tile releases ring[ranks[0:1], T[0:16], D[0:32]] more than once in a run: a claim needs all of these, so "
        "only the last has an effect"
    )
    assert "turn_twice tile 0: release of ring[ranks[0:1], T[0:16], D[0:32]], for rank 3" in found.chain[0]
    assert found.remedy == "release an entry once, after the last read of it" and ".free" not in str(report)


def test_an_entry_that_is_not_there_yet() -> None:
    """What is read as entry 2 holds entry 0 still, where the copy that was to bring it brings it to another place."""
    events = ring_attention.unroll(ring(), world=3, Q=16, T=16, D=16)
    wrong = np.flatnonzero((events.op == WRITE) & (events.entry == 2))
    found = report_of(check_events(without(events, wrong)), "stale read")
    assert found.what == "a tile reads entry 2 of ring at rank 0, but the buffer still holds entry 0"
    assert found.remedy == "let the tile that notifies entry 2 of ring store all of it before that"


# ---- what a check may take


def test_a_structure_that_is_safe_is_not_unrolled_beyond_the_budget() -> None:
    sizes: dict[str, Any] = {"world": 8, "M": 8192, "N": 3584, "K": 8192}
    copying = "push,gather.own=copied"
    report = all_gather_matmul.check(copying, **sizes, budget=41_983)
    assert (report.verdict, report.proof, report.events) == ("safe", "structural", 0)
    assert report.notes == (
        "the run was not unrolled: it has about 41,984 events, and the budget is 41,983. Races, deadlocks, coverage "
        "and signals rest on the structure alone, which holds for all sizes",
    )
    unsafe = all_gather_matmul.check(copying, **sizes, budget=41_983, reserve=10, slot_bytes=1)
    assert [f.kind for f in unsafe.findings] == ["residency", "heap"]


def test_what_has_to_be_unrolled_is_refused_beyond_the_budget() -> None:
    """The events are estimated from some tiles, before any are made: of a ring of 67 million in less than a second."""
    ring, sizes = tk.Schedule(pass_on_unasked=TWO, attend_all=tk.SMs(tile=(16, 16, 16))), {"Q": 512, "T": 512, "D": 512}
    told: list[str] = []
    with pytest.raises(BudgetError) as caught:
        waits_for_whole_entries.check(ring, world=8, **sizes, tell=told.append)
    assert not told
    assert caught.value.message.startswith(
        "a check of waits_for_whole_entries at these sizes unrolls about 67,575,808 events (169 s, 16.2 GB), and the "
        "budget is 10,000,000; the structure alone does not show that it is safe: ring is written by 2 statements ("
    )
    assert caught.value.message.endswith(
        "Check it at smaller sizes, or allow more: check(budget=...), tilelink check --budget, TILELINK_CHECK_BUDGET "
        "for calls (TILELINK_CHECK=0: unchecked)"
    )
    sizes = dict.fromkeys(sizes, 32)
    report = waits_for_whole_entries.check(ring, world=2, **sizes, budget=184, tell=told.append)
    assert report.verdict == "safe" and report.events == 184
    assert told[0].startswith("unrolling pass_on_unasked, line ") and told[-1] == "accesses to ring on rank 1"
    with pytest.raises(BudgetError, match="about 184 events"):
        waits_for_whole_entries.check(ring, world=2, **sizes, budget=183)


# ---- safe


def test_what_the_structure_does_not_show() -> None:
    schedule = tk.Schedule(gather_kv=tk.SMs(2, tile=(16,), at="home"), attend=tk.SMs(tile=(16, 16, 16)))
    report = gathered_attention.check(schedule, world=3, S=[20, 0, 33], D=16)
    assert (report.verdict, report.proof, report.findings) == ("safe", "unrolled", ())
    assert "depends on a condition" in report.because


def test_a_verdict_is_for_the_dtypes_that_are_given() -> None:
    """In Python these are float32 by default, on the command line bfloat16: docs/check.md."""
    schedule = tk.Schedule(gather_kv=tk.SMs(2, tile=(16,), at="home"), attend=tk.SMs(tile=(16, 16, 16)))
    sizes: dict[str, Any] = {"world": 3, "S": [20, 0, 33], "D": 16}
    assert gathered_attention.check(schedule, **sizes).verdict == "safe"
    with pytest.raises(DtypeError, match="left is float32, right bfloat16"):
        gathered_attention.check(schedule, dtypes="bfloat16", **sizes)


@pytest.mark.parametrize("name", ["push", "pull"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_library_is_safe(name: str, world: int) -> None:
    report = all_gather_matmul.check(name, world=world, M=100, N=70, K=40)
    assert (report.verdict, report.proof, report.because) == ("safe", "structural", "")
    assert report.events > 0 and report.seconds > 0 and report.peak_rss_bytes > 1 << 20


def test_nothing_to_do_is_safe() -> None:
    report = all_gather_matmul.check("push", world=2, M=0, N=16, K=0)
    assert report.verdict == "safe" and report.notes == ("nothing to do: M = 0, K = 0",)
    assert "note: nothing to do: M = 0, K = 0" in str(report)


def gemm(gather: tuple[int, ...] = (16, 32)) -> tk.Schedule:
    return tk.Schedule(gather=tk.SMs(2, tile=gather, at="home"), matmul=tk.SMs(4, tile=(16, 16, 16)))


def gathering(**tiles: tuple[int, ...]) -> Any:
    return all_gather_matmul.unroll(gemm(**tiles), world=2, M=32, N=16, K=32)


def report_of(report: Report, kind: str) -> Finding:
    assert {f.kind for f in report.findings} == {kind}, report
    return report.findings[0]


def test_a_routed_program_that_calls_refuse_is_noted() -> None:
    """It is safe for these counts, and calls know no counts."""
    schedule = tk.Schedule(to_outputs=tk.SMs(2, tile=(16, 16), at="source"))
    counts = (3, 0, 4, 0, 0, 5, 0, 6)
    report = unsafe.routed_to_outputs.check(schedule, world=2, routed=counts, experts=2, K=32)
    assert report.proof == "unrolled"
    assert any(note.startswith("calls refuse this program: only the device knows") for note in report.notes)
