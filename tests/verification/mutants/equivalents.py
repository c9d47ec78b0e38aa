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
from tilelink.analysis.events import NOTIFY, READ, WAIT, Events
from tilelink.backend.targets import portable
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.trace import CONTROL

LAST, TICKET = -1, portable.TICKET.value
AWAITS = ("wait", "entered", "credit", "last_out")
SAME = "it makes the same memory operations in the same order, at the sizes and under the seeds that were tried"
PUBLISHED = (
    "the publishing kernel makes the same accesses in another order or by other workers, without a signal; everything "
    "later on the stream follows all of them"
)
AWAITED = (
    "its drain waits for less, or with less scope, but workers of the rank have already awaited these signals in full, "
    "so the drain finds them complete"
)
OWN_SIGNALS = "only the rank itself gives the drained signals, and its next run follows this kernel"
DRAINS_SWAPPED = (
    "the last worker of the rank drains the signals of two tensors in the other order; no notification waits for a "
    "drain of its run, so both drains end in either order"
)
ONE_CELL = "the drained tensor has one cell at all sizes of this kernel, and the mask of its first cell is all of it"
UNCHANGED = (
    "the word that is read later changes only when the last worker of the rank leaves, after all workers have read it"
)
ROTATED = "the same value goes to all ranks in another order, and no rank is told before all stores are done"
ENTERED = "a credit is about the run before, and entering announces this run: neither waits for the other"
UNUSED = "nothing uses the loaded words, and they exist"
PUBLISHER = "the publishing kernel, earlier on the stream, has already taken the credit of all ranks"


def of_kernel(mutant: Mutant, text: str, right: Ran, rans: list[tuple[Ran, Ran]]) -> str:
    """The reason for a mutant of a lowered kernel; `rans`: runs of it, each with that of the kernel as it is."""
    prepared = _counted(right)
    source = Source(text)
    function, statement = place(source, mutant)
    calls = {name_of(n) for n in ast.walk(statement)}
    looped = isinstance(statement, ast.For)
    in_drain = function.startswith("drain_")
    if in_drain and of_wait(source, statement, mutant):
        signals = prepared.program.signals_of(function.removeprefix("drain_"))
        if _all_awaited(prepared.events, signals.tensor):
            return AWAITED
    if in_drain and mutant.what == "here -> here & (cell < 1)" and _has_one_cell(source, function):
        return ONE_CELL
    if mutant.kind == "order" and "leave(" in mutant.what and "drain_" in mutant.what:
        drained = re.findall(r"drain_(\w+)\(", mutant.what)
        if all(_given_at_home(prepared.events, t) for t in drained):
            return OWN_SIGNALS
    if mutant.kind == "order" and re.match(r"drain_\w+\(.*\) before drain_\w+\(", mutant.what):
        return DRAINS_SWAPPED
    if mutant.kind == "order" and re.match(r"(enter|credit)\(.*\) before (enter|credit)\(", mutant.what):
        return ENTERED
    read_later = re.search(r"(enter|credit)\(.* before \w+ = tl\.load\(control \+ (RUN|SLOT_LEFT)", mutant.what)
    if mutant.kind == "order" and read_later:
        return UNCHANGED
    if isinstance(statement, ast.Assign) and calls <= {"", "load"} and not _used(text, function, statement):
        return UNUSED
    if mutant.kind in ("credit", "slot") and prepared.program.published and "publish" not in function:
        return PUBLISHER
    if mutant.what == "other -> (other + 1) % world" and _stores_to_all(source, statement):
        return ROTATED
    if "publish" in function and not calls & {*AWAITS} and all(_same_publishing(*ran) for ran in rans):
        return PUBLISHED
    if mutant.kind == "token":  # they are for compilers, which no execution here has
        return ""
    if (not in_drain or looped) and (looped or not calls & {*AWAITS}) and all(_done(a) == _done(b) for a, b in rans):
        return SAME
    return ""


def place(source: Source, mutant: Mutant) -> tuple[str, ast.stmt]:
    """The function and the innermost statement that a mutant is in."""
    function, found = "", source.tree.body[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt):
            begin, end = source.span(node)
            if begin <= mutant.begin and mutant.end <= end:
                found = node
                function = node.name if isinstance(node, ast.FunctionDef) else function
    return function, found


def _used(text: str, function: str, statement: ast.Assign) -> bool:
    """Whether a function reads a name that a statement of it assigns."""
    of = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == function)
    made = {ast.unparse(target) for target in statement.targets}
    return any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in made for n in ast.walk(of))


def of_wait(source: Source, statement: ast.stmt, mutant: Mutant) -> bool:
    """Whether a mutant changes no more of a drain than how often signals have to be given, and in which scope: not
    which they are, and not which are zeroed."""
    if isinstance(statement, ast.Assign):
        return not re.match(r"(signals|cells|cell|here) =", ast.unparse(statement))
    if isinstance(statement, ast.Expr) and name_of(statement.value) == "drain":
        assert isinstance(statement.value, ast.Call)
        spans = (source.span(statement.value.args[k]) for k in (2, 4))
        return any(begin <= mutant.begin and mutant.end <= end for begin, end in spans)
    return False


def _has_one_cell(source: Source, function: str) -> bool:
    """Whether a drain is of one cell, whatever the sizes are."""
    of = next(n for n in source.tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return "cells = 1" in map(ast.unparse, of.body)


def _done(ran: Ran) -> list[tuple[Any, ...]]:
    """All that each worker did to memory, in order; rounds of a wait that has to be repeated count once. Which worker
    is the last out of a run is a matter of the schedule."""
    return sorted(_deeds(ran), key=lambda deed: deed[:3])


def _same_publishing(ran: Ran, right: Ran) -> bool:
    """Whether the kernels that publish do the same, each in any order, and those after them the same in order."""

    def split(r: Ran) -> tuple[list[Any], list[Any]]:
        deeds = sorted(_deeds(r), key=lambda d: d[:3])
        publishes = [d for d in deeds if "_publish" in d[1]]
        return sorted((d[:2] + d[3:] for d in publishes), key=str), [d for d in deeds if "_publish" not in d[1]]

    return split(ran) == split(right)


def _deeds(ran: Ran) -> Iterator[tuple[Any, ...]]:
    """Tables that nobody writes are left out: where the heaps and the parts of dimensions begin. What a worker does
    once it has drawn its ticket is done by the `LAST` one of the run."""
    polled: dict[tuple[int, str, int], tuple[Any, ...]] = {}
    out: set[tuple[int, str, int]] = set()
    for o in ran.operations:
        if o.region.kind == "control" and o.region.name != CONTROL:
            continue
        me = o.rank, o.name, o.program
        who = (o.rank, o.name, LAST) if me in out else me
        deed = (*who, o.kind, o.region.name, o.region.rank, o.box, o.semantic, o.scope)
        if o.region.name == CONTROL and o.kind == "atomic_add" and o.box[0][0] == TICKET:
            out.add(me)
        if o.semantic == "acquire" and polled.get(who) == deed:
            continue
        polled[who] = deed
        yield deed


def _stores_to_all(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement is all of a loop over the ranks, and a store."""
    loops = (n for n in ast.walk(source.tree) if isinstance(n, ast.For) and n.body == [statement])
    over = [ast.unparse(n.iter) for n in loops]
    return over == ["range(world)"] and isinstance(statement, ast.Expr) and name_of(statement.value) == "store"


def _given_at_home(events: Events, tensor: str) -> bool:
    """Whether all signals of a tensor are given by the rank that they lie on."""
    number = next(k for k, t in enumerate(events.program.tensors) if t.name == tensor)
    given = (events.tensor == number) & (events.op == NOTIFY)
    return bool(np.all(events.rank[given] == events.home[given]))


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
    "the check shows them to be safe; only its worker or its time differs"
)
ANOTHER_SCHEDULE = (
    "it is another schedule of the same program (other workers or another order); the check shows it to be safe, and "
    "its results have the same bits"
)
DEALT_ANEW = (
    "the tiles of each role together make the same reads, writes, waits and notifications, which the check shows to be "
    "safe, and integer results have the same bits; only the tile, the time and at most the order of sums differ"
)
MORE_TURNS = "entries take turns in more places than necessary"
ARGUED = ((r"ring_attention", r"2 -> 3", MORE_TURNS),)
"""By program and change, where the reason is an argument; that the check and the results are right was looked at."""


def of_program(name: str, mutant: Mutant, rans: list[tuple[Ran, Ran]]) -> str:
    """The reason for a mutant of a program that the check calls safe, and whose results are right."""
    if re.fullmatch(r'"\w+"|tk\.\w+', mutant.new):
        return ANOTHER_SCHEDULE
    if all(_tiles(ran) == _tiles(right) for ran, right in rans):
        return SAME_TILES
    if all(_dealt(ran) == _dealt(right) for ran, right in rans):
        return DEALT_ANEW
    return next((why for of, what, why in ARGUED if re.search(of, name) and re.search(what, mutant.what)), "")


def _tiles(ran: Ran) -> list[str]:
    """What the tiles of a run do, whoever does them; accesses between two synchronisations in any order, and what is
    read of inputs of the rank, which nobody writes, at any time."""
    made: dict[Any, list[Any]] = {}
    for tile, deed, given in _events(ran):
        stretches = made.setdefault(tile, [[], []])
        if deed[0] in (NOTIFY, WAIT):
            stretches += [[deed], []]
        else:
            stretches[0 if given else -1].append(deed)
    return sorted(str([sorted(stretch) for stretch in stretches]) for stretches in made.values())


def _dealt(ran: Ran) -> list[Any]:
    """What the tiles of a role do, all together."""
    return sorted((tile[0], deed) for tile, deed, _ in _events(ran))


def _counted(ran: Ran) -> Prepared:
    """What was prepared for a run, where it is known how many rows of each route went where."""
    (prepared,) = ran.world.lane.prepared.values()
    recent = ran.world.groups[0].recent
    return recent[max(recent)].counted if prepared.program.routes else prepared


def _events(ran: Ran) -> Iterator[tuple[tuple[int, int, int], tuple[Any, ...], bool]]:
    """The events of a run: by which tile (its role first), what, and whether it reads an input of its own rank."""
    prepared = _counted(ran)
    events, tensors = prepared.events, prepared.program.tensors
    for k in range(len(events)):
        tile = int(events.role[k]), int(events.rank[k]), int(events.tile[k])
        of = tensors[events.tensor[k]] if events.tensor[k] >= 0 else None
        deed = (int(events.op[k]), of.name if of else "", int(events.home[k]),
                events.lo[k].tolist(), events.hi[k].tolist(), int(events.cell[k]), int(events.expected[k]))  # fmt: skip
        given = of is not None and of.kind == "input" and deed[0] == READ and deed[2] == tile[1]
        yield tile, deed, given


# ---- primitives

SAME_PTX = "the PTX is the same"
OWN_WORDS = "nobody else reads these words of the rank's control block before the next barrier and release"


def of_primitive(module: str, text: str, mutant: Mutant) -> str:
    """The reason for a mutant of a primitive."""
    function, _ = place(Source(text), mutant)
    swapped = mutant.what.split(" before ")
    if function == "leave" and mutant.kind == "order" and all(s.startswith("tl.store(control +") for s in swapped):
        return OWN_WORDS
    return ""
