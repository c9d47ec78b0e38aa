"""A rank of a node, in the process of a step: its device, its peers, and the lane of all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import tilelink as tk
from bench.gpu.place import Place, dry, gpu
from tilelink.runtime.cuda.symmetric import OVERLAPPING

Store = Any
"""A store of torch.distributed."""
SYMMETRIC = 3 << 30
"""Bytes of NVSHMEM's memory of a rank: more than the heaps of all lanes of a step. By default it has 1 GB."""
PATIENCE = timedelta(seconds=60)
"""For what peers tell through the store."""


@dataclass(frozen=True)
class Launched:
    """What torchrun tells a process. `local`: its number on its node."""

    rank: int
    world: int
    local: int
    per_node: int
    host: str
    port: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launched:
        """Raises KeyError for a process that torchrun has not started."""
        rank, world, local, per_node, port = (
            int(environment[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
        )
        return cls(rank, world, local, per_node, environment["MASTER_ADDR"], port)

    def store(self, name: str, *, serves: bool = False) -> Store:
        """A store of all ranks under a name; `serves`: this process keeps it, where torchrun's agent does not."""
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        keeps = serves and not agents and self.rank == 0
        return PrefixStore(name, TCPStore(self.host, self.port, is_master=keeps, timeout=PATIENCE))


@dataclass(frozen=True)
class Node:
    """`place`: sizes, clock and graphs as the steps on one GPU have them. `shared`: ranks share a GPU, and take turns.
    `nodes`: over which they are spread. `store`: where ranks tell each other what they found, of this step."""

    launched: Launched
    place: Place
    shared: bool
    store: Store
    nodes: int = 1

    @property
    def rank(self) -> int:
        return self.launched.rank

    @property
    def world(self) -> int:
        return self.launched.world

    def group(self, **options: Any) -> Any:
        """The lane of all ranks. Bounds are short, since all ranks run the same at the same time."""
        bounds: dict[str, Any] = {"enter_timeout": 20.0, "stuck_timeout": 3.0}
        if self.nodes > 1:
            bounds["per_node"] = self.world // self.nodes
        if not self.place.on_gpu:
            small = {"heap_bytes": 4 << 20, "signal_bytes": 1 << 12, "sms": 24}
            return tk.group(device="cpu", **{**small, **bounds, **options})
        if self.shared:
            options["reserved"] = self.place.sms - self.place.sms // self.launched.per_node
        return tk.group(device="cuda", **{"heap_bytes": 512 << 20, **bounds, **options})

    def told(self, key: str, mine: str) -> None:
        """Tells all ranks something."""
        self.store.set(f"{key}/{self.rank}", mine)

    def heard(self, key: str, rank: int) -> str:
        """What a rank has told, once it has. Raises RuntimeError where it does not within PATIENCE."""
        name = f"{key}/{rank}"
        self.store.wait([name], PATIENCE)
        return self.store.get(name).decode()


def uneven(place: Place, world: int) -> tuple[int, ...]:
    """Rows of each rank, not even, and none on some."""
    rows = (300, 33, 0, 129) if place.on_gpu else (20, 5, 0, 9)
    return tuple(islice(cycle(rows), world))


def joined(launched: Launched, step: str, on_cpu: bool, nodes: int | None = None) -> Node:
    """This process as a rank of a step: its device is set, its process group made. `nodes`: by default those that
    torchrun knows of."""
    nodes = launched.world // launched.per_node if nodes is None else nodes
    store = launched.store(f"bench.node/{step}")
    shared = not on_cpu and torch.cuda.device_count() < launched.per_node
    if on_cpu:
        place, backend = replace(dry(), gemms={f"tiny, {half}": (64, 32, 32) for half in ("gate", "down")}), "gloo"
    else:
        if shared:
            os.environ[OVERLAPPING] = "1"
        if nodes > 1:
            os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", str(SYMMETRIC))
        torch.cuda.set_device(launched.local % torch.cuda.device_count())
        # NCCL takes no two ranks on one GPU.
        place, backend = gpu(), "gloo" if shared else "cpu:gloo,cuda:nccl"
        place = replace(place, compilers=max(1, place.compilers // launched.per_node))  # of each rank
    dist.init_process_group(
        backend, store=PrefixStore("process group", store), rank=launched.rank, world_size=launched.world
    )
    return Node(launched, place, shared, store, nodes)
