"""Hand-written kernels on symmetric memory: what they do, what is found in them, and what launches are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from tests.programs import exchanging
from tilelink.emulator import DeadlockError, OutOfBoundsError, RaceError
from tilelink.errors import ArgumentError, DtypeError, RankError, ShapeError, WorldError

N = 16


def exchange(world: tk.KernelWorld, calls: int = 1, **faults: bool | int) -> list[torch.Tensor]:
    """Every rank sends two blocks to the right and keeps what comes from the left."""
    inbox, ready = world.symmetric("inbox", (2 * N,)), world.signals("ready")
    x = torch.arange(world.world * 2 * N, dtype=torch.float32).view(world.world, 2 * N)
    outs = torch.zeros_like(x)

    def on_rank(rank: tk.KernelRank) -> torch.Tensor:
        r = rank.rank
        for call in range(calls):
            blocks = int(faults.get("blocks", 2))
            rank.launch(
                exchanging.push, blocks, x[r], inbox.table, ready.table, r, WORLD=world.world, N=N,
                NOTIFY=bool(faults.get("notify", True)), num_warps=4,
            )  # fmt: skip
            expected = 0 if faults.get("eager") else 2 * (call + 1)
            rank.launch(exchanging.take, 2, inbox[r], ready[r], outs[r], expected, N=N)
        return outs[r]

    return world.run(on_rank)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_exchange(world: int, seed: int) -> None:
    outs = torch.stack(exchange(tk.KernelWorld(world, seed=seed)))
    want = torch.arange(world * 2 * N, dtype=torch.float32).view(world, 2 * N).roll(1, 0)
    assert torch.equal(outs, want)


@pytest.mark.parametrize("seed", range(3))
def test_an_inbox_that_the_next_call_overwrites_is_a_race_between_calls(seed: int) -> None:
    with pytest.raises(RaceError) as error:
        exchange(tk.KernelWorld(2, seed=seed), calls=2)
    race = next(r for r in error.value.races if {r.first.kind, r.second.kind} == {"load", "store"})
    read, written = sorted((race.first, race.second), key=lambda party: party.kind)
    assert read.launch == "take call 1" and written.launch == "push call 2"
    assert read.rank == read.region_rank == written.region_rank != written.rank
    assert read.site.text.startswith("tl.store(out + at, tl.load(inbox")
    assert written.site.text.startswith("tl.store(there + at")
    assert read.site.file == written.site.file == exchanging.__file__


def test_what_is_found_names_the_line_of_the_kernel() -> None:
    with pytest.raises(RaceError):
        exchange(tk.KernelWorld(2), eager=True, notify=False)
    with pytest.raises(DeadlockError, match=r"take call 1\[0\]: ready\[0\]@rank0 is 0, polled at .*exchanging.py:"):
        exchange(tk.KernelWorld(2), notify=False)
    bounds = r"(?s)exchanging.py:.*push call 1\[\d\].*128 bytes from the base of x@.*tl\.load\(x \+ at\)"
    with pytest.raises(OutOfBoundsError, match=bounds):
        exchange(tk.KernelWorld(2), blocks=3)


def test_races_may_be_collected() -> None:
    world = tk.KernelWorld(2, races="collect")
    exchange(world, eager=True, notify=False)
    assert world.latest is not None and world.latest.races


def test_programs_of_three_axes() -> None:
    world, out = tk.KernelWorld(1), torch.zeros(24, dtype=torch.int32)
    world.run(lambda rank: rank.launch(exchanging.number, (4, 3, 2), out, WIDTH=10))
    assert out.tolist() == [x + 10 * y + 100 * z for z in range(2) for y in range(3) for x in range(4)]


def test_what_nobody_wrote_is_nan_and_signals_are_zero() -> None:
    world = tk.KernelWorld(2)
    assert world.symmetric("x", (3, 2))[1].isnan().all()
    assert not world.signals("s", 4, torch.int64)[1].any()


def test_streams_are_ordered_by_following_only() -> None:
    def run(follow: bool) -> None:
        world, x, out = tk.KernelWorld(1), torch.ones(N), torch.zeros(N)
        signal = world.signals("ready")
        inbox = world.symmetric("inbox", (N,))

        def on_rank(rank: tk.KernelRank) -> None:
            rank.launch(exchanging.push, 1, x, inbox.table, signal.table, 0, 1, N, False, stream="a")
            if follow:
                rank.follow("b", "a")
            rank.launch(exchanging.take, 1, inbox[0], signal[0], out, 0, N, stream="b")

        world.run(on_rank)

    run(follow=True)
    with pytest.raises(RaceError):
        run(follow=False)


def test_what_does_not_fit_is_refused() -> None:
    world = tk.KernelWorld(2)
    inbox = world.symmetric("inbox", (N,))
    out = torch.zeros(N)

    def launch(*arguments: object, kernel: object = exchanging.number, grid: object = 1, **named: object) -> None:
        world.run(lambda rank: rank.launch(kernel, grid, *arguments, **named))  # type: ignore[arg-type]

    with pytest.raises(ArgumentError, match=r"test_kernel_world.py:\d+: inbox is the name of another"):
        world.symmetric("inbox", (N,))
    with pytest.raises(ShapeError, match=r"shape \(4, 0\)"):
        world.symmetric("none", (4, 0))
    with pytest.raises(DtypeError, match="int32 or int64"):
        world.signals("half", dtype=torch.float16)
    with pytest.raises(RankError, match="rank 2 in a world of 2"):
        inbox[2]
    with pytest.raises(WorldError, match="resident=0"):
        tk.KernelWorld(2, resident=0)
    with pytest.raises(ArgumentError, match="unknown policy 'fair'"):
        tk.KernelWorld(2, policy="fair")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="is no kernel"):
        launch(out, kernel=len)
    with pytest.raises(ArgumentError, match="grid of"):
        launch(out, 4, grid=(1, 1, 1, 1))
    with pytest.raises(ArgumentError, match="missing"):
        launch(out)
    with pytest.raises(ArgumentError, match="no parameter HEIGHT"):
        launch(out, 4, HEIGHT=3)
    with pytest.raises(ArgumentError, match="is given out twice"):
        launch(out, 4, out=out)
    with pytest.raises(ArgumentError, match="takes 2 arguments, not 3"):
        launch(out, 4, 5)
    with pytest.raises(ArgumentError, match=r"say inbox\[rank\]"):
        launch(inbox, 4)
    kept: list[tk.KernelRank] = []
    world.run(kept.append)
    with pytest.raises(WorldError, match="outside of KernelWorld"):
        kept[0].launch(exchanging.number, 1, out, 4)


@pytest.mark.parametrize("world", [tk.KernelWorld, tk.CpuWorld])
@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"resident": 0}, WorldError, "resident=0: at least 1 worker of a rank is under way"),
        ({"policy": "rondom"}, ArgumentError, "unknown policy 'rondom'; .*did you mean random"),
        ({"admit": "in ordr"}, ArgumentError, "admit='in ordr'; it must be one of .*did you mean in order"),
        ({"switch": "memry"}, ArgumentError, "switch='memry'; it must be one of 'atomics', 'memory'; did you mean"),
        ({"races": "colect"}, ArgumentError, "races='colect'; it must be one of True, 'collect', False"),
    ],
)  # fmt: skip
def test_an_option_that_worlds_do_not_know(world: Any, options: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said) as e:
        world(2, **options)
    assert e.value.site is not None and e.value.site.file == __file__
