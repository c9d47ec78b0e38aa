"""Calls of Triton's functions in tile functions: what Triton does not compile is an error here, at the user's line."""

from __future__ import annotations

import ast
import inspect
from math import prod
from typing import Any

import sympy
import triton
import triton.language as tl
from triton.runtime import JITFunction

from tilelink.errors import DimensionError, DtypeError, NotUnderstoodError, TileSizeError, similar
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.elaboration.functions import problem_of
from tilelink.frontend.elaboration.reading import Expressions
from tilelink.frontend.elaboration.source import parsed
from tilelink.frontend.expressions import WORLD, Expr
from tilelink.frontend.schedule import LEAST_STEP_OF_8_BITS, power_of_two
from tilelink.frontend.values import (
    DOT_DTYPES,
    ELEMENTWISE,
    ITEM_SIZE,
    SUM_DTYPES,
    Block,
    Shape,
    Static,
    mixes,
    not_taken,
    result_of,
)

MOST_ELEMENTS = 1 << 20
"""The most elements of a block: Triton compiles no larger one."""


class TritonCalls(Expressions):
    """Reads calls of Triton's functions, and of methods of blocks."""

    def triton_call(
        self, node: ast.Call, name: str, function: ast.expr, owner: Block | None, own: JITFunction | None = None
    ) -> Block:
        """The result of a call. `function`: its source. `owner`: the block whose method is called. `own`: the user's
        function that is called."""
        if any(k.arg is None for k in node.keywords):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: ** is not understood in a tile function")
        values = [self.value(a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
        for v in (*values, *keywords.values()):
            if isinstance(v, Static) and isinstance(v.value, tl.dtype):
                self.block_dtype(node, v.value)
        if own is not None and (problem := problem_of(own, own.signature.bind(*values, **keywords).arguments)):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {problem}")
        given = self.bound(node, name, owner, values, keywords)
        if problem := not_taken(name, given):
            self.fail(DtypeError, node, problem)
        try:
            shape, dtype = result_of(name, given)
        except ValueError as e:
            self.fail(DimensionError, node, f"{ast.unparse(node)}: {e}")
        if name in ELEMENTWISE:
            spread = self.of_equal_dimensions(*values, *keywords.values())
            values, keywords = [*spread[: len(values)]], dict(zip(keywords, spread[len(values) :], strict=True))
        source = self.node if own is None else self.argument_of_own
        arguments = [source(n, v) for n, v in zip(node.args, values, strict=True)]
        keys = [ast.keyword(k.arg, source(k.value, keywords[k.arg])) for k in node.keywords if k.arg]
        if name == "dot":
            shape = self.dot(node, given)
            keys += self.dot_dtype(node, given)
        if name == "arange":
            self.arange(node, given)
        if name == "softmax":
            self.softmax(node, given, owner)
        self.check_elements(node, shape)
        mixed = own is None and mixes(given.values(), dtype)
        return Block(ast.Call(function, arguments, keys), shape, dtype, mixed)

    def argument_of_own(self, node: ast.expr, value: Any) -> ast.expr:
        """The source of an argument of a user's function. A size is made a tensor, because Triton makes a constant of a
        size of 1, and a constant has no methods, such as .to."""
        made, of_sizes = self.node(node, value), {d for t in self.tensors.values() for d in t.dims}
        named = {str(s) for s in value.free_symbols} if isinstance(value, Expr) else set()
        if not named & of_sizes or named - of_sizes - {WORLD.name}:
            return made
        return ast.Call(parsed("tl.cast"), [made, parsed("tl.int32")], [])

    def bound(
        self, node: ast.Call, name: str, owner: Block | None, values: list[Any], keywords: dict[str, Any]
    ) -> dict[str, Any]:
        """The arguments of a call of a function of Triton, by the names of its parameters. Raises NotUnderstoodError
        for arguments that it does not take. `owner`: the block whose method is called."""
        called = getattr(tl if owner is None else tl.tensor, name, None) or getattr(tl.math, name, None)
        signature = _signature(called)
        if signature is None:
            return {}
        try:
            return dict(signature.bind(*([] if owner is None else [owner]), *values, **keywords).arguments)
        except TypeError as e:
            parameters = list(signature.parameters.values())[0 if owner is None else 1 :]
            many = "*" if any(p.kind is p.VAR_POSITIONAL for p in parameters) else ""
            taken = ", ".join(
                f"{many if p.kind is p.VAR_POSITIONAL else ''}{p.name}"
                + ("" if p.default is p.empty else " (may be left out)")
                for p in parameters
            )
            meant = next(filter(None, (similar(k, signature.parameters) for k in keywords)), "")
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} takes {taken or 'no arguments'}: {e}{meant}")

    def arange(self, node: ast.Call, given: dict[str, Any]) -> None:
        """Raises NotUnderstoodError or TileSizeError for a tl.arange that Triton does not compile."""
        start, end = given["start"], given["end"]
        for bound in (start, end):
            if not isinstance(bound, sympy.Integer):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {self.text(bound)} is no constant; "
                          "tl.arange takes two constants: write tl.arange(0, len(t.rows)), and add what differs to it")
        if end <= start:
            self.fail(TileSizeError, node, f"{ast.unparse(node)} has no element: its end is above its start")

    def softmax(self, node: ast.Call, given: dict[str, Any], owner: Block | None) -> None:
        """Raises DimensionError for a softmax that Triton 3.6 to 3.8 does not compile, or computes along another axis:
        the maximum and the sum along an axis other than the first have to keep their dimensions."""
        keeps = tl.softmax.signature.parameters["keep_dims"].default is not False or (
            given.get("keep_dims") not in (None, Static(False))
        )
        dim, of = given.get("dim", Static(None)), given.get("x")
        dims = len(of.shape) if isinstance(of, Block) and of.shape else 0
        first = dim in (Static(None), sympy.S.Zero) or (dims and dim == -dims)
        if not keeps and not first:
            block = ast.unparse(node.args[0]) if node.args else "x"
            right = f"tl.softmax({block}, " if owner is None else f"{ast.unparse(node.func)}("
            self.fail(DimensionError, node, f"{ast.unparse(node)}: Triton {triton.__version__} takes another axis than "
                      f"0 only with keep_dims=True; write {right}{to_text(dim)}, keep_dims=True)")

    def dot(self, node: ast.Call, given: dict[str, Any]) -> Shape:
        """The shape of a dot, or None if unknown. Raises DtypeError, DimensionError or TileSizeError for a misfit."""
        a, b, acc = (v if isinstance(v := given.get(n), Block) else None for n in ("input", "other", "acc"))
        if a is None or b is None:
            self.fail(NotUnderstoodError, node, "tl.dot takes two blocks")
        for side, operand in (("left", a), ("right", b)):
            if operand.dtype is not None and operand.dtype not in DOT_DTYPES:
                self.fail(DtypeError, node, f"tl.dot does not take {operand.dtype} ({side} operand); it takes "
                          f"{', '.join(DOT_DTYPES)}")
        if a.dtype and b.dtype and a.dtype != b.dtype:
            self.fail(DtypeError, node, f"tl.dot takes operands of one dtype; left is {a.dtype}, right {b.dtype}")
        if not a.shape or not b.shape:
            return None
        both = f"tl.dot of {a.shape} and {b.shape}"
        if len(a.shape) != len(b.shape) or len(a.shape) not in (2, 3):
            self.fail(DimensionError, node, f"{both}: it takes two blocks of two dimensions, or two of three for "
                      "several products; an integer as an index drops one")
        *batch, m, k = a.shape
        *others, depth, n = b.shape
        if batch != others:
            self.fail(DimensionError, node, f"{both}: it takes as many products on the left, {batch[0]}, as on the "
                      f"right, {others[0]}")
        if k != depth:
            self.fail(DimensionError, node, f"{both}: {k} is not {depth}")
        if min(m, n, k) < 16:
            self.fail(TileSizeError, node, f"{both}: it takes at least 16 along each side")
        if a.dtype and ITEM_SIZE[a.dtype] == 1 and k < LEAST_STEP_OF_8_BITS:
            self.fail(TileSizeError, node, f"{both}: of {a.dtype}, it takes at least {LEAST_STEP_OF_8_BITS} along the "
                      f"side that is added up, not {k}")
        shape = (*batch, m, n)
        if acc is not None and acc.shape not in (None, shape):
            self.fail(DimensionError, node, f"{both} can't be added to {acc.shape}; it is {shape}")
        self.dots.append((prod(batch) * m, n, k))
        return shape

    def dot_dtype(self, node: ast.Call, given: dict[str, Any]) -> list[ast.keyword]:
        """out_dtype= of a dot that adds to an accumulator: Triton must be told the accumulator's dtype."""
        a, acc = given["input"], given.get("acc")
        if not isinstance(acc, Block) or a.dtype is None or acc.dtype is None:
            return []
        sums = SUM_DTYPES.get(a.dtype, ("float32",))
        if acc.dtype not in sums:
            self.fail(DtypeError, node, f"tl.dot of {a.dtype} adds up in {' or '.join(sums)}, and here to {acc.dtype}: "
                      f"begin with tl.zeros(..., tl.{sums[0]}), or add tl.dot(..., out_dtype=tl.{sums[0]}).to(...)")
        if "out_dtype" in given or acc.dtype == "float32":
            return []
        return [ast.keyword("out_dtype", parsed(f"tl.{acc.dtype}"))]

    def triton_name(self, node: ast.Call, called: Any) -> ast.expr:
        """A function of Triton by its name in a kernel, whatever the tile function's file calls it."""
        name = called.__name__
        for module, path in ((tl, "tl"), (triton.language.math, "tl.math")):
            if getattr(module, name, None) is called:
                return parsed(f"{path}.{name}")
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} is neither in tl nor in tl.math: call it in a "
                  "function of your own with @triton.jit")

    def check_elements(self, node: ast.Call, shape: Shape) -> None:
        if shape is not None and prod(shape) > MOST_ELEMENTS:
            self.fail(TileSizeError, node, f"{ast.unparse(node)} is a block of {' x '.join(map(str, shape))}, "
                      f"{prod(shape):,} elements; Triton has {MOST_ELEMENTS:,} at most: take a smaller tile")
        if odd := next((n for n in shape or () if not power_of_two(n)), None):
            self.fail(TileSizeError, node, f"{ast.unparse(node)} is a block of {' x '.join(map(str, shape or ()))}: a "
                      f"block has a power of two along each dimension; take {1 << odd.bit_length()} for {odd}, and "
                      "leave out the rest with tl.where")


def _signature(called: Any) -> inspect.Signature | None:
    """The signature of a function of Triton, without the parameters that its compiler gives; None if it has none."""
    try:
        found = called.signature if isinstance(called, JITFunction) else inspect.signature(called)
    except (TypeError, ValueError):
        return None
    return found.replace(parameters=[p for p in found.parameters.values() if not p.name.startswith("_")])
