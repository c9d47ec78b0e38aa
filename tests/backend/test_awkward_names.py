"""No name is forbidden: programs whose names are awkward are shown, checked, simulated, run and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.gather_gemm import small_world
from tests.parameters import first_of
from tests.programs import awkward_names as awkward
from tilelink.backend.targets import TARGETS
from tilelink.emulator import Operation
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import each_compiled
from tilelink.programs.program import Program
from tilelink.runtime.trace import align

GATHERED = {"M": (20, 0, 9), "for": 40, "M_lo": 24}
SUMMED = {"rank": (5, 30, 0), "world": 24}
ROUTED = {"home": ((3, 0, 20), (17, 1, 2), (0, 0, 0)), "source": 1, "index_0": 24}
TURNS = {"tl": 20, "triton": 24}
ALL = [
    *((awkward.enter, s, GATHERED) for s in ("push", "pull", "multicast", "engine")),
    *((awkward.credit, s, SUMMED) for s in ("folded", "apart")),
    (awkward.leave, "by_source", ROUTED),
    (awkward.last_out, "in_two", TURNS),
]
EACH = pytest.mark.parametrize(("program", "schedule", "sizes"), ALL, ids=[f"{p.name}-{s}" for p, s, _ in ALL])


def whole_numbers(*shape: int) -> torch.Tensor:
    """So that sums are the same in every order."""
    return torch.randint(-4, 5, shape).float()


def ran(program: Program, schedule: str, tensors: list[dict[str, torch.Tensor]], **options: Any) -> list[Any]:
    """The results of a call on ranks with these tensors, which is held against the program; a second one, in which
    workers record times, gives the same (where rows are routed, none do)."""
    operations: list[Operation] = []
    world = small_world(len(tensors), observer=operations.append)
    wanted = awkward.__dict__[schedule]

    def calls(group: Any) -> list[torch.Tensor]:
        given = {"schedule": wanted, "group": group, **options}
        times = not program.recorded().routes
        return [program(**tensors[group.rank], **given, timed=timed) for timed in (False, times)]

    outs = world.run(calls)
    prepared, *_ = world.lane.prepared.values()
    prepared = world.groups[0].recent[0].counted if world.groups[0].recent else prepared
    assert align(prepared.events, operations, f"{prepared.lowered.main.name} run 0").done
    assert all(torch.equal(first, second) for first, second in outs)
    return [first for first, _ in outs]


@EACH
def test_it_is_safe_and_can_be_shown_and_simulated(program: Program, schedule: str, sizes: dict[str, Any]) -> None:
    wanted = awkward.__dict__[schedule]
    assert program.check(wanted, world=3, sizes=sizes).verdict == "safe"
    for stage, shows in (("program", program.name), ("events", "tile 0"), ("triton", program.name), ("host", "launch")):
        assert shows in program.show(stage, wanted, world=3, sizes=sizes)
    assert program.simulate(wanted, machine="h800", world=3, sizes=sizes).makespan_us > 0


@pytest.mark.verify
def test_the_kernels_compile() -> None:
    """For a GPU, uneven parts and all."""
    jobs = []
    for program, schedule, given in ALL:
        jobs.append(program.lowered_at(awkward.__dict__[schedule], target=TARGETS["sm_90"], world=3, sizes=given))
    assert isinstance(jobs[0][1], Sizes)
    for made in each_compiled(jobs, lambda _, kernels: kernels):
        assert isinstance(made, tuple), made


@pytest.mark.parametrize("schedule", first_of(["engine", "pull", "push", "multicast"]))
def test_gathered_rows(schedule: str) -> None:
    parts = GATHERED["M"]
    x, y, z = whole_numbers(29, 40), whole_numbers(40, 24), whole_numbers(29, 24)
    tensors = [{"heaps": part, "stamps": y, "M_parts": z} for part in x.split(parts)]
    for rank, out in enumerate(ran(awkward.enter, schedule, tensors, parts={"M": parts})):
        assert torch.equal(out, x @ y + 2 * rank + 1 + 3 * z + 1)


@pytest.mark.parametrize("schedule", first_of(["folded", "apart"]))
def test_partial_sums(schedule: str) -> None:
    x = [whole_numbers(35, 24) for _ in range(3)]
    outs = ran(awkward.credit, schedule, [{"range": part} for part in x], parts={"rank": SUMMED["rank"]})
    assert torch.equal(torch.cat(outs), 2 * sum(x, torch.zeros(())))


def test_rows_that_are_routed() -> None:
    counts = torch.tensor(ROUTED["home"])
    segments = [[whole_numbers(int(n), 24) for n in row] for row in counts]
    scale = whole_numbers(3, 1)
    tensors = [
        {"tile": torch.cat([row[r] for row in segments]), "tile_segments": scale[r], "counted": counts}
        for r in range(3)
    ]
    parts = {"segment": counts.sum(0), "home": counts.sum(1)}
    outs = ran(awkward.leave, "by_source", tensors, parts=parts)
    for rank, out in enumerate(outs):
        assert torch.equal(out, torch.cat(segments[rank]) * scale[rank])


def test_entries_that_take_turns() -> None:
    x, y = [whole_numbers(20, 24) for _ in range(2)], whole_numbers(20, 24)
    outs = ran(awkward.last_out, "in_two", [{"run": part, "run_free_signals_free": y} for part in x])
    for rank, out in enumerate(outs):
        assert torch.equal(out, y + sum((s + 1) * x[(rank - s) % 2] for s in range(2)))
