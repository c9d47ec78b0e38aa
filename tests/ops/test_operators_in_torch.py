"""Operators as torch sees them: checked by opcheck, compiled without a break, for changing numbers of tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops import on_ranks
from tests.ops.groups import assert_right, on_two
from tests.parameters import first_cases
from tests.runtime.processes import Pool, fork_server
from tilelink import ops


def test_opcheck(pool: Pool) -> None:
    """Of one operator on one rank, since torch takes seconds for each; `make verify` has all."""
    pool.results(on_ranks.on_groups, [(2,)], on_ranks.opchecked, ["scatter"])


@pytest.mark.verify
@pytest.mark.parametrize("world", [1, 2, 4])
def test_opcheck_of_all_forms(pool: Pool, world: int) -> None:
    pool.results(on_ranks.on_groups, [tuple(range(world))], on_ranks.opchecked, [])


@pytest.mark.parametrize(
    ("group", "backend", "by"),
    first_cases(
        [
            ((2,), "aot_eager", "torch"), ((0, 1), "aot_eager", "torch"), ((0, 1), "aot_eager", "interpret"),
            ((0, 1), "inductor", "torch"),
        ]
    ),
)  # fmt: skip
def test_compiled_without_a_break_and_once_for_all_tokens(
    pool: Pool, group: tuple[int, ...], backend: str, by: str
) -> None:
    found = pool.results(on_ranks.on_groups, [group], on_ranks.compiled, backend, [4, 10, 6], by)
    for rank in group:
        ((compiled, far),) = found[rank]
        assert compiled == 1
        assert max(far) < 1e-5


@pytest.mark.verify
def test_inductor_leaves_an_operator_as_it_is(pool: Pool) -> None:
    assert pool.results(on_ranks.on_groups, [(2,)], on_ranks.compiled_alone)[2] == [True]


def test_gradients_of_gradients_are_an_error(pool: Pool) -> None:
    for found in on_two(pool, on_ranks.second_gradients):
        assert len(found) == 12 and all("has no second derivative" in said for said in found), found
        assert all("on_ranks.py:" in said for said in found), "the place of the user's backward"


def test_results_may_be_changed_in_place(pool: Pool) -> None:
    assert on_two(pool, on_ranks.changed_in_place) == [[True] * 3] * 2


def test_tangents_are_an_error(pool: Pool) -> None:
    for said in pool.results(on_ranks.on_groups, [(2,)], on_ranks.tangents)[2][0]:
        assert "on_ranks.py:" in said and "x has a tangent; operators have no forward-mode derivative" in said


def test_transforms_that_differentiate_are_an_error(pool: Pool) -> None:
    ((*of_operators, layer, batch),) = pool.results(on_ranks.on_groups, [(2,)], on_ranks.differentiated_by_func)[2]
    for name, said in zip(("all_gather_linear", "linear_reduce_scatter"), of_operators, strict=True):
        assert "on_ranks.py:" in said and f"{name} can't be differentiated by torch.func (grad, vjp, jacrev): " in said
    assert "a column-parallel linear can't be diff" in layer and "all_gather_linear can't be differentiated" in batch


def test_an_activation_checkpoint_changes_no_gradient(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], on_ranks.checkpointed)


def test_a_rank_that_does_not_call_is_told_by_the_call(pool: Pool) -> None:
    said = pool.results(on_ranks.without_the_other)[0]
    assert "on_ranks.py:" in said and "linear_all_reduce: another rank did not make this call" in said
    assert said.endswith(("from RuntimeError", "from DistBackendError")), said


def test_a_file_with_a_function_of_its_name_is_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "linear_nothing.py").write_text("def linear_nothing():\n    return 'called'\n")
    monkeypatch.setattr(ops, "__path__", [*ops.__path__, str(tmp_path)])
    monkeypatch.setattr(ops, "linear_nothing", None, raising=False)
    ops._take([str(tmp_path)])
    assert ops.linear_nothing() == "called"
    assert callable(ops.all_gather_linear) and callable(ops.linear_all_reduce) and callable(ops.linear_reduce_scatter)


def test_importing_tilelink_registers_nothing() -> None:
    code = "import sys, tilelink; print([m for m in ('torch', 'tilelink.ops') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_operator_keeps_a_group_beyond_its_end() -> None:
    """In a process of its own, which has no other group."""
    context = fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=on_ranks.tells_whether_a_group_ends, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() is True
    process.join()
