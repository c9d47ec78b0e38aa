"""Every interleaving of the steps of all ranks, up to the first wrong read or deadlock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby

from tests.runtime.protocol_model.rules import PROTOCOL, Case, Rules, payload
from tests.runtime.protocol_model.steps import Action, Words, threads_of


@dataclass(frozen=True)
class Verdict:
    """What was found, after how many states; if not safe, why; if wrong or deadlock, a shortest way there."""

    outcome: str  # safe, wrong, deadlock, race
    states: int
    reason: str = ""
    trace: tuple[Action, ...] = ()

    def story(self) -> str:
        """The trace: how far one worker goes, then how far the next, and what comes of it."""
        chapters = [list(steps)[-1] for _, steps in groupby(self.trace, key=lambda a: (a.rank, a.worker))]
        return f"{' → '.join(map(str, chapters))}: {self.reason}"


def _race(a: Action, b: Action) -> bool:
    """Whether two steps that may both come next touch one word in a way that needs an order."""
    if a.access is None or b.access is None or a.access[1] != b.access[1]:
        return False
    return a.access[0] != b.access[0] or a.access[0] == "store"


State = tuple[tuple[int, ...], Words]  # how far each thread is, and what the words hold


@cache
def explore(case: Case, rules: Rules = PROTOCOL) -> Verdict:
    """Take every interleaving of all threads, breadth first, up to the first wrong read or deadlock."""
    threads, words = threads_of(case, rules)
    start: State = ((0,) * len(threads), words)
    came: dict[State, tuple[State, Action] | None] = {start: None}  # from which state, by which step
    queue = deque([start])
    race = ""

    def found(outcome: str, reason: str, state: State, *last: Action) -> Verdict:
        trace = [*last]
        while step := came[state]:
            state, action = step
            trace.append(action)
        return Verdict(outcome, len(came), reason, tuple(reversed(trace)))

    while queue:
        state = queue.popleft()
        places, words = state
        heads = [(t, threads[t][place]) for t, place in enumerate(places) if place < len(threads[t])]
        able = [(t, action) for t, action in heads if action.ready is None or action.ready(words)]
        if heads and not able:
            return found("deadlock", f"stuck before {', '.join(str(action) for _, action in heads)}", state)
        for t, action in able:
            if action.expects is not None and action.access and words[action.access[1]] != action.expects:
                run = words[action.access[1]] - payload(0)
                return found("wrong", f"sees {'nothing' if run < 0 else f'run {run}'}", state, action)
            after = words
            for word, value in action.sets:
                after = (*after[:word], value(words), *after[word + 1 :])
            successor = ((*places[:t], places[t] + 1, *places[t + 1 :]), after)
            if successor not in came:
                came[successor] = (state, action)
                queue.append(successor)
        touching = [action for _, action in heads if action.access]  # able or not: a wait looks all the time
        for a, b in combinations(touching, 2):
            if _race(a, b):
                race = f"{a} with {b}"
    return Verdict("race" if race else "safe", len(came), race)
