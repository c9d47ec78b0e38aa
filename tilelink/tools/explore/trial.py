"""One schedule of those that are tried: all that fixes it, what a run under it came to, and its results compared."""

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
from tilelink.errors import Site, WorldError

FIRST = 0
"""The seed of the schedule in which all take turns and nothing is late. The results of others are held against its
results, and what it takes in turns says among how many turns PCT picks its change points."""
POLICIES = ("random", "pct")


@dataclass(frozen=True)
class Trial:
    """A schedule: its seed, a policy by name, and `turns`, which the first schedule took."""

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
    """Whether a run can be done by however few workers that begin in the order of their numbers: roles wait only for
    earlier ones, and each has workers of its own, behind those of the roles before it."""
    firsts = [events.allotment[role.name].first for role in events.program.in_kernel]
    return not why_not_structural(events.program) and firsts == sorted(set(firsts))


@dataclass(frozen=True)
class Residency:
    """At most `most` workers of a rank are under way at a time (None: all), and begin as `admit` says."""

    most: int | None = None
    admit: Admission = "in order"

    @classmethod
    def asked(cls, most: int | None) -> Residency:
        """At most so many, the last first, which mostly wait for others; all by default. Raises WorldError for fewer
        than 1."""
        if most is None:
            return cls()
        if most < 1:
            raise WorldError(f"resident={most}: at least 1 worker of a rank is under way", Site.of_user())
        return cls(most, "last first")

    def under(self, events: Events, seed: int) -> Residency:
        """That of the schedule of a seed. Where nothing was asked for, every other one has fewer than all, if any
        number will do."""
        chance = random.Random(f"residents {seed}")
        fewer = self.most is None and seed != FIRST and chance.random() < 0.5 and any_number_will_do(events)
        return replace(self, most=chance.randint(1, events.kernel_workers)) if fewer else self


# ---- what a run came to


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
    finding ended the run. Their names are unique."""

    schedule_hash: int
    turns: int
    results: tuple[Result, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def ended_early(self) -> bool:
        """Whether a finding ended the run, so that nothing came out."""
        return bool(self.findings) and not self.results


class Subject(Protocol):
    """What is explored: it can be run under any schedule, each time from the same beginning. `advise` gives a finding a
    remedy, where one is known."""

    def run(self, trial: Trial) -> Outcome: ...

    def advise(self, finding: Finding) -> Finding: ...


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fills a tensor with ones, bit by bit: a NaN that no arithmetic makes, where it is a floating-point number."""
    (tensor if tensor.dim() else tensor[None]).view(torch.uint8).fill_(0xFF)
    return tensor


def unwritten(results: Sequence[Result]) -> tuple[Finding, ...]:
    """Floating-point elements that hold what memory was poisoned with: nobody wrote them, or what they were computed
    from. In integers the poison is a number like others, so they are not looked at."""
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
    """Results that are not those of the first schedule, bit for bit."""
    firsts = {r.name: r for r in reference}
    found = [_difference(r, firsts.pop(r.name, None)) for r in results]
    found += [_unequal(r, f"{r.name}: only in the first schedule") for r in firsts.values()]
    return tuple(f for f in found if f is not None)


def _difference(result: Result, first: Result | None) -> Finding | None:
    """How a result differs from that of the first schedule."""
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
    """The bytes of each element, along a last dimension of their own."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().reshape(*tensor.shape, tensor.itemsize)


def _form(tensor: torch.Tensor) -> str:
    shape = " x ".join(map(str, tensor.shape)) or "one number"
    return f"{shape}, {str(tensor.dtype).removeprefix('torch.')}"


def _elements(result: Result, where: np.ndarray) -> str:
    at = f"[{', '.join(map(str, where[0].tolist()))}]" if result.tensor.dim() else ""
    more = f" and {len(where) - 1} more of {result.tensor.numel()}" if len(where) > 1 else ""
    return f"{result.name}{at}{more}"
