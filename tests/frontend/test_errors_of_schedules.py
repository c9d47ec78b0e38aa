"""Schedules that do not fit a program: errors at the schedule or at the role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tilelink as tk
from tests.frontend.wrong import (
    GATHER_TILE,
    LAUNCH_GATHER,
    LAUNCH_USE,
    PROGRAM,
    UNROLL,
    USE_TILE,
    Case,
    check,
    pair,
    schedule,
)
from tilelink.errors import (
    ArgumentError,
    RoleWithoutScheduleError,
    ScheduleError,
    ScheduleWithoutRoleError,
    TargetError,
    TileSizeError,
    shown,
)
from tilelink.kernels.all_gather_matmul import all_gather_matmul, gemm

SCHEDULES = [
    pair(
        "role without a schedule",
        RoleWithoutScheduleError,
        {f"    use=tk.SMs({USE_TILE}),\n": "", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "nothing of role use; it names gather",
    ),
    schedule(
        "schedule without a role",
        ScheduleWithoutRoleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}), send=tk.SMs({USE_TILE}))  # <-",
        "program has no role send; its roles are gather, use",
    ),
    pair(
        "change of no role",
        ScheduleError,
        {UNROLL: UNROLL.replace("schedule,", "schedule.changed(send={'warps': 4}),") + "  # <-"},
        "no role send in this schedule; it has gather, use",
    ),
    pair(
        "change to what can't be",
        TileSizeError,
        {UNROLL: UNROLL.replace("schedule,", "schedule.changed(use={'tile': (16, 24)}),") + "  # <-"},
        "24 is not a power of two",
    ),
    pair(
        "no schedule of this name",
        ScheduleError,
        {f"    return {UNROLL}": "    program.unroll('push', world=2, M=64, K=64, N=16)  # <-"},
        "program has no schedule push; it has schedule",
    ),
    pair(
        "role of another name beside the program",
        ScheduleError,
        {
            UNROLL: UNROLL.replace("schedule", "None"),
            "    use=tk.SMs": "    uses=tk.SMs",
            "schedule = tk.Schedule(": "schedule = tk.Schedule(  # <-",
        },
        "schedule names uses, which is no role; did you mean use?; the roles of program are gather, use",
    ),
    pair(
        "role of another name in a schedule that is named",
        ScheduleWithoutRoleError,
        {"    use=tk.SMs": "    uses=tk.SMs", "schedule = tk.Schedule(": "schedule = tk.Schedule(  # <-"},
        "program has no role uses; its roles are gather, use; did you mean use?",
    ),
    pair(
        "role that no schedule has",
        ScheduleError,
        {
            UNROLL: UNROLL.replace("schedule", "None"),
            "    use=tk.SMs(tile=(16, 16, 16)),\n": "",
            "schedule = tk.Schedule(": "schedule = tk.Schedule(  # <-",
        },
        "schedule does not name use; the roles of program are gather, use",
    ),
    schedule(
        "warps that differ from the default",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}, warps=4), use=tk.SMs({USE_TILE}))  # <-",
        "gather has 4 warps, use has 8 warps: the roles of a program are one kernel, so all have the same number of "
        "warps; 8 is the default, so write warps=4 for use, too",
    ),
    schedule(
        "warps that differ",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}, warps=4), use=tk.SMs({USE_TILE}, warps=16))  # <-",
        "so all have the same number of warps; write one",
    ),
    pair(
        "no schedule beside the program",
        ScheduleError,
        {
            UNROLL: UNROLL.replace("schedule", "None"),
            "schedule = tk.Schedule(": "schedules = [tk.Schedule(",
            "\n)\n\n\ndef main": "\n)]\n\n\ndef main",
            "@tk.program": "@tk.program  # <-",
        },
        "no schedule beside it",
        "tk.Schedule(...)",
    ),
    schedule(
        "resource that is none",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=3)  # <-",
        "use=3",
        "tk.SMs(...)",
    ),
    schedule(
        "no slots",
        ScheduleError,
        f"tk.Schedule(slots=0, gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "slots=0",
    ),
    schedule(
        "role called slots",
        ScheduleError,
        f"tk.Schedule(slots=tk.SMs({GATHER_TILE}))  # <-",
        "slots=SMs(",
        "a number of slots",
    ),
    schedule(
        "role called cells",
        ScheduleError,
        f"tk.Schedule(cells=tk.SMs({GATHER_TILE}))  # <-",
        "cells=SMs(",
        "signal grids by tensor",
    ),
    schedule(
        "cells of nothing",
        ScheduleError,
        f"tk.Schedule(cells={{'full': (0, None)}}, use=tk.SMs({USE_TILE}))  # <-",
        "cells of full, (0, None)",
        "at least 1",
    ),
    schedule(
        "no SMs",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs(0, {GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "0 SMs",
        "at least 1",
    ),
    schedule(
        "half an SM",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs(0.5, {GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "0.5 SMs",
    ),
    schedule(
        "no stages",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}, stages=0), use=tk.SMs({USE_TILE}))  # <-",
        "0 stages",
    ),
    schedule(
        "True for a number of SMs",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs(True, {GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "True SMs",
    ),
    schedule(
        "more SMs than kernels count to",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs(10**30, {GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        f"{10**30} SMs",
        "fewer than 2**31",
    ),
    schedule(
        "True in a tile",
        TileSizeError,
        f"tk.Schedule(gather=tk.SMs(tile=(True, 16)), use=tk.SMs({USE_TILE}))  # <-",
        "(True, 16)",
        "True is not a power of two",
    ),
    schedule(
        "more warps than a block has",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}, warps=64), use=tk.SMs({USE_TILE}))  # <-",
        "64 warps",
        "32 at most",
    ),
    schedule(
        "three warps",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}, warps=3), use=tk.SMs({USE_TILE}))  # <-",
        "3 warps",
    ),
    schedule(
        "group of no rows",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, order=tk.grouped(0)))  # <-",
        "0 rows",
        "at least 1",
    ),
    schedule(
        "function as an order",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, order=lambda s, r, w: s))  # <-",
        "tk.order(function)",
    ),
    schedule(
        "resource without a role",
        ScheduleError,
        f"tk.Schedule(tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "tk.Schedule(SMs(...)): name the role of the resource",
    ),
    schedule(
        "change that is a number",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE})).changed(use=3)  # <-",
        "use=3: changes are fields by name",
        "for another resource, write a new tk.Schedule(...)",
    ),
    schedule(
        "change of a field that is much like another",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE})).changed(use={{'tiles': (16,)}})  # <-",
        "has no tiles; it has count, tile, order, at, stages, warps, via, "
        "signals, waits, wave, whole, own; did you mean tile?",
    ),
    pair(
        "a parameter's word for a buffer",
        ArgumentError,
        {'tk.local("M", "K")': 'tk.Local("M", "K")', LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "full of gather is tk.Local('M', 'K'), which declares a parameter of a program",
        "tk.local(...)",
    ),
    pair(
        "world that is not said",
        ArgumentError,
        {f"    return {UNROLL}": "    program.unroll(schedule, M=64)  # <-"},
        "missing 1 required keyword-only argument: 'world'",
    ),
    pair(
        "world that is misspelt",
        ArgumentError,
        {f"    return {UNROLL}": "    program.check(schedule, wrld=2, M=64)  # <-"},
        "missing 1 required keyword-only argument: 'world'; wrld= is given; did you mean world?",
    ),
    pair(
        "stage that is none",
        TargetError,
        {f"    return {UNROLL}": "    program.show('tritan', schedule)  # <-"},
        "there is no stage tritan",
        "did you mean triton?",
    ),
    schedule(
        "name of an order",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, order='ring'))  # <-",
        "order 'ring': an order is an object, not a name; write tk.ring",
    ),
    schedule(
        "name that is much like an order's",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, order='rign'))  # <-",
        "ours are tk.own_rank_first, tk.next_rank_first, tk.ring; did you mean ring?",
    ),
    pair(
        "more SMs than there are",
        ScheduleError,
        {"tk.SMs(4, ": "tk.SMs(400, ", "M=64": "M=12800", "schedule = tk.Schedule(": "schedule = tk.Schedule(  # <-"},
        "program asks for 400 SMs",
        "the device has 132",
    ),
    pair(
        "more SMs than tiles, and than there are",
        ScheduleError,
        {"tk.SMs(4, ": "tk.SMs(400, ", "M=64": "M=800", "schedule = tk.Schedule(": "schedule = tk.Schedule(  # <-"},
        "SMs by count (gather: 200 of its 400, one for each tile)",
        "the device has 132",
    ),
    pair(
        "order that is no permutation",
        ScheduleError,
        {USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: r)", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "walks the parts [0, 0] on rank 0 of 2",
        "a permutation of 0..1",
    ),
    pair(
        "order that compares",
        ScheduleError,
        {
            USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: s if r < 1 else w - 1 - s)",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
        },
        "is not integer arithmetic of (step, rank, world)",
        "truth value",
    ),
    pair(
        "order that asks whether",
        ScheduleError,
        {
            USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: s if r else w - 1 - s)",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
        },
        "[1, 0] on rank 0 of 2, but in the kernel it is step",
        "can't take a branch of Python",
    ),
    pair(
        "order from a list",
        ScheduleError,
        {USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: [1, 0][s])", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "not integer arithmetic",
    ),
    pair(
        "order that is nothing",
        ScheduleError,
        {USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: None)", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "it gives None",
    ),
    pair(
        "order that divides",
        ScheduleError,
        {
            USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: s * w / 2)", LAUNCH_USE: f"{LAUNCH_USE}  # <-",
            "unroll(schedule, world=2, M=64, K=64, N=16)": "bind(schedule)",
        },
        "is not integer arithmetic of (step, rank, world)",
        "it gives step*world/2",
    ),
    pair(
        "order of floats",
        ScheduleError,
        {
            USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: (r + s) * 1.0 % w)",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-", "unroll(schedule, world=2, M=64, K=64, N=16)": "bind(schedule)",
        },
        "is not integer arithmetic of (step, rank, world)",
    ),
    pair(
        "order of numbers that are floats",
        ScheduleError,
        {
            USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: s if isinstance(s, int) is False else float(s))",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
        },
        "walks the parts [0.0, 1.0] on rank 0 of 2; it must be a permutation of 0..1",
    ),
    pair(
        "order that fails",
        ScheduleError,
        {USE_TILE: f"{USE_TILE}, order=tk.order(lambda s, r, w: s % (w - 2))", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "fails on rank 0 of 2",
    ),
    pair(
        "nobody executes",
        ScheduleError,
        {GATHER_TILE: "tile=(16, 16)", LAUNCH_GATHER: "gather[tk.tiles(full, reader=tk.ranks)](x, full)  # <-"},
        "who executes a tile? Write at='reader' or at='home'",
    ),
    pair(
        "executor that is no axis",
        ScheduleError,
        {'at="home"': 'at="sender"', LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "at='sender' is no rank axis",
        "it can be 'reader' or 'home'",
    ),
    pair(
        "home of rows that are not cut",
        ScheduleError,
        {PROGRAM: PROGRAM.replace("Sharded", "Local"), LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "at='home' is no rank axis of its space; no tensor of its space is cut over the ranks, so a tile has no home; "
        "it can be 'reader'",
    ),
    pair(
        "executor of a space that is cut twice",
        ScheduleError,
        {
            PROGRAM: PROGRAM.replace("out:", 'y: tk.Sharded("N", "K"), out:'),
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
            USE_TILE: f"{USE_TILE}, at='N'",
        },
        "use: at='N' is no rank axis of its space; it can be 'home' or 'N_home'",
    ),
    schedule(
        "block over a whole dimension of no size",
        TileSizeError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, whole={{'K': 24}}))  # <-",
        "whole={'K': 24}: 24 for K is not a power of two",
    ),
    schedule(
        "whole of nothing",
        TileSizeError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, whole=64))  # <-",
        "whole=64: sizes of blocks by dimension",
    ),
    pair(
        "block over a whole dimension that is not taken",
        ScheduleError,
        {USE_TILE: f"{USE_TILE}, whole={{'K': 64}}", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "use takes no block over the whole of K",
    ),
    pair(
        "block that does not hold a whole dimension",
        TileSizeError,
        {
            "tile=(16, 16, 16)": "tile=(16, 16, 16), whole={'K': 32}",
            "        acc += rows[:, k].load()": "        pass\n    acc += tl.sum(rows.load(), 1)[:, None]",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
        },
        "use: a block of 32 over the whole of K does not hold its 64 elements; say whole={'K': 64}",
    ),
    schedule(
        "engines that are counted",
        ScheduleError,
        f"tk.Schedule(gather=tk.CopyEngine(2, tile=(16, None)), use=tk.SMs({USE_TILE}))  # <-",
        "tk.CopyEngine(2, tile=(16, None)): it takes tile=, order=, at=, streams=, own=, in this order; engines are "
        "not counted",
    ),
    schedule(
        "an engine without a tile",
        TileSizeError,
        f"tk.Schedule(gather=tk.CopyEngine(), use=tk.SMs({USE_TILE}))  # <-",
        "tile= is missing: a tile is a tuple of sizes, one along each dimension of the role's space, such as "
        "tile=(128, 256)",
    ),
    schedule(
        "SMs without a tile",
        TileSizeError,
        f"tk.Schedule(gather=tk.SMs(4), use=tk.SMs({USE_TILE}))  # <-",
        "tile= is missing: a tile is a tuple of sizes",
    ),
    schedule(
        "a field of another resource",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.Epilogue('gather', own='stored'))  # <-",
        "tk.Epilogue('gather', own='stored'): it takes of=; own= is a field of tk.SMs and tk.CopyEngine",
    ),
    schedule(
        "change of a field of another resource",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE})).changed(use={{'streams': 'one'}})  # <-",
        "waits, wave, whole, own; streams= is a field of tk.CopyEngine",
    ),
    schedule(
        "streams that there are not",
        ScheduleError,
        f"tk.Schedule(gather=tk.CopyEngine(tile=(16, None), streams=3), use=tk.SMs({USE_TILE}))  # <-",
        "streams=3: it is one of 'peers', 'one'",
    ),
    schedule(
        "a field that there is not",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}, block=3))  # <-",
        "block=3): it takes count=, tile=, order=",
    ),
    schedule(
        "more fields than there are",
        ScheduleError,
        f"tk.Schedule(gather=tk.SMs({GATHER_TILE}), use=tk.Epilogue('gather', 2))  # <-",
        "tk.Epilogue('gather', 2): it takes of=",
    ),
    schedule(
        "cells that part tiles",
        ScheduleError,
        f"tk.Schedule(cells={{'full': (24, None)}}, gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "cells of 24 along M of full",
        "whole notified tiles, of 16",
    ),
    schedule(
        "cells of what nobody notifies",
        ScheduleError,
        f"tk.Schedule(cells={{'x': (16, None)}}, gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "gives x a signal grid",
        "notified are: full",
    ),
]


@pytest.mark.parametrize("case", [*SCHEDULES], ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_an_error_of_a_schedule_says_where_the_schedule_stands() -> None:
    """What is wrong shows where a role is launched, and is mended where the schedule is written; also of one that is
    equal to another, and of what shows at some sizes only."""
    with pytest.raises(ScheduleError) as e:
        all_gather_matmul.bind(tk.Schedule(gather=tk.SMs(2, tile=(16, 16), at="nobody"), matmul=gemm))
    assert e.value.site is not None and e.value.site.file == all_gather_matmul.file
    assert f"; the schedule: {shown(__file__)}:" in e.value.message
    one, other = (tk.Schedule(gather=tk.SMs(2, tile=(16, 16)), matmul=tk.SMs(2, tile=(64, 16, 16))) for _ in range(2))
    other.site = replace(one.site, line=one.site.line + 1)
    for large in (one, other):
        with pytest.raises(TileSizeError, match="a tile of 64 along M") as e:
            all_gather_matmul.bound_at(large, world=1, sizes={"M": 16, "N": 16, "K": 16})
        assert e.value.message.endswith(f"; the schedule: {large.site}")
