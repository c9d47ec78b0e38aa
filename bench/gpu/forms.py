"""The specialised form of kernels against the portable one: is it right, and no slower?

Nothing bounds the barriers that its warps hand each other, so whoever asks does that in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from bench.gpu.place import Place, gpu
from bench.gpu.right import Inputs
from bench.gpu.speed import gemm_inputs, timed, without_waits
from tilelink.frontend.sizes import even_parts
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.runtime.cuda.device import CudaDevice

ASKED = ((all_gather_matmul, "push"), (matmul_reduce_scatter, "fused"))
"""A role that waits, and one that notifies."""


def both_forms(place: Place, device: Callable[[bool], Any]) -> dict[str, Any]:
    """What is found of two ranks' whole numbers, bit for bit, two calls each, and of the time of a GEMM in both forms.
    `device(specialised)`: one whose kernels have the form."""
    parts, right, forms = even_parts(place.sizes["M"], 2), True, set[str]()
    for program, schedule in ASKED:
        world = place.world(2, device=device(True))
        for seed in range(2):
            inputs = Inputs(place, parts, "bfloat16", whole=True, seed=seed, program=program)
            results = world.run(partial(inputs.call, schedule=schedule))
            right &= inputs.judge(results)["ok"]
        forms |= {r.prepared.lowered.target.name for g in world.groups for r in g.recent.values()}
    sets = gemm_inputs(place, *next(iter(place.gemms.values())))
    each = (replace(place, world=partial(place.world, device=device(form))) for form in (False, True))
    portable, specialised = map(median, timed(place, [without_waits(p, sets) for p in each]))
    found = {"right": right, "forms": sorted(forms), "portable_us": portable, "specialised_us": specialised}
    asked = forms == {device(True).target.name}  # and not the portable one, which calls have that it does not take
    return found | {"answer": asked and right and specialised <= portable}


def main() -> None:
    """What the process that is asked does."""
    print(json.dumps(both_forms(gpu(), lambda form: CudaDevice(specialised=form))))


if __name__ == "__main__":
    main()
