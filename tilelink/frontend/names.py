"""Names that a lowered kernel uses itself: what a program calls its own must not be one of them.

A tile function's variables are renamed where they meet one (`name in names`); what a program declares is refused.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Mapping

from tilelink.errors import NotUnderstoodError, Site

KERNEL_NAMES = frozenset(
    [
        *("rank", "world", "per_node", "slot", "run", "worker", "workers", "heaps", "control", "before", "after"),
        *("multicast", "multicast_store", "multicast_notify"),
        *("is_far", "put_far", "put_notify_far", "notify_far", "fetch_far", "complete_far"),
        *("i", "t", "executor", "other", "tile", "home", "step", "part", "cell", "cells", "first", "last", "waiter"),
        *("turn", "signals", "expected", "missing", "segment_of", "here", "value", "tl", "triton", "range"),
        *("peer", "wait", "notify", "enter", "entered", "credit", "last_out", "drain", "leave", "RUN", "SLOT_LEFT"),
        *("stamps", "stamps_of_worker", "stamp", "clock", "TILE_ENDS", "WAIT_BEGINS", "WAIT_ENDS"),
    ]
)
CALL_OPTIONS = ("schedule", "group", "parts", "slot", "timed")
"""What a call of a program takes beside the tensors."""
TILE_ATTRIBUTES = frozenset(["rows", "cols", "shape"])


def check_parameters(program: str, names: Iterable[str], site: Site) -> None:
    """Raises NotUnderstoodError for a parameter that could not be told from an option of the call."""
    for name in names:
        if name in CALL_OPTIONS:
            options = ", ".join(f"{n}=" for n in CALL_OPTIONS)
            raise NotUnderstoodError(
                f"{program} has a tensor {name}, but {name}= is an option of every call ({options}): give the tensor "
                "another name",
                site,
            )


class Names:
    """The names of a program, and those that its kernels make from them (`x_stride_M`, `M_lo`, `matmul_workers`)."""

    def __init__(
        self,
        program: tuple[str, Site],
        tensors: Mapping[str, Site],
        dims: Mapping[str, Site],
        roles: Mapping[str, Site],
        axes: Mapping[str, Site],
        routed: Collection[str] = (),
    ) -> None:
        self.kinds = {
            "program": dict([program]), "tensor": tensors, "dimension": dims, "role": roles, "rank axis": axes,
        }  # fmt: skip
        tensor, dim, role = ("|".join(map(re.escape, names)) for names in (tensors, dims, roles))
        route = "|".join(map(re.escape, sorted(routed))) or "(?!)"
        self.made = re.compile(
            rf"({tensor})_(block\d*|kept|here|at|signals|signals_here|stride_\w+|(own_)?\d+(_by_\d+)*)"
            rf"|({dim})_(lo|tiles?|parts?|first|end|inside|at|cell|home)|(part|cell)_({dim})|index_\d+|their_\w+"
            rf"|({route})_(from|to|turn|segments?|expert)|(home|expert|source)_({route})"
            rf"|({role})_(workers|tiles)|(drain|publish)_({tensor})|{re.escape(program[0])}_(publish|enter)"
        )

    def __contains__(self, name: str) -> bool:
        return self.of_kernel(name) or any(name in names for names in self.kinds.values())

    def of_kernel(self, name: str) -> bool:
        """Whether the kernels use the name, whatever the program declares."""
        return name in KERNEL_NAMES or self.made.fullmatch(name) is not None

    def check(self) -> None:
        """Raises NotUnderstoodError for a name that the kernels use, or that stands for two things."""
        known: dict[str, str] = {}
        for kind, names in self.kinds.items():
            for name, site in names.items():
                if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
                    raise NotUnderstoodError(
                        f"the {kind} {name!r} has no name that kernels can have: those begin with a letter, go on with "
                        "letters, digits and _, and are no words of Python's",
                        site,
                    )
                if self.of_kernel(name) or (kind == "rank axis" and name in TILE_ATTRIBUTES):
                    whose = "in lowered kernels" if self.of_kernel(name) else "of a tile"
                    message = f"{name} has a meaning already, {whose}: give the {kind} another name"
                    raise NotUnderstoodError(message, site)
                if name in known:
                    raise NotUnderstoodError(f"{name} is the name of a {known[name]} and of a {kind}: rename one", site)
                known[name] = kind
