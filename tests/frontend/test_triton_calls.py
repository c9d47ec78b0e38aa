"""Shapes and dtypes of what Triton computes: known ones are right, and others are not guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.frontend.wrong import HEAD, alone, changed, load
from tilelink.frontend.elaboration.statements import Elaborator
from tilelink.frontend.values import FLOAT8, IN_REGISTERS, TRITON_DTYPES, Block, is_floating

USER = """
@triton.jit
def largest(a):
    return tl.max(a, 1)


@triton.jit
def dot(a, b):
    return a + b


@tk.tile
def role"""


@pytest.mark.parametrize(
    ("expression", "shape", "dtype"),
    [
        ("a + 1", (16, 32), "float16"),
        ("1.0 - a", (16, 32), "float16"),
        ("n * 2", (16, 32), "int8"),
        ("n * 0.5", (16, 32), "float32"),
        ("n / 2", (16, 32), "float32"),
        ("a / 2", (16, 32), "float32"),  # Triton divides no smaller ones
        ("a * b[None, :]", (16, 32), "float16"),
        ("a + c", (16, 32), "float32"),
        ("a > 0", (16, 32), "bool"),
        ("-a", (16, 32), "float16"),
        ("tl.exp(c)", (16, 32), "float32"),
        ("tl.math.exp(c)", (16, 32), "float32"),
        ("c.exp()", (16, 32), "float32"),
        ("tl.maximum(a, b[None, :])", (16, 32), "float16"),
        ("tl.where(a > 0, a, 0.0)", (16, 32), "float16"),
        ("a * tk.rank()", (16, 32), "float16"),
        ("a.to(tl.bfloat16) * tk.rank()", (16, 32), None),  # float32, unless the rank is a constant of the kernel
        ("tl.maximum(a, tk.rank())", (16, 32), "float16"),
        ("tl.trans(a)", (32, 16), "float16"),
        ("a.T", (32, 16), "float16"),
        ("a.to(tl.float32)", (16, 32), "float32"),
        ("a.to(x.dtype)", (16, 32), "float32"),
        ("c.to(a.dtype)", (16, 32), "float16"),
        ("tl.zeros((a.shape[1], 2), a.dtype)", (32, 2), "float16"),
        ("tl.sum(a)", (), "float16"),
        ("tl.sum(a, 1)", (16,), "float16"),
        ("tl.sum(a, axis=0)", (32,), "float16"),
        ("tl.max(a, 1, keep_dims=True)", (16, 1), "float32"),
        ("a.max(-1)", (16,), "float32"),
        ("tl.max(a, 1, True)", None, None),  # with indices: two blocks
        ("a.sum(1, True)", (16, 1), "float16"),
        ("tl.argmax(a, 1)", (16,), "int32"),
        ("tl.dot(a, tl.trans(a))", (16, 16), "float32"),
        ("tl.dot(input=a, other=tl.trans(a))", (16, 16), "float32"),
        ("tl.dot(a, tl.trans(a), tl.zeros((16, 16), tl.float16))", (16, 16), "float16"),
        ("tl.dot(n, tl.trans(n))", (16, 16), "int32"),
        ("tl.dot(tl.zeros((4, 16, 32), tl.float16), tl.zeros((4, 32, 64), tl.float16))", (4, 16, 64), "float32"),
        ("tl.sum(tl.dot(tl.zeros((4, 16, 32), tl.int8), tl.zeros((4, 32, 64), tl.int8)), 2)", (4, 16), "int32"),
        ("tl.gather(a, tl.zeros((16, 8), tl.int32), 1)", (16, 8), "float16"),
        ("tl.softmax(a, 0)", (16, 32), "float32"),
        ("tl.softmax(a, -2)", (16, 32), "float32"),
        ("tl.softmax(tl.sum(a, 1), -1)", (16,), "float32"),
        ("tl.sum(a > 0, 1)", (16,), "uint32"),
        ("(n.to(tl.uint16) + n) >> 3", (16, 32), "uint16"),
        ("c.to(tl.uint32, bitcast=True)", (16, 32), "uint32"),
        ("tl.max(a, 1, keep_dims=tk.rank() >= 0)", (16, 1), "float32"),
        ("tl.where(tk.rank() > 0, a, 1.5)", (16, 32), "float16"),
        ("c * (tk.rank() > 0)", (16, 32), "float32"),
        ("tl.zeros((8, 4), tl.int32)", (8, 4), "int32"),
        ("tl.full((8,), 1.0, dtype=tl.bfloat16)", (8,), "bfloat16"),
        ("tl.arange(0, 64)", (64,), "int32"),
        ("tl.arange(0, 64)[:, None]", (64, 1), "int32"),
        ("tl.reshape(a, (32, 16))", None, None),
        ("tl.ravel(a)", None, None),
        ("largest(a)", None, None),
        ("dot(a, a)", None, None),
    ],
)
def test_result(expression: str, shape: tuple[int, ...] | None, dtype: str | None, tmp_path: Path) -> None:
    body = f"""
a, b = tl.zeros((16, 32), tl.float16), tl.zeros((32,), tl.float16)
c, n = tl.zeros((16, 32), tl.float32), tl.zeros((16, 32), tl.int8)
made = {expression}
"""
    made = inferred(tmp_path, body)["made"]
    assert (made.shape, made.dtype) == (shape, dtype)


def inferred(folder: Path, body: str) -> dict[str, Block]:
    """What the elaborator knows of the variables of a tile function with this body."""
    module = load(folder, changed(alone(body), {"\n@tk.tile\ndef role": USER}))
    seen: dict[str, Block] = {}
    bind = Elaborator.bind

    def remember(self: Elaborator, *arguments: object) -> None:
        bind(self, *arguments)  # type: ignore[arg-type]
        seen.update(self.env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elaborator, "bind", remember)
        module.program.bind(module.schedule)
    return seen


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("at = tl.where(at > 0, at, k.start)", "tl.where(at > 0, at, k).to(at.dtype)"),
        ("at = at + tk.rank() * 2", "(at + (2*rank)).to(at.dtype)"),
        ("first = tl.maximum(first, n)", "tl.maximum(first, n).to(first.dtype)"),
        ("n, at = n + tk.rank(), at + 1", "n, at = ((n + rank).to(n.dtype), at + 1)"),
        ("narrow = narrow * k.start", "(narrow * k).to(narrow.dtype)"),
        ("half = half + k.start", "half = half + k"),
        ("at = at + x.rows.size - n", "(at + M - n).to(at.dtype)"),
        ("fresh = at + k.start", "fresh = at + k"),
    ],
)
def test_a_loop_keeps_a_dtype_that_integers_would_change(line: str, kept: str, tmp_path: Path) -> None:
    """Triton refuses a loop that changes a dtype, and integers have 64 bits only where parts are uneven."""
    module = load(tmp_path, f"""{HEAD}
@tk.tile
def role(t, x, out):
    at, n = tl.zeros((16,), tl.int32), tl.zeros((16,), tl.int8)
    first, narrow, half = t.rows.start + tl.arange(0, 16), tl.zeros((16,), tl.bfloat16), tl.zeros((16,), tl.float16)
    for k in tk.steps(x.rows):
        {line}
    out[t].store(x[t].load() + (at + n + first + narrow + half)[:, None])


@tk.program
def program(x: tk.Sharded("M", "N"), out: tk.Sharded("M", "N")):
    role[tk.tiles(out)](x, out)


schedule = tk.Schedule(role=tk.SMs(tile=(16, 16, 16)))
""")
    lowered = module.program.show("triton", module.schedule, world=2, M=(3, 20), N=20)
    assert kept in lowered


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("x.rows.size", "tl.cast(M, tl.int32)"), ("b=x.rows.size * tk.world()", "b=tl.cast(M*world, tl.int32)"),
        ("tk.world()", "world"), ("x.rows.size + t.rows.start", "M + M_lo"), ("3", "3"),
    ],
)  # fmt: skip
def test_a_size_is_a_tensor_in_a_function_of_the_user(argument: str, given: str, tmp_path: Path) -> None:
    """Else it would be a constant where it is 1, and `b.to(...)` would compile at other sizes only."""
    text = alone(f"a = dot(tl.zeros((16, 16), tl.float32), {argument})")
    module = load(tmp_path, changed(text, {"\n@tk.tile\ndef role": USER}))
    (computed,) = module.program.bind(module.schedule).roles[0].body
    assert str(computed.code).endswith(f", {given})")


DTYPES = {d: f"tl.{TRITON_DTYPES[d]}" for d in TRITON_DTYPES}
ALL = ["-a", "a > 0", "tl.where(a > 0, a, 1)", "tl.maximum(a, a)", "tl.max(a, 1)", "tl.min(a)", "tl.zeros_like(a)",
       "tl.max(a, 1, keep_dims=True)", "a.T", "tl.sum(a, 0)", "a + 1", "a - 1.5", "1.0 - a", "a * True", "a / 2",
       "a / 0.5", "tl.maximum(a, 0)", "tl.minimum(1.0, a)", "tl.where(a > 0, a, 1.5)", "tl.argmin(a, 1)"]  # fmt: skip
FLOATING = ["tl.abs(a)", "tl.clamp(a, 0.0, 1.0)", "tl.cumsum(a, 0)", "tl.cumprod(a, 1)", "tl.softmax(a)", "a % 2",
            "tl.fdiv(a, a)", "tl.fma(a, a, a)", "tl.fma(a, 2.0, a)", "tl.sum(a, 1, dtype=tl.float32)"]  # fmt: skip
WHOLE = ["a // 2", "a % 2", "a & 1", "a | a", "~a", "tl.cumsum(a, 1)", "tl.xor_sum(a, 1)"]
TWO = ["a + b", "a * b", "a / b", "tl.maximum(a, b)", "tl.where(a > b, a, b)", "tl.add(a, b)", "tl.minimum(b, a)"]
OF_FLOAT8 = ["tl.max(a, 1)", "tl.min(a)", "tl.abs(a)", "a.T", "tl.where(b > 0, a, 0.0)", "a * b", "b - a", "a > b",
             "a.to(tl.float16)", "b.to(a.dtype)"]  # fmt: skip
NOT_COMPILED = {"bool": ("-a", "a / 2", "a // 2", "a % 2")}
"""What Triton refuses by the dtype of the block."""
FEW = ("float32", "float16", "bfloat16", "int8", "int32", "bool")


def rows() -> Iterator[tuple[str, str]]:
    """Expressions, each with its operands."""
    for d in ("float64", *FEW, "int16", "int64", "uint8", *IN_REGISTERS):
        a = f"tl.zeros((16, 32), {DTYPES[d]})"
        for e in ALL + (FLOATING if is_floating(d) else WHOLE):
            if e not in NOT_COMPILED.get(d, ()):
                yield e, f"a = {a}"
        if d in IN_REGISTERS:
            yield from ((f"a {op} b", f"a, b = {a}, tl.zeros((16, 32), tl.int32)") for op in ("+", "&", ">"))
        if d in ("float32", "float64"):
            yield from ((f"tl.{f}(a)", f"a = {a}") for f in ("exp", "log2", "sqrt", "rsqrt", "erf", "floor", "sigmoid"))
    for d in FLOAT8:
        yield from ((e, f"a, b = tl.zeros((16, 32), {DTYPES[d]}), tl.zeros((16, 32), tl.bfloat16)") for e in OF_FLOAT8)
    for d, other in combinations(FEW, 2):
        for e in TWO if other != "bool" or is_floating(d) else [e for e in TWO if "/" not in e]:
            yield e, f"a, b = tl.zeros((16, 32), {DTYPES[d]}), tl.zeros((16, 32), {DTYPES[other]})"


@pytest.mark.versions
def test_triton_agrees(tmp_path: Path) -> None:
    """Triton compiles an assertion of the shape and dtype of each."""
    written = dict.fromkeys(rows())
    lines = [f"{operands}\n{name} = {e}" for k, (e, operands) in enumerate(written) for name in (f"made{k}",)]
    lines = [re.sub(r"\b([ab])\b(?!\()", rf"\g<1>{k}", line) for k, line in enumerate(lines)]
    found = inferred(tmp_path, "\n".join(lines))
    asserted = []
    for k, (e, _) in enumerate(written):
        made = found[f"made{k}"]
        assert made.dtype is not None, (e, lines[k])
        asserted.append(f"{lines[k]}\ntl.static_assert(made{k}.dtype == {DTYPES[made.dtype]}, {lines[k]!r})")
        if made.shape:
            asserted.append(f"tl.static_assert(made{k}.shape == {made.shape}, {lines[k]!r})")
    text = "\n    ".join("\n".join(asserted).splitlines())
    module = load(tmp_path, f"\n\n@triton.jit\ndef kernel():\n    {text}\n", "kernel")
    triton.compile(ASTSource(module.kernel, {}), target=GPUTarget("cuda", 90, 32))


