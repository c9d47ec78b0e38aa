"""The lanes on which operators run programs: one for a group of `torch.distributed` and a kind of device."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from tilelink.errors import WorldError
from tilelink.runtime.process_group import ProcessGroup, group

_lanes: WeakKeyDictionary[dist.ProcessGroup, dict[str, ProcessGroup]] = WeakKeyDictionary()


def lane(process_group: dist.ProcessGroup | None = None, *, device: str = "cpu", **options: Any) -> ProcessGroup:
    """The lane on which operators run the programs of a group, on this kind of device. Collective when it is made: by
    the first operator, with the options that `tilelink.group` has by default, or by a call of this before, with others.
    Raises WorldError where there is one already and options are given, and what `tilelink.group` raises."""
    members = dist.group.WORLD if process_group is None else process_group
    if not isinstance(members, dist.ProcessGroup):
        return group(members, **options)  # says what is wrong
    made = _lanes.setdefault(members, {})
    if device not in made:
        made[device] = group(members, device=device, **options)  # type: ignore[arg-type]  # "cpu" or "cuda"
    elif options:
        raise WorldError(f"the group has its lane already, made without {', '.join(options)}: say so before any call")
    return made[device]
