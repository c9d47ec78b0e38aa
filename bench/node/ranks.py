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
"""Bytes of NVSHMEM's memory on a rank: more than the heaps of all lanes of a step. NVSHMEM's default is 1 GB."""
PATIENCE = timedelta(seconds=60)
"""How long a rank waits for what peers tell through the store."""


@dataclass(frozen=True)
class Launched:
    """The values that torchrun gives a process. `local`: its number on its node."""

    rank: int
    world: int
    local: int
    per_node: int
    host: str
    port: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launched:
        """Reads the values from an environment. Raises KeyError if torchrun did not start the process."""
        rank, world, local, per_node, port = (
            int(environment[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
        )
        return cls(rank, world, local, per_node, environment["MASTER_ADDR"], port)

    def store(self, name: str, *, serves: bool = False) -> Store:
        """Returns a store of all ranks. `serves`: rank 0 of these processes serves it, unless torchrun's agent does."""
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        keeps = serves and not agents and self.rank == 0
        return PrefixStore(name, TCPStore(self.host, self.port, is_master=keeps, timeout=PATIENCE))


@dataclass(frozen=True)
class Node:
    """A rank in a step. `place`: sizes, clock and graphs, as for steps on one GPU. `shared`: whether ranks share a GPU,
    and take turns. `nodes`: how many nodes the ranks are on. `store`: the ranks exchange findings of this step by it.
    """

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
        """Returns the lane of all ranks. Bounds are short, since all ranks run the same at the same time."""
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
        """Tells all ranks `mine` under a key."""
        self.store.set(f"{key}/{self.rank}", mine)

    def heard(self, key: str, rank: int) -> str:
        """Returns what a rank has told under a key. Waits for it; raises RuntimeError after PATIENCE."""
        name = f"{key}/{rank}"
        self.store.wait([name], PATIENCE)
        return self.store.get(name).decode()


def uneven(place: Place, world: int) -> tuple[int, ...]:
    """Returns uneven rows of each rank; some ranks have none."""
    rows = (300, 33, 0, 129) if place.on_gpu else (20, 5, 0, 9)
    return tuple(islice(cycle(rows), world))


def joined(launched: Launched, step: str, on_cpu: bool, nodes: int | None = None) -> Node:
    """Makes this process a rank of a step: sets its device and makes its process group. `nodes`: by default
    torchrun's."""
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
        # NCCL does not allow two ranks on one GPU.
        place, backend = gpu(), "gloo" if shared else "cpu:gloo,cuda:nccl"
        place = replace(place, compilers=max(1, place.compilers // launched.per_node))  # per rank
    dist.init_process_group(
        backend, store=PrefixStore("process group", store), rank=launched.rank, world_size=launched.world
    )
    return Node(launched, place, shared, store, nodes)
