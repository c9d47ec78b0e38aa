"""Times the GEMM in other tiles, for a GPU on which it is slower than cuBLAS. It is no step of a whole run."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.gpu.place import Place, gpu
from bench.gpu.report import Report
from bench.gpu.right import compile_ahead
from bench.gpu.speed import CUBLAS, against, gemm_inputs, without_waits
from tilelink.kernels.matmul import matmul

Tile = tuple[str, int, int]
Shape = tuple[int, int, int]
TILES: tuple[Tile, ...] = (
    ("128x256x64", 3, 8), ("256x128x64", 4, 8), ("128x128x64", 6, 8), ("128x128x128", 3, 8), ("64x256x64", 5, 4),
)  # fmt: skip
"""Tile, stages and warps, the library's own first."""
FEW: dict[int, tuple[Tile, ...]] = {
    16: (("16x32x256", 4, 4), ("16x64x128", 8, 4)),
    128: (("64x32x256", 4, 4), ("64x32x128", 8, 4), ("64x64x128", 6, 4)),
    512: (("128x128x64", 6, 8), ("128x64x64", 7, 4), ("128x256x64", 3, 8)),
}
"""The tiles to try, by the largest number of rows they are for."""
ROWS = (1, 16, 64, 128, 512)


def schedules(tiles: tuple[Tile, ...]) -> list[str]:
    """The schedule of the GEMM with changes, as a call takes it by name."""
    return [f"gemm,multiply.tile={t},multiply.stages={stages},multiply.warps={warps}" for t, stages, warps in tiles]


def cases(place: Place) -> Iterator[tuple[str, str, Shape]]:
    """Layer, schedule and sizes: the smallest and the largest layer of each half of the paper's MLPs in every tile, and
    with few rows."""
    if not place.on_gpu:
        yield from (("tiny", s, (64, 32, 32)) for s in schedules((("16x16x16", 2, 4), ("32x16x16", 3, 8))))
        return
    for half in (", gate", ", down"):
        layers = sorted((n for n in place.gemms if n.endswith(half)), key=lambda n: _operations(place.gemms[n]))
        for name in (layers[0], layers[-1]):
            yield from ((name, s, place.gemms[name]) for s in schedules(TILES))
            _, n, k = place.gemms[name]
            for m in ROWS:
                tiles = next(tiles for most, tiles in FEW.items() if m <= most)
                yield from ((name, s, (m, n, k)) for s in schedules(tiles))


def tiles(place: Place, report: Report) -> None:
    """Every case, in turns with cuBLAS."""
    made = list(cases(place))
    compile_ahead(place, report, prepare, [(schedule, shape) for _, schedule, shape in made])
    for name, schedule, (m, n, k) in made:
        about = {"op": "matmul", "dtype": "bfloat16", "world": 1, "layer": name, "form": place.form}
        with report.case("GEMM", schedule=schedule, shape=f"M={m},N={n},K={k}", baseline=CUBLAS, **about) as found:
            sets = gemm_inputs(place, m, n, k)
            found |= against(place, sets, without_waits(place, sets, schedule))


def _operations(shape: Shape) -> int:
    m, n, k = shape
    return m * n * k


def prepare(schedule: str, shape: Shape) -> None:
    """Compiles a schedule on the GPU."""
    place, (m, n, k) = gpu(), shape
    x, weight = (torch.empty(s, dtype=torch.bfloat16, device=place.place) for s in ((m, k), (n, k)))
    place.world(1).run(lambda group: matmul.prepare(x, weight.T, schedule=schedule, group=group))
