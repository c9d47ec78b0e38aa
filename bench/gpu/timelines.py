"""Timelines of runs whose kernels record times: one page a schedule."""

from __future__ import annotations

from typing import Any

import torch

from bench.gpu.place import Place
from bench.gpu.report import Report
from bench.gpu.right import SCHEDULES, operands
from bench.operands import Operands
from tilelink.analysis.draw import write_page
from tilelink.frontend.sizes import even_parts
from tilelink.kernels.all_gather_matmul import all_gather_matmul

WORLD = 2


def timelines(place: Place, report: Report) -> None:
    """Makes one timed run of each schedule, after a first one that compiles. Checks results, and writes the page."""
    parts = even_parts(place.sizes["M"], WORLD)
    inputs = operands(place, all_gather_matmul, parts)
    for schedule in SCHEDULES:
        about = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": WORLD, "schedule": schedule}
        with report.case("timeline of a timed run", **about) as found:
            world = place.world(WORLD)
            outs = world.run(lambda group, s=schedule: _twice(inputs, group, s))
            found |= inputs.judge(outs)
            timeline = world.timeline()
            path = report.path.with_name(f"{report.path.stem}-{schedule}.html")
            write_page(timeline, path)
            found |= {"page": str(path), "tiles": sum(s.kind == "tile" for s in timeline.spans), "unit": timeline.unit}
            found["makespan"] = round(timeline.makespan, 3)


def _twice(inputs: Operands, group: Any, schedule: str) -> list[torch.Tensor]:
    inputs.call(all_gather_matmul, group, schedule=schedule, timed=True)
    outs = inputs.call(all_gather_matmul, group, schedule=schedule, timed=True)
    group.synchronize()
    return outs
