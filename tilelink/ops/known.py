"""What operators keep of their calls, so that calls like an earlier one are neither checked nor planned again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import PyDLL, c_char_p
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from tilelink.frontend.kept import Kept
from tilelink.ops.repeated import Repeat
from tilelink.plans.names import AUTO, Plan

BACKEND = "TILELINK_BACKEND"
"""The environment variable that says who computes: see `tilelink.ops.programs.path_of`."""
MACHINE = "TILELINK_MACHINE"
"""The environment variable with the machine: a name of `tilelink machine list`, or the path of a description."""
VARIABLES = BACKEND.encode(), MACHINE.encode()
getenv = PyDLL(None).getenv  # os.environ takes much longer for a variable that is not set
getenv.argtypes, getenv.restype = [c_char_p], c_char_p
ALIGNED = 16
"""Bytes. Triton compiles a kernel for addresses that are multiples of this, and another one for other addresses."""
SEVERAL = (list, tuple)
"""The types of arguments with several values."""
KEPT_CALLS = 512
"""How many kinds of calls are kept of a group: the ones made last."""


@dataclass
class Known:
    """What is known of a kind of calls. `told`: what ranks compare; `found`: what its checks derived, by field; `plan`:
    None if plain torch computes; `repeat`: the short way to make the call, if there is one, after one was `watched`; it
    keeps the lane, and so the group, alive."""

    told: Mapping[str, Any]
    found: Mapping[str, Any]
    plan: Plan | None
    repeat: Repeat | None = None
    watched: bool = False


_known: WeakKeyDictionary[dist.ProcessGroup, Kept[Any, Known]] = WeakKeyDictionary()


def known_calls(group: dist.ProcessGroup) -> Kept[Any, Known]:
    """What is known of the calls of a group, by `key`."""
    found = _known.get(group)
    return _known.setdefault(group, Kept(KEPT_CALLS)) if found is None else found


def key(operator: str, values: Iterable[Any]) -> Any:
    """The key of a call of an operator with these values of its arguments. Calls with equal keys are alike in all that
    is checked, compared, planned and compiled. The environment counts, too: it can say who computes, and for which
    machine "auto" chooses a plan."""
    backend, machine = VARIABLES
    found: list[Any] = [operator, getenv(backend)]
    for value in values:
        several = isinstance(value, SEVERAL)
        if several:
            found.append(len(value))
        for v in value if several else (value,):
            if not isinstance(v, torch.Tensor):
                found.append(v)
                if type(v) is str and v == AUTO:
                    found.append(getenv(machine))
            elif v.layout == torch.strided:
                found += v.shape, v.stride(), v.dtype, v.device, v.data_ptr() % ALIGNED
            else:
                found += v.shape, v.layout, v.dtype, v.device
    return tuple(found)
