"""The adapter to Triton's interpreter. All that depends on its internals, in Triton 3.6 to 3.9, is here, in what is put
in place of its memory accesses (`memory_hooks.py`), arithmetic (`arithmetic.py`) and operators (`operators.py`), and in
`kernel_values.py`.

Nothing is patched at import. `installed` patches Triton for the duration of a run: `triton.language` computes
with numpy, calls of `@triton.jit` functions run their Python source, and every access to memory goes to a
handler.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from types import FunctionType, SimpleNamespace
from typing import Any

import triton
import triton.language as tl
import triton.runtime.interpreter as stock
from triton.runtime.jit import JITFunction

from tilelink.emulator.arithmetic import ARITHMETIC, reduce_or_scan
from tilelink.emulator.handler import MemoryHandler
from tilelink.emulator.kernel_values import numpy_dtype, unwrapped
from tilelink.emulator.memory_hooks import memory_hooks
from tilelink.emulator.operators import Forms, operators
from tilelink.emulator.rewriting import rewritten
from tilelink.emulator.sites import SiteFinder

_Builder = stock.InterpreterBuilder
_MISSING = object()
_TRITON = os.path.dirname(triton.__file__)
_TWIN = "__tilelink_interpreted__"
_installed: tuple[MemoryHandler, ExitStack] | None = None
_one_run = Lock()
sites = SiteFinder()
"""Finds lines of the functions that were interpreted."""


@dataclasses.dataclass(frozen=True, eq=False)
class InterpretedKernel:
    """What `interpreted` makes of a kernel."""

    kernel: Any
    name: str
    function: FunctionType
    parameters: tuple[str, ...]
    constexprs: frozenset[str]

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a launch as the interpreter takes them. Raises `TypeError` if they do not fit."""
        unknown = arguments.keys() - set(self.parameters)
        if unknown:
            raise TypeError(f"{self.name} has no parameter {', '.join(sorted(unknown))}")
        signature = self.kernel.signature.bind(**arguments)
        signature.apply_defaults()
        values = {name: unwrapped(value) for name, value in signature.arguments.items()}
        return {
            name: value if name in self.constexprs else stock._implicit_cvt(value) for name, value in values.items()
        }

    def run(self, memory: MemoryHandler, arguments: Mapping[str, Any]) -> None:
        """Runs one program; what it accesses goes to the handler that is `installed`, which is `memory`."""
        self.function(**arguments)


def interpreted(kernel: Any) -> InterpretedKernel:
    """The twin of a `triton.jit` function that `Execution.launch` takes. The kernel itself stays as it is."""
    kernel = _jit_function(kernel)
    constexprs = frozenset(parameter.name for parameter in kernel.params if parameter.is_constexpr)
    names = tuple(kernel.signature.parameters)
    return InterpretedKernel(kernel, kernel.__name__, _python_function(kernel), names, constexprs)


def set_program(program: int, shape: tuple[int, ...]) -> None:
    """Says which program's code runs from now on: its number in a grid of this shape, whose first axis goes fastest."""
    x, y, z = (*shape, 1, 1)[:3]
    stock.interpreter_builder.grid_idx = (program % x, program // x % y, program // (x * y))
    stock.interpreter_builder.grid_dim = (x, y, z)


def is_running() -> bool:
    """Whether kernels are run in this process at present."""
    return _one_run.locked()


@contextmanager
def installed(handler: MemoryHandler) -> Iterator[None]:
    """Patches Triton so that interpreted kernels run and reach memory through `handler`; undone at the end."""
    global _installed
    if not _one_run.acquire(blocking=False):
        raise RuntimeError("another execution is running in this process")
    try:
        _installed = handler, _patched(handler)
        yield
    finally:
        if _installed is not None:
            _installed[1].close()
        _installed = None
        _one_run.release()


def handler() -> MemoryHandler | None:
    """The handler that is installed, if there is one."""
    return None if _installed is None else _installed[0]


@contextmanager
def suspended() -> Iterator[None]:
    """Triton as it is when nothing runs, for a host function that reads or compiles kernels; no switch in between."""
    global _installed
    if _installed is None:
        yield
        return
    handler, patches = _installed
    patches.close()
    try:
        yield
    finally:
        _installed = handler, _patched(handler)


def _patched(handler: MemoryHandler) -> ExitStack:
    """Puts all patches in place; closing what is returned removes them."""
    with ExitStack() as patches:
        language = stock._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        if language is not None:
            patches.callback(language.restore)
        # numpy 2.4 refuses int() of one-element arrays, on which Triton 3.6 relies.
        _replace(patches, tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
        _replace(patches, stock, "_get_np_dtype", numpy_dtype)
        _replace(patches, JITFunction, "__call__", _call)
        _replace(patches, JITFunction, "__get__", _bound)
        _replace(patches, stock.InterpretedFunction, "__call__", _call)
        _replace(patches, stock.ReduceScanOpInterface, "apply", reduce_or_scan)
        options = dataclasses.replace(stock.interpreter_builder.options, sanitize_overflow=False, debug=True)
        _replace(patches, stock.interpreter_builder, "options", options)
        for name, hook in (memory_hooks(handler) | ARITHMETIC).items():
            if hasattr(_Builder, name) or name == "get_bf16":
                _replace(patches, _Builder, name, hook)
        forms = Forms()
        _replace(patches, tl.tensor, "__init__", lambda self, *of: forms.initialize(self, *of))
        for name, operator in operators(forms).items():
            _replace(patches, tl.tensor, name, operator)
        return patches.pop_all()


def _replace(patches: ExitStack, owner: Any, name: str, value: Any) -> None:
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    if before is _MISSING:
        patches.callback(delattr, owner, name)
    else:
        patches.callback(setattr, owner, name, before)


def _jit_function(kernel: Any) -> Any:
    # With TRITON_INTERPRET set, triton.jit makes an InterpretedFunction.
    return kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn)


def _python_function(kernel: Any) -> FunctionType:
    """The Python function that the interpreter runs for a jitted one."""
    function: FunctionType | None = getattr(kernel.fn, _TWIN, None)
    if function is None:
        kernel = _jit_function(kernel)
        names = {"interpreter_semantic": stock.interpreter_semantic}
        if hasattr(stock, "_InterpreterComparison"):
            names["_InterpreterComparison"] = stock._InterpreterComparison
        function = rewritten(kernel.fn, kernel.raw_src, kernel.starting_line_number, stock.ASTTransformer(), names)
        setattr(kernel.fn, _TWIN, function)  # a table would keep generated kernels alive
        if not function.__code__.co_filename.startswith(_TRITON):
            sites.files.add(function.__code__.co_filename)
    return function


def _call(kernel: Any, *arguments: Any, **named: Any) -> Any:
    return _python_function(kernel)(*arguments, **named)


def _bound(kernel: Any, instance: Any, owner: type | None = None) -> Any:
    """Makes `x.sum()` work: Triton puts jitted functions into the class of tensors."""
    return partial(_call, kernel, instance) if isinstance(instance, tl.tensor) else kernel
