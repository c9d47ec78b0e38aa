"""Steps that describe the machine, and the kernels as compiled for it."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from bench.gpu.place import Place
from bench.gpu.report import Report
from bench.gpu.right import SCHEDULES
from tilelink.errors import DeviceError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.measure import description, measure
from tilelink.tools.capabilities import capabilities


def machine(place: Place, report: Report) -> None:
    """Records the capabilities of `tilelink doctor`, and two ceilings: the rates of a large copy and a large matmul."""
    for found in capabilities():
        report.add(f"capability: {found.name}", ok=found.ok or (None if not found.needed else False), why=found.why)
    with report.case("ceilings of the machine") as figures:
        figures |= ceilings(place) if place.on_gpu else {"ok": None, "error": "no GPU"}


def ceilings(place: Place) -> dict[str, Any]:
    """Returns GB/s of a copy (bytes read plus written) and TFLOP/s of a bf16 matmul on random data, as medians."""
    from bench.gpu.speed import timed

    source = torch.empty(2 << 30, dtype=torch.uint8, device=place.place)
    target = torch.empty_like(source)
    n = 8192
    a, b = (torch.randn(n, n, device=place.place).bfloat16() for _ in range(2))
    nothing = lambda k: None  # noqa: E731
    copy, gemm = timed(place, [(nothing, lambda k: target.copy_(source)), (nothing, lambda k: torch.matmul(a, b))])
    return {
        "clocks": place.clocks(lambda: torch.matmul(a, b)),
        "copy_gb_s": round(2 * source.nbytes / median(copy) / 1e3, 1),
        "bf16_tflops": round(2 * n**3 / median(gemm) / 1e6, 1),
    }


def description_of(place: Place, report: Report) -> None:
    """Writes a description of this GPU for the performance model (`tilelink machine measure`), next to the results."""
    with report.case("description of the machine") as found:
        try:
            measured = measure()
        except DeviceError as e:
            if place.on_gpu:
                raise
            found |= {"ok": None, "error": e.message}
            return
        path = report.path.with_suffix(".toml")
        path.write_text(description(measured, "h200"))
        found |= {"description": str(path), **{name: value for name, (value, _) in measured.numbers.items()}}


def kernels(place: Place, report: Report) -> None:
    """Records registers, spills, shared memory and compile time of each kernel, as loaded on this device."""
    for schedule in SCHEDULES:
        about = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": 1, "schedule": schedule}
        with report.case("kernels as loaded", kind="measured", **about) as found:
            world = place.world(1)
            m, n, k = (place.sizes[d] for d in "MNK")
            x, weight = (torch.zeros(*s, dtype=torch.bfloat16, device=place.place) for s in ((m, k), (n, k)))
            weight = weight.T  # the layout of nn.Linear
            began = time.monotonic()
            world.run(lambda g, x=x, w=weight, s=schedule: all_gather_matmul.prepare(x, w, schedule=s, group=g))
            found["compile_seconds"] = round(time.monotonic() - began, 2)
            for name, kernel in (world.lane.loaded if place.on_gpu else {}).items():
                found[name] = {
                    "registers": kernel.registers, "spills": kernel.spills, "shared_bytes": kernel.shared_bytes,
                    "workers_per_sm": kernel.workers_per_sm, "warps": kernel.warps,
                }  # fmt: skip
                if kernel.spills:
                    found |= {"ok": False, "error": f"{name} spills {kernel.spills} words"}
