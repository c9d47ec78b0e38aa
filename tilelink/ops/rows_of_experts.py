"""Where the rows of experts lie, from the experts that tokens choose. A row is a token at one of its experts.

Each function has two forms with the same results: Triton kernels for GPUs, and plain torch. The kernels take one launch
or three, and plain torch more than twenty.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from tilelink.ops.repeated import computing

CHOICES, TOKENS = 4096, 128
"""The most choices, and the tokens, that a worker reads at a time."""


def laid_out(
    ids: torch.Tensor, experts: int, each: int, slices: int, by_kernels: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns counts, order and place of a rank's tokens, in int32: counts (experts * slices,), the number of rows of
    each expert; order (tokens * top * slices,), the token of each row, by expert, token and choice, then -1; place
    (tokens, top * slices), the row of each choice, or -1.

    `ids`: int32 or int64 (tokens, top), experts from 0 to `experts` - 1, or -1 for none. Each slice of an expert is an
    expert in the results, numbered rank by rank, `each` on a rank. If ids are out of range, the first count is minus
    their number."""
    (tokens, top), rows = ids.shape, ids.numel() * slices
    if not by_kernels:
        sliced = _slices_of(ids.long(), experts, each, slices)
        return counted(sliced.reshape(1, -1), experts * slices, 1)[:, 0], *_sorted(sliced, experts * slices)
    counts, order, place = (_empty(ids, n, dtype=torch.int32) for n in (experts * slices, rows, rows))
    given = ids.contiguous(), counts, order, place, ids.numel(), rows, 0, tokens
    sizes: dict[str, Any] = {"TOP": top, "ALL": experts, "EXPERTS": experts, "EACH": each, "SLICES": slices}
    _launch(_lay_out, (experts * slices + 1,), *given, **sizes, CHOICES=_at_a_time(ids.numel()))
    return counts, order, place.view(tokens, top * slices)


def met(
    ids: torch.Tensor, experts: int, slices: int, rank: int, world: int, room: int, by_kernels: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns counts, int32 (experts of all ranks, world), the number of rows of each expert from each rank; and token,
    at, choice and wanted of a rank, as in `tilelink.ops.moe_routing.Once`. `ids`: int32 (tokens of all ranks, top),
    experts or -1 as in `laid_out`."""
    (every, top), each, part = ids.shape, experts * slices // world, rank // slices
    tokens, first = every // world, part * each
    if not by_kernels:
        own, homes = ids.long(), torch.where((ids >= 0) & (ids < experts), ids // each, -1)
        order, place = _sorted(torch.where(homes == part, own - first, -1), each)
        token = torch.where(order < 0, -1, order % max(1, tokens))
        token = pad(token, (0, max(0, room - len(token))), value=-1)[:room]
        choice = (place < 0).to(torch.int8).argsort(dim=1, stable=True)
        at = place.gather(1, choice)
        parts = torch.arange(world, device=ids.device) // slices
        wanted = (homes[rank * tokens : (rank + 1) * tokens, :, None] == parts).any(1)
        counts = counted(own.reshape(world, -1), experts, slices)
        return counts, token, at, torch.where(at < 0, -1, choice), torch.where(wanted, 0, -1).to(torch.int32)
    counts, wanted = (_empty(ids, n, world, dtype=torch.int32) for n in (experts * slices, tokens))
    token, place = (_empty(ids, n, dtype=torch.int32) for n in (room, ids.numel()))
    at, choice = (_empty(ids, every, top, dtype=dtype) for dtype in (torch.int32, torch.int64))
    sizes: dict[str, Any] = {"ALL": experts, "EACH": each}
    of_one, of_all = _at_a_time(tokens * top), _at_a_time(ids.numel())
    _launch(_count, (experts, world), ids, counts, tokens * top, **sizes, SLICES=slices, WORLD=world, CHOICES=of_one)
    _launch(
        _lay_out, (each + 1,), ids, None, token, place, ids.numel(), room, first, tokens, **sizes, TOP=top,
        EXPERTS=each, SLICES=1, CHOICES=of_all,
    )  # fmt: skip
    _launch(
        _meet, (triton.cdiv(every, TOKENS),), ids, place, at, choice, wanted, every, rank * tokens, tokens, **sizes,
        TOP=top, SLICES=slices, WORLD=world, RANKS=triton.next_power_of_2(world), TOKENS=TOKENS,
    )  # fmt: skip
    return counts, token, at, choice, wanted


# ---- by kernels


def _at_a_time(choices: int) -> int:
    return min(CHOICES, triton.next_power_of_2(max(1, choices)))


_empty = torch.Tensor.new_empty  # tests put a function here that poisons results


def _launch(kernel: Any, grid: tuple[int, ...], ids: torch.Tensor, *given: Any, **constants: Any) -> None:
    computing()
    with torch.cuda.device_of(ids):
        kernel[grid](ids, *given, **constants, num_warps=8)


@triton.jit
def _read(ids, at, there, ALL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Experts in int32, -1 for none; -2 and ALL if out of range."""
    found = tl.load(ids + at, mask=there, other=-1)
    return tl.minimum(tl.maximum(found, -2), ALL).to(tl.int32)


@triton.jit
def _lay_out(  # type: ignore[no-untyped-def]
    ids, counts, order, place, choices, rows, first, tokens, TOP: tl.constexpr, ALL: tl.constexpr,
    EXPERTS: tl.constexpr, EACH: tl.constexpr, SLICES: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Each worker lays out the rows of one slice of an expert, behind the rows of all before it. Experts have numbers
    from `first` on, and `tokens` is the number of a rank's tokens. The last worker says what has no row."""
    number = tl.program_id(0)
    part, slice_, expert = number // (EACH * SLICES), number // EACH % SLICES, number % EACH
    before, wrong = tl.zeros([CHOICES], tl.int32), tl.zeros([CHOICES], tl.int32)
    for begin in range(0, choices, CHOICES):
        at = begin + tl.arange(0, CHOICES)
        found = _read(ids, at, at < choices, ALL)
        wrong += ((found < -1) | (found >= ALL)).to(tl.int32)
        found -= first
        same = slice_ + (found % EACH < expert).to(tl.int32)
        earlier = tl.where(found // EACH == part, same, tl.where(found // EACH < part, SLICES, 0))
        before += tl.where((found >= 0) & (found < EXPERTS), earlier, 0)
    row = tl.sum(before)
    begun = row
    for begin in range(0, choices, CHOICES):
        at = begin + tl.arange(0, CHOICES)
        found = _read(ids, at, at < choices, ALL) - first
        if number < EXPERTS * SLICES:
            mine = found == part * EACH + expert
            rank = row + tl.cumsum(mine.to(tl.int32)) - 1
            tl.store(order + rank, at // TOP % tokens, mask=mine & (rank < rows))
            tl.store(place + at * SLICES + slice_, rank, mask=mine)
            row += tl.sum(mine.to(tl.int32))
        else:
            nowhere = ((found < 0) | (found >= EXPERTS)) & (at < choices)
            for k in tl.static_range(SLICES):
                tl.store(place + at * SLICES + k, -1, mask=nowhere)
    if number < EXPERTS * SLICES:
        if counts is not None:
            all_wrong = tl.sum(wrong)
            tl.store(counts + number, tl.where((number == 0) & (all_wrong > 0), -all_wrong, row - begun))
    else:
        for begin in range(row, rows, CHOICES):
            at = begin + tl.arange(0, CHOICES)
            tl.store(order + at, -1, mask=at < rows)


@triton.jit
def _count(  # type: ignore[no-untyped-def]
    ids, counts, choices, ALL: tl.constexpr, EACH: tl.constexpr, SLICES: tl.constexpr, WORLD: tl.constexpr,
    CHOICES: tl.constexpr,
):  # fmt: skip
    """Each worker counts the rows of an expert from one rank, and writes this number for each slice."""
    expert, source = tl.program_id(0), tl.program_id(1)
    here, wrong = tl.zeros([CHOICES], tl.int32), tl.zeros([CHOICES], tl.int32)
    for begin in range(0, choices, CHOICES):
        at = begin + tl.arange(0, CHOICES)
        found = _read(ids + source * choices, at, at < choices, ALL)
        here += (found == expert).to(tl.int32)
        wrong += ((found < -1) | (found >= ALL)).to(tl.int32)
    rows, all_wrong = tl.sum(here), tl.sum(wrong)
    for k in tl.static_range(SLICES):
        number = (expert // EACH * SLICES + k) * EACH + expert % EACH
        tl.store(counts + number * WORLD + source, tl.where((number == 0) & (all_wrong > 0), -all_wrong, rows))


@triton.jit
def _meet(  # type: ignore[no-untyped-def]
    ids, place, at, choice, wanted, every, first, tokens, ALL: tl.constexpr, EACH: tl.constexpr, TOP: tl.constexpr,
    SLICES: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Each worker moves the rows of some tokens to the front, and finds which ranks need those among them that are this
    rank's own: the tokens from `first` on."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    there, ranks = token < every, tl.arange(0, RANKS)[None, :]
    front, needed = tl.zeros([TOKENS], tl.int32), tl.zeros([TOKENS, RANKS], tl.int32)
    for k in tl.static_range(TOP):
        found = _read(ids, token * TOP + k, there, ALL)
        home = tl.where((found >= 0) & (found < ALL), found // EACH, -1)
        needed |= (home[:, None] == ranks // SLICES).to(tl.int32)
        row = tl.load(place + token * TOP + k, mask=there, other=-1)
        tl.store(at + token * TOP + front, row, mask=row >= 0)
        tl.store(choice + token * TOP + front, k, mask=row >= 0)
        front += (row >= 0).to(tl.int32)
    for k in tl.static_range(TOP):
        tl.store(at + token * TOP + k, -1, mask=there & (k >= front))
        tl.store(choice + token * TOP + k, -1, mask=there & (k >= front))
    own = (token - first)[:, None]
    tl.store(wanted + own * WORLD + ranks, needed - 1, mask=(own >= 0) & (own < tokens) & (ranks < WORLD))


# ---- in plain torch


def counted(ids: torch.Tensor, experts: int, slices: int) -> torch.Tensor:
    """Returns int32 (experts of all ranks, world): rows of each expert from each rank. `ids`: experts, (world, tokens *
    top). A slice is an expert. If a rank has ids out of range, its first count is minus their number."""
    world = len(ids)
    there = (ids >= 0) & (ids < experts)
    places = torch.arange(world, device=ids.device)[:, None] * (experts + 1) + torch.where(there, ids, experts)
    found = torch.zeros(world * (experts + 1), dtype=torch.int32, device=ids.device)
    found = found.scatter_add(0, places.flatten(), torch.ones_like(places, dtype=torch.int32).flatten())
    parts = world // slices
    counts = found.view(world, experts + 1)[:, :experts].T.reshape(parts, 1, experts // parts, world)
    counts = counts.expand(parts, slices, experts // parts, world).reshape(experts * slices, world)
    wrong = ((ids < -1) | (ids >= experts)).sum(1).to(torch.int32)
    return torch.cat([torch.where(wrong > 0, -wrong, counts[0])[None], counts[1:]])


def _sorted(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns order and place, as `laid_out`, of ids (tokens, top)."""
    flat, top = ids.flatten(), ids.shape[1]
    there = (flat >= 0) & (flat < experts)
    pairs = torch.where(there, flat, experts).argsort(stable=True)
    place = torch.empty_like(pairs).scatter_(0, pairs, torch.arange(len(pairs), device=ids.device))
    order = torch.where(there[pairs], pairs // max(1, top), -1).to(torch.int32)
    return order, torch.where(there, place, -1).to(torch.int32).view_as(ids)


def _slices_of(ids: torch.Tensor, experts: int, each: int, slices: int) -> torch.Tensor:
    """Returns (tokens, top * slices): all slices of each expert of (tokens, top), numbered rank by rank, `each` on a
    rank. An expert out of range gives one number out of range, and -1."""
    if slices == 1:
        return ids
    known = (ids >= 0) & (ids < experts)
    first = ids // each * (each * slices) + ids % each
    every = first[..., None] + each * torch.arange(slices, device=ids.device)
    wrong = torch.where(ids < 0, ids, ids + experts * (slices - 1))[..., None]
    wrong = torch.cat([wrong, torch.full_like(wrong, -1).expand(*ids.shape, slices - 1)], -1)
    return torch.where(known[..., None], every, wrong).reshape(len(ids), ids.shape[1] * slices)
