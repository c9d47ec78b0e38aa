"""The handle that says where tokens go. It is made on the device, from the experts of a rank's tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from tilelink.errors import ArgumentError, ShapeError, Site, counted, public
from tilelink.ops.agreement import raised_everywhere
from tilelink.ops.checks import check_devices, check_integers, check_part, check_sizes
from tilelink.ops.collectives import Members, name_of_group, world_of
from tilelink.ops.of_all_ranks import route, route_once
from tilelink.plans.layer_plans import is_once
from tilelink.plans.room import rows_at_most


@dataclass(frozen=True)
class Once:
    """The part of a routing that only plans "once" need. `token`: int32 [room], for each row of this rank's experts the
    number of its token on the source rank; `at`: int32 [tokens of all ranks, top], the rows on this rank of each token,
    in the order of choices, then -1; `choice`: int64, as `at`, the choice of each of these rows; `wanted`: int32
    [tokens, world], 0 if a rank has rows of a token of this rank, else -1; None if every rank has a slice of every
    expert, because all tokens then go to all ranks."""

    token: torch.Tensor
    at: torch.Tensor
    choice: torch.Tensor
    wanted: torch.Tensor | None


@dataclass(frozen=True)
class Routing:
    """A handle that says where the tokens of all ranks go. `counts`: int32 [experts of all ranks, world], rows of each
    expert from each rank, the same on every rank. A row is a token at one of its experts. `order`: int32 [rows], the
    token of each row that this rank sends, by expert, then -1; `place`: int32 [tokens, top], the row of each choice of
    a token, -1 without expert. If experts are cut into `slices`, each slice is an expert here: a token has top * slices
    of them.

    `order` and `place` have the length for the most tokens of any rank; this rank has `mine` tokens. `room`: how many
    rows of its experts each rank has room for. These rows lie by expert and then by source rank; padding of undefined
    values follows. `once`: what plans "once" need besides, if the handle was made for them.
    """

    counts: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    mine: int
    room: int
    group_name: str
    slices: int = 1
    once: Once | None = None

    @property
    def rows_of_experts(self) -> torch.Tensor:
        """int64 [experts of this rank], on the device: the number of rows of each. Padding is not counted."""
        members = Members.named(self.group_name)
        experts = len(self.counts) // members.world
        return self.counts[members.rank * experts : (members.rank + 1) * experts].sum(1)

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the tokens (tokens, K) of this rank, padded with zeros to the most that a rank has."""
        more = len(self.place) - self.mine
        return pad(x, (0, 0, 0, more)) if more else x

    def weights(self, weights: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the weights of choices, (tokens, top * slices), in float32, padded as `tokens`; 0 without expert."""
        if weights is None:
            return None
        each = weights.float()
        each = each.repeat_interleave(self.slices, 1) if self.slices > 1 else each
        each = torch.where(self.place[: self.mine] >= 0, each, 0)
        return self.tokens(each)


@public
def moe_routing(
    topk_idx: torch.Tensor,
    *,
    experts: int,
    group: dist.ProcessGroup | str | None = None,
    tokens: int | None = None,
    capacity: int | None = None,
    slices: int = 1,
    places: torch.Tensor | None = None,
    plan: str | None = None,
) -> Routing:
    """Returns a handle that says where tokens go, from their experts. The device gathers the counts of all ranks, and
    no host reads them. All ranks make the same call.

    `topk_idx`: integers (tokens of this rank, top), experts of all ranks from 0 to `experts` - 1, or -1 for none.
    `slices`: how many ranks share an expert, each with a part of its hidden features: the first `slices` ranks share
    the first experts, and so on. 1 means whole experts on each rank, the world a slice of every expert on every rank. A
    row goes to each slice of its expert, and a slice counts as an expert, numbered rank by rank.
    `places`: integers (experts that tokens name, copies), the places of each expert among `experts`, -1 for no further
    copy; the same on every rank. `topk_idx` then names experts, and `experts` counts places, as many on each rank; a
    place without an expert gets no row. Copies of an expert are counted from the highest place down; token t of rank r
    goes to copy (t + r) modulo the copies. An expert without a place counts as out of range. See `expert_places`.
    `tokens`: the most tokens of any rank, the same on every rank; by default all ranks have as many tokens as this one.
    `capacity`: the rows that a rank has room for, for all of its experts. By default no row is ever dropped: it is the
    tokens of all ranks, times the experts that a token may have on a rank. If rows have no room, or an expert is out of
    range (a count is then negative), calls with this routing raise CapacityError on every rank.
    `plan`: the plan of the operators that get the handle. "torch" gathers counts by torch.distributed; "once" also
    makes what its operators need besides. Raises ArgumentError, ShapeError, DtypeError.
    """
    name = name_of_group(group)
    world = world_of(name)
    numbers = (experts, slices, places, tokens, capacity, world)
    raised_everywhere(name, lambda: _check(topk_idx, *numbers), "arguments", topk_idx)
    if places is not None:
        topk_idx = placed(topk_idx, places, experts, Members.named(name).rank)
    mine, top = topk_idx.shape
    tokens = mine if tokens is None else tokens
    room = rows_at_most(world, tokens, top, experts * slices // world) if capacity is None else capacity
    ids = topk_idx if topk_idx.dtype == torch.int32 else topk_idx.long()
    ids = pad(ids, (0, 0, 0, tokens - mine), value=-1) if tokens > mine else ids
    call = {"experts": experts, "slices": slices, "group_name": name, "plan": plan}
    if not is_once(plan):
        counts, order, place = route(x=ids, **call)
        return Routing(counts, order, place, mine, room, name, slices)
    if ids.dtype != torch.int32:
        ids = ids.clamp(-2, experts).to(torch.int32)  # experts out of range stay out of range
    counts, order, place, token, at, choice, wanted = route_once(x=ids, room=room, **call)
    once = Once(token, at, choice, None if slices == world else wanted)
    return Routing(counts, order, place, mine, room, name, slices, once)


@public
def expert_places(placement: Sequence[int], device: torch.device | str | None = None) -> torch.Tensor:
    """Returns the `places` (experts, copies) of `moe_routing`. `placement`: the expert at each place of all ranks.

    Places are numbered rank by rank, as many on each rank, with -1 for a place without an expert. An expert may have
    several places, its copies. Raises ArgumentError if an expert has none."""
    experts = max(placement, default=-1) + 1
    found = [[place for place, at in enumerate(placement) if at == expert] for expert in range(experts)]
    if not found or min(placement) < -1 or not all(found):
        absent = [e for e, copies in enumerate(found) if not copies]
        no = f", without expert {absent[0]}" if absent else ""
        what = f"the placement is {list(placement)}{no}"
        raise ArgumentError(f"{what}; it must have each expert from 0 on, and -1 where there is none", Site.of_user())
    most = max(map(len, found))
    return torch.tensor([copies + [-1] * (most - len(copies)) for copies in found], device=device)


@public
def even_placement(experts: int, world: int) -> list[int]:
    """Returns the expert at each place of all ranks, -1 for none, with `experts` shared by `world` ranks as evenly as
    possible: if the world does not divide the experts, the first ranks have one more."""
    each, (least, more) = -(-experts // world), divmod(experts, world)
    begins = [rank * least + min(rank, more) for rank in range(world + 1)]
    of_ranks = [list(range(*ends)) for ends in itertools.pairwise(begins)]
    return [e for mine in of_ranks for e in mine + [-1] * (each - len(mine))]


def placed(topk_idx: torch.Tensor, places: torch.Tensor, experts: int, rank: int) -> torch.Tensor:
    """Returns (tokens, top): the place of each expert that a token names. Experts out of range stay out of range."""
    topk_idx = topk_idx.long()
    known, number = (topk_idx >= 0) & (topk_idx < len(places)), places.sort(1, descending=True).values
    copies = number[torch.where(known, topk_idx, 0)]
    turn = torch.arange(rank, rank + len(topk_idx), device=topk_idx.device)[:, None]
    turn = turn % (copies >= 0).sum(-1).clamp(min=1)
    found = copies.gather(-1, turn[..., None])[..., 0]
    beyond = torch.where(topk_idx < 0, topk_idx, experts)
    return torch.where(known & (found >= 0), found, beyond)


def _check(
    topk_idx: torch.Tensor, experts: int, slices: int, places: Any, tokens: int | None, capacity: int | None,
    world: int,
) -> None:  # fmt: skip
    check_numbers(experts=experts, slices=slices, tokens=tokens, capacity=capacity)
    check_part("topk_idx", topk_idx)
    if places is not None and not isinstance(places, torch.Tensor):
        made = "ops.expert_places makes one of a list of the expert at each place"
        what = f"places is a {type(places).__name__}; it must be a table (experts, copies): {made}"
        raise ArgumentError(what, Site.of_user())
    for name, given, shape in (("topk_idx", topk_idx, "(tokens, top)"), ("places", places, "(experts, copies)")):
        if given is not None:
            check_integers(name, given, shape)
    if places is not None and 0 in places.shape:
        raise ShapeError(
            f"places has shape {tuple(places.shape)}; it must be (experts, copies), with one of each at least",
            Site.of_user(),
        )
    check_slices(experts, slices, world)
    if places is not None:
        check_devices(topk_idx, {"places": places}, "topk_idx")
        _check_last(places, experts, slices, world)
    if tokens is not None and tokens < len(topk_idx):
        own = counted(len(topk_idx), "token")
        raise ArgumentError(f"tokens={tokens} is less than the {own} of this rank", Site.of_user())


def _check_last(places: torch.Tensor, experts: int, slices: int, world: int) -> None:
    """Raises ArgumentError if a table on a CPU names a place beyond the last one. On other devices the host does not
    read the table."""
    if type(places) is torch.Tensor and places.is_cpu and not torch.compiler.is_compiling():
        last = int(places.max())
        if last >= experts:
            parts = world // slices
            there = f"there are {experts}, {experts // parts} on each of {_parts(slices, world)}"
            raise ArgumentError(f"places names place {last}, so it has {last + 1} places; {there}", Site.of_user())


def check_numbers(**given: Any) -> None:
    """Checks that each number is an integer from 0 on, or None. Raises ArgumentError."""
    check_sizes(**{name: number for name, number in given.items() if number is not None})


def check_slices(experts: int, slices: int, world: int) -> None:
    """Checks that the ranks can share experts, each cut into `slices`, evenly. Raises ArgumentError."""
    if slices < 1 or world % slices:
        raise ArgumentError(f"slices={slices}; it must divide the number of ranks, {world}", Site.of_user())
    if experts < 1 or experts % (world // slices):
        parts = _parts(slices, world)
        raise ArgumentError(f"{counted(experts, 'expert')}; there must be as many on each of {parts}", Site.of_user())


def _parts(slices: int, world: int) -> str:
    return counted(world, "rank") if slices == 1 else f"{world // slices} parts of the ranks, {slices} in each"
