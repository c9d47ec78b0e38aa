"""The rules broken one at a time, and programs that the protocol forbids, each with a lane in which that is seen."""

from __future__ import annotations

from dataclasses import dataclass

from tests.runtime.protocol_model.enumeration import explore
from tests.runtime.protocol_model.kinds import (
    causal,
    decode,
    engine_pull,
    engine_push,
    engine_send,
    gather,
    given,
    in_place,
    late,
    output,
    partials,
    pull,
    relay,
    scatter,
    untold,
)
from tests.runtime.protocol_model.lanes import lane
from tests.runtime.protocol_model.rules import PROTOCOL, Case, Rules


@dataclass(frozen=True)
class Mutant:
    """A broken rule, or a forbidden program, and a lane in which that is seen."""

    name: str
    rules: Rules
    case: Case
    outcome: str

    def row(self) -> str:
        """What was found, as a row of a table."""
        verdict = explore(self.case, self.rules)
        return f"| {self.name} | {self.case} | {verdict.outcome}, {len(verdict.trace)} | {verdict.story()} |"


HOME = Rules(credit="home")

MUTANTS = (
    Mutant("no credit", Rules(credit="nobody"), lane(decode, decode, world=2), "wrong"),
    Mutant("credit of the home alone", HOME, lane(pull, scatter, world=2), "wrong"),
    Mutant("credit of the home alone", HOME, lane(partials, partials, world=2), "wrong"),
    Mutant("credit of the home alone", HOME, lane(relay, relay, world=3), "wrong"),
    Mutant("credit of the home alone", HOME, lane(pull, gather, world=3), "wrong"),
    Mutant(
        "no credit for the own copy",
        Rules(credit="everyone, for a peer's copy"),
        lane(partials, partials, world=2),
        "wrong",
    ),
    Mutant("publish without waiting", Rules(publish_waits=False), lane(pull, pull, world=2), "wrong"),
    Mutant("pull without awaiting entry", Rules(enter_waits=False), lane(pull, world=2), "wrong"),
    Mutant("output without awaiting entry", Rules(enter_waits=False), lane(output, output, world=2), "wrong"),
    Mutant("no hold", Rules(hold=False), lane(in_place, in_place, world=2), "wrong"),
    Mutant("notify before store", Rules(push=("notify", "store")), lane(decode, world=2), "wrong"),
    Mutant(
        "ticket before the work",
        Rules(ticket="before the work"),
        lane(decode, decode, world=2, workers=2),
        "wrong",
    ),
    Mutant("first ticket leaves", Rules(leaver="first"), lane(decode, decode, world=2, workers=2), "wrong"),
    Mutant("no drain", Rules(leave=("zero", "advance", "tell")), lane(causal, gather, world=2), "wrong"),
    Mutant("no zeroing", Rules(leave=("drain", "advance", "tell")), lane(decode, decode, world=2), "wrong"),
    Mutant(
        "tell before draining",
        Rules(leave=("tell", "drain", "zero", "advance")),
        lane(causal, gather, world=2),
        "deadlock",
    ),
    Mutant(
        "tell before zeroing",
        Rules(leave=("drain", "tell", "zero", "advance")),
        lane(decode, decode, world=2),
        "deadlock",
    ),
    Mutant(
        "ticket kept",
        Rules(advance=("slot_left", "run")),
        lane(decode, decode, world=2, workers=2),
        "deadlock",
    ),
    Mutant("slot_left kept", Rules(advance=("ticket", "run")), lane(decode, decode, world=2), "wrong"),
    Mutant("run kept", Rules(advance=("ticket", "slot_left")), lane(pull, pull, world=2), "wrong"),
    Mutant("engine without credit", Rules(fork=("enter", "entries")), lane(engine_push, engine_push, world=2), "wrong"),
    Mutant("engine without entries", Rules(fork=("credit", "enter")), lane(engine_pull, world=2), "wrong"),
    Mutant("engine not joined", Rules(join=False), lane(engine_push, engine_push, world=2), "wrong"),
    Mutant("let go before the kernel is done", Rules(let_go="before the work"), lane(engine_send, world=2), "wrong"),
    Mutant("leave before the engine is done", Rules(leave_waits=False), lane(engine_send, world=2), "deadlock"),
    Mutant("forbidden: the slot read after the run", PROTOCOL, lane(late, late, world=2), "wrong"),
    Mutant("forbidden: a peer gives what an engine waits for", PROTOCOL, lane(given, given, world=2), "wrong"),
    Mutant("forbidden: a store without notification", PROTOCOL, lane(untold, world=2), "wrong"),
)
