"""What a run under one schedule came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tilelink.explore.findings import Finding
from tilelink.explore.trial import Trial


@dataclass(frozen=True, eq=False)
class Result:
    """A tensor that a run computed, and what it is called. `lines`: where in the source it is written. `versions`: its
    numbers are no values, but stand for what values were made of."""

    name: str
    tensor: torch.Tensor
    lines: tuple[str, ...] = ()
    versions: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """`schedule_hash`: of the order in which all took turns; `turns`: how many there were. `results` are empty where a
    finding ended the run."""

    schedule_hash: int
    turns: int
    results: tuple[Result, ...] = ()
    findings: tuple[Finding, ...] = ()


class Subject(Protocol):
    """What is explored: it can be run under any schedule, each time from the same beginning."""

    def run(self, trial: Trial) -> Outcome: ...


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fills a tensor with ones, bit by bit: a NaN that no arithmetic makes, where it is a floating-point number."""
    bytes_of(tensor)[...] = 0xFF
    return tensor


def unwritten(results: Sequence[Result]) -> tuple[Finding, ...]:
    """Elements that hold what memory was poisoned with: nobody wrote them, or what they were computed from."""
    found = []
    for r in results:
        if not r.tensor.dtype.is_floating_point or not r.tensor.numel():
            continue
        where = np.argwhere((bytes_of(r.tensor) == 0xFF).all(axis=-1))
        if len(where):
            found.append(Finding("unwritten output", r.lines, f"{_elements(r, where)}: nobody wrote it, or its source"))
    return tuple(found)


def differences(results: Sequence[Result], reference: Sequence[Result]) -> tuple[Finding, ...]:
    """Results that are not those of the first schedule, bit for bit."""
    found = []
    for r, first in zip(results, reference, strict=True):
        if not r.tensor.numel():
            continue
        where = np.argwhere((bytes_of(r.tensor) != bytes_of(first.tensor)).any(axis=-1))
        if len(where):
            at = tuple(where[0].tolist())
            was = f"it is {r.tensor[at].item()}, and {first.tensor[at].item()} in the first schedule"
            if r.versions:
                was = "it is made of other versions of what its tile read than in the first schedule"
            found.append(Finding("unequal results", r.lines, f"{_elements(r, where)}: {was}"))
    return tuple(found)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of each element, along a last dimension of their own; the memory is the tensor's."""
    flat = tensor if tensor.dim() else tensor[None]
    return np.asarray(flat.view(torch.uint8).view(*flat.shape, tensor.itemsize).numpy())


def _elements(result: Result, where: np.ndarray) -> str:
    at = ", ".join(map(str, where[0].tolist()))
    more = f" and {len(where) - 1} more of {result.tensor.numel()}" if len(where) > 1 else ""
    return f"{result.name}[{at}]{more}"
