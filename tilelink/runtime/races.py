"""Names for the sides of a data race: the role, the tile and the line of the tile function that did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.emulator.races import Party, Race
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.trace import SIGNALS, global_box

SHOWN = 4


def with_tiles(races: Sequence[Race], launched: Mapping[tuple[int, str], Prepared]) -> list[Race]:
    """The races, with the tiles of both sides. `launched`: by rank, and what messages call the launch."""

    def named(party: Party) -> Party:
        prepared = launched.get((party.rank, party.launch))
        main = prepared is not None and party.launch.startswith(f"{prepared.lowered.main.name} run ")
        return _named(party, prepared.events) if prepared is not None and main else party

    return [replace(race, first=named(race.first), second=named(race.second)) for race in races]


def _named(party: Party, events: Events) -> Party:
    """A party with the tiles of its worker that touch these elements so; between two runs, none does."""
    mine = events.of_worker(party.rank, party.program)
    mine = mine[_touches(party, events, mine)]
    found: dict[tuple[int, int], list[int]] = {}
    for k in map(int, mine):
        tiles = found.setdefault((int(events.role[k]), int(events.site[k])), [])
        if events.tile[k] not in tiles:
            tiles.append(int(events.tile[k]))
    tile = " or ".join(
        f"role {events.program.roles[role].name}, {_numbers(tiles)} ({events.sites[site]}: {events.sites[site].text})"
        for (role, site), tiles in found.items()
    )
    return replace(party, tile=tile, sites=tuple(dict.fromkeys(events.sites[site] for _, site in found)))


def _touches(party: Party, events: Events, mine: np.ndarray) -> np.ndarray:
    """Which of these events access the elements of a party as it does: none where its region is no tensor, such as the
    times of a run."""
    name = party.region.removeprefix(SIGNALS)
    tensor = next((k for k, t in enumerate(events.program.tensors) if t.name == name), None)
    if tensor is None:
        return np.zeros(len(mine), bool)
    same = events.tensor[mine] == tensor
    if party.region.startswith(SIGNALS):
        low, high = party.box[0]
        given = (events.op[mine] == NOTIFY) & (events.home[mine] == party.region_rank)
        awaited = (events.op[mine] == WAIT) & (events.rank[mine] == party.region_rank)
        return same & (given | awaited) & (events.cell[mine] >= low) & (events.cell[mine] < high)
    op = READ if party.kind.endswith("load") else WRITE
    same &= (events.op[mine] == op) & (events.home[mine] == party.region_rank)
    for d, (low, high) in enumerate(global_box(events, party.region, party.region_rank, party.box)):
        same &= (events.lo[mine, d] < high) & (events.hi[mine, d] > low)
    return same


def _numbers(tiles: list[int]) -> str:
    more = f" and {len(tiles) - SHOWN} more" if len(tiles) > SHOWN else ""
    return ("tile " if len(tiles) == 1 else "one of tiles ") + ", ".join(map(str, tiles[:SHOWN])) + more
