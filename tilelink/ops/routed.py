"""Rows that go to experts and come back, in plain torch: the unfused form, and the default on a CPU.

Every rank gets the rows of all ranks, and takes its own by indices made from the counts. The products of experts are
made one after the other. The host reads the counts for these products, and to check that rows have room.
"""

from __future__ import annotations

import torch

from tilelink.errors import CapacityError, Site
from tilelink.frontend.routes import Integers, Routing
from tilelink.ops.collectives import Traced
from tilelink.ops.plain import Plain


def taken(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Returns the rows of x in this `order`, zeros for -1."""
    return _taken(x, order.long(), order >= 0)


def summed(rows: torch.Tensor, place: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Returns for each token the sum of its rows, each times its weight: in float32, in the order of choices, rounded
    once to the dtype of the rows. `place`: (tokens, top), the row of each choice, or -1."""
    return added(rows, place, weights).to(rows.dtype)


def added(rows: torch.Tensor, place: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """As `summed`, but the result stays in float32."""
    total = rows.new_zeros(len(place), rows.shape[1], dtype=torch.float32)
    for k in range(place.shape[1]):
        row = taken(rows, place[:, k]).float()
        total = total + (row if weights is None else weights[:, k, None] * row)
    return total


def sources(place: torch.Tensor, weights: torch.Tensor | None, sent: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the token (int32) and the weight (float32) of each of `sent` rows; -1 and 0 for rows not in `place`."""
    tokens = torch.arange(len(place), dtype=torch.int32, device=place.device)[:, None].expand_as(place)
    return at_rows(tokens, place, sent, -1), None if weights is None else at_rows(weights, place, sent, 0)


def at_rows(values: torch.Tensor, place: torch.Tensor, rows: int, other: int) -> torch.Tensor:
    """Returns (rows,): the value of each row, `other` for rows not in `place`. `values`: of each choice of a token."""
    index = torch.where(place < 0, rows, place).long().flatten()
    return values.new_full((rows + 1,), other).index_copy(0, index, values.flatten())[:rows]


def scaled(rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Returns rows times their scale, computed in float32 and rounded to the dtype of the rows."""
    return rows if scale is None else (scale[:, None] * rows.float()).to(rows.dtype)


def weights_of(grad: torch.Tensor, place: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the gradients of weights, (tokens, top) in float32: the row of each choice times its token's gradient."""
    each = [(taken(rows, of_choice).float() * grad.float()).sum(1) for of_choice in place.unbind(1)]
    return torch.stack(each, 1) if each else grad.new_zeros(place.shape, dtype=torch.float32)


def dispatched(path: Plain, x: torch.Tensor, counts: torch.Tensor, room: int) -> torch.Tensor:
    """Returns the rows (room, K) of the experts of this rank, by expert and source rank, then zeros. `x`: (sent, K),
    the rows that this rank sends, in the order of all experts."""
    rank, world, sent = path.members.rank, path.members.world, len(x)
    check_room(path, counts, sent, room)
    everywhere, experts = counts.long(), len(counts) // world
    mine = everywhere[rank * experts : (rank + 1) * experts].reshape(-1)
    segment, offset, there = segments(mine, room)
    source = segment % world
    begins = (everywhere.cumsum(0) - everywhere)[rank * experts + segment // world, source]
    every = path.members.all_gather(x, [sent] * world)()
    return _taken(every, source * sent + begins + offset, there)


def combined(path: Plain, rows: torch.Tensor, counts: torch.Tensor, sent: int) -> torch.Tensor:
    """Returns the rows (sent, K) that this rank sent, in the order of all experts, then zeros. `rows`: (room, K) of the
    experts of this rank, by expert and source rank."""
    rank, world, room = path.members.rank, path.members.world, len(rows)
    check_room(path, counts, sent, room)
    everywhere, experts = counts.long(), len(counts) // world
    expert, offset, there = segments(everywhere[:, rank], sent)
    by_home = everywhere.reshape(world, -1)
    begins = (by_home.cumsum(1) - by_home).reshape(-1, world)[expert, rank]
    every = path.members.all_gather(rows, [room] * world)()
    return _taken(every, expert // experts * room + begins + offset, there)


def fanned_out(
    path: Plain, x: torch.Tensor, token: torch.Tensor, counts: torch.Tensor, sent: int
) -> torch.Tensor:
    """Returns the rows (room, K) of the experts of this rank, by expert and source rank, then zeros. `x`: (tokens, K)
    of this rank; `token`: (room,), the token of each row on its source; `sent`: room for rows that a rank sends."""
    rank, world, tokens = path.members.rank, path.members.world, len(x)
    check_room(path, counts, sent, len(token))
    experts = len(counts) // world
    segment, _, there = segments(counts.long()[rank * experts : (rank + 1) * experts].reshape(-1), len(token))
    every = path.members.all_gather(x, [tokens] * world)()
    return _taken(every, segment % world * tokens + token.long(), there)


def multiplied(path: Plain, rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns rows @ weight[e].T for the rows of each expert e of this rank, then zeros. `weight`: (experts, N, K)."""
    out = rows.new_zeros(len(rows), weight.shape[1])
    for e, (begin, end) in enumerate(_rows_of_experts(path, counts)):
        out[begin:end] = path.linear(rows[begin:end], weight[e])
    return out


def weight_gradients(path: Plain, dout: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns (experts, N, K): dout^T @ rows, over the rows of each expert of this rank."""
    made = rows.new_zeros(len(counts) // path.members.world, dout.shape[1], rows.shape[1])
    for e, (begin, end) in enumerate(_rows_of_experts(path, counts)):
        made[e] = path.linear(dout[begin:end].T, rows[begin:end].T)
    return made


def check_room(path: Plain, counts: torch.Tensor, sent: int, room: int) -> None:
    """Raises CapacityError on every rank if rows have no room, worded as `tilelink.runtime.launch.Record.refusal`."""
    if isinstance(path.members, Traced):
        return
    routing, world = Routing(Integers.of_array(counts.cpu().numpy())), path.members.world
    rooms = {"sent": (sent,) * world, "routed": (room,) * world}
    if said := routing.without_room("counts", rooms, of_operators=True, of_programs=False):
        raise CapacityError(said, Site.of_user())


def _rows_of_experts(path: Plain, counts: torch.Tensor) -> list[tuple[int, int]]:
    """Returns where the rows of each expert of this rank begin and end; an empty list while torch traces."""
    rank, world = path.members.rank, path.members.world
    if isinstance(path.members, Traced):
        return []
    ends = counts.reshape(world, -1, world)[rank].sum(1).cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def segments(lengths: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lays segments of these lengths one behind the other. Returns for each of `rows` rows its segment, its number in
    the segment, and whether it is inside of all segments."""
    ends = lengths.cumsum(0)
    number = torch.arange(rows, device=lengths.device)
    segment = torch.searchsorted(ends, number, right=True).clamp(max=len(lengths) - 1)
    return segment, number - (ends - lengths)[segment], number < ends[-1]


def _taken(every: torch.Tensor, index: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    if not len(every) or not len(index):
        return every.new_zeros(len(index), every.shape[1])
    return torch.where(there[:, None], every[torch.where(there, index, 0)], 0)
