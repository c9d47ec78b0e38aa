"""Why a mutant that no tool finds is no mistake. A reason is given where its condition holds, which is looked at; where
an argument is needed besides, the reason says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.verification.mutants.mutant import Mutant, Source, name_of
from tests.verification.mutants.tools import Ran
from tilelink.analysis.events import NOTIFY, WAIT, Events
from tilelink.runtime.trace import CONTROL

AWAITS = ("wait", "entered", "credit", "last_out")
SAME = "it does the same to memory, operation by operation, at the sizes and under the seeds that were tried"
PUBLISHED = (
    "the kernel that publishes does the same to memory in another order or by other workers, without a signal; what "
    "follows on the stream comes after all of it"
)
AWAITED = (
    "it waits for less in the drain of signals each of which a worker of the rank has awaited in full before, so the "
    "drain finds them given"
)
OWN_SIGNALS = "only the rank itself gives the signals that are drained, and its next run comes after this kernel"
UNCHANGED = "the word that is read later changes only when the last worker of the rank leaves, after all have read it"
PUBLISHER = "the kernel that publishes, before this one on the stream, has taken the credit of all ranks already"


def of_kernel(mutant: Mutant, text: str, right: Ran, rans: list[tuple[Ran, Ran]]) -> str:
    """The reason for a mutant of a lowered kernel; `rans`: runs of it, each with that of the kernel as it is."""
    (prepared,) = right.world.lane.prepared.values()
    function, statement = _place(Source(text), mutant)
    calls = {name_of(n) for n in ast.walk(statement)}
    looped = isinstance(statement, ast.For)
    in_drain = function.startswith("drain_")
    if in_drain:
        signals = prepared.program.signals_of(function.removeprefix("drain_"))
        expects = not re.match(r"(signals|cells|cell|here) =|for first", ast.unparse(statement))
        if expects and _all_awaited(prepared.events, signals.tensor):
            return AWAITED
    if mutant.kind == "order" and "leave(" in mutant.what and "drain_" in mutant.what:
        drained = re.findall(r"drain_(\w+)\(", mutant.what)
        if all(prepared.program.signals_of(t).scope == "gpu" for t in drained):
            return OWN_SIGNALS
    if mutant.kind == "order" and "enter(" in mutant.what and "SLOT_LEFT" in mutant.what:
        return UNCHANGED
    if mutant.kind in ("credit", "slot") and prepared.program.published and "publish" not in function:
        return PUBLISHER
    if "publish" in function and not calls & {*AWAITS} and all(_same_publishing(*ran) for ran in rans):
        return PUBLISHED
    if (not in_drain or looped) and (looped or not calls & {*AWAITS}) and all(_done(a) == _done(b) for a, b in rans):
        return SAME
    return ""


def _place(source: Source, mutant: Mutant) -> tuple[str, ast.stmt]:
    """The function and the innermost statement that a mutant is in."""
    function, found = "", source.tree.body[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt):
            begin, end = source.span(node)
            if begin <= mutant.begin and mutant.end <= end:
                found = node
                function = node.name if isinstance(node, ast.FunctionDef) else function
    return function, found


def _done(ran: Ran) -> list[tuple[Any, ...]]:
    """All that each worker did to memory, in order; rounds of a wait that has to be repeated count once."""
    return sorted(_deeds(ran), key=lambda deed: deed[:3])


def _same_publishing(ran: Ran, right: Ran) -> bool:
    """Whether the kernels that publish do the same, each in any order, and those after them the same in order."""

    def split(r: Ran) -> tuple[list[Any], list[Any]]:
        deeds = sorted(_deeds(r), key=lambda d: d[:3])
        publishes = [d for d in deeds if "_publish" in d[1]]
        return sorted((d[:2] + d[3:] for d in publishes), key=str), [d for d in deeds if "_publish" not in d[1]]

    return split(ran) == split(right)


def _deeds(ran: Ran) -> Iterator[tuple[Any, ...]]:
    """Tables that nobody writes are left out: where the heaps and the parts of dimensions begin."""
    polled: dict[tuple[int, str, int], tuple[Any, ...]] = {}
    for o in ran.operations:
        if o.region.kind == "control" and o.region.name != CONTROL:
            continue
        who = o.rank, o.name, o.program
        deed = (*who, o.kind, o.region.name, o.region.rank, o.box, o.semantic, o.scope)
        if o.semantic == "acquire" and polled.get(who) == deed:
            continue
        polled[who] = deed
        yield deed


def _all_awaited(events: Events, tensor: str) -> bool:
    """Whether every signal of a tensor that is given on a rank is awaited there, in full."""
    number = next(k for k, t in enumerate(events.program.tensors) if t.name == tensor)
    mine = events.tensor == number
    given = mine & (events.op == NOTIFY)
    awaited = mine & (events.op == WAIT)
    gives = set(zip(events.home[given].tolist(), events.cell[given].tolist(), strict=True))
    waits = set(zip(events.rank[awaited].tolist(), events.cell[awaited].tolist(), strict=True))
    assert np.all(events.expected[awaited] > 0)
    return gives <= waits


# ---- programs

SAME_TILES = (
    "under every schedule each tile does the same to the same regions between the same waits and notifications, and "
    "the check shows them to be safe: only who does a tile, or when, is another"
)
ANOTHER_SCHEDULE = (
    "it is another schedule of the same program (who executes, in which order), which the check shows to be safe and "
    "whose results have the same bits"
)
PERMUTED = (
    "every rank's part lies in the entry of another rank, and all entries are summed: the check shows it to be safe; "
    "sums differ in their order alone"
)
WAITS_SWAPPED = "of two waits that follow each other the other comes first, which the check shows to be safe"
MORE_TURNS = "entries take turns in more places than they need"
ARGUED = (
    (r"one_shot_all_reduce", r"tk\.rank\(\) -> .* \+ 1\)", PERMUTED),
    (r"reduce_scatter|all_reduce", r"x\[t\]\.at\(t\.source\) -> .* \+ 1\)", PERMUTED),
    (r"ring_attention", r"tk\.claim.* before here = tk\.wait", WAITS_SWAPPED),
    (r"ring_attention", r"2 -> 3", MORE_TURNS),
)
"""By program and change, where the reason is an argument; that the check and the results are right was looked at."""


def of_program(name: str, mutant: Mutant, rans: list[tuple[Ran, Ran]]) -> str:
    """The reason for a mutant of a program that the check calls safe, and whose results are right."""
    if re.fullmatch(r'"\w+"|tk\.\w+', mutant.new):
        return ANOTHER_SCHEDULE
    if all(_tiles(ran) == _tiles(right) for ran, right in rans):
        return SAME_TILES
    return next((why for of, what, why in ARGUED if re.search(of, name) and re.search(what, mutant.what)), "")


def _tiles(ran: Ran) -> list[str]:
    """What the tiles of a run do, whoever does them; accesses between two synchronisations in any order."""
    (prepared,) = ran.world.lane.prepared.values()
    events, made = prepared.events, dict[Any, list[Any]]()
    names = [t.name for t in prepared.program.tensors]
    for k in range(len(events)):
        tile = int(events.role[k]), int(events.rank[k]), int(events.tile[k])
        deed = (int(events.op[k]), names[events.tensor[k]] if events.tensor[k] >= 0 else "", int(events.home[k]),
                events.lo[k].tolist(), events.hi[k].tolist(), int(events.cell[k]), int(events.expected[k]))  # fmt: skip
        stretches = made.setdefault(tile, [[]])
        if events.op[k] in (NOTIFY, WAIT):
            stretches += [[deed], []]
        else:
            stretches[-1].append(deed)
    return sorted(str([sorted(stretch) for stretch in stretches]) for stretches in made.values())


# ---- primitives

OWN_WORDS = "words of the own control block that nobody else reads before the barrier and the release behind them"


def of_primitive(module: str, text: str, mutant: Mutant) -> str:
    """The reason for a mutant of a primitive."""
    function, _ = _place(Source(text), mutant)
    swapped = mutant.what.split(" before ")
    if function == "leave" and mutant.kind == "order" and all(s.startswith("tl.store(control +") for s in swapped):
        return OWN_WORDS
    return ""
