"""The way of every transfer: which links serve it, for how long, and what the agent that moves it takes itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilelink.analysis.machine import MESH, Agent, Machine
from tilelink.analysis.simulate.costs import GB_S, Costs
from tilelink.analysis.simulate.steps import Steps


@dataclass(frozen=True, eq=False)
class Wires:
    """Of each transfer: `out` and `into`, the servers on its way (the same one, where a link is for one pair of ranks);
    `leaving` and `entering`, microseconds that it keeps them busy; `own`, what the agent takes at its own rate;
    `setup`; `waited_for`, whether the worker waits for its arrival. `servers`: how many there are."""

    out: np.ndarray
    into: np.ndarray
    leaving: np.ndarray
    entering: np.ndarray
    own: np.ndarray
    setup: np.ndarray
    waited_for: np.ndarray
    servers: int


def way(steps: Steps, costs: Costs, machine: Machine) -> Wires:
    """The ways of all transfers. Between nodes they go through the NICs of both ranks, whoever moves them."""
    world = steps.events.sizes.world
    role = steps.tile_role[steps.tile[steps.transfer_step]]
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
    again = _again(steps, np.array(costs.multicasts)[role])
    return Wires(
        out=out,
        into=into,
        leaving=np.where(again, 0, there),
        entering=there,
        own=np.where(again, 0, steps.size / (rate * GB_S)),
        setup=setup,
        waited_for=~pushed | ~of(costs.agents, "on_sm").astype(bool),  # an engine does one copy after the other
        servers=max(4 * world, world * world),
    )


def _again(steps: Steps, multicast: np.ndarray) -> np.ndarray:
    """Transfers of a multicast after its first: the fabric makes them of what has left the rank once."""
    step = steps.transfer_step
    return multicast & np.concatenate([[False], step[1:] == step[:-1]])[: len(step)]
