"""Costs on an idle machine: times of steps, of transfers (by which agent, on which way) and of parts of a run; and
bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilelink.analysis.events import READ, Events
from tilelink.analysis.machine import MESH, Agent, Machine
from tilelink.analysis.placement import bytes_on
from tilelink.analysis.simulate.steps import Steps
from tilelink.errors import ScheduleError
from tilelink.frontend import ir
from tilelink.frontend.ir import Role, TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.values import ITEM_SIZE

GB_S = 1e3
TFLOP_S = 1e6

AGENTS = {"SMs": "load_store", "CopyEngine": "copy_engine"}
"""The agent that moves a role's bytes to and from peers, by the kind of its resource. Transfers of an epilogue are part
of its producer's tile."""

VIA = {"load-store": "load_store", "tma": "tma", "multicast": "multicast"}
"""The agent, if a resource says by which way."""
BULK = 16
"""The copy engine for tiles reads and writes whole multiples of this many bytes."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each step: `alone`, microseconds on an idle machine without its transfers; `refill`, microseconds more
    if the worker has waited for it in the middle of a product; `memory`, bytes to and from the rank's device memory.
    Each role: `agents`; `multicasts`, whether its stores to all ranks leave once, and its reads of all ranks enter
    once, added up by the fabric."""

    alone: np.ndarray
    refill: np.ndarray
    memory: np.ndarray
    agents: tuple[Agent, ...]
    multicasts: tuple[bool, ...]


def costs(steps: Steps, machine: Machine, agents: Mapping[str, str]) -> Costs:
    """The costs of all steps. `agents`: agents that replace the one of a role's resource, by role."""
    program = steps.events.program
    rate = machine.matmul_rate(dtype_of(program)) / machine.sms * TFLOP_S
    product = steps.operations > 0
    traffic = steps.read + steps.written
    busy = np.maximum.reduce(
        [
            steps.operations / rate,
            traffic / (machine.l2_rate * GB_S),
            steps.read / (_l2_share(steps, machine) * GB_S),
            np.where(product, 2 * steps.read, 0) / (machine.shared_rate * GB_S),  # each byte goes in once, and out once
        ]
    )
    head = product & _first(steps.tile, product)
    names = [agent_of(role, program, steps.events.sizes, machine, agents) for role in program.roles]
    chosen = tuple(machine.agent(name) for name in names)
    role = steps.events.role[steps.event]
    on_sm = np.array([a.on_sm for a in chosen])[role]
    waits = np.array([any(ir.every(ir.Wait, r.body)) for r in program.roles])[role]  # others come before the kernel
    inside = np.where(waits & (steps.written > 0), steps.read / (machine.inside_rate * GB_S), 0)
    alone = np.where(on_sm, busy + np.where(head, machine.tile_us, 0), inside)
    refill = np.where(product & ~head, machine.tile_us / 2, 0)  # assumed: filling the pipeline takes half of `tile_us`
    return Costs(alone, refill, steps.fetched + steps.written, chosen, tuple(name == "multicast" for name in names))


def _l2_share(steps: Steps, machine: Machine) -> float:
    """GB/s that L2 gives to one worker when all workers of a rank that multiply read."""
    workers = np.column_stack([steps.of_tiles("rank"), steps.of_tiles("worker")])[steps.multiplies]
    of_ranks = np.bincount(np.unique(workers, axis=0)[:, 0].astype(int))
    return machine.l2_total / float(of_ranks.max(initial=1))


def agent_of(
    role: Role, program: TileProgram, sizes: Sizes, machine: Machine, agents: Mapping[str, str]
) -> str:  # fmt: skip
    """The name of the agent that moves a role's bytes. A role with `via="tma"` loads and stores if the machine has no
    copy engine for tiles, or if that engine can't copy the lines of a tensor; and if it multiplies, as portable kernels
    do."""
    if role.name in agents:
        return agents[role.name]
    kind = type(role.resource).__name__
    if kind not in AGENTS:
        raise ScheduleError(f"{role.name} runs on {kind}, which the model does not know", role.site)
    via = VIA.get(role.resource.via, AGENTS[kind])
    by_threads = via not in machine.agents or role.multiplies or not _has_whole_lines(role, program, sizes)
    return AGENTS[kind] if via == "tma" and by_threads else via


def _has_whole_lines(role: Role, program: TileProgram, sizes: Sizes) -> bool:
    """Whether the lines of all tensors that a role copies begin at multiples of `BULK` bytes."""
    copied = {v.tensor for s in ir.every(ir.Copy, role.body) for v in (s.source, s.target)}
    tensors, lengths = (t for t in program.tensors if t.name in copied), dict(sizes.dims)
    return all(lengths.get(t.dims[t.contiguous], 0) * ITEM_SIZE[t.dtype] % BULK == 0 for t in tensors)


def dtype_of(program: TileProgram) -> str:
    """The dtype of products, taken from the first input."""
    return next((t.dtype for t in (*program.inputs, *program.tensors)), "float32")


@dataclass(frozen=True, eq=False)
class Wires:
    """The way of each transfer: `out`, `into`, its servers (one server, if a link joins one pair of ranks); `leaving`,
    `entering`, microseconds that it keeps them busy; `own`, microseconds at the agent's own rate; `setup`;
    `waited_for`, whether the worker waits for its arrival. `servers`: their number."""

    out: np.ndarray
    into: np.ndarray
    leaving: np.ndarray
    entering: np.ndarray
    own: np.ndarray
    setup: np.ndarray
    waited_for: np.ndarray
    servers: int


def way(steps: Steps, costs: Costs, machine: Machine) -> Wires:
    """The ways of all transfers. Between nodes they go through the NICs of both ranks, whichever agent moves them."""
    world = steps.events.sizes.world
    role = _role_of_transfers(steps)
    source, target, pushed = steps.source, steps.target, steps.pushed
    node = np.array([machine.node(rank) for rank in range(world)])
    far = node[source] != node[target]

    def of(agents: tuple[Agent, ...], what: str) -> np.ndarray:
        return np.array([getattr(a, what) for a in agents])[role]

    rate = np.where(pushed, of(costs.agents, "push"), of(costs.agents, "pull"))
    link, setup = of(costs.agents, "saturation"), of(costs.agents, "setup_us")
    if far.any():
        nic = machine.agent("nic")
        rate, link = np.where(far, np.minimum(rate, nic.push), rate), np.where(far, nic.saturation, link)
        setup = np.where(far, np.maximum(setup, nic.setup_us), setup)
    there = steps.size / (link * GB_S)
    port = np.where(far, 2, 0)
    out, into = port * world + source, (port + 1) * world + target
    if machine.links == MESH:
        out = into = source * world + target
    again = _again(steps, costs)
    return Wires(
        out=out,
        into=into,
        leaving=np.where(again & pushed, 0, there),
        entering=np.where(again & ~pushed, 0, there),
        own=np.where(again, 0, steps.size / (rate * GB_S)),
        setup=setup,
        waited_for=~pushed | ~of(costs.agents, "on_sm").astype(bool),  # an engine does one copy after the other
        servers=max(4 * world, world * world),
    )


def _first(groups: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Whether a row is the first of its group among those in the mask."""
    found, rows = np.zeros(len(groups), bool), np.flatnonzero(mask)
    found[rows[np.diff(groups[rows], prepend=-1) != 0]] = True
    return found


def _role_of_transfers(steps: Steps) -> np.ndarray:
    role: np.ndarray = steps.events.role[steps.event[steps.transfer_step]]
    return role


def _again(steps: Steps, costs: Costs) -> np.ndarray:
    """Whether a transfer is of a multicast, but not its first: the fabric copies what has left the rank once, or adds
    up what enters it once."""
    multicast = np.array(costs.multicasts)[_role_of_transfers(steps)]
    kind = 2 * steps.transfer_step + steps.pushed
    again = np.ones(len(kind), bool)
    again[np.unique(kind, return_index=True)[1]] = False
    return multicast & again


# ---- parts of a run, alone


def compute(steps: Steps, costs: Costs, machine: Machine) -> float:
    """Microseconds of the tiles that multiply, dealt out to all SMs in order, as if waits took no time."""
    ranks, size, slowest = steps.of_tiles("rank"), len(steps.tile_event), 0.0
    took = np.bincount(steps.tile, weights=costs.alone, minlength=size)
    moved = np.bincount(steps.tile, weights=costs.memory, minlength=size) / (machine.memory_rate * GB_S)
    for rank in np.unique(ranks[steps.multiplies]):
        mine = np.flatnonzero(steps.multiplies & (ranks == rank))
        order = np.lexsort((steps.of_tiles("tile")[mine], steps.of_tiles("role")[mine]))
        tiles = np.zeros(-(-len(mine) // machine.free_sms) * machine.free_sms)
        tiles[: len(mine)] = took[mine[order]]
        by_sm = tiles.reshape(-1, machine.free_sms).sum(axis=0)
        slowest = max(slowest, float(by_sm.max()), float(moved[mine].sum()))
    return slowest


def collective(steps: Steps, machine: Machine, times: int = 1) -> float:
    """Microseconds of a library's collective that moves `times` as many bytes, with its launch."""
    if not steps.talks:
        return 0.0
    return machine.launch_us + machine.collective_us + times * most_moved(steps) / (machine.collective * GB_S)


def workers_least(steps: Steps, costs: Costs, machine: Machine) -> float:
    """A lower bound on any run of these steps, in microseconds: the work and transfers of the busiest workers, spread
    evenly over the workers of a role."""
    busy = costs.alone.copy()
    own = np.bincount(steps.transfer_step, weights=way(steps, costs, machine).own, minlength=len(steps))
    np.maximum(busy, own, out=busy)
    events, roles = steps.events, steps.events.program.roles
    workers = np.array([events.allotment[r.name].workers for r in roles], float)
    place = events.rank[steps.event].astype(np.int64) * len(roles) + events.role[steps.event]
    whole = np.bincount(place, weights=busy, minlength=events.sizes.world * len(roles))
    return float((whole.reshape(-1, len(roles)) / workers).max(initial=0.0))


def moving_least(steps: Steps, costs: Costs, machine: Machine) -> float:
    """A lower bound on any run of these steps, in microseconds: the bytes between ranks at the fastest agent's rate."""
    return most_moved(steps, costs) / (usable(machine, steps.events.sizes.world) * GB_S)


def bounds(steps: Steps, costs: Costs, machine: Machine) -> dict[str, float]:
    """Lower bounds on all schedules of these tiles, in microseconds, by their cause: operations at the rate of all SMs,
    bytes between ranks at the fastest agent's rate, and reading each input once with everything that is written."""
    world = steps.events.sizes.world
    ranks = steps.events.rank[steps.event]
    operations = np.bincount(ranks, weights=steps.operations, minlength=world).max(initial=0.0)
    memory = np.bincount(ranks, weights=steps.written, minlength=world) + _inputs_read(steps.events)
    return {
        "the products": float(operations / (machine.matmul_rate(dtype_of(steps.events.program)) * TFLOP_S)),
        "the bytes between ranks": moving_least(steps, costs, machine),
        "the bytes of device memory": float(memory.max(initial=0.0) / (machine.memory_rate * GB_S)),
    }


def _inputs_read(events: Events) -> np.ndarray:
    """For each rank, the bytes of its inputs that tiles read; each byte counts once."""
    world, found = events.sizes.world, np.zeros(events.sizes.world)
    reads = (events.op == READ) & (events.home == events.rank) & ~events.picked
    for k, tensor in enumerate(events.program.tensors):
        if tensor.kind != "input":
            continue
        of_roles = np.zeros(world)
        for role in range(len(events.program.roles)):
            rows = np.flatnonzero(reads & (events.tensor == k) & (events.role == role))
            regions = np.column_stack([events.rank[rows], events.lo[rows], events.hi[rows]])
            rows = rows[np.unique(regions, axis=0, return_index=True)[1]]
            of_role = np.bincount(events.rank[rows], weights=events.amount[rows], minlength=world)
            of_roles = np.maximum(of_roles, of_role)
        found += np.minimum(of_roles, bytes_on(tensor, events.sizes))  # where regions of a role overlap
    return found


def usable(machine: Machine, world: int) -> float:
    """The most GB/s that leave or reach a rank: the saturation of the fastest agent, on all links of the rank."""
    fastest = max(a.saturation for n, a in machine.agents.items() if n != "nic")
    return fastest * (max(1, world - 1) if machine.links == MESH else 1)


def most_moved(steps: Steps, costs: Costs | None = None) -> float:
    """Bytes that leave or reach the rank where they are most. With `costs`, a multicast leaves once, and what the
    fabric adds up enters once."""
    again = np.zeros(len(steps.size), bool) if costs is None else _again(steps, costs)
    ways = (steps.source, again & steps.pushed), (steps.target, again & ~steps.pushed)
    moved = (np.bincount(rank, weights=np.where(free, 0, steps.size)) for rank, free in ways)
    return float(max(of_ranks.max(initial=0.0) for of_ranks in moved))
