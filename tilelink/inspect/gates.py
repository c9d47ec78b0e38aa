"""Gates compare a compiled kernel with its tile program and the run protocol. No GPU is needed.

Signals are counted in TTGIR, by the calls in the generated source that they come from. LLVM unrolls loops and doubles
assembly, and Triton's pipeliner doubles loads and dots, but a call stays one call. Machine code must have each kind at
least as often as TTGIR. Matrix instructions are counted in the machine code, with the pipeliner's copies of a dot
divided out. They are also weighed: they must multiply as often as the program's dots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import sympy
from sympy.logic.boolalg import BooleanAtom

from tilelink.backend.bulk import bulk_writes, fenced, reads_peers, unsettled
from tilelink.backend.cache import store
from tilelink.backend.gluon.takes import has_main_loop, keeps_rows
from tilelink.backend.lower import Lowered
from tilelink.backend.parameters import WAIT_ALL, WAIT_SOME
from tilelink.backend.pipelining import enters
from tilelink.backend.waits import all_at_once, in_pieces
from tilelink.frontend import ir
from tilelink.frontend.expressions import Expr, symbol
from tilelink.frontend.ir import Copy, Notify, Role, TileProgram, View, Wait, Write, walk
from tilelink.frontend.workload import members
from tilelink.inspect.compile import Compiled
from tilelink.inspect.gates_code import dotting, findings_in_code, matrix
from tilelink.inspect.gates_ttgir import Read
from tilelink.inspect.gates_warps import handed_wrongly
from tilelink.inspect.ttgir import Kernel

DOES = {
    "wait": ("acquire", "poll"),
    WAIT_ALL: ("acquire", "poll", "barrier"),
    WAIT_SOME: ("acquire", "poll", "barrier"),
    "notify": ("barrier", "release"),
    "enter": ("release",),
    "entered": ("acquire", "poll"),
    "credit": ("acquire", "poll", "barrier"),
    "last_out": ("barrier", "acquire", "release"),
    "drain": ("acquire", "poll", "barrier"),
    "leave": ("barrier", "release"),
    "settle": ("complete", "barrier"),
    "hand_over": ("barrier",),
    "finished": ("barrier",),
}
"""The kinds of operations that each primitive consists of. (A wait also has a proxy fence if descriptors load what it
guards, and a notification first completes stores in bulk.)"""

KINDS = ("acquire", "poll", "release", "barrier", "fence", "bulk", "complete", "guarded", "mma")


@dataclass(frozen=True)
class Verdict:
    """The result of the gates for the kernels of a program. `findings`: the faults in words, none if all is well."""

    expected: dict[str, int]
    found: dict[str, int]
    findings: tuple[str, ...]
    registers: int
    spill_bytes: int
    shared_bytes: int


def judge(lowered: Lowered, kernels: tuple[Compiled, ...]) -> Verdict:
    """Compares compiled kernels with the program that they were lowered from."""
    program, target = lowered.program, lowered.target
    file = str(store(lowered.source, program.name))
    tables = "" if lowered.tables is None else lowered.tables.name  # a kernel that synchronises with nobody
    read = [(k, Read(Kernel(k.ttgir), file, target)) for k in kernels if k.name != tables]
    signals = sum((r.signals() for _, r in read), Counter[tuple[str, str]]())
    run = _without_dead_code(lowered, dict(kernels[0].constants))
    wanted, work, count = _signals(lowered, run), _work(run), Counter[str]()
    for (kind, _), n in signals.items():
        count[kind] += n
    instructions, done = 0, 0
    for k, r in read:
        more, weight = matrix(r, k.code, lowered)
        instructions, done = instructions + more, done + weight
    found = {**{k: count[k] for k in KINDS}, "guarded": sum(r.guarded() for _, r in read), "mma": instructions}
    expected = {k: sum(n for (kind, _), n in wanted.items() if kind == k) for k in KINDS}
    expected["guarded"] = sum(1 for _ in guarded_reads(run))
    expected["mma"] = round(instructions * work / done) if done else work and 1
    findings = [f"{k}: the program says {expected[k]}, found {found[k]}" for k in KINDS if expected[k] != found[k]]
    guards, guarding = guarding_words(run.program), sum(r.guarding() for _, r in read)
    if found["guarded"] == expected["guarded"] and guards != guarding:
        findings.append(f"guarded: the program says {guards} acquired words, found {guarding}")
    if not findings and signals != wanted:
        findings.append(f"scopes: the program says {_spelled(wanted)}, found {_spelled(signals)}")
    for k, r in read:
        found_in = (*r.findings(), *handed_wrongly(r.kernel), *findings_in_code(k, r, lowered))
        findings += [f"{k.name}: {f}" for f in found_in]
    return Verdict(
        expected, found, tuple(findings),
        max(k.registers for k in kernels), max(k.spill_bytes for k in kernels), max(k.shared_bytes for k in kernels),
    )  # fmt: skip


# ---- what the program says ---------------------------------------------------------------------------------------


def expectations(lowered: Lowered) -> tuple[object, ...]:
    """Everything that `judge` derives from the program alone."""
    guarded = sum(1 for _ in guarded_reads(lowered)), guarding_words(lowered.program)
    return sorted(_signals(lowered, lowered).items()), _work(lowered), guarded


def _calls(lowered: Lowered) -> Counter[tuple[str, str]]:
    """How often the kernels of a program have to call each primitive, and with what scope."""
    program = lowered.program
    made = Counter({("enter", "sys"): 1, ("leave", "sys"): 1})
    made["last_out", "gpu"] += not program.awaited_by_engines  # else another kernel leaves
    made["credit", "sys"] += len(program.published)
    for signals in program.signals:
        made["drain", signals.scope] += 1
    if program.on_engine:
        made["credit", "sys"] += 1
        sources = {s.source for r in program.on_engine for s in walk(r.body) if isinstance(s, Copy)}
        made["entered", "sys"] += any(v.remote and v.tensor in program.published for v in sources)
    for role in program.in_kernel:
        made["entered", "sys"] += len(_homes_entered(program, role))
        made["settle", ""] += _settled(role, lowered)
        pieces = in_pieces(role, program, lowered.facts, lowered.target)
        for s in walk(role.body):
            if isinstance(s, Wait | Notify):
                late = isinstance(s, Notify) and s.late  # it is called in a tile, and behind the last one
                for view in s.views:
                    signals = program.signals_of(view.tensor)
                    wide = isinstance(s, Wait) and all_at_once(signals, view, lowered.target, lowered.facts)
                    name = WAIT_ALL if wide else type(s).__name__.lower()
                    made[WAIT_SOME if pieces and s in pieces.body else name, signals.scope] += 1 + late
    return made


def _filling(program: TileProgram) -> list[list[Role]]:
    """The roles that write to the slot. They need the credit of all ranks, once for all roles that take turns."""
    heap = {t.name for t in program.on_heap}

    def fills(role: Role) -> bool:
        return any(isinstance(s, Notify) or (isinstance(s, Write) and s.target.tensor in heap) for s in walk(role.body))

    of_turns = ([role for role in turns if fills(role)] for turns in members(program.in_kernel))
    return [roles for roles in of_turns if roles]


def _settled(role: Role, lowered: Lowered) -> int:
    """How often a role waits until the copy engine's stores for it are complete, apart from its notifications."""
    found = unsettled(role, lowered.program, lowered.facts)
    if lowered.target.specialised and has_main_loop(role):
        return int(bool(found.waits) or found.behind)
    return sum(isinstance(s, Wait) and s.name in found.waits for s in walk(role.body)) + found.behind


def guarded_reads(lowered: Lowered) -> Iterator[View]:
    """The reads that need an acquired word first: of a wait, of a peer's entry, or of a wait for pieces that covers
    their step. Reads of rows that warps keep behind a product need none: other warps have acquired it
    (`gates_warps.py`)."""
    program = lowered.program
    for role in program.in_kernel:
        pieces = in_pieces(role, program, lowered.facts, lowered.target)
        stepped = {id(s) for s in walk(pieces.body)} if pieces else set()
        behind = lowered.target.specialised and has_main_loop(role)
        for s in walk(tuple(s for s in role.body if not (behind and keeps_rows(s, program)))):
            for view in s.read:
                if view.guard or (view.tensor in program.published and view.remote) or id(s) in stepped:
                    yield view


def guarding_words(program: TileProgram) -> int:
    """The number of acquired words that guard a read: the signals of its wait, or the entry of its peer."""
    made = 0
    for role in program.in_kernel:
        guards = {view.guard for view in _reads(role)}
        made += sum(len(s.views) for s in walk(role.body) if isinstance(s, Wait) and s.name in guards)
        made += len(_homes_entered(program, role))
    return made


def _signals(lowered: Lowered, run: Lowered) -> Counter[tuple[str, str]]:
    """How often the kernels have to do each kind of operation, and in what scope ("" for barriers). `run`: without dead
    code."""
    made: Counter[tuple[str, str]] = Counter()
    called, filling = _calls(run), _filling(lowered.program)
    called["credit", "sys"] += len(filling)
    if lowered.target.specialised:
        multiplying = [r for r in lowered.program.in_kernel if has_main_loop(r)]
        if lowered.target.sum_columns:
            called["finished", ""] += len(multiplying)
        else:
            tells = (r.notified or bulk_writes(r, lowered.program, lowered.facts) for r in multiplying)
            called["hand_over", ""] += sum(map(bool, tells))
    for (primitive, scope), n in called.items():
        for kind in DOES[primitive]:
            made[kind, scope if kind in ("acquire", "release") else ""] += n
    made["fence", ""] = _fences(run)
    made["fence", ""] += sum(any(bulk_writes(r, lowered.program, lowered.facts) for r in roles) for roles in filling)
    for role in run.program.in_kernel:
        if stored := len(bulk_writes(role, run.program, run.facts)):
            made["bulk", ""] += stored
            made["complete", ""] += sum(_given(s) for s in walk(role.body) if isinstance(s, Notify))
    return +made


def _given(s: Notify) -> int:
    """How often a kernel contains a notification: a late one in a tile, and again behind the last tile."""
    return len(s.views) * (1 + s.late)


def _fences(lowered: Lowered) -> int:
    """The number of waits in tiles that need a proxy fence, because the copy engine for tiles reads what they guard, or
    stores over it."""
    program, facts, made = lowered.program, lowered.facts, 0
    for role in program.in_kernel:
        guards = fenced(role, program, facts)
        made += sum(len(s.views) for s in walk(role.body) if isinstance(s, Wait) and s.name in guards)
        made += len(_homes_entered(program, role)) if reads_peers(role, program, facts) else 0
    return made


def _reads(role: Role) -> Iterator[View]:
    return (view for s in walk(role.body) for view in s.read)


def _without_dead_code(lowered: Lowered, constants: Mapping[str, int]) -> Lowered:
    """The lowered program without the loops and branches that no run enters. Triton leaves them out if constants show
    that, such as a loop over the other ranks of a world of 1."""
    known = {symbol(key): sympy.Integer(n) for key, n in constants.items()}

    def change(s: ir.Statement) -> ir.Body:
        match s:
            case ir.For() if (s.stop - s.start).xreplace(known).is_nonpositive:
                return ()
            case ir.If() if isinstance(entered := s.condition.xreplace(known), BooleanAtom):
                return s.body if entered else s.orelse
        return (s,)

    roles = tuple(replace(r, body=ir.rewritten(r.body, change)) for r in lowered.program.roles)
    return replace(lowered, program=replace(lowered.program, roles=roles))


def _homes_entered(program: TileProgram, role: Role) -> list[Expr | str | None]:
    """The peers whose entry a tile of a role awaits: each once, or once a read if it changes inside the tile."""
    views = [v for v in _reads(role) if v.tensor in program.published and v.remote]
    changing = [v.home for v in views if enters(v, role, program)]
    return [*dict.fromkeys(v.home for v in views if not enters(v, role, program)), *changing]


def _work(lowered: Lowered) -> int:
    """The number of multiplications in one tile of each role, one step of each loop, by dots that the target has matrix
    instructions for."""
    return sum(prod(shape) for code in dotting(lowered) for shape in code.dots)


def _spelled(signals: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{n} {kind}{f'.{scope}' if scope else ''}" for (kind, scope), n in sorted(signals.items()))
