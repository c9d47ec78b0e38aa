"""The tables of docs/performance.md, from records of a GPU and from predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from bench.records import Record, json_lines
from bench.table import head
from tilelink.analysis.machine import machine
from tilelink.frontend.schedule import SMs
from tilelink.kernels.matmul import matmul

RECORDS = Path(__file__).resolve().parent.parent / "results" / "gpu-nvidia-h200.jsonl"
MACHINE = "h200"
FORMS = "portable", "specialised"


def tables() -> dict[str, str]:
    """Returns the tables, by their names in the page."""
    records = json_lines(RECORDS)
    return {made.__name__: "\n".join(made(records)) for made in (gemms, loopback, virtual)}


def gemms(records: Sequence[Record]) -> Iterator[str]:
    """The GEMMs of the MLPs: ratios over cuBLAS in each run of both forms, without waits and with all signals set."""
    columns = [f"{form}{which}" for which in ("", ", signals set") for form in FORMS]
    yield from head("M, N, K", "tile", "cuBLAS us", *columns, "predicted us")
    speed = [r for r in records if r["step"] == "speed"]
    means: dict[tuple[str, str], list[float]] = {}
    for shape in dict.fromkeys((r["layer"], r["shape"]) for r in speed):
        of_shape = [r for r in speed if (r["layer"], r["shape"]) == shape]
        cells = []
        for key in ((op, form) for op in ("matmul", "all_gather_matmul") for form in FORMS):
            found = [r["speedup"] for r in of_shape if (r["op"], r["form"]) == key]
            means.setdefault(key, []).extend(found[:1])
            cells.append(", ".join(f"{x:.3f}" for x in found) or "-")
        m, n, k = (int(part.split("=")[1]) for part in shape[1].split(","))
        schedule = next(r["schedule"] for r in of_shape if r["op"] == "matmul")
        us = matmul.simulate(schedule, machine=machine(MACHINE), world=1, M=m, N=n, K=k).makespan_us
        resource = matmul.schedule(schedule)["multiply"]
        assert isinstance(resource, SMs)
        tile = " x ".join(map(str, resource.tile[:2]))
        cublas = of_shape[0]["baseline_us"]["median_us"]
        yield f"| {m}, {n}, {k} | {tile} | {cublas:.1f} | {' | '.join(cells)} | {us:.0f} |"
    mean = " | ".join(f"{prod(x) ** (1 / len(x)):.3f}" for x in means.values())
    yield f"| geometric mean | | | {mean} | |"


def loopback(records: Sequence[Record]) -> Iterator[str]:
    """The loopback link: times, and how much of the transfers is hidden."""
    times = "fused us", "GEMM alone us", "transfers alone us", "unfused us"
    yield from head("program, schedule", "M, N, K", *times, "unfused / fused", "overlap", "fused / the longer one")
    for r in records:
        if r["step"] == "loopback" and r["op"] and r["ok"]:
            fused, gemm, other = r["median_us"], r["gemm_us"]["median_us"], r["baseline_us"]["median_us"]
            shape = ", ".join(part.split("=")[1] for part in r["shape"].split(","))
            worst = fused / max(gemm, other - gemm)
            yield (
                f"| {r['op']}, {r['schedule']} | {shape} | {fused:.0f} ({r['min_us']:.0f} to {r['max_us']:.0f}) | "
                f"{gemm:.0f} | {other - gemm:.0f} | {other:.0f} | {r['speedup']:.2f} | {r['overlap_efficiency']:.2f} | "
                f"{worst:.2f} |"
            )


def virtual(records: Sequence[Record]) -> Iterator[str]:
    """Virtual ranks on one GPU: the unfused form's time over the fused one's."""
    made = [r for r in records if r["step"] == "one_card" and r["speedup"]]
    yield from head("program, schedule", "2 ranks", "4 ranks")
    for op, schedule in dict.fromkeys((r["op"], r["schedule"]) for r in made):
        cells = [
            ", ".join(f"{r['speedup']:.2f}" for r in made if (r["op"], r["schedule"], r["world"]) == (op, schedule, w))
            for w in (2, 4)
        ]
        yield f"| {op}, {schedule} | {' | '.join(cells)} |"
