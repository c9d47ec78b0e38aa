"""What a step of work takes on a machine when nobody else is there, and which agent moves its bytes.

Units: microseconds, bytes; a rate of 1 GB/s is 1e3 bytes a microsecond, 1 TFLOP/s is 1e6 operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilelink.analysis.machine import Agent, Machine
from tilelink.analysis.simulate.steps import Steps
from tilelink.errors import ScheduleError
from tilelink.frontend.ir import Role, TileProgram

GB_S = 1e3
TFLOP_S = 1e6

AGENTS = {"SMs": "load_store", "CopyEngine": "copy_engine"}
"""The agent that moves a role's bytes to and from peers, by the kind of its resource; what an epilogue does is part of
its producer's tile."""

VIA = {"load-store": "load_store", "tma": "tma", "multicast": "multicast"}
"""The agent, where a resource says by which way."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Of each step: `alone`, microseconds on an idle machine without its transfers; `memory`, bytes to and from the
    rank's device memory. Of each role: `agents`, and `multicasts`, whether what it stores to all ranks leaves once."""

    alone: np.ndarray
    memory: np.ndarray
    agents: tuple[Agent, ...]
    multicasts: tuple[bool, ...]


def costs(steps: Steps, machine: Machine, agents: Mapping[str, str]) -> Costs:
    """Costs of all steps. `agents`: by role, where it is not the one of the role's resource."""
    program = steps.events.program
    rate = machine.matmul_rate(dtype_of(program)) / machine.sms * TFLOP_S
    product = steps.operations > 0
    traffic = steps.read + steps.written
    busy = np.maximum.reduce(
        [
            steps.operations / rate,
            traffic / (machine.l2_rate * GB_S),
            np.where(product, 2 * steps.read, 0) / (machine.shared_rate * GB_S),  # in once, and out once
        ]
    )
    head = product & _first(steps.tile, product)
    names = [agent_of(role, agents) for role in program.roles]
    chosen = tuple(machine.agent(name) for name in names)
    on_sm = np.array([a.on_sm for a in chosen])[steps.tile_role[steps.tile]]
    alone = np.where(on_sm, busy + np.where(head, machine.tile_us, 0), 0)
    return Costs(alone, steps.fetched + steps.written, chosen, tuple(name == "multicast" for name in names))


def agent_of(role: Role, agents: Mapping[str, str]) -> str:
    """The name of the agent that moves a role's bytes."""
    if role.name in agents:
        return agents[role.name]
    kind = type(role.resource).__name__
    if kind not in AGENTS:
        raise ScheduleError(f"{role.name} runs on {kind}, of which the model knows nothing", role.site)
    return VIA.get(getattr(role.resource, "via", ""), AGENTS[kind])


def dtype_of(program: TileProgram) -> str:
    """The dtype of products: that of what comes in."""
    return next((t.dtype for t in (*program.inputs, *program.tensors)), "float32")


def _first(groups: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Whether a row is the first of its group among those in the mask."""
    found = np.zeros(len(groups), bool)
    rows = np.flatnonzero(mask)
    if len(rows):
        found[rows[np.concatenate([[True], groups[rows][1:] != groups[rows][:-1]])]] = True
    return found
