"""Dtypes that do not go together: errors with both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import GATHER, NOTIFY, STORE, UNROLL, Case, changed, check, load, pair, tile
from tilelink.errors import DtypeError
from tilelink.frontend.values import CONVERTS

DTYPES = [
    pair(
        "copy to another dtype",
        DtypeError,
        {'tk.local("M", "K")': 'tk.local("M", "K", dtype="float16")', NOTIFY: f"{NOTIFY}  # <-"},
        "x is float32, full float16",
        "declare both with one dtype, or write full[t].at(t.reader).store(x[t].load())",
    ),
    tile(
        "variable of a branch",
        DtypeError,
        "a = tl.zeros((16, 16), tl.float32)\nif tk.rank() > 0:  # <-\n    b = a\nelse:\n    b = a.to(tl.float16)",
        "b is a block of float32: in the other branch it can't be one of float16",
    ),
    tile(
        "integers that become fractions",
        DtypeError,
        "a = tl.zeros((16, 16), tl.int32)\nfor k in tk.steps(x.K):\n    a += tl.zeros((16, 16), tl.float32)  # <-",
        "a is a block of int32: in a loop or a branch it can't become one of float32; convert it, .to(",
    ),
    tile(
        "integers that become longer",
        DtypeError,
        "a = tl.zeros((16,), tl.int32)\nfor k in tk.steps(x.K):\n"
        "    a += tl.sum(x[t.M, k].load().to(tl.int64), 1)  # <-",
        "a is a block of int32: in a loop or a branch it can't become one of int64; convert it, .to(",
    ),
    tile(
        "truths that become integers",
        DtypeError,
        "a = tl.zeros((16, 16), tl.int32) > 0\nfor k in tk.steps(x.K):\n    a = a & tl.zeros((16, 16), tl.int32)  # <-",
        "a is a block of bool: in a loop or a branch it can't become one of int32",
    ),
    tile(
        "a count, which has no sign",
        DtypeError,
        "a = tl.zeros((16,), tl.int32)\nfor k in tk.steps(x.K):\n    a += tl.sum(x[t.M, k].load() > 0, 1)  # <-",
        "a is a block of int32: in a loop or a branch it can't become one of uint32",
    ),
    tile(
        "integers of two lengths in two branches",
        DtypeError,
        "a = tl.zeros((16,), tl.int32)\nif tk.rank() > 0:  # <-\n    b = a\nelse:\n    b = a.to(tl.int64)",
        "b is a block of int32: in the other branch it can't be one of int64",
    ),
    *(
        tile(f"float8: {e}", DtypeError, f"a = tl.zeros((16, 16), tl.float8e4nv)\nb = {e}  # <-", *says)
        for e, *says in (
            ("a + a", "a + a: operators do not take float8_e4m3fn: convert it, .to(tl.float32)"),
            ("2 * a", "2 * a: operators do not take float8_e4m3fn"),
            ("-a", "-a: operators do not take float8_e4m3fn"),
            ("a > 0", "a > 0: operators do not take float8_e4m3fn"),
            ("a * tl.zeros((16, 16), tl.int32)", "operators do not take float8_e4m3fn and int32"),
            ("a * tl.zeros((16, 16), tl.float64)", "operators do not take float8_e4m3fn and float64"),
            ("tl.sum(a, 1)", "tl.sum does not take float8_e4m3fn: convert it, .to(tl.float32)"),
            ("tl.maximum(a, a)", "tl.maximum does not take float8_e4m3fn: convert it, .to(tl.float32)"),
            ("a.to(tl.float64)", "a block of float8_e4m3fn can't become one of float64 at once", "float16, bfloat16",
             "write .to(tl.float32).to(tl.float64)"),
            ("tl.zeros((16,), tl.int8).to(tl.float8e5)", "a block of int8 can't become one of float8_e5m2",
             "write .to(tl.float32).to(tl.float8e5)"),
            ("a.to(tl.float8e5)", "a block of float8_e4m3fn can't become one of float8_e5m2 at once"),
        )
    ),
    pair(
        "store of float64 to float8",
        DtypeError,
        {
            'tk.local("M", "K")': 'tk.local("M", "K", dtype="float8_e4m3fn")',
            NOTIFY: "    tk.notify(full[t].at(t.reader).store(x[t].load().to(tl.float64)))  # <-",
        },
        "store to full: a block of float64 can't become one of float8_e4m3fn at once",
    ),
    tile(
        "dtype that no block has",
        DtypeError,
        "a = tl.zeros((16,), tl.float32).to(tl.float8e4b15)  # <-",
        "fp8e4b15 is not a dtype TileLink knows; it knows float64, int64, float32",
    ),
    tile(
        "variable of a loop",
        DtypeError,
        "a = tl.zeros((16, 16), tl.float16)\nfor k in tk.steps(x.K):\n    a = a / 2.0  # <-",
        "a is a block of float16: in a loop or a branch it can't become one of float32; convert it, .to(",
    ),
    tile(
        "variable of a branch that Triton widens",
        DtypeError,
        "a = tl.zeros((16, 16), tl.float16)\nif tk.rank() > 0:\n    a = tl.max(a, 1)[:, None] + a  # <-",
        "a is a block of float16: in a loop or a branch it can't become one of float32",
    ),
    tile(
        "exponential of bfloat16",
        DtypeError,
        "a = tl.exp(tl.zeros((16, 16), tl.bfloat16))  # <-",
        "tl.exp takes float32 or float64, and here a block of bfloat16: convert it, .to(tl.float32)",
    ),
    tile(
        "method of bfloat16",
        DtypeError,
        "a = tl.zeros((16, 16), tl.bfloat16).sigmoid()  # <-",
        "tl.sigmoid takes float32 or float64, and here a block of bfloat16",
    ),
    tile(
        "whole division of fractions",
        DtypeError,
        "a = tl.zeros((16, 16), tl.float32) // 2  # <-",
        "this is for blocks of integers; of fractions, write tl.floor(a / b)",
    ),
    tile(
        "bits of fractions",
        DtypeError,
        "a = tl.zeros((16, 16), tl.float32) & 1  # <-",
        "this is for blocks of integers; of fractions, write .to(tl.int32) first",
    ),
    tile(
        "dot of int64",
        DtypeError,
        "a = tl.zeros((16, 16), tl.int64)\nb = tl.dot(a, a)  # <-",
        "int64 (left operand)",
        "float16",
    ),
    tile(
        "dot of float64",
        DtypeError,
        "a, b = tl.zeros((16, 16), tl.float16), tl.zeros((16, 16), tl.float64)\nc = tl.dot(a, b)  # <-",
        "float64 (right operand)",
    ),
    tile(
        "dot of mixed dtypes",
        DtypeError,
        "a, b = tl.zeros((16, 16), tl.float16), tl.zeros((16, 16), tl.bfloat16)\nc = tl.dot(a, b)  # <-",
        "left is float16, right bfloat16",
    ),
    tile(
        "dot of a tensor's dtype",
        DtypeError,
        "a = tl.zeros((16, 16), x.dtype)\nb = tl.dot(a, a.to(tl.float16))  # <-",
        "left is float32, right float16",
    ),
    tile(
        "dot of int8 added to float32",
        DtypeError,
        "a, c = tl.zeros((32, 32), tl.int8), tl.zeros((32, 32), tl.float32)\nb = tl.dot(a, a, c)  # <-",
        "adds up in int32, and here to float32",
        "tl.zeros(..., tl.int32)",
    ),
    tile(
        "dot of float16 added to bfloat16",
        DtypeError,
        "a, c = tl.zeros((16, 16), tl.float16), tl.zeros((16, 16), tl.bfloat16)\nb = tl.dot(a, a, c)  # <-",
        "tl.dot of float16 adds up in float32 or float16, and here to bfloat16",
    ),
    pair(
        "fractions stored to integers",
        DtypeError,
        {UNROLL: UNROLL.replace("world", "dtypes={'x': 'float32', 'out': 'int8'}, world"), STORE: f"{STORE}  # <-"},
        "a float32 block is stored to out, which is int8",
        ".to(out.dtype)",
    ),
    pair(
        "a fraction stored to integers",
        DtypeError,
        {
            UNROLL: UNROLL.replace("world", "dtypes={'x': 'float32', 'out': 'int32'}, world"),
            STORE: "    out[t].store(0.5)  # <-",
        },
        "0.5 is stored to out, which is int32",
    ),
    pair(
        "dtype that is none",
        DtypeError,
        {UNROLL: UNROLL.replace("world", "dtypes='float13', world"), "@tk.program": "@tk.program  # <-"},
        "x: float13",
        "bfloat16",
    ),
    pair(
        "short form of a dtype that is none",
        DtypeError,
        {UNROLL: UNROLL.replace("world", "dtypes='bf16x', world"), "@tk.program": "@tk.program  # <-"},
        "did you mean bf16?",
    ),
    pair(
        "dtype of no tensor",
        DtypeError,
        {UNROLL: UNROLL.replace("world", "dtypes={'y': 'float16'}, world"), "@tk.program": "@tk.program  # <-"},
        "y, which is no tensor of program",
        "x, out, full",
    ),
]


WIDENED = [
    tile(
        "variable of a loop that Triton widens",
        DtypeError,
        "a = tl.zeros((16, 16), tl.bfloat16)\nfor k in tk.steps(x.K):\n    a = tl.maximum(a, a)  # <-",
        "a is a block of bfloat16: in a loop or a branch it can't become one of float32; convert it, .to(",
    ),
    tile(
        "number that widens",
        DtypeError,
        "a = tl.zeros((16, 16), tl.float16)\nfor n in range(3):\n    a = tl.maximum(a, 0.0)  # <-",
        "a is a block of float16: in a loop or a branch it can't become one of float32",
    ),
]
"""By Triton up to 3.8."""


@pytest.mark.parametrize("case", [*DTYPES, *(WIDENED if CONVERTS else ())], ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


STORED = {
    "said": "    out[t].store(acc.to(out.dtype))",
    "a whole number": "    out[t].store(-1.0)",
    "integers": "    out[t].store(acc.to(tl.int32))",
}


@pytest.mark.parametrize("stored", STORED)
def test_integers_are_stored_to_integers(stored: str, tmp_path: Path) -> None:
    changes = {UNROLL: UNROLL.replace("world", "dtypes={'x': 'float32', 'out': 'int8'}, world"), STORE: STORED[stored]}
    load(tmp_path, changed(GATHER, changes)).main()
