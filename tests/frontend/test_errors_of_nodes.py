"""Nodes and their places, dimensions by name, numbers in views, blocks over whole dimensions: what they can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import LAUNCH_GATHER, LAUNCH_USE, NOTIFY, PROGRAM, UNROLL, USE_TILE, Case, check, pair, tile
from tilelink.errors import (
    DimensionError,
    NotifyWithoutStoreError,
    NotUnderstoodError,
    RankError,
    ScheduleError,
    TileSizeError,
    UndefinedNameError,
    ViewError,
    WorldError,
)

NODES = [
    pair(
        "nodes that are not whole",
        WorldError,
        {UNROLL: UNROLL.replace("world=2", "world=6, per_node=4") + "  # <-"},
        "per_node=4: a world of 6 ranks has a whole number of nodes",
        "say one of 1, 2, 3, 6",
    ),
    pair(
        "no ranks on a node",
        WorldError,
        {UNROLL: UNROLL.replace("world=2", "world=2, per_node=0") + "  # <-"},
        "per_node=0",
    ),
    pair(
        "entry a node",
        DimensionError,
        {'    full = tk.local("M", "K")': '    full = tk.local(tk.nodes, "M", "K")  # <-'},
        "dimension 0, tk.nodes, must be the name of a dimension, or tk.ranks",
    ),
    tile("at all nodes", RankError, "a = x[t.rows].at(tk.nodes)  # <-", "takes a rank or tk.ranks, not tk.nodes"),
    tile("place without a node", NotUnderstoodError, "a = tk.rank_at(1)  # <-", "tk.rank_at takes node, place"),
    tile("node of a block", NotUnderstoodError, "a = tk.node(0.5)  # <-", "0.5 has to be an integer known"),
    pair(
        "place outside",
        NotUnderstoodError,
        {"\n\n\n@tk.program": "\n\n\ntk.place()  # <-\n\n\n@tk.program"},
        "tk.place() has a meaning only inside a tile function",
    ),
    pair(
        "rank that no place has",
        RankError,
        {
            NOTIFY: "    tk.notify(tk.copy(x[t], full[t].at(tk.rank_at(tk.node(), tk.place() + 1))))  # <-",
            UNROLL: UNROLL.replace("world=2", "world=2, per_node=1"),
        },
        "rank 2 in a world of 2",
    ),
    pair(
        "order of nodes that is none",
        ScheduleError,
        {
            LAUNCH_GATHER: "gather[tk.tiles(x, reader=tk.nodes)](x, full)  # <-",
            'tile=(16, 16), at="home"': 'tile=(16, 16), at="home", order=tk.order(lambda step, rank, world: step // 2)',
            UNROLL: UNROLL.replace("world=2", "world=4, per_node=2"),
        },
        "walks the parts [0, 0] on rank 0 of 2; it must be a permutation of 0..1",
    ),
]

NAMES = [
    tile("dimension of another tile", UndefinedNameError, "a = t.K  # <-", "no K; it has rows, cols, shape, M, N"),
    tile("dimension of another tensor", ViewError, "a = weight.M  # <-", "weight has .rows, .cols, .K, .N, .dtype"),
    pair(
        "number along what is cut",
        DimensionError,
        {NOTIFY: f"    a = x[3].load()  # <-\n{NOTIFY}"},
        "dimension 0 of x, M, is spread over the ranks: it takes a range, which has a home, not the number 3; write "
        "t.M, a range of tk.steps, or tk.part(rank)",
    ),
    pair(
        "number in a view of what is cut",
        DimensionError,
        {NOTIFY: f"    a = x[t][3].load()  # <-\n{NOTIFY}"},
        "has M[M_lo:+16] there; it is given 3",
    ),
    tile(
        "notify of a number",
        ViewError,
        "tk.notify(inbox[0, 3, t.cols].store(1.0))  # <-",
        "name a range along M, not the number 3",
    ),
    pair(
        "number beyond the tensor",
        ViewError,
        {"    rows = tk.wait(full[t.rows])": "    rows = tk.wait(full[t.rows])\n    a = y[70, t.cols].load()  # <-",
         "def use(t, full, out):": "def use(t, full, y, out):", LAUNCH_USE: "use[tk.tiles(out)](full, y, out)",
         PROGRAM: PROGRAM.replace("out:", 'y: tk.Local("K", "N"), out:')},
        "K[70:71] is outside K[0:64]",
    ),
]  # fmt: skip

WHOLE = [
    tile(
        "block over a whole dimension",
        TileSizeError,
        "a = x[t.rows].load()  # <-",
        "go along it with tk.steps, or say whole={'K': size} for the role in the schedule",
    ),
    tile("length of a dimension", TileSizeError, "a = tl.zeros((len(x.K),), tl.int32)  # <-", "whole={'K': size}"),
    pair(
        "block over a whole dimension that is too large",
        TileSizeError,
        {
            USE_TILE: f"{USE_TILE}, whole={{'K': 128}}",
            "        acc += rows[:, k].load()": "        pass\n    acc += tl.sum(rows.load(), 1)[:, None]",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
        },
        "use: a tile of 128 along K is larger than the tensor, of 64",
    ),
    pair(
        "notify of another view than was stored as a block",
        NotifyWithoutStoreError,
        {
            NOTIFY: "    full[t.rows].at(t.reader).store(x[t.rows].load())\n    tk.notify(full[t].at(t.reader))  # <-",
            'tile=(16, 16), at="home"': 'tile=(16, 16), at="home", whole={"K": 64}',
        },
        "it stored full[M[M_lo:+16], K].at(reader)",
    ),
]


@pytest.mark.parametrize("case", [*NODES, *NAMES, *WHOLE], ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
