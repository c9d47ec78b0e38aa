"""Dimensions, worlds and tiles that do not fit: errors with the values."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    tile,
)
from tilelink.errors import ArgumentError, DimensionError, TileSizeError, WorldError
from tilelink.frontend.values import CONVERTS

DIMENSIONS = [
    tile(
        "range of another dimension",
        DimensionError,
        "a = weight[t].load()  # <-",
        "dimension 0 of weight is K; it is given M[M_lo:+16], a range along M; write a range along K there, or `:`",
    ),
    tile(
        "dimension of another tensor",
        DimensionError,
        "a = out[weight.cols].load()  # <-",
        "dimension 0 of out is M",
        "along N",
    ),
    tile(
        "block of too many elements",
        TileSizeError,
        "a = tl.zeros((2048, 2048), tl.float32)  # <-",
        "is a block of 2048 x 2048, 4,194,304 elements; Triton has 1,048,576 at most",
    ),
    tile(
        "shape of a variable of a loop",
        DimensionError,
        "a = tl.zeros((16, 1), tl.float32)\nfor k in tk.steps(x.K):\n    a = a + tl.zeros((1, 16), tl.float32)  # <-",
        "a is a block of shape (16, 1): in a loop or a branch it can't become one of (16, 16)",
    ),
    tile(
        "first entry of a tile",
        TileSizeError,
        "m = t.M.start\na = out[m, t.N]  # <-",
        "takes only the first entry that a tile has along M",
        "give role tiles of 1 along M in the schedule",
        "or index by t.M",
    ),
    tile(
        "too many indices", DimensionError, "a = out[t, t.rows].load()  # <-", "out has the dimensions M, N; 3 indices"
    ),
    tile(
        "no entry of a rank",
        DimensionError,
        "inbox[:, t.rows].store(1.0)  # <-",
        "dimension 0 of inbox has an entry for each rank",
    ),
    tile(
        "dot of a row", DimensionError, "a = tl.dot(out[t].load(), out[t.rows, 0].load())  # <-",
        "it takes two blocks of two dimensions", "an integer as an index drops one",
    ),
    tile("no index at all", DimensionError, "out['M'].store(1.0)  # <-", "'M' is no index of a view", "use the tile"),
    tile(
        "range of a view that has it not",
        DimensionError,
        "for k in tk.steps(x.cols):\n    a = out[t][k].load()  # <-",
        "out[M[M_lo:+16], N[N_lo:+16]] has M[M_lo:+16] there; it is given K[k:+16]",
    ),
    tile(
        "too many indices of a view", DimensionError, "a = out[t][t, t.rows]  # <-", "has 2 dimensions; 3 indices given"
    ),
    tile("copy of another shape", DimensionError, "tk.copy(x[t.rows], out[t])  # <-", "do not have the same shape"),
    tile(
        "block of another shape",
        DimensionError,
        "out[t].store(tl.zeros((32, 16), tl.float32))  # <-",
        "a block of shape (32, 16) does not fit out[M[M_lo:+16], N[N_lo:+16]], (16, 16)",
    ),
    tile(
        "dot of what does not go together",
        DimensionError,
        "a = tl.dot(tl.zeros((16, 32), tl.float16), tl.zeros((16, 16), tl.float16))  # <-",
        "(16, 32) and (16, 16): 32 is not 16",
    ),
    tile(
        "blocks that do not go together",
        DimensionError,
        "a, b = tl.zeros((16, 32), tl.float16), tl.zeros((16, 16), tl.float16)\nc = a + b  # <-",
        "a + b: blocks of shape (16, 32) and (16, 16) do not go together",
    ),
    tile(
        "arguments that do not go together",
        DimensionError,
        "a, b = tl.zeros((16, 32), tl.float16), tl.zeros((16, 16), tl.float16)\nc = tl.maximum(a, b)  # <-",
        "tl.maximum(a, b): blocks of shape (16, 32) and (16, 16)",
    ),
    tile(
        "dot that is added to another shape",
        DimensionError,
        "a = tl.zeros((16, 32), tl.float16)\nb = tl.dot(a, tl.trans(a), acc=a)  # <-",
        "can't be added to (16, 32); it is (16, 16)",
    ),
    tile(
        "dots of which there are not as many",
        DimensionError,
        "a = tl.dot(tl.zeros((4, 16, 32), tl.float16), tl.zeros((2, 32, 16), tl.float16))  # <-",
        "it takes as many products on the left, 4, as on the right, 2",
    ),
    tile(
        "dots that are added to one",
        DimensionError,
        "a = tl.zeros((4, 16, 16), tl.float16)\nb = tl.dot(a, a, tl.zeros((16, 16), tl.float32))  # <-",
        "can't be added to (16, 16); it is (4, 16, 16)",
    ),
    *(
        [
            tile(
                "softmax along the last axis",
                DimensionError,
                "a = tl.zeros((16, 32), tl.float32)\nb = tl.softmax(a, 1)  # <-",
                "takes another axis than 0 only with keep_dims=True; write tl.softmax(a, 1, keep_dims=True)",
            ),
            tile(
                "softmax as a method, along the last axis",
                DimensionError,
                "a = tl.zeros((16, 32), tl.float32)\nb = a.softmax(1)  # <-",
                "write a.softmax(1, keep_dims=True)",
            ),
        ]
        if CONVERTS  # Triton 3.9 keeps the dimensions itself
        else []
    ),
    pair(
        "copy to other coordinates",
        DimensionError,
        {"full[t].at(t.reader)))": "full[t.rows, :].at(t.reader)))  # <-"},
        "x[M[M_lo:+16], K[K_lo:+16]] is copied to full[M[M_lo:+16], K].at(reader), another range along K: a copy keeps "
        "coordinates, so both sides need the same range along K",
    ),
    pair(
        "transposed buffer",
        DimensionError,
        {'tk.local("M", "K")': 'tk.local("K", "M")', "t.reader)))": "t.reader)))  # <-"},
        "dimension 0 of full is K; it is given M[M_lo:+16]",
    ),
    pair(
        "dimension that no tensor has",
        DimensionError,
        {'tk.local("M", "K")': 'tk.local("M", "Q")  # <-'},
        "dimension Q",
        "K, M, N",
    ),
    pair(
        "dimension without a name",
        DimensionError,
        {'tk.local("M", "K")': 'tk.local("M", 4)  # <-'},
        "dimension 1, 4,",
        "name",
    ),
    pair(
        "declared dimension without a name",
        DimensionError,
        {PROGRAM: PROGRAM.replace('"N"', "3") + "  # <-"},
        "dimension 1, 3",
    ),
    pair(
        "dimension of that name twice",
        DimensionError,
        {PROGRAM: PROGRAM.replace('"N"', '"M"') + "  # <-"},
        "('M', 'M')",
    ),
    pair("dimension called ranks", DimensionError, {PROGRAM: PROGRAM.replace('"N"', '"ranks"') + "  # <-"}, "tk.ranks"),
    pair(
        "axis that is none",
        DimensionError,
        {PROGRAM: PROGRAM.replace('"K")', '"K", axis=2)') + "  # <-"},
        "axis 2",
        "('M', 'K')",
    ),
    pair(
        "parameter without a declaration",
        DimensionError,
        {"@tk.program": "@tk.program  # <-", PROGRAM: PROGRAM.replace(': tk.Local("M", "N")', "")},
        "out of program",
        "tk.Local",
    ),
    pair(
        "number of tensors",
        ArgumentError,
        {LAUNCH_USE: "use[tk.tiles(out)](full)  # <-"},
        "use takes full, out; out is missing",
    ),
    pair(
        "tensor in the middle",
        ArgumentError,
        {"def use(t, full, out)": "def use(t, full, bias, out)", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "use takes full, bias, out; bias is missing",
    ),
    pair(
        "tile that is forgotten",
        ArgumentError,
        {"def gather(t, x, full)": "def gather(x, full)", LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "gather takes full; 2 given; did you forget t, the tile? It is the first parameter: def gather(t, x, ...)",
    ),
    pair(
        "role over a tensor",
        DimensionError,
        {LAUNCH_USE: "use[out](full, out)  # <-"},
        "use[out]: a role runs over tk.tiles",
    ),
    pair(
        "more elements than kernels count",
        DimensionError,
        {UNROLL: UNROLL.replace("M=64", "M=2**30 + 1") + "  # <-"},
        "M is 1073741825: kernels count elements along a dimension in 32 bits, 1073741824 (2**30) is the most",
    ),
    pair(
        "more tiles than kernels count",
        TileSizeError,
        {UNROLL: UNROLL.replace("M=64, K=64", "M=2**30, K=2**12"), LAUNCH_GATHER: LAUNCH_GATHER + "  # <-"},
        "gather has 17179869184 tiles on a rank: kernels count them in 32 bits, 1073741824 (2**30) is the most; use",
    ),
    pair("tiles of a number", DimensionError, {LAUNCH_USE: "use[tk.tiles(3)](full, out)  # <-"}, "tensors", "not of 3"),
    pair("tiles of nothing", DimensionError, {LAUNCH_USE: "use[tk.tiles()](full, out)  # <-"}, "needs dimensions"),
    pair(
        "tiles of a dimension twice",
        DimensionError,
        {LAUNCH_USE: "use[tk.tiles(out, out)](full, out)  # <-"},
        "each once",
    ),
    pair(
        "axis that is no rank axis",
        DimensionError,
        {LAUNCH_GATHER: "gather[tk.tiles(x, reader=3)](x, full)  # <-"},
        "reader=3",
    ),
    pair(
        "size that is missing",
        DimensionError,
        {UNROLL: "program.unroll(schedule, world=2, M=3, K=3)  # <-"},
        "the dimensions M, K, N; N is missing",
    ),
    pair(
        "size in small letters",
        DimensionError,
        {UNROLL: "program.unroll(schedule, world=2, M=3, K=3, n=3)  # <-"},
        "N is missing, and n is none; did you mean N?",
    ),
    pair(
        "option that is misspelt",
        DimensionError,
        {UNROLL: "program.unroll(schedule, world=2, M=3, K=3, N=3, per_nod=1)  # <-"},
        "program has no dimension per_nod; it has M, K, N; did you mean per_node?",
    ),
    pair(
        "size of no dimension",
        DimensionError,
        {UNROLL: UNROLL.replace("N=16", "N=16, Q=3") + "  # <-"},
        "no dimension Q",
        "M, K, N",
    ),
    pair(
        "negative size", DimensionError, {UNROLL: UNROLL.replace("M=64", "M=-3") + "  # <-"}, "M is -3", "not negative"
    ),
    pair(
        "size that is no integer",
        DimensionError,
        {UNROLL: UNROLL.replace("M=64", "M=3.5") + "  # <-"},
        "M is 3.5",
        "integers",
    ),
    pair(
        "size that is a text",
        DimensionError,
        {UNROLL: UNROLL.replace("M=64", "M='64'") + "  # <-"},
        "M is '64'",
        "integers",
    ),
    pair(
        "number of parts",
        DimensionError,
        {UNROLL: UNROLL.replace("M=64", "M=[3, 0, 7]") + "  # <-"},
        "3 parts (3, 0, 7) for 2",
    ),
    pair(
        "parts of what is not cut",
        DimensionError,
        {UNROLL: UNROLL.replace("K=64", "K=[3, 0]") + "  # <-"},
        "K is not spread",
    ),
    tile(
        "axis that a block has not",
        DimensionError,
        "a = tl.sum(tl.zeros((16,), tl.float32), 1)  # <-",
        "there is no axis 1 of (16,); an integer as an index drops one",
    ),
    tile(
        "numbers that are no power of two",
        TileSizeError,
        "a = tl.arange(0, 48)  # <-",
        "tl.arange(0, 48) is a block of 48: a block has a power of two along each dimension; take 64 for 48, and leave "
        "out the rest with tl.where",
    ),
    tile(
        "block of no power of two",
        TileSizeError,
        "a = tl.zeros((16, 24), tl.float32)  # <-",
        "is a block of 16 x 24",
        "take 32 for 24",
    ),
    tile(
        "numbers without an element",
        TileSizeError,
        "a = tl.arange(4, 4)  # <-",
        "tl.arange(4, 4) has no element: its end is above its start",
    ),
    schedule(
        "cells of too few sizes",
        DimensionError,
        f"tk.Schedule(cells={{'full': (16,)}}, gather=tk.SMs({GATHER_TILE}), use=tk.SMs({USE_TILE}))  # <-",
        "cells of full: 2 sizes needed, 1 given",
    ),
]

WORLDS = [
    pair(
        f"world of {world}",
        WorldError,
        {UNROLL: UNROLL.replace("world=2", f"world={world}") + "  # <-"},
        f"a world of {world}",
        "from 1 to 1024 ranks",
    )
    for world in ("0", "-1", "2.0", "'2'", "True", "1025")
]

TILES = [
    pair(
        "tile larger than the tensor",
        TileSizeError,
        {GATHER_TILE: 'tile=(16, 128), at="home"', LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "gather: a tile of 128 along K is larger than the tensor, of 64; use at most 64",
        "program.fit(schedule, ...)",
    ),
    pair(
        "step larger than the tensor",
        TileSizeError,
        {
            USE_TILE: "tile=(16, 16, 256)",
            LAUNCH_USE: f"{LAUNCH_USE}  # <-",
            "rows[:, k].load()": "tl.sum(rows[:, k].load(), 1)[:, None]",
        },
        "use: a tile of 256 along K",
        "at most 64",
    ),
    pair(
        "tile that is no power of two",
        TileSizeError,
        {f"    gather=tk.SMs(4, {GATHER_TILE}),": "    gather=tk.SMs(4, tile=(16, 24)),  # <-"},
        "tile (16, 24): 24 is not a power of two",
    ),
    pair(
        "tile of nothing",
        TileSizeError,
        {f"    use=tk.SMs({USE_TILE}),": "    use=tk.SMs(tile=(16, 0, 16)),  # <-"},
        "0 is not a power",
    ),
    pair(
        "tile that is no tuple",
        TileSizeError,
        {f"    use=tk.SMs({USE_TILE}),": "    use=tk.SMs(tile=[16, 16, 16]),  # <-"},
        "(128, 256)",
    ),
    pair(
        "tile of floats",
        TileSizeError,
        {f"    use=tk.SMs({USE_TILE}),": "    use=tk.SMs(tile=(16.0, 16, 16)),  # <-"},
        "16.0 is not",
    ),
    pair(
        "tile of too few sizes",
        TileSizeError,
        {USE_TILE: "tile=(16,)", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "use runs over the dimensions M, N",
        "a tile of 2 sizes, and one more for the step of its loops; this one has (16,)",
    ),
    pair(
        "tile of too few sizes for a role without steps",
        TileSizeError,
        {GATHER_TILE: 'tile=(16,), at="home"', LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "gather runs over the dimensions M, K: its schedule needs a tile of 2 sizes; this one has (16,)",
    ),
    pair(
        "step for a role without steps",
        TileSizeError,
        {GATHER_TILE: 'tile=(16, 32, 16), at="home"', LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
        "gather takes a tile of 2 sizes (M, K), and this one is (16, 32, 16): no loop of gather takes a step from the "
        "schedule, so leave the last one out",
    ),
    pair(
        "step for a loop that has one",
        TileSizeError,
        {"tk.steps(full.cols)": "tk.steps(full.cols, by=16)", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "use takes a tile of 2 sizes (M, N), and this one is (16, 16, 16)",
    ),
    pair(
        "whole dimension as a block",
        TileSizeError,
        {
            USE_TILE: "tile=(16, None, 16)",
            "tl.zeros(t.shape": "tl.zeros((16, 16)",
            "    out[t].store(acc)": "    out[t].store(acc)  # <-",
        },
        "N is not cut into tiles",
        "a tile size along N",
        "tk.steps",
    ),
    pair(
        "shape of a whole dimension",
        TileSizeError,
        {USE_TILE: "tile=(16, None, 16)", "tl.zeros(t.shape, tl.float32)": "tl.zeros(t.shape, tl.float32)  # <-"},
        "N is not cut into tiles",
    ),
    tile(
        "load of a whole dimension that is cut",
        TileSizeError,
        "a = inbox[0, t.rows, :].load()  # <-",
        "`:`, or an index left out, takes all of N, which the schedule cuts into tiles of 16 for this role: write t.N",
    ),
    tile(
        "store to a whole dimension that is cut",
        TileSizeError,
        "out[t.M].store(tl.zeros((16, 16), tl.float32))  # <-",
        "takes all of N",
        "write t.N there",
    ),
    tile(
        "load of a whole dimension", TileSizeError, "a = x[t.rows].load()  # <-", "K is not cut into tiles", "tk.steps"
    ),
    pair(
        "no step in the schedule",
        TileSizeError,
        {USE_TILE: "tile=(16, 16)", "in tk.steps(full.cols):": "in tk.steps(full.cols):  # <-"},
        "gives this role's loops no step",
        "the last of tile=",
    ),
    tile(
        "dot of small blocks",
        TileSizeError,
        "a = tl.zeros((8, 16), tl.float16)\nb = tl.dot(a, tl.trans(a))  # <-",
        "(8, 16) and (16, 8): it takes at least 16",
    ),
    tile(
        "dot of 8 bits over 16",
        TileSizeError,
        "a = tl.zeros((32, 16), tl.float8e5)\nb = tl.dot(a, tl.trans(a))  # <-",
        "of float8_e5m2, it takes at least 32 along the side that is added up, not 16",
    ),
]


@pytest.mark.parametrize("case", [*DIMENSIONS, *WORLDS, *TILES], ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
