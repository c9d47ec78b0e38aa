"""Rewrites the source of a kernel for the interpreter, without a trace in the kernel's own module."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence
from types import CellType, FunctionType
from typing import Any


def rewritten(
    function: FunctionType,
    source: Sequence[str],
    first_line: int,
    transformer: ast.NodeTransformer,
    names: Mapping[str, Any],
) -> FunctionType:
    """A function like `function`, from its source as `transformer` changes it, that also knows `names`.

    It shares globals, closure and defaults with `function`, and its lines are those of its file. `names` are
    bound as variables of an enclosing function, so that they do not have to be put into the globals of a
    module.
    """
    (definition,) = ast.parse(textwrap.dedent("".join(source))).body
    assert isinstance(definition, ast.FunctionDef)
    definition = transformer.visit(definition)
    _strip(definition)
    enclosing = [name for name in function.__code__.co_freevars if name not in names]
    maker = ast.FunctionDef(
        name="make",
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(name) for name in (*names, *enclosing)],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[definition, ast.Return(ast.Name(definition.name, ast.Load()))],
        decorator_list=[],
    )
    if hasattr(maker, "type_params"):  # Python 3.12 and newer
        maker.type_params = []
    module = ast.fix_missing_locations(ast.Module([maker], type_ignores=[]))
    ast.increment_lineno(module, first_line - 1)
    namespace: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, namespace)
    made = namespace["make"](*names.values(), *[None] * len(enclosing))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure: tuple[CellType, ...] = tuple(
        cells.get(name, cell) for name, cell in zip(made.__code__.co_freevars, made.__closure__ or (), strict=True)
    )
    twin = FunctionType(made.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _strip(definition: ast.FunctionDef) -> None:
    """Takes out what is evaluated when a function is defined: `function` has been through that already."""
    definition.decorator_list = []
    definition.returns = None
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [value and ast.Constant(None) for value in arguments.kw_defaults]
