"""Watches processes on other machines by a connection to each, which the machine's kernel closes when it ends."""

from __future__ import annotations

import os
import select
import socket
import weakref
from collections.abc import Sequence

import torch.distributed as dist

from tilelink.runtime.agreement import gathered
from tilelink.runtime.bounds import Processes

PATIENCE = 10.0
"""The most seconds for making a connection. A rank that can't be connected to is not watched."""
ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""With these values, a machine that is gone or cut off is noticed after some 11 s without an answer."""


class Watched(Processes):
    """Watches the processes of all ranks: on this machine by their pids, on others by a connection. `hosts`: the host
    of each rank. Collective."""

    def __init__(self, process_group: dist.ProcessGroup, host: str) -> None:
        told = gathered(process_group, (host, os.getpid()))
        self.hosts = [where for where, _ in told]
        far = [rank for rank, where in enumerate(self.hosts) if where != host]
        # the pid of this process stands for processes that can't be watched by their pid
        super().__init__([pid if where == host else os.getpid() for where, pid in told])
        self.pids = [pid for _, pid in told]
        self._wires: dict[int, socket.socket] = _connected(process_group, far)
        self._ends = select.poll()
        self._far = {wire.fileno(): rank for rank, wire in self._wires.items()}
        for number in self._far:
            self._ends.register(number, select.POLLIN | select.POLLRDHUP)
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _close(mine()))

    def gone(self) -> set[int]:
        return super().gone() | {self._far[number] for number, _ in self._ends.poll(0)}

    def named(self, rank: int) -> str:
        return f"{super().named(rank)} on {self.hosts[rank]}" if rank in self._far.values() else super().named(rank)

    def close(self) -> None:
        super().close()
        while self._wires:
            _, wire = self._wires.popitem()
            self._ends.unregister(wire.fileno())
            wire.close()


def _close(watched: Watched | None) -> None:
    """Closes the connections in a fork, where they would look as if this process still lived."""
    if watched is not None:
        watched.close()


def _connected(process_group: dist.ProcessGroup, far: Sequence[int]) -> dict[int, socket.socket]:
    """Connections to these ranks, as far as they can be reached; the lower one of two ranks calls. Collective."""
    rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen(world)
        listening.settimeout(PATIENCE)
        places = gathered(process_group, (_address(), listening.getsockname()[1]))
        wires: dict[int, socket.socket] = {}
        for peer in (r for r in far if r > rank):
            try:
                wire = socket.create_connection(places[peer], PATIENCE)
                wire.sendall(rank.to_bytes(4, "little"))
                wires[peer] = wire
            except OSError:
                pass
        called = gathered(process_group, sorted(wires))
        callers = {r for r in far if r < rank and rank in called[r]}
        try:
            while callers - wires.keys():
                wire, _ = listening.accept()
                wire.settimeout(PATIENCE)
                wires[int.from_bytes(wire.recv(4), "little")] = wire
        except OSError:
            pass
    for wire in wires.values():
        wire.settimeout(None)
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE.items():
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return wires


def _address() -> str:
    """The address of this machine for others: the one from which it reaches the machine that torchrun names."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 1))
            return str(probe.getsockname()[0])
    except (KeyError, OSError):
        return socket.gethostname()
