"""Loops that wait become two where cells hold several steps, or where they add up what all ranks send; where that
can't be, they are not pipelined."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tilelink as tk
from tests.analysis.runs import ATTENTION
from tests.programs.attention import gathered_attention
from tests.programs.gathered import notifies_in_each_step, waits_in_each_step
from tests.programs.ring_attention import waits_for_whole_entries
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import OPS, WAIT
from tilelink.backend.targets import TARGETS
from tilelink.frontend import ir
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

SIZES = {"M": 128, "K": 64, "N": 32}
MNK = {"M": 512, "N": 512, "K": 512}
SUM: dict[str, Any] = {"world": 4, **MNK}


def loops(program: Program, schedule: tk.Schedule, role: str) -> list[str]:
    """The heads of the loops of a role, and its waits, in order."""
    body = str(program.bind(schedule)).split(f"role {role} ")[1].split("\nrole ")[0]
    return re.findall(r"for \w+|wait(?=\()|if .*:|notify", body)


def stages(program: Program, schedule: tk.Schedule, **sizes: int) -> list[str]:
    source = program.show("triton", schedule, world=2, dtypes="float32", **(sizes or SIZES))
    return re.findall(r"for (\w+) in tl.range.*num_stages=(\d)", source)


def attention(tile: int, step: int) -> tk.Schedule:
    return ATTENTION.changed(gather_kv={"tile": (tile,)}, attend={"tile": (16, 16, step)})


def test_a_wait_stands_outside_of_the_steps_of_its_cell() -> None:
    split = attention(64, 16)
    assert loops(gathered_attention, split, "attend") == ["for s_part", "for s_cell", "wait", "for s"]
    assert stages(gathered_attention, split, S=256, D=16) == [("s", "3")]
    waits = gathered_attention.unroll(split, world=1, S=256, D=16)
    assert (waits.op == WAIT).sum() == 2 * sum(-(-n // 64) for n in range(16, 257, 16))


@pytest.mark.parametrize("tile", [16, 32], ids=["a step each", "several cells a step"])
def test_a_wait_in_every_step_is_not_pipelined(tile: int) -> None:
    kept = attention(tile, 32)
    assert loops(gathered_attention, kept, "attend") == ["for s_part", "for s", "wait"]
    assert stages(gathered_attention, kept, S=256, D=16) == [("s", "1")]


def schedule(role: str) -> tk.Schedule:
    roles = {"gather": tk.SMs(2, tile=(16, 32), at="home"), role: tk.SMs(tile=(16, 16, 16))}
    return tk.Schedule(**roles)


def test_a_wait_that_no_step_changes_comes_first() -> None:
    made, plan = waits_in_each_step, schedule("whole_rows")
    assert loops(made, plan, "whole_rows") == ["if 0 < K:", "wait", "for k"]
    assert stages(made, plan) == [("k", "3")]


def test_what_all_ranks_send_is_waited_for_at_once() -> None:
    """Blocks of several ranks are loaded while others are added; what is read lies in what was waited for."""
    program = matmul_reduce_scatter.bind("push")
    assert loops(matmul_reduce_scatter, matmul_reduce_scatter.schedules["push"], "reduce") == ["wait", "for source"]
    (wait,) = ir.every(ir.Wait, program.role("reduce").body)
    assert str(wait.views[0]).startswith("inbox[ranks, M[") and why_not_structural(program) == ""
    source = matmul_reduce_scatter.show("triton", "push", target="sm_90", **SUM)
    assert source.count(" wait_all(control, ") == 1 and "world, 1, loop_unroll_factor=2)" in source
    events = matmul_reduce_scatter.unroll("push", **SUM)
    tile = (events.role == program.roles.index(program.role("reduce"))) & (events.tile == 0) & (events.rank == 0)
    assert [OPS[k] for k in events.op[tile]] == ["wait"] * 4 + ["read", "write"]


def test_ranks_are_waited_for_one_after_the_other_where_it_matters() -> None:
    """What is multiplied as it comes; and the waits of a timed run, which records when each of them ends."""
    lowered, _ = matmul_reduce_scatter.lowered_at("push", target=TARGETS["sm_90"], timed=True, world=4, sizes=MNK)
    timed = lowered.source
    assert "wait_all(control" not in timed and "for ranks_cell in range(0, world)" in timed
    roles = tk.Schedule(pass_on_unasked=tk.SMs(2, tile=(16, 16)), attend_all=tk.SMs(tile=(16, 16, 16)))
    assert loops(waits_for_whole_entries, roles, "attend_all") == ["for s", "wait", "for j"]


def test_nothing_is_waited_for_before_what_is_notified() -> None:
    made, plan = notifies_in_each_step, schedule("passes_on")
    assert loops(made, plan, "passes_on") == ["for k", "notify", "wait"]
    assert stages(made, plan) == [("k", "1")]


def test_cells_that_hold_no_whole_steps() -> None:
    """A grid of the user's: cells of 48 rows, steps of 32."""
    odd = attention(16, 32)
    odd = tk.Schedule(cells={"keys": (48, None), "values": (48, None)}, **odd)
    assert loops(gathered_attention, odd, "attend") == ["for s_part", "for s", "wait"]
    gathered_attention.unroll(odd, world=2, S=200, D=16)
