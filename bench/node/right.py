"""Steps that check results: ranks meet, every operator runs in every schedule, and graphs are replayed."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from bench.gpu import others
from bench.gpu.place import gpu
from bench.gpu.right import SETS, by_engine, compile_ahead, judged, judged_replays, replayed
from bench.gpu.supervise import QUEUES
from bench.node.ranks import Node, uneven
from bench.node.report import NodeReport
from bench.operands import Operands
from bench.references import REFERENCES
from tilelink.errors import FarAccessError
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.programs.program import Program

CALLS = 2


def operands(node: Node, program: Program, seed: int = 0) -> Operands:
    """Returns operands of whole numbers in bfloat16, in uneven parts, without optional inputs and with all outputs."""
    return others.inputs(node.place, program, uneven(node.place, node.world), seed)


def rendezvous(node: Node, report: NodeReport) -> None:
    """Makes the lane of all ranks, records the properties of its memory, and makes one call."""
    about = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": node.world, "schedule": "push"}
    with report.case("the ranks meet, and call once", **about) as found:
        began = time.monotonic()
        group = node.group()
        found["seconds_to_meet"] = round(time.monotonic() - began, 2)
        found["multicast"] = bool(group.lane.multicast)
        found["shared_gpus"], found["queues"] = node.shared, QUEUES
        found |= _called(node, all_gather_matmul, "push", group, 1)


def results(node: Node, report: NodeReport) -> None:
    """Checks two calls in a row with different inputs, for every program in every schedule."""
    cases = [(p.name, schedule, node.world) for p in REFERENCES for schedule in schedules(node, p)]
    compile_ahead(node.place, report, prepare, cases[node.rank :: node.world])
    group = node.group()
    for name, schedule, world in cases:
        about = {"op": name, "dtype": "bfloat16", "world": world, "schedule": schedule}
        with report.case("result", **about, shape=f"M={list(uneven(node.place, world))}") as found:
            found |= _called(node, operators()[name], schedule, group, CALLS)


def schedules(node: Node, program: Program) -> list[str]:
    """Returns the schedules of a program that reach all ranks."""
    return [s for s in program.schedules if node.nodes == 1 or _crosses_nodes(program, s, node.nodes)]


def _crosses_nodes(program: Program, schedule: str, nodes: int) -> bool:
    """Whether a schedule can run on several nodes: copy engines reach one node only, and networks can't load into
    registers."""
    if by_engine(schedule, program):
        return False
    try:
        program.show("triton", target="cpu", schedule=schedule, world=nodes, per_node=1, dtypes="bfloat16")
    except FarAccessError:
        return False
    return True


def prepare(name: str, schedule: str, world: int) -> None:
    """Compiles a case on the GPU of this rank, in parallel with other processes. All ranks use its kernel."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    place, program = gpu(), operators()[name]
    given = others.inputs(place, program, uneven(place, world))
    place.world(world).run(lambda group: given.call(program.prepare, group, schedule=schedule))


def _called(node: Node, program: Program, schedule: str, group: Any, calls: int) -> dict[str, Any]:
    """Makes calls in a row without waiting in between. Returns what this rank finds."""
    sets = [operands(node, program, seed) for seed in range(calls)]
    outs = [given.call(program, group, schedule=schedule) for given in sets]
    group.synchronize()
    return {"calls": calls, **judged(sets, [outs], rank=node.rank)}


def graphs(node: Node, report: NodeReport) -> None:
    """Captures a call, and replays it with changing inputs."""
    group = node.group()
    for schedule in schedules(node, all_gather_matmul):
        about: dict[str, Any] = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": node.world}
        with report.case("graph replayed with changing inputs", schedule=schedule, **about) as found:
            if by_engine(schedule) and not node.place.probed.allows("engines_in_graphs"):
                found |= {"ok": None, "error": node.place.probed.why_not("engines_in_graphs")}
            else:
                sets = [operands(node, all_gather_matmul, seed) for seed in range(SETS)]
                kept = replayed(node.place, group, sets, schedule, calls=1)
                found |= judged_replays(sets, [kept], rank=node.rank)
