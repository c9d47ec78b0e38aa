"""A deterministic scheduler of cooperative tasks.

Each task has a thread while it is under way. The threads pass a baton: exactly one runs, until its task switches,
blocks or ends. Which task runs next depends on the seed and on nothing else, so a run can be repeated exactly.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tilelink.emulator.errors import DeadlockError
from tilelink.emulator.policies import PolicyWord, made

STACK_BYTES = 1 << 20
"""Stack of a task's thread. Only pages that are touched cost memory."""
MOST_THREADS = 1 << 20
"""More threads than a run has tasks: a task that waited for a thread would never come to its turn."""


class _Stopped(BaseException):
    """Unwinds a task whose run has ended. It is no Exception, so that a task's own handlers do not catch it."""


class Task:
    """One body that runs in turns with others. `keys`: the keys it is parked on, () when it isn't. `begun`: it has a
    thread, with the ident `thread`, which waits for the `baton` whenever it is not the task's turn."""

    __slots__ = ("baton", "begun", "body", "index", "keys", "name", "rank", "thread")

    def __init__(self, index: int, rank: int, name: str, body: Callable[[], None]) -> None:
        self.index, self.rank, self.name, self.body = index, rank, name, body
        self.keys: tuple[int, ...] = ()
        self.begun, self.thread = False, 0
        self.baton = threading.Lock()
        self.baton.acquire()

    def __repr__(self) -> str:
        return f"<Task {self.name} of rank {self.rank}>"


class Scheduler:
    """Runs tasks one at a time in an order that `seed` and `policy` fix.

    `on_stall(parked)` is called when every task is parked: it may wake some of them, or raise the error that `run` is
    to raise. If no task can run after it, `run` raises `DeadlockError`. `stack_bytes`: the stack of a task."""

    def __init__(
        self,
        seed: int = 0,
        policy: PolicyWord = "random",
        on_stall: Callable[[Sequence[Task]], None] | None = None,
        stack_bytes: int = STACK_BYTES,
    ) -> None:
        self._policy = made(policy, seed)
        self.on_stall = on_stall
        self._stack_bytes = stack_bytes
        self._ready: deque[Task] = deque()
        self._parked: dict[int, list[Task]] = {}
        self._keys: list[int] = []  # of _parked, sorted
        self._alive: dict[int, Task] = {}
        self._spawned = 0
        self._threads = ThreadPoolExecutor(MOST_THREADS)
        self._over = threading.Semaphore(0)
        self._error: BaseException | None = None
        self.current: Task | None = None
        self.turns = 0
        self.schedule_hash = 0
        """A 64-bit hash of the order in which tasks were given their turns."""
        self.stopping = threading.Event()
        """Set when the run ends, whether its tasks are done or not."""

    def spawn(self, body: Callable[[], None], rank: int = 0, name: str = "") -> Task:
        """Adds a task; it runs when its turn comes."""
        task = Task(self._spawned, rank, name, body)
        self._spawned += 1
        self._alive[task.index] = task
        self._policy.arrive(task)
        self._ready.append(task)
        return task

    def run(self) -> None:
        """Runs all tasks. Raises what one of them raised, or `DeadlockError`; no thread is left behind."""
        stack_before = threading.stack_size(self._stack_bytes)
        try:
            self._hand_over(self._next())
            self._over.acquire()
        finally:
            self.stopping.set()
            for task in tuple(self._alive.values()):  # one after the other: their clean-up is not safe on many threads
                if task.begun:
                    task.baton.release()
                    self._over.acquire()
            self._threads.shutdown()
            threading.stack_size(stack_before)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame

    def is_here(self) -> bool:
        """Whether the calling thread belongs to the task whose turn it is."""
        return self.current is not None and self.current.thread == threading.get_ident()

    def switch(self) -> None:
        """Lets other tasks run before the current one goes on, if the policy decides so."""
        me = self._running()
        if not self._ready:
            return
        self._ready.append(me)
        self._leave(me)

    def give_way(self) -> None:
        """Switches from a task that makes no progress, so that others come to their turn."""
        self._policy.give_way(self._running())
        self.switch()

    def delay(self) -> int:
        """Returns how many turns the current task is to wait, where nothing else fixes its time."""
        return self._policy.delay()

    def block(self, keys: Iterable[int]) -> None:
        """Parks the current task until one of the keys is woken. Keys are integers, such as addresses."""
        me = self._running()
        me.keys = tuple(set(keys))
        for key in me.keys:
            waiting = self._parked.get(key)
            if waiting is None:
                self._parked[key] = [me]
                insort(self._keys, key)
            else:
                waiting.append(me)
        self._leave(me)

    def wake(self, low: int, high: int) -> None:
        """Makes every task ready that is parked on a key in [low, high)."""
        keys = self._keys
        start = bisect_left(keys, low)
        if start < len(keys) and keys[start] < high:
            for key in keys[start : bisect_left(keys, high, start)]:
                for task in tuple(self._parked.get(key, ())):
                    self.unpark(task)

    def unpark(self, task: Task) -> None:
        """Makes one parked task ready."""
        for key in task.keys:
            waiting = self._parked[key]
            waiting.remove(task)
            if not waiting:
                del self._parked[key]
                del self._keys[bisect_left(self._keys, key)]
        task.keys = ()
        self._ready.append(task)

    def _running(self) -> Task:
        if self.stopping.is_set():
            raise _Stopped
        assert self.current is not None, "outside of a task"
        return self.current

    def _leave(self, me: Task) -> None:
        """Gives the turn to the next task, and returns when it is `me`'s turn again."""
        following = self._next()
        if following is me:
            return
        self._hand_over(following)
        me.baton.acquire()
        if self.stopping.is_set():
            raise _Stopped

    def _next(self) -> Task | None:
        """Takes the next task out of the ready ones; None ends the run."""
        ready = self._ready
        if not ready and self._alive and self._error is None:
            self._stalled()
        if not ready or self._error is not None:
            return None
        self.turns += 1
        chosen = self._policy.choose(ready)
        ready[chosen], ready[0] = ready[0], ready[chosen]
        task = ready.popleft()
        self.schedule_hash = ((self.schedule_hash ^ task.index) * 0x100000001B3 + 1) & 0xFFFFFFFFFFFFFFFF
        return task

    def _stalled(self) -> None:
        parked = tuple(self._alive.values())
        try:
            if self.on_stall is not None:
                self.on_stall(parked)
            if not self._ready:
                names = ", ".join(task.name for task in parked[:12])
                raise DeadlockError(message=f"deadlock: none of {len(parked)} tasks can go on: {names}")
        except Exception as error:  # it belongs to the run, not to the task that happens to be the last
            self._error = error

    def _hand_over(self, task: Task | None) -> None:
        """Gives the turn to a task; None ends the run."""
        if task is None:
            self._over.release()
            return
        self.current = task
        if task.begun:
            task.baton.release()
        else:
            task.begun = True
            self._threads.submit(self._live, task)

    def _live(self, task: Task) -> None:
        """Runs a task on its thread, then gives the turn to the next one."""
        task.thread = threading.get_ident()
        try:
            task.body()
        except _Stopped:
            pass
        except BaseException as error:  # whatever it is, run() raises it
            self._error = self._error or error
        if self.stopping.is_set():
            self._over.release()
        else:
            del self._alive[task.index]
            self._hand_over(self._next())
