"""Calls of the whole layer of experts as one program, and what has to come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton

from bench.references import REFERENCES, ROUNDED
from tests.kernels.routed import TOP, Called, Counts
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.schedule import Schedule
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.runtime.group import Group

KEPT = ("gathered", "gates", "ups", "kept")


@triton.jit
def times(gate, up):  # type: ignore[no-untyped-def]
    """Whole numbers of whole numbers."""
    return gate * up


def in_tiles(name: str, wave: int | None = 1, tile: int = 16) -> Schedule:
    """A schedule with small tiles, and with few workers beside those that multiply."""
    products = {"tile": (tile, 16, 16), "wave": wave}
    rows = {"tile": (tile, None), "count": 2}
    moving = dict.fromkeys(("dispatch", "combine", "keep"), rows)
    sums = {"tile": (16, 16), "count": 2}
    return mixture_of_experts.schedule(name).changed(gate_up=products, down=products, add_up=sums, **moving)


class Layer(Called):
    """A call of the layer. `keep`: what it asks for besides; `KEPT` is all that gradients need."""

    rounded = ROUNDED[mixture_of_experts]

    def __init__(
        self, schedule: Schedule | str, counts: Counts, *, K: int = 24, N: int = 20, room: int | None = None,
        dtype: torch.dtype = torch.float32, integers: bool = False, keep: Sequence[str] = (), seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(dtype, integers, seed)
        self.schedule = in_tiles(schedule) if isinstance(schedule, str) else schedule
        self.counts, self.keep, self.world = counts, keep, len(counts[0])
        experts, random, numbers = len(counts) // self.world, self.random, self.numbers
        routing = Routing(Integers.of_array(np.array(counts)))
        (route,) = mixture_of_experts.recorded().routes
        rows = routing.parts(route)
        tokens = tuple(5 + 13 * rank % 20 for rank in range(self.world))
        self.parts = {**(rows if room is None else dict.fromkeys(rows, (room,) * self.world)), "tokens": tokens}
        self.given: list[dict[str, Any]] = []
        for mine, sent in zip(tokens, rows[route.sent], strict=True):
            each = {"x": numbers(mine, K), "gate": numbers(experts, K, N), "up": numbers(experts, K, N)}
            each |= {"weight": numbers(experts, N, K), "weights": numbers(mine, TOP, of=torch.float32)}
            each["order"] = torch.randint(mine, (sent,), generator=random, dtype=torch.int32)
            each["place"] = torch.randint(-1, sent, (mine, TOP), generator=random, dtype=torch.int32)
            self.given.append(each)
        names = ("x", "gate", "up", "weight", "weights")
        exact = [{n: t.double() if n in names else t for n, t in of.items()} for of in self.given]
        function = {"activation": lambda gate, up: gate * up} if integers else {}
        self.right = REFERENCES[mixture_of_experts]([{**of, **function} for of in exact], routing)

    def on(self, group: Group, **options: Any) -> dict[str, torch.Tensor]:
        given, rank = dict(self.given[group.rank]), group.rank
        spare = self.parts["sent"][rank] - len(given["order"])
        given["order"] = torch.nn.functional.pad(given["order"], (0, spare), value=1 << 20)
        (K, N), routed = given["gate"].shape[1:], self.parts["routed"][rank]
        shapes = {"out": (len(given["x"]), K), "gathered": (routed, K), "gates": (routed, N), "ups": (routed, N)}
        shapes["kept"] = (self.parts["sent"][rank], K)
        outs = {n: torch.full(shapes[n], float("nan"), dtype=self.dtype) for n in ("out", *self.keep)}
        counts = options.pop("counts", torch.tensor(self.counts, dtype=torch.int32))
        function = {"activation": times} if self.integers else {}
        options = {"schedule": self.schedule, "parts": self.parts, "route": counts, **function, **options}
        mixture_of_experts(**given, **outs, group=group, **options)
        return outs

    def check(self, outs: Sequence[dict[str, torch.Tensor]]) -> None:
        """What all ranks got."""
        for name in outs[0]:
            self.compare([of[name] for of in outs], [of[name] for of in self.right], name)
