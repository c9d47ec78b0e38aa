import threading

import pytest

from tests.emulator.orders import order_of
from tilelink.emulator import DeadlockError, Scheduler


def test_the_seed_fixes_the_schedule():
    assert order_of(3) == order_of(3)
    assert len({order_of(seed)[1] for seed in range(10)}) == 10


def test_round_robin_takes_turns():
    assert order_of(0, "round_robin")[0] == [0, 1, 2, 3, 4] * 4


def test_tasks_are_parked_until_a_key_of_theirs_is_woken():
    scheduler = Scheduler()
    done = []

    def sleeper(key: int) -> None:
        scheduler.block([key, 1000 + key])
        done.append(key)

    def waker() -> None:
        scheduler.block([5])
        scheduler.wake(1000, 1002)
        scheduler.wake(2, 3)

    for key in (0, 1, 2):
        scheduler.spawn(lambda key=key: sleeper(key))
    scheduler.spawn(waker)
    scheduler.spawn(lambda: scheduler.wake(5, 6))
    scheduler.on_stall = lambda parked: scheduler.unpark(next(t for t in parked if t.keys == (5,)))
    scheduler.run()
    assert sorted(done) == [0, 1, 2]


@pytest.mark.parametrize("tasks", [1, 240])
def test_nothing_leaks_when_a_task_raises(tasks):
    before = threading.active_count()
    scheduler = Scheduler(1)
    unwound = []

    def body(number: int) -> None:
        try:
            scheduler.switch()
            if number == tasks - 1:
                raise ValueError("enough")
            scheduler.block([number])
        finally:
            unwound.append(number)

    for number in range(tasks):
        scheduler.spawn(lambda number=number: body(number))
    with pytest.raises(ValueError, match="enough"):
        scheduler.run()
    assert threading.active_count() == before
    assert tasks - 1 in unwound


def test_parked_tasks_alone_are_a_deadlock():
    before = threading.active_count()
    scheduler = Scheduler()
    scheduler.spawn(lambda: scheduler.block([1]), name="lonely")
    with pytest.raises(DeadlockError, match="lonely"):
        scheduler.run()
    assert threading.active_count() == before


def test_a_task_may_spawn_tasks():
    scheduler = Scheduler()
    seen = []
    scheduler.spawn(lambda: scheduler.spawn(lambda: seen.append(1)))
    scheduler.run()
    assert seen == [1]
