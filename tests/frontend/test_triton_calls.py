"""Shapes and dtypes of what Triton computes: known ones are right, and others are not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import alone, changed, load
from tilelink.frontend.elaboration.statements import Elaborator
from tilelink.frontend.values import Block

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
        ("tl.exp(a)", (16, 32), "float16"),
        ("tl.math.exp(a)", (16, 32), "float16"),
        ("tl.maximum(a, b[None, :])", (16, 32), "float16"),
        ("tl.where(a > 0, a, 0.0)", (16, 32), "float16"),
        ("tl.trans(a)", (32, 16), "float16"),
        ("a.T", (32, 16), "float16"),
        ("a.to(tl.float32)", (16, 32), "float32"),
        ("a.to(x.dtype)", (16, 32), "float32"),
        ("c.to(a.dtype)", (16, 32), "float16"),
        ("tl.zeros((a.shape[1], 2), a.dtype)", (32, 2), "float16"),
        ("tl.sum(a)", (), "float16"),
        ("tl.sum(a, 1)", (16,), "float16"),
        ("tl.sum(a, axis=0)", (32,), "float16"),
        ("tl.max(a, 1, keep_dims=True)", (16, 1), "float16"),
        ("a.sum(1, True)", (16, 1), "float16"),
        ("tl.argmax(a, 1)", None, None),
        ("tl.dot(a, tl.trans(a))", (16, 16), "float32"),
        ("tl.dot(input=a, other=tl.trans(a))", (16, 16), "float32"),
        ("tl.dot(a, tl.trans(a), tl.zeros((16, 16), tl.float16))", (16, 16), "float16"),
        ("tl.dot(n, tl.trans(n))", (16, 16), "int32"),
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
    module = load(tmp_path, changed(alone(body), {"\n@tk.tile\ndef role": USER}))
    seen: dict[str, Block] = {}
    bind = Elaborator.bind

    def remember(self: Elaborator, *arguments: object) -> None:
        bind(self, *arguments)  # type: ignore[arg-type]
        seen.update(self.env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elaborator, "bind", remember)
        module.program.bind(module.schedule)
    assert (seen["made"].shape, seen["made"].dtype) == (shape, dtype)
