"""One process a rank: makes a lane of the processes of a `torch.distributed` group, on CPUs or GPUs.

    dist.init_process_group("gloo")  # under torchrun
    group = tilelink.group()
    y = all_gather_matmul(x, weight, group=group)
"""

from __future__ import annotations

import os
from typing import Literal

import torch
import torch.distributed as dist

from tilelink import errors
from tilelink.analysis.machine import NCCL_SMS
from tilelink.analysis.unroll import DEFAULT_SMS
from tilelink.errors import Site, public
from tilelink.frontend.sizes import check_nodes
from tilelink.runtime.agreement import gathered, mismatch
from tilelink.runtime.board import share
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.layout import CPU_HEAP, CPU_SIGNALS, CUDA_HEAP, CUDA_SIGNALS, HeapLayout
from tilelink.runtime.process_group import ProcessGroup

DEFAULT_ENTER = 300.0
DEFAULT_STUCK = 30.0


@public
def group(
    process_group: dist.ProcessGroup | None = None,
    *,
    device: Literal["cpu", "cuda"] | None = None,
    heap_bytes: int | None = None,
    slots: int = 2,
    signal_bytes: int | None = None,
    sms: int = DEFAULT_SMS,
    reserved: int | None = None,
    seed: int = 0,
    enter_timeout: float = DEFAULT_ENTER,
    stuck_timeout: float = DEFAULT_STUCK,
    per_node: int | None = None,
) -> ProcessGroup:
    """Makes a lane of all processes of a `torch.distributed` group (all processes by default), and returns the calling
    process's rank in it. Collective: all of them call it with the same options. One group or several may have several
    lanes. A process in several lanes must call programs on them in an order that does not make ranks wait in a circle.

    `device`: where the ranks are. By default each is on its current CUDA device, if this process sees one and the group
    has a backend other than gloo for it, else on the CPU. `heap_bytes`, `slots`, `signal_bytes`: as in `CpuWorld`.
    `reserved`: SMs that are left to others, on CUDA devices; by default the SMs of NCCL, if the group has it
    (`sms_of_nccl`), else 0. `sms`, `seed`, on the CPU, and `per_node`: as in `CpuWorld`. `enter_timeout`,
    `stuck_timeout`: seconds, see `Bounds`. Raises, on every rank if one does, WorldError, RankError, DeviceError,
    HeapError, SymmetricMemoryError, NvshmemError, RankMismatchError.
    """
    site = Site.of_user()
    members = _members(process_group, site)
    device = device_of(members) if device is None else device
    on_cpu = device == "cpu"
    if on_cpu and "cpu" not in backends_of(members):
        backends = dist.get_backend_config(members)
        raise errors.DeviceError(f"the group's backends are {backends}: ranks on the CPU need gloo", site)
    if reserved is None:
        reserved = 0 if on_cpu else reserved_by_default(members)
    if heap_bytes is None:
        heap_bytes = CPU_HEAP if on_cpu else CUDA_HEAP
    if signal_bytes is None:
        signal_bytes = CPU_SIGNALS if on_cpu else CUDA_SIGNALS
    options = {
        "device": device, "reserved": reserved,
        "heap_bytes": heap_bytes, "slots": slots, "signal_bytes": signal_bytes, "sms": sms,
        "enter_timeout": enter_timeout, "stuck_timeout": stuck_timeout, "per_node": per_node,
    }  # fmt: skip
    if difference := mismatch("this lane", dict(enumerate(gathered(members, options)))):
        raise errors.RankMismatchError(difference, site)
    world = dist.get_world_size(members)
    check_nodes(world, per_node)
    layout = HeapLayout(world, heap_bytes, slots, signal_bytes)
    bounds = Bounds(enter_timeout, stuck_timeout)
    if on_cpu:
        from tilelink.runtime.cpu.lane import CpuLane
        from tilelink.runtime.cpu.process_group import CpuProcessGroup

        lane = CpuLane(layout, share(members, heap_bytes), sms, per_node=per_node)
        return CpuProcessGroup(members, lane, seed, bounds)
    if per_node is not None and per_node < world:
        from tilelink.runtime.cuda.nodes import nodes_group

        return nodes_group(members, layout, reserved, bounds, per_node)
    from tilelink.runtime.cuda.process_group import cuda_process_group

    return cuda_process_group(members, layout, reserved, bounds)


def _members(process_group: dist.ProcessGroup | None, site: Site) -> dist.ProcessGroup:
    """The processes of a lane, all processes by default. Raises WorldError and RankError."""
    if not dist.is_available() or not dist.is_initialized():
        call = 'call torch.distributed.init_process_group("gloo")'
        raise errors.WorldError(f"there are no processes to group: {call}", site)
    members = dist.group.WORLD if process_group is None else process_group
    if not isinstance(members, dist.ProcessGroup):
        raise errors.RankError("this process is no rank of the group: only its members make a lane of it", site)
    return members


def backends_of(members: dist.ProcessGroup) -> dict[str, str]:
    """The backends of a group, by device."""
    return dict(one.split(":") for one in dist.get_backend_config(members).split(","))


def device_of(members: dist.ProcessGroup) -> Literal["cpu", "cuda"]:
    """The default device of a group's ranks. A group made as "gloo" has gloo for CUDA tensors, too."""
    return "cuda" if backends_of(members).get("cuda", "gloo") != "gloo" and torch.cuda.is_available() else "cpu"


def reserved_by_default(members: dist.ProcessGroup) -> int:
    """The SMs that a lane on GPUs leaves to others by default: as many as NCCL takes, if the group has it, else 0."""
    return sms_of_nccl() if backends_of(members).get("cuda") == "nccl" else 0


def sms_of_nccl() -> int:
    """The SMs that a collective of NCCL takes, one a block: the lesser of NCCL_MAX_CTAS and NCCL_MAX_NCHANNELS."""
    said = (os.environ.get(name, "") for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"))
    return min([int(n) for n in said if n.isdecimal() and int(n)], default=NCCL_SMS)
