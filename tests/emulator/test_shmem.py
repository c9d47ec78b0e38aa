"""One-sided transfers: late, in no order but that of fence and quiet, and what is found where that was left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from tests.programs import transfers
from tilelink.emulator import KernelError, OutOfBoundsError, RaceError, shmem
from tilelink.errors import ArgumentError, RankError

N = transfers.N.value
SEEDS = range(6)


def run(kernel: Any, how: str = "", seed: int = 0, races: bool = True, world: int = 2, grid: int = 1) -> dict[str, Any]:
    """Runs a kernel on every rank; the tensors of its parameters, by name."""
    made = tk.KernelWorld(world, seed=seed, races=races)
    symmetric: dict[str, Any] = {name: made.signals(name) for name in ("signal", "flag")}
    for name, size in (("data", 2 * N), ("buffer", 2 * N), ("word", 2), ("fetched", 2)):
        symmetric[name] = made.symmetric(name, (size,), torch.int32)
    for r in range(world):
        symmetric["word"][r].zero_()
        symmetric["data"][r].copy_(torch.arange(2 * N) + 100 * r)
    symmetric["theirs"] = symmetric["data"]
    symmetric["out"] = torch.full((world, 3 * N), -1, dtype=torch.int32)
    names = [name for name in kernel.signature.parameters if name.islower()]
    constants = {"HOW": how} if "HOW" in kernel.signature.parameters else {}

    def on_rank(rank: tk.KernelRank) -> None:
        given = {n: symmetric[n].table if n == "theirs" else symmetric[n][rank.rank] for n in names}
        rank.launch(kernel, grid, **given, **constants)

    made.run(on_rank)
    return symmetric


@pytest.mark.parametrize("how", ["quiet", "put"])
def test_a_buffer_may_be_used_again_when_it_has_been_read(how: str) -> None:
    for seed in SEEDS:
        assert run(transfers.reuse, how, seed)["data"][1][:N].tolist() == list(range(N))


@pytest.mark.parametrize("how", ["", "fence", "quiet of another context"])
def test_a_buffer_that_is_used_before_is_a_race(how: str) -> None:
    for seed in SEEDS:
        with pytest.raises(RaceError) as error:
            run(transfers.reuse, how, seed)
        (race,) = error.value.races
        read, written = sorted((race.first, race.second), key=lambda party: party.kind)
        assert read.site.text == "shmem.put_nbi(data, buffer, N, 1, 1)" and read.site.file == transfers.__file__
        assert read.agent == "put_nbi" and not written.agent and read.rank == read.region_rank == 0
        assert "load by its put_nbi" in str(race) and race.remedy == "call quiet() between the put_nbi and the store"
        assert written.site.text == "tl.store(buffer + i, -1 - i)" and read.launch == written.launch == "reuse call 1"


def test_a_buffer_is_read_late_and_in_pieces() -> None:
    """What arrives is what the buffer had when it was sent, or what it was given later, or some of each."""
    sent = {tuple(run(transfers.reuse, "", seed, races=False)["data"][1][:N].tolist()) for seed in range(40)}
    assert tuple(range(N)) in sent and tuple(-1 - i for i in range(N)) in sent and len(sent) > 2


def test_two_puts_arrive_in_any_order_without_a_fence() -> None:
    arrived = {run(transfers.twice, "", seed, races=False)["out"][1, 0].item() for seed in range(12)}
    assert arrived == {1, 2, 100}  # the signal may come before both


@pytest.mark.parametrize(
    ("how", "lines"),
    [
        ("", {("shmem.p(data, 1, 1)", "shmem.p(data, 2, 1)"), ("shmem.p(data, 2, 1)", "tl.store(out, tl.load(data))")}),
        ("fenced once", {("shmem.p(data, 2, 1)", "tl.store(out, tl.load(data))")}),
        ("quieted", {("shmem.p(data, 1, 1)", "shmem.p(data, 2, 1)")}),
    ],
)
def test_what_nothing_orders_is_a_race(how: str, lines: set[tuple[str, str]]) -> None:
    found = set()
    for seed in SEEDS:
        with pytest.raises(RaceError) as error:
            run(transfers.twice, how, seed)
        for race in error.value.races:
            first, second = sorted((race.first.site.text, race.second.site.text))
            found.add((first, second))
    assert lines <= found
    assert found <= lines | {("shmem.p(data, 1, 1)", "tl.store(out, tl.load(data))")}


def test_a_fence_orders_what_goes_to_one_rank() -> None:
    for seed in SEEDS:
        assert run(transfers.twice, "fenced", seed)["out"][1, 0] == 2


@pytest.mark.parametrize("how", ["fenced", "second half"])
def test_a_signal_comes_after_its_own_data(how: str) -> None:
    for seed in SEEDS:
        got = run(transfers.signalled, how, seed)["out"][1, :N].tolist()
        assert got == [i if i >= N // 2 or how == "fenced" else -1 for i in range(N)]


def test_a_signal_says_nothing_of_other_puts() -> None:
    for seed in SEEDS:
        with pytest.raises(RaceError) as error:
            run(transfers.signalled, "", seed)
        (race,) = error.value.races
        assert {race.first.agent, race.second.agent} == {"put_nbi", ""}
        assert race.first.box == race.second.box and race.first.box[0][1] <= N // 2


def test_a_signal_of_the_network_does_not_order_stores_of_the_program() -> None:
    for seed in SEEDS:
        assert run(transfers.stored, "fenced", seed)["buffer"][1][:N].tolist() == list(range(N))
        with pytest.raises(RaceError):
            run(transfers.stored, "", seed)


@pytest.mark.versions
def test_what_is_fetched_is_here() -> None:
    for seed in SEEDS:
        made = run(transfers.fetches, seed=seed)
        there, out = torch.arange(2 * N) + 100, made["out"][0]
        assert torch.equal(out[:N], there[:N]) and torch.equal(out[N : 2 * N], there[:N])
        assert made["buffer"][0][: N // 2].tolist() == there[1 : N + 1 : 2].tolist()
        assert made["data"][1][N : 2 * N : 2].tolist() == there[1 : N + 1 : 2].tolist()
        assert out[2 * N] == 103 and out[2 * N + 1] == 2
        assert torch.equal(made["data"][1][N + 1 : 2 * N : 2], there[N + 1 :: 2])


@pytest.mark.versions
def test_atomics_count_exactly() -> None:
    for seed in SEEDS:
        made = run(transfers.counts, seed=seed, world=3)
        assert made["word"][0].tolist() == [9, 16]
        seen = made["out"][:, :2].flatten().tolist()
        assert len(set(seen)) == 6 and set(seen) < set(range(9))
        assert made["fetched"][1][1] == 5 and made["out"][1, 2:4].tolist() == [6, 16]


@pytest.mark.parametrize("how", ["network", "context", "poll"])
def test_atomics_of_one_kind_do_not_race(how: str) -> None:
    for seed in SEEDS:
        run(transfers.mixed, how, seed)


@pytest.mark.parametrize("how", ["type", "program"])
def test_atomics_of_two_kinds_race(how: str) -> None:
    for seed in SEEDS:
        with pytest.raises(RaceError, match="are not atomic to each other"):
            run(transfers.mixed, how, seed)


def test_quiet_completes_what_the_rank_has_sent() -> None:
    for seed in SEEDS:
        assert run(transfers.two_programs, seed=seed, grid=2)["out"][1, 0] == 4


def test_errors_name_the_line_of_the_kernel() -> None:
    line = r"(?s)transfers.py:\d+: .*shmem\.iput\(target, data"

    def attempt(COUNT: int = 1, PE: int = 1, STRIDE: int = 1, OWN: bool = False) -> None:
        world, out = tk.KernelWorld(2), torch.zeros(4)
        data = world.symmetric("data", (N,))
        world.run(lambda rank: rank.launch(transfers.wrong, 1, data[rank.rank], out, COUNT, PE, STRIDE, OWN))

    with pytest.raises(RankError, match=line):
        attempt(PE=2)
    with pytest.raises(ArgumentError, match="out@rank0 has no counterpart at rank 1"):
        attempt(OWN=True)
    with pytest.raises(ArgumentError, match="1 elements with a stride of 0"):
        attempt(STRIDE=0)
    with pytest.raises(OutOfBoundsError, match=line):
        attempt(COUNT=N // 2 + 1, STRIDE=2)
    attempt(COUNT=0)


def test_outside_of_a_kernel_there_is_no_network() -> None:
    with pytest.raises(ArgumentError, match="a KernelWorld runs"):
        shmem.quiet()
    with pytest.raises(KernelError, match="is not one pointer"):
        run(transfers.block)
