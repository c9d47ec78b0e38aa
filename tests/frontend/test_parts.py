"""tk.part(rank): what a local tensor has of the part of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import Case, check
from tests.kernels.gather_gemm import small_world
from tests.parameters import each_once
from tests.programs.parts import picked_of_parts
from tilelink.analysis.events import WAIT
from tilelink.emulator import Operation
from tilelink.errors import DimensionError, NotUnderstoodError, TileLinkError
from tilelink.runtime.trace import align


@each_once("parts, tile", [(9,), (19, 0, 33, 7), (8, 8)], [(None, None), (16, 16), (16, None)])
def test_integers_pick_rows_of_a_part_that_is_here(parts: tuple[int, ...], tile: tuple[int | None, ...]) -> None:
    """A wait is for one part, whose rows come in several tiles, or in none; the kernel does what events say."""
    world, S, random = len(parts), 21, torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (sum(parts), 20), generator=random).float()
    order = torch.stack([torch.randint(-1, max(n, 0), (world, S), generator=random) for n in parts], 2).int()
    schedule = tk.Schedule(bring=tk.SMs(2, tile=tile, at="home"), add_picked=tk.SMs(2, tile=(16, 16)))
    operations: list[Operation] = []
    lane, run = small_world(world, observer=operations.append), {"M": parts}
    outs = lane.run(
        lambda g: picked_of_parts(x.split(parts)[g.rank], order[g.rank], schedule=schedule, group=g, parts=run)
    )
    for out, picks in zip(outs, order, strict=True):
        rows = [
            torch.where(of >= 0, torch.cat([mine, mine.new_zeros(1, 20)])[of[:, 0].long()], 0)
            for mine, of in zip(x.split(parts), picks[:, :, None].unbind(1), strict=True)
        ]
        assert torch.equal(out, torch.stack(rows).sum(0))
    (prepared,) = lane.lane.prepared.values()
    assert align(prepared.events, operations, "picked_of_parts run 0").done
    report = picked_of_parts.check(schedule, world=world, M=parts, S=S, N=20)
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_a_part_has_a_signal() -> None:
    schedule = tk.Schedule(bring=tk.SMs(2, tile=(16, None), at="home"), add_picked=tk.SMs(2, tile=(16, 16)))
    events = picked_of_parts.unroll(schedule, world=2, M=(40, 5), S=16, N=16)
    (signals,) = events.program.signals
    assert [c.size for c in signals.grid] == [None, None]
    waits = (events.op == WAIT) & (events.rank == 1)
    assert sorted(events.expected[waits].tolist()) == [1, 3] and sorted(events.cell[waits].tolist()) == [0, 1]


PROGRAM = """
@tk.tile
def role(t, x, y, out):
    {body}

@tk.program
def program(x: tk.Sharded("M", "N"), y: tk.Local("S", "N"), out: tk.Local("S", "N")):
    role[tk.tiles(out)](x, y, out)

schedule = tk.Schedule(role=tk.SMs(1, tile=(16, 16)))

def main():
    return program.check(schedule, world=1, M=32, S=32, N=32)
"""


def wrong(name: str, kind: type[TileLinkError], body: str, *said: str) -> Any:
    return pytest.param(Case(name, kind, PROGRAM.format(body=body), said), id=name)


WRONG = [
    wrong("not cut", DimensionError, "a = y[tk.part(0), t.cols]  # <-", "tk.part(0) of y",
          "S, is not cut over the ranks", "cut are M"),
    wrong("no rank", NotUnderstoodError, "a = x[tk.part(t.rows), t.cols]  # <-", "an integer known before the run"),
    wrong("of a tile", DimensionError, "tk.copy(y[t], out[t.rows, tk.part(0)])  # <-", "N, is not cut over the ranks"),
    wrong("as a number", NotUnderstoodError, "out[t].store(tl.zeros(t.shape, tl.float32) + tk.part(0))  # <-",
          "tk.part(0) can't be part of Triton code"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_parts(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_it_has_a_meaning_only_in_tile_functions() -> None:
    with pytest.raises(NotUnderstoodError, match=r"tk\.part\(\) has a meaning only inside a tile function"):
        tk.part(0)
