"""The collectives of `torch.distributed` that operators use. Only this module knows their names in each torch version.

torch 2.13 has new names for the collectives of one tensor, and warns of the old names; 2.11 has only the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.distributed.nn.functional  # see below
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import ArgumentError, RankError, Site, WorldError
from tilelink.runtime.group import Group
from tilelink.runtime.process_group import ProcessGroup

# Functions of torch.distributed.nn.functional have the default group as a default argument, and torch imports that
# module in the first call of an operator. If a group exists by then, the defaults keep it alive beyond its end, and a
# thread of gloo that frees a tensor late aborts the process. Most programs import this module before they make a group.
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The collectives of one tensor."""

Later = Callable[[], torch.Tensor]
"""A result that is being computed: calling it waits."""


@dataclass(frozen=True)
class Members:
    """A group of `torch.distributed`, seen from its calling rank."""

    group: dist.ProcessGroup
    rank: int
    world: int

    @classmethod
    def named(cls, name: str) -> Self:
        group = group_named(name)
        return cls(group, group.rank(), group.size())

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        """Returns the rows of all ranks, one rank under the other; `lengths` has the number of rows of each rank."""
        if self.world == 1:
            return rows.clone
        longest = max(lengths)
        full = rows.new_empty(self.world * longest, rows.shape[1])
        if not full.numel():
            return lambda: full[: sum(lengths)]
        work = all_gather(full, _padded(rows, longest).contiguous(), group=self.group, async_op=True)

        def done() -> torch.Tensor:
            work.wait()
            parts = zip(full.split(longest), lengths, strict=True)
            return full if _even(lengths) else torch.cat([p[:n] for p, n in parts])

        return done

    def reduce_scatter(self, x: torch.Tensor, lengths: Sequence[int]) -> Later:
        """Returns this rank's rows of the sum of x over the ranks; `lengths` has the number of rows of each rank."""
        if self.world == 1:
            return x.clone
        longest = max(lengths)
        mine = x.new_empty(longest, x.shape[1])
        if not mine.numel():
            return lambda: mine[: lengths[self.rank]]
        if not _even(lengths):
            x = torch.cat([_padded(part, longest) for part in x.split(list(lengths))])
        work = reduce_scatter(mine, x.contiguous(), group=self.group, async_op=True)

        def done() -> torch.Tensor:
            work.wait()
            return mine[: lengths[self.rank]]

        return done

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of x over the ranks."""
        total = x.clone()
        if self.world > 1 and x.numel():
            dist.all_reduce(total, group=self.group)
        return total


class Traced(Members):
    """The same collectives while torch traces: results have shapes, but no values."""

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        return lambda: rows.new_empty(sum(lengths), rows.shape[1])

    def reduce_scatter(self, x: torch.Tensor, lengths: Sequence[int]) -> Later:
        return lambda: x.new_empty(lengths[self.rank], x.shape[1])

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)


def group_named(name: str) -> dist.ProcessGroup:
    """Returns the group with this name."""
    found: dist.ProcessGroup = c10d._resolve_process_group(name)  # type: ignore[arg-type, attr-defined]  # private
    return found


def world_of(name: str) -> int:
    """Returns the number of ranks of a group, also while torch traces."""
    return int(c10d._get_group_size_by_name(name))  # type: ignore[arg-type]  # a private name


def name_of_group(group: dist.ProcessGroup | DeviceMesh | str | None) -> str:
    """Returns the name of a group, or of the group of a one-dimensional mesh; by default of the group of all processes.
    Raises WorldError, RankError, ArgumentError."""
    if isinstance(group, str):
        try:
            world_of(group)
        except RuntimeError:
            known = "it must be one that this process is in, such as torch.distributed.group.WORLD.group_name"
            raise ArgumentError(f"group is {group!r}, no name of a group: {known}", Site.of_user()) from None
        return group
    lane: object = group
    if isinstance(lane, Group) and not isinstance(lane, ProcessGroup):
        of = f"group is a {type(lane).__name__}, of a lane without processes"
        raise ArgumentError(f"{of}: operators take a group of torch.distributed, under torchrun", Site.of_user())
    if not dist.is_available() or not dist.is_initialized():
        start = 'torch.distributed.init_process_group("gloo")'
        raise WorldError(f"torch.distributed is not initialised: call {start}", Site.of_user())
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            names = group.mesh_dim_names
            which = ": name them, mesh_dim_names=, and " if names is None else f" {names}; "
            one = "mesh[name]" if names is None else " or ".join(f"mesh[{name!r}]" for name in names)
            raise ArgumentError(f"the mesh has {group.ndim} dimensions{which}pass one of them, {one}", Site.of_user())
        group = group.get_group()
    members = dist.group.WORLD if group is None else group
    outside: object = dist.GroupMember.NON_GROUP_MEMBER
    if members is outside:
        raise RankError("this process is not in the group: only its members call operators on it", Site.of_user())
    if not isinstance(members, dist.ProcessGroup):
        made = "the one given to tilelink.group, " if isinstance(members, Group) else ""
        wanted = f"operators take a group of torch.distributed, {made}or its name"
        raise ArgumentError(f"group is a {type(members).__name__}: {wanted}", Site.of_user())
    return str(members.group_name)


def _even(lengths: Sequence[int]) -> bool:
    return len(set(lengths)) == 1


def _padded(rows: torch.Tensor, n: int) -> torch.Tensor:
    """Returns rows padded with zeros to n rows: collectives take the same number of rows from every rank."""
    return rows if len(rows) == n else torch.cat([rows, rows.new_zeros(n - len(rows), rows.shape[1])])
