"""What the policies of the scheduler decide, and that a seed repeats it."""

from functools import partial
from itertools import pairwise

import pytest

from tests.emulator.orders import order_of
from tests.emulator.worlds import GatherMatmul
from tilelink.emulator import DeadlockError, Execution, Pct, Policy, Random, Scheduler


def test_pct_runs_one_task_until_a_change_point():
    """Without change points, each task runs to its end; every one of them may push a task behind the others."""

    def turns(seed: int, depth: int) -> int:
        order, _ = order_of(seed, partial(Pct, depth=depth, length=20))
        return sum(a != b for a, b in pairwise(order))

    assert {turns(seed, 1) for seed in range(20)} == {4}
    assert {turns(seed, 3) for seed in range(20)} == {4, 5, 6}


def test_pct_is_fixed_by_its_seed():
    assert order_of(3, "pct") == order_of(3, "pct")
    assert len({order_of(seed, "pct")[1] for seed in range(10)}) > 5


def test_a_task_that_spins_does_not_starve_others_under_pct():
    for seed in range(10):
        scheduler = Scheduler(seed, "pct")
        done = []

        def spinner(scheduler=scheduler, done=done) -> None:
            while not done:
                scheduler.give_way()

        scheduler.spawn(spinner)
        scheduler.spawn(lambda done=done: done.append(1))
        scheduler.run()
        assert done


def test_chance_delays_transfers():
    delays = [Random(seed).delay() for seed in range(40)]
    assert {0, 100} <= set(delays)
    assert delays == [Random(seed).delay() for seed in range(40)]
    assert Policy().delay() == 0


def test_names_of_policies_are_known():
    with pytest.raises(ValueError, match="unknown policy 'fair'; there is random"):
        Scheduler(0, "fair")  # type: ignore[arg-type]


def test_kernels_are_right_under_pct():
    problem = GatherMatmul()
    hashes = set()
    for seed in range(4):
        execution = Execution(4, seed, "pct", switch="memory")
        problem.run(execution)
        assert problem.error() < 1e-6
        hashes.add(execution.schedule_hash)
    assert len(hashes) == 4


def test_a_grid_larger_than_what_is_resident_shows_once_waiters_begin_first():
    problem = GatherMatmul()
    problem.run(Execution(4, resident=1))
    for seed in range(4):
        with pytest.raises(DeadlockError) as error:
            problem.run(Execution(4, seed, resident=4, admit="last first"))
        assert [u.begun for u in error.value.unstarted] == [True] * 4
        assert all(u.programs[0] == 0 for u in error.value.unstarted)
