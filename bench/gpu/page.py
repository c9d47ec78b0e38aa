"""The tables of docs/performance.md, from records of a GPU and from predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from bench.gpu.speed import narrow_is_faster, with_tiles
from bench.records import Record, json_lines
from bench.table import head
from tilelink.analysis.machine import machine
from tilelink.kernels.matmul import matmul

RESULTS = Path(__file__).resolve().parent.parent / "results"
RECORDS, SWEEPS = RESULTS / "gpu-nvidia-h200.jsonl", RESULTS / "gemms-nvidia-h200.jsonl"
MACHINE = "h200"
FORMS = "portable", "specialised"


def tables() -> dict[str, str]:
    """Returns the tables, by their names in the page."""
    records = [*json_lines(RECORDS), *json_lines(SWEEPS)]
    return {made.__name__: "\n".join(made(records)) for made in (gemms, balance, loopback, virtual)}


def gemms(records: Sequence[Record]) -> Iterator[str]:
    """The GEMMs of the MLPs: ratios over cuBLAS in each run of both forms, without waits and with all signals set, by
    tiles that are predicted to be the fastest."""
    columns = [f"{form}{which}" for which in ("", ", signals set") for form in FORMS]
    yield from head("M, N, K", "tile", "cuBLAS us", *columns, "predicted us")
    made = [r for r in records if r["step"] in ("speed", "sweep") and r["op"]]
    means: dict[tuple[str, str], list[float]] = {}
    for shape in dict.fromkeys((r["layer"], r["shape"]) for r in made if r["step"] == "speed"):
        of_shape = [r for r in made if (r["layer"], r["shape"]) == shape]
        m, n, k = (int(part.split("=")[1]) for part in shape[1].split(","))
        narrow = narrow_is_faster(MACHINE, m, n, k)
        cells = []
        for op, role, named in (("matmul", "multiply", "gemm"), ("all_gather_matmul", "matmul", "push")):
            schedule = with_tiles(named, role, narrow)
            for form in FORMS:
                key = op, form
                found = [r["speedup"] for r in of_shape if (r["op"], r["form"], r["schedule"]) == (*key, schedule)]
                means.setdefault(key, []).extend(found[:1])
                cells.append(", ".join(f"{x:.3f}" for x in found) or "-")
        us = matmul.simulate(
            with_tiles("gemm", "multiply", narrow), machine=machine(MACHINE), world=1, M=m, N=n, K=k
        ).makespan_us
        cublas = of_shape[0]["baseline_us"]["median_us"]
        yield f"| {m}, {n}, {k} | 128 x {128 if narrow else 256} | {cublas:.1f} | {' | '.join(cells)} | {us:.0f} |"
    most = {op: max(len(x) for (of, _), x in means.items() if of == op) for op, _ in means}
    mean = " | ".join(f"{prod(x) ** (1 / len(x)):.3f}" if len(x) == most[op] else "-" for (op, _), x in means.items())
    yield f"| geometric mean | | | {mean} | |"


def balance(records: Sequence[Record]) -> Iterator[str]:
    """The loopback link, from much to little computing for the same transfers."""
    made = [r for r in records if r["step"] == "loopback" and r.get("compute_to_transfers")]
    return over_the_link(sorted(made, key=lambda r: (r["op"], r["schedule"])))


def loopback(records: Sequence[Record]) -> Iterator[str]:
    """The loopback link, in every schedule."""
    made = [r for r in records if r["step"] == "loopback" and r["op"] and r["ok"]]
    return over_the_link([r for r in made if not r.get("compute_to_transfers")])


def over_the_link(records: Sequence[Record]) -> Iterator[str]:
    """Times on the loopback link, and how much of the transfers is hidden."""
    times = "fused us", "GEMM alone us", "transfers alone us", "unfused / fused", "chunks / fused"
    yield from head("program, schedule", "M, N, K", *times, "overlap", "fused / the longer one")
    for r in records:
        named = (r["median_us"], *(r[f"{form}_us"]["median_us"] for form in ("gemm", "baseline", "chunked")))
        fused, gemm, unfused, chunks = named
        shape = ", ".join(part.split("=")[1] for part in r["shape"].split(","))
        yield (
            f"| {r['op']}, {r['schedule']} | {shape} | {fused:.0f} ({r['min_us']:.0f} to {r['max_us']:.0f}) | "
            f"{gemm:.0f} | {unfused - gemm:.0f} | {unfused / fused:.2f} | {chunks / fused:.2f} | "
            f"{r['overlap_efficiency']:.2f} | {fused / max(gemm, unfused - gemm):.2f} |"
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
