"""Averages over shapes whose single numbers were not published. They are predicted with nothing fitted."""

from __future__ import annotations

from statistics import fmean

from bench.gpu.place import GEMMS
from bench.validation.models import EVENTS, Case, defaults, predict, unfused_us
from bench.validation.rows import AG, ENGINE, GATHER, RS, Published, Row, Source

PUBLISHED = {"AG+GEMM": 1.27, "GEMM+RS": 1.25, "MLP": 1.24}
"""Speed-ups over cuBLAS and NCCL: TileLink, arXiv 2503.20313."""


def averages() -> dict[str, float]:
    """Returns the predicted mean speed-ups: of all-gather and of scatter by copy engine (the paper's scatter is a ring
    on SMs), and of both in a row, without the work between them."""
    ups: dict[str, list[float]] = {name: [] for name in PUBLISHED}
    for h, i in GEMMS.values():  # with 8192 tokens on 8 ranks
        took = [_times(AG, i // 8, h, GATHER), _times(RS, h, i // 8, ENGINE)]
        for name, pairs in (("AG+GEMM", took[:1]), ("GEMM+RS", took[1:]), ("MLP", took)):
            ups[name].append(sum(unfused for unfused, _ in pairs) / sum(fused for _, fused in pairs))
    return {name: fmean(values) for name, values in ups.items()}


def _times(operator: str, n: int, k: int, form: str) -> tuple[float, float]:
    """Returns microseconds unfused and fused."""
    row = Row(operator, 8192, n, k, (Published("TileLink", form, 1.0),))
    case = Case(Source("TileLink", "", "h800", 8, (row,), ()), row, row.published[0])
    parameters = defaults(case.source)
    return unfused_us(EVENTS, case, parameters), 1e3 * predict(EVENTS, case, parameters)
