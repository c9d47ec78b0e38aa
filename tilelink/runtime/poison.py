"""How a lane ends in vain: the poison word and the mailbox of a control block, see docs/protocol.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tilelink.backend.targets import portable

POISON = portable.POISON.value
HOST = -1


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
    """What the mailbox of a rank says. `waiter`: the worker that gave up, or HOST; `word`: what it waited for, in bytes
    from the beginning of its heap; `expected`: at least this; `run`: the run it was in."""

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
        waiter = control[portable.WAITER.value]
        return cls(
            rank=rank,
            run=control[portable.RUN.value],
            waiter=HOST if waiter == HOST else waiter - 1,
            word=control[portable.WORD.value],
            expected=control[portable.EXPECTED.value],
            observed=control[portable.OBSERVED.value],
            reason=Reason(control[portable.REASON.value]),
        )

    def mailbox(self) -> dict[int, int]:
        """The values of the words of the mailbox, by word."""
        return {
            portable.WAITER.value: HOST if self.waiter == HOST else self.waiter + 1,
            portable.WORD.value: self.word,
            portable.EXPECTED.value: self.expected,
            portable.OBSERVED.value: self.observed,
            portable.REASON.value: self.reason,
        }
