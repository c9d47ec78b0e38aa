"""The programs of the examples compile for a GPU: for sizes that leave rests and for even ones. Compiled only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parameters import rarely
from tilelink.backend.lower import lower_at
from tilelink.backend.targets import TARGETS
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge
from tilelink.programs.show import with_defaults

SCALED = {"x": "int8", "scale": "fp32", "weight": "int8", "weight_scale": "fp32", "out": "bf16"}
PROGRAMS: list[tuple[str, str, Any]] = [
    ("gathered_attention", "gathered_attention", "bf16"),
    ("matmul_all_to_all", "matmul_all_to_all", "bf16"),
    ("hierarchical_gather", "hierarchical_all_gather_matmul", "bf16"),
    ("scaled_matmul", "scaled_matmul", SCALED),
]
WORLD, PER_NODE = 4, 2


def called(value: Any) -> str:
    return value if isinstance(value, str) else ""


def slow(module: str, *_: Any) -> bool:
    """The one that takes longest. CPU ranks run it in every run, in two other tests."""
    return module == "hierarchical_gather"


@pytest.mark.parametrize("rest", [0, pytest.param(64, marks=pytest.mark.verify)], ids=["even", "with rests"])
@pytest.mark.parametrize(("module", "name", "dtypes"), rarely(PROGRAMS, slow), ids=called)
def test_example_compiles_for_hopper(
    module: str, name: str, dtypes: Any, rest: int, example: Callable[[str], Any]
) -> None:
    program, target = getattr(example(module), name), TARGETS["sm_90"]
    sizes: dict[str, Any] = {d: n - rest for d, n in with_defaults(program, {}, frozenset()).items()}
    schedule = program.fit(world=WORLD, dtypes=dtypes, absent=frozenset(), **sizes)
    bound = program.bind(schedule, dtypes)
    exact = Sizes.of(bound, WORLD, sizes, PER_NODE)
    lowered = lower_at(bound, exact, target)
    verdict = judge(lowered, compiled(lowered, exact))
    assert verdict.expected == verdict.found
    assert verdict.found["mma"] > 0
    assert not verdict.findings


def test_all_examples_are_compiled() -> None:
    files = (Path(__file__).parents[2] / "examples").glob("*.py")
    assert {p.stem for p in files if "@tk.program" in p.read_text()} == {module for module, _, _ in PROGRAMS}
