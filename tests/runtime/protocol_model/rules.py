"""The rules of the protocol, the numbers by which ranks speak of runs, and what is enumerated under them: a lane."""

from __future__ import annotations

from dataclasses import dataclass

from tests.runtime.protocol_model.kinds import Kind


def entered(run: int) -> int:
    """What a rank's progress says once it has entered a run."""
    return 2 * run + 1


def left(run: int) -> int:
    """What a rank's progress says once it has left a run."""
    return 2 * run + 2


def payload(run: int) -> int:
    """What a store of a run writes; never what memory holds at first."""
    return run + 1


@dataclass(frozen=True)
class Rules:
    """The protocol. Each field is a rule that can be broken alone."""

    # Who must have left the slot's previous run before a store or notification there: "everyone"? Or fewer:
    # "everyone, for a peer's copy"; "everyone, for what peers read" and else the home; "home"; "nobody".
    credit: str = "everyone"
    # Does a publication in the slot wait until every peer has left the slot's previous run?
    publish_waits: bool = True
    # Is what a peer published, or its user owns, touched only after that peer has entered the run?
    enter_waits: bool = True
    # Does the stream wait, after a run that read the user's input in place, until every peer has left it?
    hold: bool = True
    push: tuple[str, ...] = ("store", "notify")
    # What comes, on the stream, before a copy engine begins?
    fork: tuple[str, ...] = ("credit", "enter", "entries")
    # Does what comes next on the stream come after the engine's copies?
    join: bool = True
    # Does a rank whose engine waits for tiles leave only when the copies are done?
    leave_waits: bool = True
    # Are the cells that it waits for let go "after the work" of the kernel, or "before the work"?
    let_go: str = "after the work"
    # Does a worker draw its ticket "after the work", or "before the work"?
    ticket: str = "after the work"
    # Which ticket's worker leaves for its rank, the "last" or the "first"?
    leaver: str = "last"
    leave: tuple[str, ...] = ("drain", "zero", "advance", "tell")
    # What advances; in one step, since no other worker of the rank is there to see it.
    advance: tuple[str, ...] = ("ticket", "slot_left", "run")


PROTOCOL = Rules()


@dataclass(frozen=True)
class Case:
    """A lane: the runs that every rank launches in this order, each with the slot that the host picked."""

    world: int
    runs: tuple[tuple[Kind, int], ...]
    workers: int = 1

    def __str__(self) -> str:
        kinds = ", ".join(kind.__name__ for kind, _ in self.runs)
        return f"{kinds}; {self.world} ranks" + (" of 2 workers" if self.workers == 2 else "")
