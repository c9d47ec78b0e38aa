"""What would be right, where two accesses race: words for the person who reads the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilelink.emulator.races import Party


def remedy(first: Party, second: Party, on_signal: bool) -> str:
    """How two accesses could be ordered, or made atomic to each other. `first` came first in this execution. What
    belongs to an earlier launch of its rank is taken for what was meant to come first, else the write before the read.
    """
    if first.atomic and second.atomic:
        return f'let both be atomics of one width and kind, with scope="{_scope(first, second)}"'
    if on_signal:
        plain = second if first.atomic else first
        return (
            f"a word that ranks signal is touched by atomics alone: let {_who(plain, first, second)} "
            f'{plain.kind} by one, with sem="release" or "acquire" and scope="{_scope(first, second)}"'
        )
    if (first.rank, first.number, first.program) == (second.rank, second.number, second.program):
        sent, other = (first, second) if first.agent else (second, first)
        fence = " (or fence(), where both only write at one peer)" if other.agent else ""
        return f"call quiet() between the {sent.agent} and the {other.agent or other.kind}{fence}"
    if first.number != second.number:
        before, after = (first, second) if first.number < second.number else (second, first)
    elif first.writes != second.writes:
        before, after = (first, second) if first.writes else (second, first)
    else:
        before, after = first, second
    complete = "has called quiet() for" if before.agent else "has done"
    begins = f"starts its {after.agent}" if after.agent else f"does its {after.kind}"
    text = (
        f'let {_who(before, before, after)} release a signal (sem="release", scope="{_scope(first, second)}") once it '
        f"{complete} its {before.agent or before.kind}, and {_who(after, before, after)} wait for it "
        f'(sem="acquire", same scope) before it {begins}'
    )
    if after.writes and before.number != after.number:
        text += "; a second buffer alone may only put this off by a call"
    if before.rank == after.rank and before.number != after.number:
        text += "; or put both launches on one stream"
    return text


def _scope(first: Party, second: Party) -> str:
    """The scope that reaches from one to the other."""
    return "gpu" if first.rank == second.rank else "sys"


def _who(party: Party, first: Party, second: Party) -> str:
    """A party by what tells it from the other."""
    if first.rank != second.rank:
        return f"rank {party.rank}"
    if first.number != second.number:
        return party.launch
    return f"program {party.program}"
