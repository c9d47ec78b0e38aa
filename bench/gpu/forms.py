"""Checks whether the specialised form of kernels is right, and no slower than the portable form.

Waits of its warps at barriers have no bound, so the check runs in its own process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from bench.gpu.place import Place, gpu
from bench.gpu.right import operands
from bench.gpu.speed import gemm_inputs, timed, without_waits
from tilelink.frontend.sizes import even_parts
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.runtime.cuda.device import CudaDevice

ASKED = (
    (all_gather_matmul, "push", 1), (matmul_reduce_scatter, "fused", 1), (all_gather_gated_matmul, "push", 1),
    (dispatch_matmul, "push", 1), (all_gather_matmul, "push", 2), (all_gather_matmul_backward, "pull", 1),
)  # fmt: skip
"""Programs, schedules and members of lists: a product that waits, one that notifies, two in a step, rows of experts,
two weights in turns, and two roles that multiply, one behind the other."""


def both_forms(place: Place, device: Callable[[bool], Any]) -> dict[str, Any]:
    """Checks two calls on two ranks with whole numbers, bit for bit, and times a GEMM in both forms.
    `device(specialised)` returns a device whose kernels have this form."""
    parts, right, forms = even_parts(place.sizes["M"], 2), True, set[str]()
    for program, schedule, members in ASKED:
        world = place.world(2, device=device(True))
        for seed in range(2):
            given = operands(place, program, parts, seed, members=members)
            right &= given.judge(world.run(partial(given.call, program, schedule=schedule)))["ok"]
        forms |= forms_of(world)
    sets = gemm_inputs(place, *next(iter(place.gemms.values())))
    each = (replace(place, world=partial(place.world, device=device(form))) for form in (False, True))
    portable, specialised = map(median, timed(place, [without_waits(p, sets) for p in each]))
    found = {"right": right, "forms": sorted(forms), "portable_us": portable, "specialised_us": specialised}
    asked = forms == {device(True).target.name}  # calls that the form does not take fall back to the portable form
    return found | {"answer": asked and right and specialised <= portable}


def forms_of(world: Any) -> set[str]:
    """Returns the targets that the last calls of all ranks were lowered for."""
    return {r.prepared.lowered.target.name for g in world.groups for r in g.recent.values()}


def main() -> None:
    """Prints the findings as the last line of this process, for the probe."""
    print(json.dumps(both_forms(gpu(), lambda form: CudaDevice(specialised=form))))


if __name__ == "__main__":
    main()
