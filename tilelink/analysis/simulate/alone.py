"""Parts of a run, alone: what its products, its transfers and a library's collective take, and what bounds it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.analysis.machine import MESH, Machine
from tilelink.analysis.simulate.costs import GB_S, TFLOP_S, Costs, dtype_of
from tilelink.analysis.simulate.engine import run
from tilelink.analysis.simulate.steps import Steps
from tilelink.analysis.simulate.wires import way


def talks(steps: Steps) -> bool:
    """Whether ranks have to do with each other."""
    return bool(len(steps.size)) or bool(steps.far.any())


def compute(steps: Steps, costs: Costs, machine: Machine) -> float:
    """The tiles that multiply, dealt out to all SMs in order, as if everything they wait for were there."""
    multiplies = np.zeros(len(steps.tile_rank), bool)
    multiplies[steps.tile[steps.operations > 0]] = True
    size, slowest = len(steps.tile_rank), 0.0
    took = np.bincount(steps.tile, weights=costs.alone, minlength=size)
    moved = np.bincount(steps.tile, weights=costs.memory, minlength=size) / (machine.memory_rate * GB_S)
    for rank in np.unique(steps.tile_rank[multiplies]):
        mine = np.flatnonzero(multiplies & (steps.tile_rank == rank))
        order = np.lexsort((steps.tile_number[mine], steps.tile_role[mine]))
        tiles = np.zeros(-(-len(mine) // machine.sms) * machine.sms)
        tiles[: len(mine)] = took[mine[order]]
        by_sm = tiles.reshape(-1, machine.sms).sum(axis=0)
        slowest = max(slowest, float(by_sm.max()), float(moved[mine].sum()))
    return slowest


def comm(steps: Steps, costs: Costs, machine: Machine) -> float:
    """All transfers, by the workers that make them, as if nothing were waited for or computed."""
    moving = np.zeros(len(steps), bool)
    moving[steps.transfer_step] = True
    nothing = np.zeros(int(moving.sum()))
    bare = replace(costs, alone=nothing, memory=nothing)
    together = run(steps.only(moving), bare, machine, np.zeros(steps.events.sizes.world))
    return float(together.transfer_stop.max(initial=0.0))


def collective(steps: Steps, machine: Machine, times: int = 1) -> float:
    """A collective of the library that moves `times` as many bytes, with its launch."""
    if not talks(steps):
        return 0.0
    return machine.launch_us + machine.collective_us + times * most_moved(steps) / (machine.collective * GB_S)


def workers_least(steps: Steps, costs: Costs, machine: Machine) -> float:
    """What the busiest workers take for their own work and transfers, spread evenly over the workers of a role: no run
    of these steps is faster."""
    busy = costs.alone.copy()
    own = np.bincount(steps.transfer_step, weights=way(steps, costs, machine).own, minlength=len(steps))
    np.maximum(busy, own, out=busy)
    roles = steps.events.program.roles
    workers = np.array([steps.events.allotment[r.name].workers for r in roles], float)
    tile = steps.tile
    place = steps.tile_rank[tile] * len(roles) + steps.tile_role[tile]
    whole = np.bincount(place, weights=busy, minlength=steps.events.sizes.world * len(roles))
    return float((whole.reshape(-1, len(roles)) / workers).max(initial=0.0))


def bounds(steps: Steps, machine: Machine) -> dict[str, float]:
    """What no schedule can be faster than, by what sets it: operations at the rate of all SMs, bytes between ranks at
    the fastest agent's, and all that is written."""
    world = steps.events.sizes.world
    ranks = steps.tile_rank[steps.tile]
    operations = np.bincount(ranks, weights=steps.operations, minlength=world).max(initial=0.0)
    written = np.bincount(ranks, weights=steps.written, minlength=world).max(initial=0.0)
    return {
        "the products": float(operations / (machine.matmul_rate(dtype_of(steps.events.program)) * TFLOP_S)),
        "the bytes between ranks": float(most_moved(steps) / (usable(machine, world) * GB_S)),
        "the writes to device memory": float(written / (machine.memory_rate * GB_S)),
    }


def usable(machine: Machine, world: int) -> float:
    """GB/s that leave a rank at most, or reach it: the saturation of the fastest agent, on all links of the rank."""
    fastest = max(a.saturation for n, a in machine.agents.items() if n != "nic")
    return fastest * (max(1, world - 1) if machine.links == MESH else 1)


def most_moved(steps: Steps) -> float:
    """Bytes that leave or reach the rank that most leave or reach."""
    return float(max(np.bincount(r, weights=steps.size).max(initial=0.0) for r in (steps.source, steps.target)))
