"""One thing taken out of a lowered kernel or of its primitives at a time: the execution notices, under every seed.
(Machines make all such mutants in `tests/verification/mutants/`; here stands what each is called when it is found.)

What is found depends on what is missing: data that nothing orders is a race, a signal that never comes is a wait that
nobody can end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.backend.edited import EITHER, WAIT, in_function, primitives, replaced, tells_early
from tests.parameters import first_of, some_of
from tests.programs.gathered import lower_rows
from tests.verification.mutants.tools import Edit, MutatedWorld, same
from tilelink.backend.targets import portable
from tilelink.emulator import RaceError
from tilelink.errors import StuckError, shown
from tilelink.kernels import tiles
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cpu.world import Group

__all__ = ["primitives"]
pytestmark = pytest.mark.usefixtures("own_cache")
RANKS, ROWS, N, K = 2, 32, 32, 64
under_every_seed = some_of(4, first=1)


def gather_matmul(schedule: str, calls: int) -> Callable[[Group], list[torch.Tensor]]:
    shape = {"gather": {"tile": (16, 32), "count": 2}, "matmul": {"tile": (16, 32, 32), "count": 2}}
    fitted = all_gather_matmul.schedule(schedule).changed(**shape)
    x, weight = torch.randn(RANKS, ROWS, K), torch.randn(RANKS, K, N)

    def rank(group: Group) -> list[torch.Tensor]:
        r = group.rank
        return [all_gather_matmul(x[r], weight[r], schedule=fitted, group=group) for _ in range(calls)]

    return rank


def orphans(calls: int) -> Callable[[Group], list[torch.Tensor]]:
    x = torch.randn(RANKS, ROWS, K)

    def rank(group: Group) -> list[torch.Tensor]:
        return [lower_rows(x[group.rank], group=group) for _ in range(calls)]

    return rank


def push(calls: int = 1) -> Callable[[Group], list[torch.Tensor]]:
    return gather_matmul("push", calls)


def pull(calls: int = 1) -> Callable[[Group], list[torch.Tensor]]:
    return gather_matmul("pull", calls)


def names(value: Any) -> str:
    """What a case is called in the list of tests."""
    return value if isinstance(value, str) and " " in value and "\\" not in value else ""


def also(*case: Any) -> Any:
    """A mutant of `make verify`: another that is alike is in every run."""
    return pytest.param(*case, marks=pytest.mark.verify)


NOTIFY = r"^( +)notify\(.*\n"
THRESHOLD = r"(rows_ready \+= wait\(.*), \(K \+ 31\) // 32,"

IN_KERNEL = [
    ("no wait", push, WAIT, "rows_ready = 0", RaceError),
    also("no wait", pull, WAIT, "rows_ready = 0", RaceError),
    ("no notify", push, NOTIFY, "", StuckError),
    also("no notify", pull, NOTIFY, "", StuckError),
    ("waits for one too few", push, THRESHOLD, r"\1, (K + 31) // 32 - 1,", RaceError),
    ("waits for one too many", push, THRESHOLD, r"\1, (K + 31) // 32 + 1,", StuckError),
    also("notifies itself", push, r"notify\(peer\(heaps, reader,", "notify(peer(heaps, rank,", StuckError),
    ("notifies another cell", push, r"(full_signals, tl.int32\)) \+ M_tile", r"\1 + 0 * M_tile", StuckError),
    ("notifies in gpu scope", push, r'(notify\(.*)"sys"', r'\1"gpu"', RaceError),
    also("waits in gpu scope", push, r'(rows_ready \+= wait\(.*)"sys"', r'\1"gpu"', RaceError),
    ("waits in cta scope", pull, r'(rows_ready \+= wait\(.*)"gpu"', r'\1"cta"', RaceError),
    ("reads before peers have entered", pull, r"= entered\(.*\)", "= 0", RaceError),
    ("notifies before it stores", push, r"^( +tl.store\(.*\n)(.*\n)( +notify\(.*\n)", r"\3\2\1", RaceError),
]  # fmt: skip


@under_every_seed
@pytest.mark.parametrize(("what", "program", "old", "new", "found"), IN_KERNEL, ids=names)
def test_edited_kernels_are_caught(
    what: str, program: Any, old: str, new: str, found: type[Exception], seeds: range
) -> None:
    edit = replaced(old, new)
    for seed in seeds:
        world = MutatedWorld(RANKS, kernel=edit, primitives=portable, heap_bytes=4 << 20, sms=8, seed=seed)
        with pytest.raises(found):
            world.run(program())


def test_a_race_names_role_tile_and_line_of_both_sides() -> None:
    world = MutatedWorld(RANKS, kernel=replaced(WAIT, "rows_ready = 0"), primitives=portable, heap_bytes=4 << 20, sms=8)
    with pytest.raises(RaceError) as e:
        world.run(push())
    kernel, loop = (re.escape(shown(file)) for file in (all_gather_matmul.file, str(tiles.__file__)))
    sides = [s.tile for race in e.value.races for s in (race.first, race.second) if s.region == "full"]
    gathers = [s for s in sides if s.startswith("role gather, ")]
    matmuls = [s for s in sides if s.startswith("role matmul, ")]
    assert sides and len(gathers) + len(matmuls) == len(sides)
    assert all(re.fullmatch(rf"role gather, tile \d+ \({kernel}:\d+: tk.copy\(x.*", s) for s in gathers)
    assert all(re.search(rf"tiles? \d.* \({loop}:\d+: .*rows\[:, k\].load\(\)", s) for s in matmuls)
    assert gathers and matmuls and all(s in str(e.value) for s in sides[:2])


ACROSS_CALLS = [
    ("no credit", push, r"^ +credit\(.*\n", "", EITHER),
    ("no credit to publish", pull, r"^ +credit\(.*\n", "", (RaceError,)),
    ("no drain, hence no zeroing", push, r"^ +drain_full\(.*\n", "", (RaceError,)),
    ("leaves before it drains", orphans, r"^( +drain_full\(.*\n)( +leave\(.*\n)", r"\2\1", EITHER),
    also("never leaves", push, r"^ +leave\(.*\n", "        pass\n", EITHER),
    ("never enters", pull, r"^ +enter\(.*\n", "        pass\n", (StuckError,)),
]  # fmt: skip


@under_every_seed
@pytest.mark.parametrize(("what", "program", "old", "new", "found"), ACROSS_CALLS, ids=names)
def test_edited_runs_are_caught(
    what: str, program: Any, old: str, new: str, found: tuple[type[Exception], ...], seeds: range
) -> None:
    for seed in seeds:
        world = MutatedWorld(
            RANKS, kernel=replaced(old, new), primitives=portable, heap_bytes=4 << 20, sms=8, seed=seed, slots=1
        )
        with pytest.raises(found):
            world.run(program(3))


IN_PRIMITIVES = [
    ("notify without release", push, in_function("notify", '"release"', '"relaxed"'), (RaceError,)),
    also("notify without release", pull, in_function("notify", '"release"', '"relaxed"'), (RaceError,)),
    ("wait without acquire", push, in_function("wait", '"acquire"', '"relaxed"'), (RaceError,)),
    also("enter without release", pull, tells_early("enter"), (RaceError,)),
    ("leave without release", push, tells_early("leave"), (RaceError,)),
    ("ticket without order", push, in_function("last_out", '"acq_rel"', '"relaxed"'), (RaceError,)),
    also("first worker out leaves", push, in_function("last_out", r"== workers - 1", "== 0"), EITHER),
    also("drain without acquire", orphans, in_function("drain", '"acquire"', '"relaxed"'), (RaceError,)),
    ("no zeroing", push, in_function("drain", r"tl.store\(signals.*", "pass"), (RaceError,)),
    also("ticket not reset", push, in_function("leave", r"^ +tl.store\(control \+ TICKET.*\n", ""), EITHER),
    ("run not advanced", pull, in_function("leave", r"^ +tl.store\(control \+ RUN.*\n", ""), EITHER),
    ("credit of one rank only", orphans, in_function("credit", r"range\(world\)", "range(1)"), (RaceError,)),
]  # fmt: skip


@under_every_seed
@pytest.mark.parametrize(("what", "program", "edit", "found"), IN_PRIMITIVES, ids=names)
def test_edited_primitives_are_caught(
    what: str,
    program: Any,
    edit: Edit,
    found: tuple[type[Exception], ...],
    primitives: Callable[[Edit], ModuleType],
    seeds: range,
) -> None:
    edited = primitives(edit)
    for seed in seeds:
        world = MutatedWorld(RANKS, kernel=same, primitives=edited, heap_bytes=4 << 20, sms=8, seed=seed, slots=1)
        with pytest.raises(found):
            world.run(program(3))


SOMETIMES = [
    ("drain does not wait", orphans, in_function("drain", "while missing > 0", "while missing > 99999")),
    ("slot not marked", push, in_function("leave", r"^ +tl.store\(control \+ SLOT_LEFT.*\n", "")),
]


@pytest.mark.parametrize(("what", "program", "edit"), SOMETIMES, ids=names)
def test_what_shows_only_when_a_rank_is_late(
    what: str, program: Any, edit: Edit, primitives: Callable[[Edit], ModuleType]
) -> None:
    """Where all ranks happen to be on time, the order is right without the wait: it takes more than one seed."""
    edited = primitives(edit)
    for seed in range(12):
        world = MutatedWorld(RANKS, kernel=same, primitives=edited, heap_bytes=4 << 20, sms=8, seed=seed, slots=1)
        try:
            world.run(program(3))
        except EITHER:
            return
    pytest.fail("under none of 12 seeds")


@under_every_seed
@pytest.mark.parametrize("program", first_of([push, pull, orphans]))
def test_the_seam_itself_changes_nothing(program: Any, primitives: Callable[[Edit], ModuleType], seeds: range) -> None:
    edited = primitives(lambda source: source + "\n# a copy\n")
    for seed in seeds:
        world = MutatedWorld(RANKS, kernel=same, primitives=edited, heap_bytes=4 << 20, sms=8, seed=seed, slots=1)
        world.run(program(3))
