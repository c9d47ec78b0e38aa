"""What the events of roles on the copy engine have to be: each tile on a stream, each signal given once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilelink.analysis.events import NOTIFY, READ, WRITE, Events
from tilelink.errors import ScheduleError, Site
from tilelink.frontend.ir import Signals, TileProgram
from tilelink.frontend.sizes import Allotment


def put_on_streams(
    columns: Mapping[str, np.ndarray], program: TileProgram, allotment: Mapping[str, Allotment], sites: Sequence[Site]
) -> None:
    """Fills in the workers of a role on the copy engine: the stream of the one peer between whose memory and its own a
    rank's tile copies; or, where all is on one stream, that of the rank itself. Raises ScheduleError where a tile has
    two peers."""
    on_engine = [k for k, r in enumerate(program.roles) if r in program.on_engine]
    mine = np.flatnonzero(np.isin(columns["role"], on_engine))
    if not len(mine):
        return
    rank, home, op = (columns[c][mine].astype(np.int64) for c in ("rank", "home", "op"))
    keys = np.stack([rank, columns["role"][mine], columns["tile"][mine]], axis=1)
    _, tile = np.unique(keys, axis=0, return_inverse=True)
    tile = tile.reshape(-1)
    away = ((op == READ) | (op == WRITE)) & (home != rank)
    peers = np.zeros(tile.max() + 1, np.int64)
    peers[tile] = rank
    peers[tile[away]] = home[away]
    peer = peers[tile]
    other = np.flatnonzero(away & (home != peer))
    if len(other):
        k = mine[other[0]]
        raise ScheduleError(
            f"tile {columns['tile'][k]} of {program.roles[columns['role'][k]].name} on rank {columns['rank'][k]} "
            f"copies between its rank and two others, {columns['home'][k]} and {peer[other[0]]}: a tile on the copy "
            "engine has one peer. Give its space a rank axis for them",
            sites[columns["site"][k]],
        )
    first = np.array([allotment[r.name].first for r in program.roles])
    one = np.array([getattr(r.resource, "streams", "") == "one" for r in program.roles])
    role = columns["role"][mine]
    columns["worker"][mine] = first[role] + np.where(one[role], rank, peer)


def check_signals(events: Events) -> None:
    """Raises ScheduleError where an engine gives a signal that is given more than once: it can only write a 1."""
    program = events.program
    given = np.flatnonzero(events.op == NOTIFY)
    keys = np.stack([events.tensor[given], events.home[given], events.cell[given]], axis=1)
    _, signal, times = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    signal = signal.reshape(-1)
    written = events.worker[given] >= events.kernel_workers
    wrong = np.flatnonzero(written & (times[signal] > 1))
    if not len(wrong):
        return
    k, same = int(given[wrong[0]]), given[signal == signal[wrong[0]]]
    tensor, role = program.tensors[events.tensor[k]].name, program.roles[events.role[k]].name
    givers = sorted({program.roles[r].name for r in events.role[same]} - {role})
    by = f" (by {', '.join(givers)}, too)" if givers else ""
    raise ScheduleError(
        f"signal {events.cell[k]} of {tensor} on rank {events.home[k]} is given {len(same)} times in a run{by}, and a "
        f"copy engine writes 1, it does not count. A cell is {_cell(program.signals_of(tensor))}: let one tile of "
        f"{role} cover it",
        events.sites[events.site[k]],
    )


def _cell(signals: Signals) -> str:
    """The size of a cell, for a person."""
    whole = {True: "a whole part", False: "the whole"}
    return " x ".join(f"{c.size or whole[c.cut]} along {c.dim}" for c in signals.grid)
