"""The ranks of a group make the same calls, or all of them raise: compared on the CPU before anything else is done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from tilelink.errors import RankFailedError, RankMismatchError, Site, TileLinkError
from tilelink.ops.checks import check_devices
from tilelink.ops.collectives import Members, all_gather
from tilelink.runtime.arguments import mismatch
from tilelink.runtime.shared import gathered

T = TypeVar("T")


def agree(
    members: Members, device: torch.device, check: Callable[[], T], describe: Callable[[T], Mapping[str, Any]]
) -> T:
    """What `check()` gives, once the ranks agree on how they describe it. Raises what `check` raises, RankFailedError
    where it raised on another rank, RankMismatchError where ranks call differently.

    On CUDA devices nothing is exchanged here: the lane of the group compares calls that are new to it.
    """
    site = Site.of_user()
    try:
        checked = check()
    except TileLinkError as e:
        error = type(e)(e.message, site)
        if device.type == "cpu":
            _compare(members, {"raised": f"{type(e).__name__}: {e.message}"}, site, error)
        raise error from None
    if device.type == "cpu":
        _compare(members, describe(checked), site)
    return checked


def agree_on_devices(
    group_name: str, x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> None:
    """Raises on every rank where the tensors of this one are on several devices. Asked before torch picks what to run
    by their devices: with one on "meta", it would be the fake, which can't tell the other ranks."""
    if torch.compiler.is_compiling():
        return
    devices = {t.device for t in (x, *weights, *biases) if t is not None}
    if len(devices) > 1:
        told = next((d for d in devices if d.type == "cpu"), x.device)
        agree(Members.named(group_name), told, lambda: check_devices(x, weights, biases), lambda _: {})


def _compare(
    members: Members, mine: Mapping[str, Any], site: Site, error: TileLinkError | None = None
) -> None:
    """Raises on every rank unless all of them have the same, and none an error."""
    digest = hashlib.blake2b(repr(mine).encode(), digest_size=16).digest()
    word = torch.frombuffer(bytearray(digest), dtype=torch.int64)[None]
    words = all_gather(members, word, [1] * members.world)()
    if error is None and bool((words == word).all()):
        return
    calls = dict(enumerate(gathered(members.group, dict(mine))))
    if error is not None:
        raise error
    for rank, theirs in calls.items():
        if "raised" in theirs:
            raise RankFailedError(f"rank {rank} raised {theirs['raised']}", site)
    uneven = "; shards of different lengths are told to every rank, by lengths="
    raise RankMismatchError((mismatch("this call", calls) or "") + uneven * _differ_in_shapes(calls), site)


def _differ_in_shapes(calls: Mapping[int, Mapping[str, Any]]) -> bool:
    return len({str(c.get("shapes")) for c in calls.values()}) > 1
