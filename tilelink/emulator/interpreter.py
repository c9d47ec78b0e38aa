"""The adapter to Triton's interpreter. Only seven files depend on its internals, in Triton 3.6 to 3.9: this one, the
replacements for its memory accesses (`memory_hooks.py`), arithmetic (`arithmetic.py`), operators (`operators.py`) and
`libdevice.py`, `kernel_values.py`, and `words.py`.

Nothing is patched at import. `installed` patches Triton for the duration of a run: `triton.language` computes with
numpy, calls of `@triton.jit` functions run their Python source, and every access to memory goes to `Accesses`.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import Signature
from threading import Lock
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import triton
import triton.experimental.gluon  # before Triton is patched: it keeps the functions that it finds
import triton.language as tl
import triton.runtime.interpreter as stock
from triton.runtime.jit import JITFunction

from tilelink.emulator import sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.arithmetic import ARITHMETIC, convert_float, reduce_or_scan
from tilelink.emulator.kernel_values import assert_all, numpy_dtype, unwrapped
from tilelink.emulator.libdevice import create_extern_elementwise, libdevice_names
from tilelink.emulator.memory_hooks import memory_hooks
from tilelink.emulator.operators import Forms, operators
from tilelink.errors import Site, WorldError

_Builder = stock.InterpreterBuilder
_MISSING = object()
_TRITON = os.path.dirname(triton.__file__)
_TWIN = "__tilelink_interpreted__"
_installed: tuple[Accesses, ExitStack] | None = None
_one_run = Lock()


@dataclasses.dataclass(frozen=True, eq=False)
class InterpretedKernel:
    """A kernel as `interpreted` makes it: a Python function, and the parameters that the kernel takes."""

    name: str
    function: FunctionType
    signature: Signature
    constexprs: frozenset[str]

    def bind(self, arguments: Mapping[str, Any]) -> Callable[[], object]:
        """Returns a function that runs one program on the memory that is `installed`. Raises `TypeError` for arguments
        that do not fit."""
        unknown = arguments.keys() - set(self.signature.parameters)
        if unknown:
            raise TypeError(f"{self.name} has no parameter {', '.join(sorted(unknown))}")
        bound = self.signature.bind(**arguments)
        bound.apply_defaults()
        values = {name: unwrapped(value) for name, value in bound.arguments.items()}
        for name in values.keys() - self.constexprs:
            values[name] = stock._implicit_cvt(values[name])
        return partial(self.function, **values)


def interpreted(kernel: Any) -> InterpretedKernel:
    """Returns the twin of a `triton.jit` function, for `Execution.launch`. The kernel itself is unchanged."""
    twin: InterpretedKernel | None = getattr(kernel.fn, _TWIN, None)
    if twin is None:
        # With TRITON_INTERPRET set, triton.jit makes an InterpretedFunction.
        kernel = kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn)
        names = {"interpreter_semantic": stock.interpreter_semantic}
        if hasattr(stock, "_InterpreterComparison"):
            names["_InterpreterComparison"] = stock._InterpreterComparison
        function = _rewritten(kernel, names | libdevice_names(kernel.fn))
        constexprs = frozenset(parameter.name for parameter in kernel.params if parameter.is_constexpr)
        twin = InterpretedKernel(kernel.__name__, function, kernel.signature, constexprs)
        setattr(kernel.fn, _TWIN, twin)  # a table would keep generated kernels alive
        if not function.__code__.co_filename.startswith(_TRITON):
            sites.files.add(function.__code__.co_filename)
    return twin


def is_running() -> bool:
    """Whether kernels are running in this process."""
    return _one_run.locked()


@contextmanager
def installed(memory: Accesses) -> Iterator[None]:
    """Patches Triton so that interpreted kernels run and reach `memory`; undone at the end. Raises WorldError."""
    global _installed
    if not _one_run.acquire(blocking=False):
        raise _refused()
    try:
        _installed = memory, _patched(memory)
        yield
    finally:
        if _installed is not None:
            _installed[1].close()
        _installed = None
        _one_run.release()


def installed_memory() -> Accesses | None:
    """The memory that is installed, while kernels run."""
    return None if _installed is None else _installed[0]


def refuse_other_threads() -> None:
    """Raises WorldError if kernels are running and the calling thread does not belong to their run."""
    running = _installed
    if running is not None and not running[0].scheduler.is_here():
        raise _refused()


def _refused() -> WorldError:
    said = "another execution is running in this process, which has one at a time"
    return WorldError(f"{said}: call before that begins or after it ends, from the same thread", Site.of_user())


@contextmanager
def suspended() -> Iterator[None]:
    """Removes the patches while a host function reads or compiles kernels; it must not switch tasks meanwhile.
    Raises WorldError on a thread that does not belong to the run; the patches then stay in place."""
    global _installed
    refuse_other_threads()
    if _installed is None:
        yield
        return
    memory, patches = _installed
    patches.close()
    try:
        yield
    finally:
        _installed = memory, _patched(memory)


def _patched(memory: Accesses) -> ExitStack:
    """Puts all patches in place; closing the returned stack removes them."""
    with ExitStack() as patches:
        language = stock._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        if language is not None:
            patches.callback(language.restore)
        # numpy 2.4 refuses int() of one-element arrays, on which Triton 3.6 relies.
        _replace(patches, tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
        _replace(patches, stock, "_get_np_dtype", numpy_dtype)
        _replace(patches, stock, "_convert_float", convert_float)
        _replace(patches, JITFunction, "__call__", _call)
        _replace(patches, JITFunction, "__get__", _bound)
        _replace(patches, stock.InterpretedFunction, "__call__", _call)
        _replace(patches, stock.ReduceScanOpInterface, "apply", reduce_or_scan)
        options = dataclasses.replace(stock.interpreter_builder.options, sanitize_overflow=False, debug=True)
        _replace(patches, stock.interpreter_builder, "options", options)
        for name, hook in (memory_hooks(memory) | ARITHMETIC).items():
            if hasattr(_Builder, name) or name == "get_bf16":
                _replace(patches, _Builder, name, hook)
        _replace(patches, _Builder, "create_assert", assert_all)
        _replace(patches, _Builder, "create_extern_elementwise", create_extern_elementwise)
        forms = Forms()
        _replace(patches, tl.tensor, "__init__", forms.initializer())
        _replace(patches, tl.block_type, "__init__", forms.block_initializer())
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


def _rewritten(kernel: Any, names: Mapping[str, Any]) -> FunctionType:
    """The function of a kernel after Triton's transformer; it also knows `names`.

    It shares globals, closure and defaults with the kernel's function, and keeps its line numbers. `names` are bound as
    variables of an enclosing function, so that the globals of the kernel's module stay unchanged."""
    function: FunctionType = kernel.fn
    above = "\n" * (kernel.starting_line_number - 1)
    (definition,) = ast.parse(above + textwrap.dedent("".join(kernel.raw_src))).body
    assert isinstance(definition, ast.FunctionDef)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in names.items()}
    (enclosing,) = ast.parse(f"def enclosing({', '.join(cells)}): pass").body
    assert isinstance(enclosing, ast.FunctionDef)
    enclosing.body = [stock.ASTTransformer().visit(definition)]
    module = ast.fix_missing_locations(ast.Module([enclosing], type_ignores=[]))
    code = compile(module, function.__code__.co_filename, "exec")
    for name in ("enclosing", definition.name):  # neither is executed: annotations and defaults were evaluated before
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    closure = tuple(cells[name] for name in code.co_freevars)
    twin = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _call(kernel: Any, *arguments: Any, **named: Any) -> Any:
    """Calls a function of a kernel. Raises TypeError for blocks that Triton's compiler refuses."""
    given = (*arguments, *named.values())
    if getattr(kernel, "noinline", False) and any(isinstance(v, tl.tensor) and v.type.is_block() for v in given):
        why = "is marked noinline, and Triton gives no block to such a function: leave out noinline=True"
        raise TypeError(f"{kernel.__name__} {why}")
    return interpreted(kernel).function(*arguments, **named)


def _bound(kernel: Any, instance: Any, owner: type | None = None) -> Any:
    """Makes `x.sum()` work: Triton puts jitted functions into the class of tensors."""
    return partial(_call, kernel, instance) if isinstance(instance, tl.tensor) else kernel
