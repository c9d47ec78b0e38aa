"""A gather-matmul written by hand: right on many seeds, and each of its faults is found."""

import pytest
import torch

from bench.check import LIMIT_OF
from tests.emulator.worlds import GatherMatmul
from tests.parameters import first_of, some_of
from tilelink.emulator import (
    DeadlockError,
    Execution,
    OutOfBoundsError,
    RaceError,
)


@some_of(8, first=2)
@pytest.mark.parametrize("dtype", first_of(LIMIT_OF, 2))
def test_gather_matmul_is_right_on_many_seeds(dtype, seeds):
    problem = GatherMatmul(dtype=dtype, K=64)
    for seed in seeds:
        problem.run(Execution(4, seed=seed))
        assert problem.error() < LIMIT_OF[dtype]


def test_gather_matmul_is_right_when_programs_switch_at_every_access():
    problem = GatherMatmul()
    problem.run(Execution(4, seed=1, switch="memory"))
    problem.run(Execution(4, policy="round_robin", resident=2))
    assert problem.error() < 1e-6


def test_truncated_bfloat16_would_be_noticed():
    problem = GatherMatmul(dtype=torch.bfloat16, K=64)
    a = torch.cat(problem.a).double()
    for rank, b in enumerate(problem.b):
        words = (a @ b.double()).float().view(torch.int32) >> 16
        problem.results[rank] = words.to(torch.int16).view(torch.bfloat16)
    assert problem.error() > LIMIT_OF[torch.bfloat16]


def test_the_seed_fixes_the_schedule():
    problem = GatherMatmul()

    def schedule(seed: int) -> int:
        execution = Execution(4, seed=seed)
        problem.run(execution)
        return execution.schedule_hash

    assert schedule(5) == schedule(5)
    assert len({schedule(seed) for seed in range(3)}) == 3


@some_of(3, first=1)
@pytest.mark.parametrize(
    "fault",
    ["no wait", "notify early", "relaxed notify", "gpu notify", "relaxed wait", "gpu wait", "plain wait",
     "plain notify", "overlap"],
)  # fmt: skip
def test_missing_order_is_a_race(fault, seeds):
    for seed in seeds:
        problem = GatherMatmul(fault=fault)
        execution = Execution(4, seed=seed)
        with pytest.raises(RaceError) as error:
            problem.run(execution)
        assert error.value.races == tuple(execution.races)


@pytest.mark.parametrize("seed", first_of(range(3)))
@pytest.mark.parametrize("fault", ["lost notify", "wrong signal"])
def test_missing_signals_are_a_deadlock(fault, seed):
    with pytest.raises(DeadlockError):
        GatherMatmul(fault=fault).run(Execution(4, seed=seed))


def test_a_race_tells_both_sides():
    problem = GatherMatmul(fault="no wait")
    execution = Execution(4, seed=0, races="collect")
    problem.run(execution)
    race = next(r for r in execution.races if {r.first.kind, r.second.kind} == {"load", "store"})
    read, written = sorted((race.first, race.second), key=lambda party: party.kind)
    assert read.site.text.startswith("a = tl.load(gathered")
    assert written.site.text.startswith("tl.store(gathered")
    assert read.region == written.region == "gathered"
    assert read.region_rank == written.region_rank == read.rank
    assert read.box == written.box
    assert written.box[0][0] // 16 == written.rank
    assert read.program > 0 and written.program == 0
    assert "gathered" in str(race)


def test_a_deadlock_tells_who_waits_for_what():
    with pytest.raises(DeadlockError) as error:
        GatherMatmul(fault="lost notify").run(Execution(4))
    deadlock = error.value
    assert len(deadlock.stuck) == 8 and not deadlock.unstarted
    for program in deadlock.stuck:
        (wait,) = program.waits
        # The last peer of every pusher gets no signal.
        assert (wait.region, wait.region_rank, wait.observed) == ("signals", program.rank, 0)
        assert wait.index == ((program.rank + 1) % 4,)
        assert "atomic_add(signal, 0" in wait.site.text
        assert [site.text for site in wait.site.callers] == ["wait(signal, epoch)"]
    assert [(host.rank, host.streams) for host in deadlock.hosts] == [(rank, (0,)) for rank in range(4)]
    assert "signals[0]@rank3 is 0" in str(deadlock)


def test_an_access_out_of_bounds_does_not_happen():
    problem = GatherMatmul(fault="out of bounds")
    with pytest.raises(OutOfBoundsError) as error:
        problem.run(Execution(4, policy="round_robin"))
    assert error.value.rank == 3 and error.value.launch == "gather_matmul" and error.value.program == 0
    assert error.value.nearest is not None and error.value.nearest.name in ("signals", "gathered")
    assert error.value.site is not None and error.value.site.text.startswith("tl.store(gathered")
    assert all(not region.tensor.any() for region in problem.signals)
