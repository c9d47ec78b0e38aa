"""Policies of the scheduler: who runs next, and how late a transfer begins. A seed fixes all that they decide."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from tilelink.errors import listed

Task = Hashable
"""Whatever takes turns: a task of the scheduler, or a worker of the oracle (`tilelink.tools.explore`)."""
DELAYS = (0, 1, 3, 10, 30, 100)
"""How many turns a transfer may let pass, where chance decides: on time as often as very late."""


class Policy:
    """Decides a schedule, turn by turn. Unless it decides otherwise, tasks take turns in the order in which they became
    ready, and nothing is late."""

    def __init__(self, seed: int = 0) -> None:
        """A policy that the seed decides; here there is nothing to decide."""

    def arrive(self, task: Task) -> None:
        """A task is new."""

    def choose(self, ready: Sequence[Task]) -> int:
        """Which of the tasks that are ready runs next: its position."""
        return 0

    def give_way(self, task: Task) -> None:
        """A task that only looks at memory, again and again, lets others run: they have to come to their turn."""

    def delay(self) -> int:
        """For how many turns something waits that nothing keeps on time, such as a copy of an engine, before it goes
        on."""
        return 0


class Random(Policy):
    """Every task that is ready is as likely to run next."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed).random
        self._delays = random.Random(f"delays {seed}")

    def choose(self, ready: Sequence[Task]) -> int:
        return int(self._random() * len(ready)) if len(ready) > 1 else 0

    def delay(self) -> int:
        return self._delays.choice(DELAYS)


class Pct(Policy):
    """Tasks have priorities, and the highest that is ready runs, which lets some be late for very long. At `depth` - 1
    turns, picked out of the first `length`, the one that runs falls below all others. A bug that takes `depth` ordered
    events shows with a probability of at least 1 / (tasks * length ** (depth - 1)).

    Burckhardt, Kothari, Musuvathi and Nagarakatte, A randomized scheduler with probabilistic guarantees of finding
    bugs, ASPLOS 2010. Here tasks come while others run, and those that give way fall as well: they may be spinning. A
    transfer's priority alone says how late it is."""

    def __init__(self, seed: int = 0, depth: int = 3, length: int = 1000) -> None:
        self._random = random.Random(seed)
        self._changes = {self._random.randrange(1, max(length, 1) + 1): k for k in range(1, depth)}
        self._depth, self._turns, self._lowest = depth, 0, 0
        self._priorities: dict[Task, float] = {}

    def arrive(self, task: Task) -> None:
        self._priorities[task] = self._depth + self._random.random()

    def choose(self, ready: Sequence[Task]) -> int:
        self._turns += 1
        chosen = self._highest(ready)
        if self._turns in self._changes:
            self._priorities[ready[chosen]] = self._changes[self._turns]
            chosen = self._highest(ready)
        return chosen

    def give_way(self, task: Task) -> None:
        self._lowest -= 1
        self._priorities[task] = self._lowest

    def _highest(self, ready: Sequence[Task]) -> int:
        return max(range(len(ready)), key=lambda k: self._priorities[ready[k]])


PolicyWord = Literal["random", "round_robin", "pct"] | Callable[[int], Policy]
"""A policy by its name, or a function that makes one from a seed."""
_POLICIES: dict[str, Callable[[int], Policy]] = {"random": Random, "round_robin": Policy, "pct": Pct}


def made(policy: PolicyWord, seed: int) -> Policy:
    """The policy for one run. Raises ValueError for a name that is none."""
    if not isinstance(policy, str):
        return policy(seed)
    if policy not in _POLICIES:
        raise ValueError(f"unknown policy {policy!r}; there is {listed(_POLICIES, policy)}")
    return _POLICIES[policy](seed)
