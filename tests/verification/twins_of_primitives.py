"""Mistakes inside of a primitive, which an execution of whole programs does not show: the gates look for them in what
is compiled for sm_90. Compiled only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.backend.test_compile import small
from tests.backend.test_mutants import Edit, in_function
from tests.verification.twins import Found, Twin
from tilelink.backend.compile import compiled
from tilelink.backend.gates import judge
from tilelink.kernels.all_gather_matmul import all_gather_matmul


@dataclass(frozen=True)
class Primitives:
    """AllGather-GEMM by push, compiled for Hopper with edited primitives; `edit` None: as they are."""

    edit: Edit | None = None

    def __call__(self, seed: int) -> list[Found]:
        made, sizes = small("sm_90", all_gather_matmul, "push")
        with edited(made.target.module, self.edit) as module:
            source = made.source.replace(made.target.module, module)
            made = replace(made, source=source, target=replace(made.target, module=module))
            findings = judge(made, compiled(made, sizes)).findings
        return [Found("gates", finding.partition(":")[0], (finding,)) for finding in findings]


@contextmanager
def edited(name: str, edit: Edit | None) -> Iterator[str]:
    """The name of an edited copy of a module."""
    module = import_module(name)
    if edit is None or module.__file__ is None:
        yield name
        return
    source = edit(Path(module.__file__).read_text())
    copy = f"edited_{abs(hash(source))}"
    with TemporaryDirectory() as folder:
        (Path(folder) / f"{copy}.py").write_text(source)
        sys.path.insert(0, folder)
        try:
            yield copy
        finally:
            sys.path.remove(folder)
            sys.modules.pop(copy, None)


RELEASE = r'"red\.release\." \+ scope \+ "\.global\." \+ add \+ " \[\$1\], 1;"'
TWINS = [
    Twin("signal without a barrier", "store, then signal by thread 0 without a CTA barrier before it", "gates",
         "barrier", Primitives(in_function("notify", r"^ +tl\.debug_barrier\(\)\n", "")), Primitives()),
    Twin("no proxy fence", "remote data read through the async proxy (TMA) without a proxy fence", "gates", "fence",
         Primitives(in_function("wait", '"one", True', '"one", False')), Primitives()),
    Twin("flag by a volatile store", "a flag set by a volatile store", "gates", "release",
         Primitives(in_function("notify", RELEASE, '"st.volatile.global.u32 [$1], 1;"')), Primitives()),
]  # fmt: skip
