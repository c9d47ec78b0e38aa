"""The GEMM in other tiles: what to ask where it is slower than cuBLAS. Not among the steps of a whole run."""

from __future__ import annotations

import torch

from bench.gpu.place import Place, gpu
from bench.gpu.report import Report
from bench.gpu.right import compile_ahead
from bench.gpu.speed import CUBLAS, against, gemm_inputs, without_waits
from tilelink.kernels.matmul import matmul

TILES = (
    ("128x256x64", 3, 8), ("128x256x64", 4, 8), ("256x128x64", 3, 8), ("256x128x64", 4, 8),
    ("128x128x64", 3, 4), ("128x128x64", 4, 4), ("128x128x64", 4, 8), ("128x128x128", 3, 8),
    ("64x256x64", 4, 4), ("64x128x64", 4, 4),
)  # fmt: skip
"""Tile, stages and warps, the library's own first."""


def schedules(place: Place) -> list[str]:
    """The schedule of the GEMM with changes, as a call takes it by name."""
    found = TILES if place.on_gpu else (("16x16x16", 2, 4), ("32x16x16", 3, 8))
    return [f"gemm,multiply.tile={t},multiply.stages={stages},multiply.warps={warps}" for t, stages, warps in found]


def tiles(place: Place, report: Report) -> None:
    """The largest layers of the paper's MLPs, one of each half, in every tile, in turns with cuBLAS."""
    halves = {name.partition(", ")[2]: name for name in sorted(place.gemms, key=lambda n: _size(place, n))}
    compile_ahead(place, report, prepare, [(s,) for s in schedules(place)])
    for name in halves.values():
        m, n, k = place.gemms[name]
        sets = gemm_inputs(place, m, n, k)
        about = {"op": "matmul", "dtype": "bfloat16", "world": 1, "layer": name, "form": place.form}
        for schedule in schedules(place):
            with report.case("GEMM", schedule=schedule, shape=f"M={m},N={n},K={k}", baseline=CUBLAS, **about) as found:
                found |= against(place, sets, without_waits(place, sets, schedule))


def _size(place: Place, name: str) -> int:
    m, n, k = place.gemms[name]
    return m * n * k


def prepare(schedule: str) -> None:
    """Compiles a schedule on the GPU."""
    place = gpu()
    x, weight = (torch.empty(s, dtype=torch.bfloat16, device=place.place) for s in ((512, 512), (512, 512)))
    place.world(1).run(lambda group: matmul.prepare(x, weight.T, schedule=schedule, group=group))
