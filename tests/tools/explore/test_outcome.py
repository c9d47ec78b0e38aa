"""Results of two schedules held against each other, whatever their shape, layout and number."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tilelink.analysis.check.findings import Finding
from tilelink.tools.explore import Outcome, Result, Trial, explore
from tilelink.tools.explore.trial import differences, poison, unwritten


def what(now: torch.Tensor, first: torch.Tensor) -> list[str]:
    return [f.what for f in differences([Result("y", now)], [Result("y", first)])]


def test_numbers_without_a_dimension() -> None:
    assert what(torch.tensor(2), torch.tensor(1)) == ["y: it is 2, and 1 in the first schedule"]
    assert not what(torch.tensor(2.0), torch.tensor(2.0))
    assert [f.what for f in unwritten([Result("y", poison(torch.empty(())))])] == ["y: nobody wrote it, or its source"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e5m2])
def test_transposed_results(dtype: torch.dtype) -> None:
    first = torch.arange(6).view(2, 3).to(dtype)
    now = first.clone()
    now[1, 0] = 5
    said = f"y[0, 1]: it is {now[1, 0].item()}, and {first[1, 0].item()} in the first schedule"
    assert what(now.T, first.T) == [said]
    assert what(now.T, now.T.contiguous()) == []


def test_empty_results_and_integers_hold_no_poison() -> None:
    assert not what(torch.empty(0, 3), torch.empty(0, 3))
    assert not unwritten([Result("y", poison(torch.empty(2, dtype=torch.int32))), Result("z", torch.empty(0))])
    (found,) = unwritten([Result("y", poison(torch.empty(2, 3)).T)])
    assert found.what == "y[0, 0] and 5 more of 6: nobody wrote it, or its source"


def test_another_shape_or_dtype() -> None:
    said = ["y: it is 2 x 3, float32, and 6, float32 in the first schedule"]
    assert what(torch.zeros(2, 3), torch.zeros(6)) == said
    said = ["y: it is one number, int64, and one number, float32 in the first schedule"]
    assert what(torch.tensor(0), torch.tensor(0.0)) == said


class Returning:
    """A subject whose schedule of each seed has so many results."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts

    def run(self, trial: Trial) -> Outcome:
        results = (Result(f"result {k}", torch.ones(1)) for k in range(self.counts[trial.seed]))
        return Outcome(trial.seed, 1, tuple(results))

    def advise(self, finding: Finding) -> Finding:
        return finding


@pytest.mark.parametrize(
    ("counts", "said"),
    [((2, 1), "result 1: only in the first schedule"), ((1, 2), "result 1: not in the first schedule"),
     ((1, 0), "result 0: only in the first schedule"), ((0, 1), "result 0: not in the first schedule")],
)  # fmt: skip
def test_another_number_of_results(counts: Sequence[int], said: str) -> None:
    (found,) = explore(Returning(counts), range(2)).found
    assert (found.finding.kind, found.finding.what, found.seed) == ("unequal results", said, 1)
