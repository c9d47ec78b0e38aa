"""What a tile function or a program can't say: errors at the word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import (
    GATHER,
    LAUNCH_GATHER,
    LAUNCH_USE,
    NOTIFY,
    PROGRAM,
    UNROLL,
    Case,
    alone,
    check,
    load,
    pair,
    tile,
)
from tilelink.errors import DimensionError, HomeError, NotUnderstoodError, UndefinedNameError, ViewError

BLOCK = "a = tl.zeros((16, 16), tl.float32)"

NAMES = [
    tile(
        "name", UndefinedNameError, "out[t].store(y)  # <-", "y is not defined here", "role knows inbox, out, weight, x"
    ),
    tile("function of tl", UndefinedNameError, "a = tl.zeross((16, 16))  # <-", "tl has no zeross"),
    tile(
        "home of a tile without one",
        HomeError,
        "a = t.home  # <-",
        "this tile has no home: no tensor of the program is cut over the ranks along M or N; declare one tk.Sharded(",
    ),
    tile("axis of the tile", UndefinedNameError, "a = t.reader  # <-", "no reader; it has rows, cols, shape"),
    tile(
        "block of a branch",
        UndefinedNameError,
        "if tk.rank() == 0:\n    a = tl.zeros((16, 16), tl.float32)\nout[t].store(a)  # <-",
        "a is not defined here",
        "ends with it",
        "define it before",
    ),
    tile(
        "view that is another in each branch",
        UndefinedNameError,
        "if tk.rank() == 0:\n    there = inbox[0, t]\nelse:\n    there = inbox[1, t]\nthere.store(1.0)  # <-",
        "there is not defined here",
        "define it before",
    ),
    tile(
        "block of a loop",
        UndefinedNameError,
        "for n in range(3):\n    a = tl.zeros((16, 16), tl.float32)\nout[t].store(a)  # <-",
        "a is not defined here",
        "ends with it",
    ),
    tile(
        "variable of a loop",
        UndefinedNameError,
        "for n in range(3):\n    pass\nout[t].store(n)  # <-",
        "n is not defined here",
    ),
    pair(
        "name in the program",
        UndefinedNameError,
        {LAUNCH_USE: "use[tk.tiles(out)](full, outt)  # <-"},
        "'outt' is not defined; did you mean out?",
    ),
    pair(
        "attribute in the program",
        NotUnderstoodError,
        {LAUNCH_USE: "use[tk.tiles(out.lines)](full, out)  # <-"},
        "out has no lines; its dimensions are M, N",
    ),
    *(
        pair(
            f"{what} as a number in the program",
            NotUnderstoodError,
            {f"    {LAUNCH_USE}": f"    n = {written}  # <-\n    {LAUNCH_USE}"},
            f"program: {what} is no number: a program knows neither sizes nor ranks; tile functions know them",
        )
        for what, written in {"a dimension": "x.M // 2", "a tensor": "x // 2", "a rank axis": "tk.ranks // 2"}.items()
    ),
    pair(
        "unknown dimension as a number in the program",
        NotUnderstoodError,
        {f"    {LAUNCH_USE}": f"    n = x.V // 2  # <-\n    {LAUNCH_USE}"},
        "program: x has no V; its dimensions are M, K",
    ),
    tile(
        "unknown dimension as a number", ViewError, "n = x.V // 2  # <-", "x has no V; x has .rows, .cols, .M"
    ),
    pair(
        "axis called as the tiles' own",
        NotUnderstoodError,
        {LAUNCH_GATHER: "gather[tk.tiles(x, home=tk.ranks)](x, full)  # <-"},
        "gather: its tiles have a home already",
    ),
    pair(
        "axis called like a word",
        NotUnderstoodError,
        {LAUNCH_GATHER: LAUNCH_GATHER.replace("reader=", "rows="), NOTIFY: NOTIFY.replace("reader", "rows") + "  # <-"},
        "t.rows could be rows or M[M_lo:+16]",
    ),
    pair(
        "role whose name is none",
        NotUnderstoodError,
        {LAUNCH_USE: "use.named('a b')[tk.tiles(out)](full, out)  # <-"},
        "use.named('a b'): a role's name has letters, digits and _",
    ),
    pair(
        "role whose name is a number",
        NotUnderstoodError,
        {LAUNCH_USE: "use.named(3)[tk.tiles(out)](full, out)  # <-"},
        "use.named(3): a role's name has letters, digits and _",
    ),
    pair(
        "two roles of one name",
        NotUnderstoodError,
        {LAUNCH_USE: f"{LAUNCH_USE}\n    {LAUNCH_USE}  # <-"},
        "program has a role use",
        "use.named(...)",
    ),
]

OPTIONS = [
    pair(
        f"tensor called like the option {name} of a call",
        NotUnderstoodError,
        {"@tk.program": "@tk.program  # <-", PROGRAM: PROGRAM.replace("x:", f"{name}:")},
        f"program has a tensor {name}",
        f"{name}= is an option of every call",
    )
    for name in ("schedule", "group", "parts", "slot")
]

STATEMENTS = [
    tile(
        "while", NotUnderstoodError, "while True:  # <-\n    pass",
        "the number of steps must be known before the run; write for k in tk.steps(...) or range(...)",
    ),
    tile("try", NotUnderstoodError, "try:  # <-\n    pass\nfinally:\n    pass", "try is not understood"),
    tile("with", NotUnderstoodError, "with open('x'):  # <-\n    pass", "with is not", "write its body alone"),
    tile("raise", NotUnderstoodError, "raise ValueError  # <-", "raise is not", "let the caller raise"),
    tile(
        "break", NotUnderstoodError, "for k in tk.steps(x.cols):\n    if k.start > 8:\n        break  # <-",
        "break is not understood in a tile function", "as stop= of tk.steps", "below an if",
    ),
    tile(
        "continue", NotUnderstoodError, "for n in range(3):\n    continue  # <-",
        "continue is not understood", "the rest of the loop's body below an if",
    ),
    tile(
        "else of a loop", NotUnderstoodError, "for n in range(3):\n    pass\nelse:\n    a = 1  # <-",
        "a loop of a tile function has no else", "write these lines behind the loop",
    ),
    tile(
        "function in a tile function", NotUnderstoodError, "def double(v):  # <-\n    return v * 2",
        "def is not understood in a tile function: write the function outside of it, with @triton.jit",
    ),
    tile("class", NotUnderstoodError, "class A:  # <-\n    pass", "class is not", "write the class outside of it"),
    tile("match", NotUnderstoodError, "match 1:  # <-\n    case _:\n        pass", "match is not", "if and elif"),
    tile("del", NotUnderstoodError, "a = 1\ndel a  # <-", "del is not understood", "leave it out"),
    tile("import", NotUnderstoodError, "import math  # <-", "import is not understood", "at the top of the file"),
    tile("from", NotUnderstoodError, "from math import pi  # <-", "import is not understood", "top of the file"),
    tile("global", NotUnderstoodError, "global a  # <-", "global is not understood", "changes nothing outside of it"),
    tile(
        "return", NotUnderstoodError, "return  # <-",
        "leave this return out: only a tile function that another one calls may return, in its last line",
    ),
    tile(
        "return below an if", NotUnderstoodError, "if tk.rank() == 0:\n    return  # <-\nout[t].store(1.0)",
        "no early return: put the rest of the body below `if not (tk.rank() == 0):`; only a tile function that another",
    ),
    tile(
        "return below an else", NotUnderstoodError, "if tk.rank() == 0:\n    pass\nelse:\n    return  # <-",
        "put the rest of the body below `if tk.rank() == 0:`",
    ),
    tile(
        "memory with an annotation", NotUnderstoodError, "out[t]: tl.tensor = 1.0  # <-",
        "memory is not assigned to; write out[t].store(1.0)",
    ),
    tile(
        "result that is returned", NotUnderstoodError, "return acc  # <-",
        "role returns acc: a tile function that is launched returns nothing; its results are stored, "
        "out[t].store(acc)",
    ),
    tile(
        "sum in memory", NotUnderstoodError, "out[t] += acc  # <-",
        "memory is not assigned to; write out[t].store(acc); add up in registers before, acc += ...",
    ),
    tile(
        "entries of a block that are assigned", NotUnderstoodError, "b = inbox[0, t].load()\nb[0] = 1  # <-",
        "b[0] = 1: entries are not assigned to. If b is a view, write b[0].store(1). If it is a block, make a new one: "
        "b = tl.where(...)",
    ),
    tile(
        "store that is returned", NotUnderstoodError, "return out[t].store(inbox[0, t].load())  # <-",
        "a tile function that is launched returns nothing; leave `return` out",
    ),
    tile("result that is assigned", NotUnderstoodError, "out[t] = acc  # <-", "write out[t].store(acc)"),
    tile(
        "list comprehension",
        NotUnderstoodError,
        "a = [n for n in range(3)]  # <-",
        "[n for n in range(3)] is not understood in a tile function: write a loop, `for n in` tk.steps(...)",
    ),
    tile("lambda", NotUnderstoodError, "a = lambda b: b  # <-", "not understood", "a function with @triton.jit"),
    tile("text", NotUnderstoodError, "tl.device_print(f'{1}')  # <-", "not understood", "write the text as a constant"),
    tile("dict", NotUnderstoodError, "a = {1: 2}  # <-", "not understood", "write a tuple"),
    tile("set", NotUnderstoodError, "a = {1}  # <-", "not understood", "write a tuple"),
    tile("yield", NotUnderstoodError, "yield 1  # <-", "not understood", "results are stored"),
    tile("walrus", NotUnderstoodError, "a = (b := 1)  # <-", "not understood", "assign in a line before"),
    tile(
        "star", NotUnderstoodError, "a = tl.zeros(*t.shape)  # <-", "*t.shape is not understood",
        "write the entries one by one",
    ),
    tile("two stars", NotUnderstoodError, "a = tl.zeros((16, 16), **{})  # <-", "** is not understood"),
    tile("assignment to an attribute", NotUnderstoodError, "t.x = 3  # <-", "names on its left"),
    tile("names that are too many", NotUnderstoodError, "a, b = t.shape, 1, 2  # <-", "2 names"),
    tile(
        "loop over a tuple", NotUnderstoodError, "for n in (1, 2):  # <-\n    pass",
        "tk.steps(), tk.ranks(), tk.each() or range()",
    ),
    tile("loop over a function", NotUnderstoodError, "for n in reversed(3):  # <-\n    pass", "reversed"),
    tile(
        "range backwards",
        NotUnderstoodError,
        "for n in range(3, 0, -1):  # <-\n    pass",
        "a range counts up: write `for n in range(3)`, and in its body 3 - n where n stands now",
    ),
    tile(
        "range down from the last rank",
        NotUnderstoodError,
        "for n in range(tk.world() - 2, -1, -1):  # <-\n    pass",
        "write `for n in range(tk.world() - 1)`, and in its body tk.world() - 2 - n where n stands now",
    ),
    tile(
        "range down by twos",
        NotUnderstoodError,
        "for n in range(8, 1, -2):  # <-\n    pass",
        "write `for n in range(4)`, and in its body 8 - 2 * n where n stands now",
    ),
    tile(
        "range by what differs",
        NotUnderstoodError,
        "for n in range(0, 8, tk.rank()):  # <-\n    pass",
        "the step of a range is a positive constant, not rank",
    ),
    tile(
        "range from below zero",
        NotUnderstoodError,
        "for n in range(-3, 3):  # <-\n    pass",
        "begins at 0",
        "-3 may be negative",
    ),
    tile(
        "range over data",
        NotUnderstoodError,
        "for n in range(tl.sum(inbox[0, t].load())):  # <-\n    pass",
        "known before the run",
    ),
    tile("range without end", NotUnderstoodError, "for n in range():  # <-\n    pass", "range takes"),
    tile(
        "variable that is used already",
        NotUnderstoodError,
        "for k in tk.steps(x.cols):\n    for k in range(3):  # <-\n        pass",
        "k is defined already",
        "the variable of a loop needs a new name",
    ),
    tile(
        "integer that changes in a loop",
        NotUnderstoodError,
        "n = 0\nfor m in range(3):\n    n = n + 1  # <-",
        "it is 0",
        "tl.zeros",
    ),
    tile(
        "number that becomes data in a loop",
        NotUnderstoodError,
        "a = 0.0\nfor m in range(3):\n    a += inbox[m, t].load()  # <-",
        "a is known before the run (it is 0.0)",
        "begin with tl.zeros",
    ),
    tile(
        "block that becomes a view",
        NotUnderstoodError,
        "a = tl.zeros((16, 16), tl.float32)\nif tk.rank() == 0:\n    a = out[t]  # <-",
        "a is a block of data",
        "out[M[M_lo:+16]",
    ),
    tile(
        "loop's word outside of a loop", NotUnderstoodError, "a = tk.steps(x.cols)  # <-", "for k in tk.steps(x.cols)"
    ),
    tile("division", NotUnderstoodError, "a = t.rows.start / 2  # <-", "`/` of integers is not understood; write `//`"),
    tile("fraction of a rank", NotUnderstoodError, "a = tk.rank() * 0.5  # <-", "rank differs from tile", "+ - * // %"),
    tile("power of a sign", NotUnderstoodError, "a = tk.rank() ** -1  # <-", "** with a constant exponent"),
    tile("power of a rank", NotUnderstoodError, "a = 2 ** tk.rank()  # <-", "** with a constant exponent"),
    tile("least of nothing", NotUnderstoodError, "a = min()  # <-", "min takes two integers or more"),
    tile("greatest of one", NotUnderstoodError, "a = max(tk.rank())  # <-", "max takes two integers or more"),
    tile("least by a key", NotUnderstoodError, "a = min(1, 2, key=abs)  # <-", "min takes two integers or more"),
    tile("least of a fraction", NotUnderstoodError, "a = min(tk.rank(), 0.5)  # <-", "rank differs from tile to tile"),
    tile(
        "least of a block", NotUnderstoodError, f"{BLOCK}\nb = min(a, 1)  # <-", "of integers", "tl.minimum(a, b)"
    ),
    tile("division by zero", NotUnderstoodError, "a = t.rows.start % 0  # <-", "the divisor 0"),
    tile(
        "division by what may be negative",
        NotUnderstoodError,
        "a = 3 // (t.rows.start - 8)  # <-",
        "M_lo - 8",
        "max(1, ...)",
    ),
    tile(
        "comparison of an integer with a float",
        NotUnderstoodError,
        "a = t.rows.start < 0.5  # <-",
        "M_lo and 0.5 can't be compared",
    ),
    tile("worker", NotUnderstoodError, "a = tl.program_id(0)  # <-", "whichever computes it", "t.rows.start"),
    tile("workers", NotUnderstoodError, "a = tl.num_programs(0)  # <-", "depends on the workers of the schedule"),
    tile("rank in a tuple", NotUnderstoodError, "if tk.rank() in (0, 1):  # <-\n    pass", "compare with each value"),
    tile("identity of a number", NotUnderstoodError, "a = 1 if tk.rank() is tk.world() else 2  # <-", "by == or !="),
    tile(
        "load with a mask",
        NotUnderstoodError,
        "a = inbox[0, t].load(mask=None)  # <-",
        "inbox[0, t].load takes where (may be left out)",
    ),
    tile("dimension as a number", NotUnderstoodError, "a = tl.zeros((16,), tl.int32) / x.K  # <-", "elements is .size"),
    tile("range as a number", NotUnderstoodError, "a = tl.zeros((t.rows,), tl.int32)  # <-", ".start, and len()"),
    Case(
        "tensor of torch around the function",
        NotUnderstoodError,
        "import torch\n\nTAU = torch.ones(1)\n" + alone("out[t].store(tl.zeros(t.shape, tl.float32) * TAU)  # <-"),
        ("TAU is a Tensor and can't be part of Triton code; use a Python number, or pass it as a tensor of the",),
    ),
    tile("relu of torch", UndefinedNameError, "a = inbox[0, t].load().relu()  # <-", "no relu; write tl.maximum(x, 0)"),
    tile("relu of Triton", UndefinedNameError, "a = tl.relu(inbox[0, t].load())  # <-", "no relu; write tl.maximum("),
    tile("method of torch", UndefinedNameError, "a = inbox[0, t].load().float()  # <-", "a block has no float"),
    tile("sign of a block", NotUnderstoodError, "a = +inbox[0, t].load()  # <-", "write the block alone"),
    pair(
        "launch with names",
        NotUnderstoodError,
        {LAUNCH_USE: "use[tk.tiles(out)](full, out=out)  # <-"},
        "use takes out by position",
    ),
    pair("view in a program", NotUnderstoodError, {LAUNCH_USE: "use[tk.tiles(out)](full[0], out)  # <-"}, "no views"),
    pair("size in a program", NotUnderstoodError, {LAUNCH_USE: "use[tk.tiles(out.M.size)](full, out)  # <-"}, "M.size"),
    pair(
        "launch of what is no tile function",
        NotUnderstoodError,
        {"@tk.tile\ndef use": "def use", LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
        "only tile functions are launched like this: write @tk.tile above use (",
    ),
    tile("store with a mask", NotUnderstoodError, "out[t].store(1.0, mask=None)  # <-", "out[t].store takes block"),
    tile("store of nothing", NotUnderstoodError, "out[t].store()  # <-", "out[t].store takes block"),
    tile("copy to nowhere", NotUnderstoodError, "tk.copy(out[t])  # <-", "tk.copy takes source, target"),
    tile(
        "steps with a length",
        NotUnderstoodError,
        "for k in tk.steps(x.cols, step=3):  # <-\n    pass",
        "along, stop (may be left out), by (may be left out)",
    ),
    tile(
        "steps of a length without its name",
        NotUnderstoodError,
        "for k in tk.steps(x.cols, 32):  # <-\n    pass",
        "stop=32 where the steps end, or by=32 how long a step is",
    ),
    tile("rank of something", NotUnderstoodError, "a = tk.rank(0)  # <-", "tk.rank takes no arguments"),
    tile("call of a range", NotUnderstoodError, "a = t.rows()  # <-", "t.rows can't be called"),
    tile(
        "Python on blocks",
        NotUnderstoodError,
        "a = abs(inbox[0, t].load())  # <-",
        "abs is not Triton's",
        "@triton.jit",
    ),
    tile(
        "Python with keywords",
        NotUnderstoodError,
        "a = int('10', base=2)  # <-",
        "only Triton's functions take keywords in it",
    ),
    pair(
        "block of torch",
        NotUnderstoodError,
        {
            "@tk.tile\ndef use": "import torch\n\n\n@tk.tile\ndef use",
            "tl.zeros(t.shape, tl.float32)": "torch.zeros(16, 16)  # <-",
        },
        "torch.zeros makes a Tensor, and a tile function is Triton code: make a block with triton.language",
    ),
    tile("Python that fails", NotUnderstoodError, "a = int('ten')  # <-", "int('ten'): invalid literal"),
    tile(
        "index into a block", NotUnderstoodError, "a = inbox[0, t].load()[0]  # <-", "indices of a block are : and None"
    ),
    tile(
        "argument that Triton does not know",
        NotUnderstoodError,
        "a = tl.sum(inbox[0, t].load(), axs=1)  # <-",
        "tl.sum takes input, axis (may be left out), keep_dims (may be left out), dtype (may be left out): got an",
        "'axs'; did you mean axis?",
    ),
    tile(
        "argument that Triton needs",
        NotUnderstoodError,
        "a = tl.maximum(inbox[0, t].load())  # <-",
        "tl.maximum takes x, y, propagate_nan (may be left out): missing a required argument: 'y'",
    ),
    tile(
        "argument that a method does not know",
        NotUnderstoodError,
        "a = inbox[0, t].load().exp(2)  # <-",
        "inbox[0, t].load().exp takes no arguments: too many positional arguments",
    ),
    tile(
        "numbers up to what differs",
        NotUnderstoodError,
        "a = tl.arange(0, tk.rank())  # <-",
        "rank is no constant; tl.arange takes two constants: write tl.arange(0, len(t.rows)), and add what differs",
    ),
    tile("dot of one block", NotUnderstoodError, "a = tl.dot(inbox[0, t].load(), 1)  # <-", "takes two blocks"),
    tile(
        "complement of a rank", NotUnderstoodError, "a = ~tk.rank()  # <-", "such integers take + - * // %"
    ),
    tile("sign of a text", NotUnderstoodError, "a = -'x'  # <-", "bad operand type for unary -"),
    tile(
        "entry of a rank", NotUnderstoodError, "a = tk.rank()[0]  # <-",
        "tk.rank()[0]: tensors, views, blocks and tuples have entries",
    ),
    tile(
        "entry of the tile", NotUnderstoodError, "a = t[x]  # <-",
        "t[x]: tensors, views, blocks and tuples have entries; t is the tile: tensors are indexed by it",
    ),
    tile(
        "entry that a tuple does not have", NotUnderstoodError, "a = t.shape[2]  # <-",
        "t.shape is a tuple of 2: take one of its entries, such as t.shape[0]",
    ),
    tile(
        "branch on a view", NotUnderstoodError, "if x[t.rows]:  # <-\n    pass",
        "a branch on x[M[M_lo:+16], K]; x[t.rows] is a view: its elements are x[t.rows].load()",
    ),
    tile(
        "tile as a number", NotUnderstoodError, "a = t + 1  # <-",
        "t + 1 is not understood; t is the tile: tensors are indexed by it, and it has ranges such as t.rows",
    ),
]

CONDITION = "is a condition, and takes only `and`, `or` and `not`: put what depends on it below an `if`, or compute an"
OPERANDS = [
    tile(text, NotUnderstoodError, f"a = {text}  # <-", f"{text} is not understood; {condition} {CONDITION} integer")
    for text, condition in [
        ("(tk.rank() > 0) + 0", "tk.rank() > 0"),
        ("(tk.rank() == 1) % tk.world()", "tk.rank() == 1"),
        ("2 * (tk.rank() % 2 == 0)", "tk.rank() % 2 == 0"),
        ("(tk.rank() > 0) & (tk.rank() < 3)", "tk.rank() > 0"),
        ("-(tk.rank() > 0)", "tk.rank() > 0"),
    ]
] + [
    tile(text, ViewError, f"a = {text}  # <-", "x[t.rows] is a view: its elements are x[t.rows].load()")
    for text in ("x[t.rows] ** 2", "-x[t.rows]", "not x[t.rows]", "tk.rank() and x[t.rows]", "0 < x[t.rows]")
]

BLOCKS = [
    tile(text, NotUnderstoodError, f"{BLOCK}\nb = {text}  # <-", f"blocks do not take {word}; write {instead}")
    for text, word, instead in [
        ("a > 0 and a < 1", "`and`", "&, with each comparison in parentheses: (a > 0) & (b > 0)"),
        ("tk.rank() > 0 or a < 1", "`or`", "|, with"),
        ("not a > 0", "`not`", "~, with the comparison in parentheses: ~(a > 0)"),
        ("0 < a < 1", "a chain of comparisons, which is an `and`", "&, with"),
        ("a ** 2", "`**`", "a product, a * a"),
        ("a @ a", "`@`", "tl.dot(a, b)"),
    ]
] + [tile("a in a", NotUnderstoodError, f"{BLOCK}\nb = a in a  # <-", "blocks are compared by < <= > >= == !=")]

TWO = "\n\n@triton.jit\ndef two(a, b):\n    return a + b\n"
FUNCTIONS = [
    Case(
        "function with too few blocks",
        NotUnderstoodError,
        TWO + alone(f"{BLOCK}\nout[t].store(two(a))  # <-"),
        ("two(a, b) does not take this: missing a required argument: 'b'",),
    ),
    Case(
        "function with a block of another name",
        NotUnderstoodError,
        "\n\n@triton.jit\ndef two(first, second=1):\n    return first + second\n"
        + alone(f"{BLOCK}\nout[t].store(two(a, secnd=2))  # <-"),
        ("two(first, second) does not take this: got an unexpected keyword argument 'secnd'; did you mean second?",),
    ),
]

PROGRAMS = [
    pair(
        "nothing in the program",
        NotUnderstoodError,
        {f"    {LAUNCH_GATHER}\n    {LAUNCH_USE}\n": "", "@tk.program": "@tk.program  # <-"},
        "program launches no tile function",
    ),
    pair(
        "launch that is not called",
        NotUnderstoodError,
        {LAUNCH_USE: "use[tk.tiles(out)]  # <-"},
        "use[...] is not called, so nothing is launched: write use[space](tensors)",
    ),
    pair(
        "wait in the program",
        NotUnderstoodError,
        {LAUNCH_USE: f"tk.wait(full)  # <-\n    {LAUNCH_USE}"},
        "tk.wait() has a meaning only",
    ),
    pair(
        "wait outside",
        NotUnderstoodError,
        {"\n\n\n@tk.program": "\n\n\ntk.wait(3)  # <-\n\n\n@tk.program"},
        "only inside a tile function",
    ),
    pair(
        "rank outside", NotUnderstoodError, {"\n\n\n@tk.program": "\n\n\ntk.rank()  # <-\n\n\n@tk.program"}, "tk.rank()"
    ),
    pair(
        "local outside",
        NotUnderstoodError,
        {"\n\n\n@tk.program": "\n\n\ntk.local('M')  # <-\n\n\n@tk.program"},
        "only inside a program",
    ),
    pair(
        "buffer without dimensions",
        DimensionError,
        {LAUNCH_USE: f"tk.local()  # <-\n    {LAUNCH_USE}"},
        "a tensor has at least one dimension",
    ),
    pair(
        "any number of tensors",
        NotUnderstoodError,
        {"@tk.program": "@tk.program  # <-", PROGRAM: PROGRAM.replace("out:", "*out:")},
        "program has the parameter *out: ",
        "each tensor of a program has a name of its own",
        "declared out: tk.Each(tk.Local(...))",
    ),
    pair(
        "tensors that have no names",
        NotUnderstoodError,
        {"@tk.program": "@tk.program  # <-", PROGRAM: PROGRAM.replace(', "N")', ', "N"), /')},
        "program has the parameter x: ",
    ),
    pair(
        "tile function of the program's name",
        NotUnderstoodError,
        {"def use(": "def program(", LAUNCH_USE: "program[tk.tiles(out)](full, out)  # <-"},
        "program[...]: program is a program, and tile functions are launched like this; a tile function of the same "
        "name needs another one",
    ),
    pair("tile function called", NotUnderstoodError, {LAUNCH_USE: "use(full, out)  # <-"}, "use[tk.tiles(...)](...)"),
    pair(
        "launch outside",
        NotUnderstoodError,
        {
            "\n\n\ndef main": "\n\nuse[Space(('M',), None, {})](1, 2)  # <-\n\n\ndef main",
            "schedule = ": "from tilelink.language import Space\n\nschedule = ",
        },
        "use has a meaning only inside a program",
    ),
    pair(
        "tensor of another program",
        NotUnderstoodError,
        {
            "@tk.program": "leaked = []\n\n\n@tk.program",
            "    full = tk": "    leaked.append(out)\n    full = tk",
            LAUNCH_USE: "use[tk.tiles(out)](full, leaked[0])  # <-",
            f"    return {UNROLL}": f"    program.recorded()\n    program._recorded.clear()\n    return {UNROLL}",
        },
        "out is no tensor of this program",
    ),
    pair(
        "tile function that is none",
        NotUnderstoodError,
        {"schedule = ": "other = tk.tile(lambda t: None)  # <-\nschedule = "},
        "written with def",
    ),
    pair(
        "tile function twice",
        NotUnderstoodError,
        {"@tk.tile\ndef use": "@tk.tile  # <-\n@tk.tile\ndef use"},
        "<tile function use> has @tk.tile already: @tk.tile stands once",
    ),
    pair(
        "tile function with any number of tensors",
        NotUnderstoodError,
        {"def use(t, full, out):": "def use(t, *tensors):  # <-"},
        "the tile, then tensors",
    ),
]


CASES = [*NAMES, *OPTIONS, *STATEMENTS, *OPERANDS, *BLOCKS, *FUNCTIONS, *PROGRAMS]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_error(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


SIGNS = alone("out[t].store(+1.0)\nn = +tk.rank()\nif n == -(-tk.rank()) and not ~1 > 0:\n    out[t].store(-1.5)")


@pytest.mark.parametrize("source", [GATHER, alone("out[t].store(1.0)"), SIGNS], ids=["gather", "alone", "signs"])
def test_what_the_cases_change_is_right(source: str, tmp_path: Path) -> None:
    """Errors come from what the cases change: without a change there is none."""
    assert len(load(tmp_path, source).main())
