"""A lane: the memory of all ranks in which the runs of a group follow each other, and how it is aborted (by the poison
word and the mailbox of a control block). See docs/protocol.md."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from tilelink.backend.targets import Target, portable
from tilelink.frontend.kept import Kept
from tilelink.runtime.arguments import Arguments
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout
from tilelink.runtime.prepare import KEPT_PROGRAMS, Prepared, prepare

POISON = portable.POISON.value
HOST = -1
MAILBOX = portable.WAITER, portable.WORD, portable.EXPECTED, portable.OBSERVED, portable.REASON


def entered(run: int) -> int:
    """The progress of a rank that has entered a run."""
    return 2 * run + 1


def left(run: int) -> int:
    """The progress of a rank that has left a run."""
    return 2 * run + 2


class Reason(IntEnum):
    """Why a lane was poisoned."""

    NEVER_ENTERED = portable.NEVER_ENTERED.value
    STUCK = portable.STUCK.value
    DIED = portable.DIED.value
    FAILED = portable.FAILED.value


@dataclass(frozen=True)
class Report:
    """The contents of a rank's mailbox. `waiter`: the worker that gave up, or HOST; `word`: the word it waited for, in
    bytes from the beginning of its heap; `expected`: the least value it waited for; `run`: the run it was in."""

    rank: int
    run: int
    waiter: int
    word: int
    expected: int
    observed: int
    reason: Reason

    @classmethod
    def of(cls, rank: int, control: Sequence[int]) -> Report:
        """The report in the control words of a rank."""
        waiter, word, expected, observed, reason = (control[w.value] for w in MAILBOX)
        run, waiter = control[portable.RUN.value], HOST if waiter == HOST else waiter - 1
        return cls(rank, run, waiter, word, expected, observed, Reason(reason))

    def mailbox(self) -> dict[int, int]:
        """The values of the words of the mailbox, by word."""
        waiter = HOST if self.waiter == HOST else self.waiter + 1  # 0 stands for an empty mailbox
        said = waiter, self.word, self.expected, self.observed, self.reason
        return {word.value: value for word, value in zip(MAILBOX, said, strict=True)}


class Lane(ABC):
    """The heaps of all ranks as one process sees them (uint8 tensors, at `place`), and programs prepared for them, on
    devices of `sms` SMs, on nodes of `per_node` ranks. `check`: unsafe programs are refused. `tables`: by rank, the
    addresses of all heaps for its kernels (int64). `multicast`: the address at which a store reaches all heaps of the
    node, for targets that store there."""

    tables: list[torch.Tensor]
    multicast: Any = None

    def __init__(
        self,
        layout: HeapLayout,
        heaps: Sequence[torch.Tensor],
        sms: int,
        target: Target,
        per_node: int | None = None,
        check: bool = True,
    ) -> None:
        self.layout, self.heaps, self.sms, self.per_node, self.check = layout, list(heaps), sms, per_node, check
        self.target, self.place = target, self.heaps[0].device
        self.prepared: Kept[Any, Prepared] = Kept(KEPT_PROGRAMS)

    def prepare(self, arguments: Arguments) -> Prepared:
        """The prepared program of a call, made once for a schedule, dtypes and sizes."""
        prepared = self.prepared.get(arguments.key)
        if prepared is None:
            prepared = self.prepare_anew(arguments, self.sms)
            self.prepared.put(arguments.key, prepared)
        return prepared

    def prepare_anew(self, arguments: Arguments, sms: int) -> Prepared:
        """Prepares the program of a call, for `sms` SMs of each device."""
        return prepare(arguments, self.layout.world, sms, self.target, self.per_node, self.check)

    def memory(self, rank: int, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on a rank's heap, `at` bytes from its beginning."""
        size = torch.Size(shape).numel() * dtype.itemsize
        return self.heaps[rank][at : at + size].view(dtype).view(shape)

    def words(self, rank: int) -> torch.Tensor:
        """The control words of a rank."""
        return self.memory(rank, 0, (CONTROL_WORDS + self.layout.world,), torch.int64)

    def report(self, rank: int) -> Report | None:
        """The report that ended the lane, as far as a rank knows; None if the lane goes on."""
        name = self.control(rank)[POISON]
        return Report.of(name - 1, self.control(name - 1)) if name else None

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an output."""

    @abstractmethod
    def control(self, rank: int) -> list[int]:
        """The control words of a rank, now."""

    @abstractmethod
    def poison(self, report: Report) -> None:
        """Ends all waits of the lane with a report, unless another report was faster."""

    @abstractmethod
    def clear(self, rank: int) -> None:
        """Sets the control words and signals of a rank as they are in the beginning."""
