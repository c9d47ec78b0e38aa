"""Policies of the scheduler: which task runs next, and how late a transfer begins. A seed fixes all decisions."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from tilelink.errors import listed

Task = Hashable
"""Anything that takes turns: a task of the scheduler, or a worker of the oracle (`tilelink.tools.explore`)."""
DELAYS = (0, 1, 3, 10, 30, 100)
"""How many turns a transfer waits under `Random`: each number is equally likely, from on time to very late."""


class Policy:
    """Decides a schedule, turn by turn. By default, tasks take turns in the order in which they became ready, and
    nothing is late."""

    def __init__(self, seed: int = 0) -> None:
        """Takes the seed of all decisions; the default has none to make."""

    def arrive(self, task: Task) -> None:
        """Takes note of a new task."""

    def choose(self, ready: Sequence[Task]) -> int:
        """Returns the position in `ready` of the task that runs next."""
        return 0

    def give_way(self, task: Task) -> None:
        """Takes note that a task only looks at memory, again and again, and that others have to come to their turn."""

    def delay(self) -> int:
        """Returns how many turns something without a fixed time, such as an engine's copy, waits before it goes on."""
        return 0


class Random(Policy):
    """Every ready task is equally likely to run next."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed).random
        self._delays = random.Random(f"delays {seed}")

    def choose(self, ready: Sequence[Task]) -> int:
        return int(self._random() * len(ready)) if len(ready) > 1 else 0

    def delay(self) -> int:
        return self._delays.choice(DELAYS)


class Pct(Policy):
    """Tasks have priorities, and the ready task with the highest one runs, so that some tasks are very late. At
    `depth` - 1 turns, picked at random from the first `length`, the chosen task falls below all others. A bug that
    takes `depth` ordered events shows with a probability of at least 1 / (tasks * length ** (depth - 1)).

    Burckhardt, Kothari, Musuvathi and Nagarakatte, A randomized scheduler with probabilistic guarantees of finding
    bugs, ASPLOS 2010. Unlike there, tasks arrive while others run, and tasks that give way fall, too, because they may
    be spinning. Only its priority decides how late a transfer is."""

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
    """The policy for one run. Raises ValueError for an unknown name."""
    if not isinstance(policy, str):
        return policy(seed)
    if policy not in _POLICIES:
        raise ValueError(f"unknown policy {policy!r}; there is {listed(_POLICIES, policy)}")
    return _POLICIES[policy](seed)
