"""One schedule of an exploration: what fixes it, the outcome of a run under it, and the comparison of results."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch

from tilelink.analysis.check.findings import Finding
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import Events
from tilelink.emulator import Admission, Pct, PolicyWord
from tilelink.emulator.options import check_resident

FIRST = 0
"""The seed of the schedule in which all take turns and nothing is late. Other results are compared with its results,
and PCT picks its change points among as many turns as it takes."""
POLICIES = ("random", "pct")


@dataclass(frozen=True)
class Trial:
    """A schedule: its seed, the name of its policy, and `turns`, the number of turns of the first schedule."""

    seed: int
    policy: str = "random"
    turns: int = 1

    @property
    def word(self) -> PolicyWord:
        """The policy as an execution takes it."""
        if self.seed == FIRST:
            return "round_robin"
        return partial(Pct, length=self.turns) if self.policy == "pct" else "random"


def any_number_will_do(events: Events) -> bool:
    """Whether any number of resident workers can finish a run, if they begin in the order of their numbers: roles wait
    only for earlier roles, and each has its own workers, behind the workers of the roles before it."""
    firsts = [events.allotment[role.name].first for role in events.program.in_kernel]
    return not why_not_structural(events.program) and firsts == sorted(set(firsts))


@dataclass(frozen=True)
class Residency:
    """At most `most` workers of a rank are under way at a time (None: all), and begin as `admit` says."""

    most: int | None = None
    admit: Admission = "in order"

    @classmethod
    def asked(cls, most: int | None) -> Residency:
        """At most `most` workers, the last first, since they mostly wait for others; None: all. Raises WorldError for
        fewer than 1."""
        check_resident(most)
        return cls() if most is None else cls(most, "last first")

    def under(self, events: Events, seed: int) -> Residency:
        """The residency of the schedule of a seed. If nothing was asked for and any number will do, about half of the
        schedules have a random number of workers."""
        chance = random.Random(f"residents {seed}")
        fewer = self.most is None and seed != FIRST and chance.random() < 0.5 and any_number_will_do(events)
        return replace(self, most=chance.randint(1, events.kernel_workers)) if fewer else self


# ---- what a run came to


@dataclass(frozen=True, eq=False)
class Result:
    """A tensor that a run computed, and its name. `lines`: where in the source it is written. `versions`: whether its
    numbers are versions, which stand for values."""

    name: str
    tensor: torch.Tensor
    lines: tuple[str, ...] = ()
    versions: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a run. `schedule_hash`: a hash of the order in which all took turns. `turns`: their number.
    `results`: empty if a finding ended the run; their names are unique."""

    schedule_hash: int
    turns: int
    results: tuple[Result, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def ended_early(self) -> bool:
        """Whether a finding ended the run, so that nothing came out."""
        return bool(self.findings) and not self.results


class Subject(Protocol):
    """A subject of exploring. It can be run under any schedule, each time from the same beginning. `advise` adds a
    remedy to a finding, if one is known."""

    def run(self, trial: Trial) -> Outcome: ...

    def advise(self, finding: Finding) -> Finding: ...


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Sets all bits of a tensor: a floating-point number is then a NaN that no arithmetic makes."""
    (tensor if tensor.dim() else tensor[None]).view(torch.uint8).fill_(0xFF)
    return tensor


def unwritten(results: Sequence[Result]) -> tuple[Finding, ...]:
    """Findings for floating-point elements that still hold the poison: nobody wrote them, or what they were computed
    from. Integers are not checked, since their poison is an ordinary number."""
    found = []
    for r in results:
        if not r.tensor.dtype.is_floating_point or not r.tensor.numel():
            continue
        where = np.argwhere((bytes_of(r.tensor) == 0xFF).all(axis=-1))
        if len(where):
            what = f"{_elements(r, where)}: nobody wrote it, or its source"
            found.append(Finding(kind="unwritten output", lines=r.lines, what=what))
    return tuple(found)


def differences(results: Sequence[Result], reference: Sequence[Result]) -> tuple[Finding, ...]:
    """Findings for results that differ from the results of the first schedule in any bit."""
    firsts = {r.name: r for r in reference}
    found = [_difference(r, firsts.pop(r.name, None)) for r in results]
    found += [_unequal(r, f"{r.name}: only in the first schedule") for r in firsts.values()]
    return tuple(f for f in found if f is not None)


def _difference(result: Result, first: Result | None) -> Finding | None:
    """The finding that a result differs from the first schedule's result; None if it does not."""
    if first is None:
        return _unequal(result, f"{result.name}: not in the first schedule")
    now, then = _form(result.tensor), _form(first.tensor)
    if now != then:
        return _unequal(result, f"{result.name}: it is {now}, and {then} in the first schedule")
    where = np.argwhere((bytes_of(result.tensor) != bytes_of(first.tensor)).any(axis=-1))
    if not len(where):
        return None
    at = tuple(where[0].tolist())
    was = f"it is {result.tensor[at].item()}, and {first.tensor[at].item()} in the first schedule"
    if result.versions:
        was = "it is made of other versions of what its tile read than in the first schedule"
    return _unequal(result, f"{_elements(result, where)}: {was}")


def _unequal(result: Result, what: str) -> Finding:
    return Finding(kind="unequal results", lines=result.lines, what=what)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of each element, along one more dimension, the last."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().reshape(*tensor.shape, tensor.itemsize)


def _form(tensor: torch.Tensor) -> str:
    shape = " x ".join(map(str, tensor.shape)) or "one number"
    return f"{shape}, {str(tensor.dtype).removeprefix('torch.')}"


def _elements(result: Result, where: np.ndarray) -> str:
    at = f"[{', '.join(map(str, where[0].tolist()))}]" if result.tensor.dim() else ""
    more = f" and {len(where) - 1} more of {result.tensor.numel()}" if len(where) > 1 else ""
    return f"{result.name}{at}{more}"
