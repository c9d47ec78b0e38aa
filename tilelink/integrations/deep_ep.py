"""DeepEP's `ElasticBuffer` by our operators, for code that exchanges tokens through it. It takes the same calls of
`dispatch` and `combine`, needs no DeepEP, and also runs on CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import ArgumentError, ShapeError, Site, listed
from tilelink.ops.agreement import raised_everywhere
from tilelink.ops.checks import DTYPES, check_integers, check_type
from tilelink.ops.collectives import Members, name_of_group
from tilelink.ops.mixture_of_experts import moe_combine, moe_dispatch
from tilelink.ops.moe_routing import Routing, even_placement, expert_places, moe_routing, placed
from tilelink.ops.routed import segments

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Rows, or rows of float8 and their scale factors."""


class EventOverlap:
    """An event that has already happened, since the current stream orders our operators."""

    event = None

    def current_stream_wait(self) -> None:
        pass


@dataclass
class EPHandle:
    """A handle that says where the tokens of a dispatch went. The names before `routing` are DeepEP's; `topk_idx` has
    places of experts. `place`: for each row of `recv_x`, its row in the result of `moe_dispatch`, -1 for padding. For
    each row of this result: `columns` (bool), the choices of its token that it serves; `local`, their local experts.
    """

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    topk_idx: torch.Tensor
    num_recv_tokens: int
    num_recv_tokens_per_expert_list: list[int]
    psum_num_recv_tokens_per_scaleup_rank: torch.Tensor | None
    psum_num_recv_tokens_per_expert: torch.Tensor
    num_unaligned_recv_tokens_per_expert: torch.Tensor
    routing: Routing
    place: torch.Tensor
    columns: torch.Tensor
    local: torch.Tensor


OF_BUFFER = (
    "num_bytes", "num_cpu_bytes", "hidden", "num_topk", "use_fp8_dispatch", "deterministic", "allow_hybrid_mode",
    "allow_multiple_reduction", "prefer_overlap_with_compute", "sl_idx", "num_allocated_qps", "num_cpu_timeout_secs",
    "num_gpu_timeout_secs", "explicitly_destroy",
)  # fmt: skip
OF_CALLS = ("num_sms", "num_qps", "async_with_compute_stream", "allocate_on_comm_stream")
OF_DISPATCH = (*OF_CALLS, "do_handle_copy", "do_zero_padding", "use_tma_aligned_col_major_sf")
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
EVENTS = ("previous_event", "previous_event_before_epilogue")
"""Arguments that name events for the current stream to wait for. OF_BUFFER and OF_DISPATCH tune DeepEP's kernels."""


class ElasticBuffer:
    """Stands for DeepEP's buffer. `num_max_tokens_per_rank`: the most tokens that a rank gives, the same on every rank,
    here or in each dispatch. `plan`: of `tilelink.ops.moe_dispatch`. `places`: of `tilelink.ops.moe_routing`, if
    experts have copies; `num_experts` of a dispatch then counts places. Arguments that tune DeepEP's kernels are
    ignored. Raises ArgumentError for unknown arguments."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        num_max_tokens_per_rank: int = 0,
        plan: str | None = None,
        places: torch.Tensor | None = None,
        **tuning: Any,
    ) -> None:
        self.group_name, self.plan, self.places = name_of_group(group), plan, places
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        members = Members.named(self.group_name)
        self.rank_idx, self.num_ranks = members.rank, members.world
        _check_known(tuning, OF_BUFFER)

    def destroy(self) -> None:
        """There is nothing to release."""

    def dispatch(
        self,
        x: Rows,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        *,
        handle: EPHandle | None = None,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        **tuning: Any,
    ) -> tuple[Rows, torch.Tensor | None, torch.Tensor | None, EPHandle, EventOverlap]:
        """Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event), as DeepEP does.

        A token goes once to each rank that has experts of the token. `recv_topk_idx` has these experts, counted from 0
        on the rank, and -1 for other choices. With `do_expand` a token has a row for each of its experts on a rank:
        rows lie by expert, each expert's from a multiple of `expert_alignment` on, `recv_topk_idx` is None, and each
        row has one weight. The host reads the number of rows. With `do_cpu_sync=False` it does not: results then have
        room for the most rows, padded with -1 and zeros. With the `handle` of a dispatch, x goes the same ways. `x`:
        rows (tokens, hidden), or a pair: rows in float8 and their scale factors (tokens, n) in float32 or int32; recv_x
        is then a pair, too. If the ranks can't share the experts evenly, the first ranks have one more. Raises
        ArgumentError and ShapeError, and as `tilelink.ops.moe_dispatch` does.
        """
        alignment = 1 if expert_alignment is None else expert_alignment
        most = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank

        def check() -> None:
            _check_known(tuning, (*OF_DISPATCH, *EVENTS))
            _check_rows(x)
            if (topk_idx is None) == (handle is None):
                raise ArgumentError(
                    "give topk_idx of new tokens, or the handle of a dispatch, and not both", Site.of_user()
                )
            if handle is None:
                self._check_experts(num_experts)
            if most < 1:
                raise ArgumentError(f"num_max_tokens_per_rank={most}; it must be 1 or more", Site.of_user())
            if alignment < 1:
                raise ArgumentError(f"expert_alignment={alignment}; it must be 1 or more rows", Site.of_user())
            _check_choices(topk_idx, topk_weights, handle)

        raised_everywhere(self.group_name, check, "arguments", x[0] if isinstance(x, tuple) else x)
        _wait(tuning)
        if handle is None:
            assert topk_idx is not None and num_experts is not None
            handle = self._handle(topk_idx, num_experts, most, alignment, do_cpu_sync, do_expand)
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += handle.num_unaligned_recv_tokens_per_expert
        recv_x, weights = self._received(x, handle), self._weights(topk_weights, handle)
        if handle.do_expand:
            return recv_x, None, None if weights is None else weights.sum(1), handle, EventOverlap()
        return recv_x, _taken(handle.local, handle.place, -1), weights, handle, EventOverlap()

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        **tuning: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Returns (combined_x, combined_topk_weights, event), as DeepEP does: for each token of this rank the sum of
        its rows on all ranks, made in float32, plus the biases. `x`: as many rows as `recv_x`; `topk_weights`: shaped
        as `recv_topk_weights`. Raises ShapeError, and as `tilelink.ops.moe_combine` does."""

        def check() -> None:
            _check_known(tuning, (*OF_CALLS, *EVENTS))
            if x.dim() != 2 or len(x) != handle.num_recv_tokens:
                rows = f"the dispatch gave {handle.num_recv_tokens}"
                raise ShapeError(
                    f"x has shape {tuple(x.shape)}; it must be a matrix of as many rows as {rows}", Site.of_user()
                )
            check_type("topk_weights", topk_weights, "torch.Tensor | None")
            of_rows = {(len(x),)} if handle.do_expand else {(len(x), handle.columns.shape[1])}
            if topk_weights is not None and tuple(topk_weights.shape) not in of_rows:
                what = f"topk_weights have shape {tuple(topk_weights.shape)}: {of_rows.pop()}, as recv_topk_weights"
                raise ShapeError(what, Site.of_user())

        raised_everywhere(self.group_name, check, "arguments", x)
        _wait(tuning)
        weights = None
        if topk_weights is not None:
            columns = _taken(handle.columns, handle.place, False)
            given = topk_weights if topk_weights.dim() == 2 else topk_weights[:, None]
            weights = self._back(torch.where(columns, given.float(), 0), handle)
        combined = self._back(x, handle)
        for added in bias if isinstance(bias, tuple) else () if bias is None else (bias,):
            combined = combined + added
        return combined, weights, EventOverlap()

    def _check_experts(self, number: int | None) -> None:
        """Raises ArgumentError for a number of experts, or of their places, that the ranks can't share."""
        if number is None or number < self.num_ranks:
            what = f"num_experts={number}: at least one on each of {self.num_ranks} ranks"
            raise ArgumentError(what, Site.of_user())
        if self.places is not None and number % self.num_ranks:
            what = f"num_experts={number} places: as many on each of {self.num_ranks} ranks"
            raise ArgumentError(what, Site.of_user())

    def _handle(
        self, topk_idx: torch.Tensor, experts: int, most: int, alignment: int, sync: bool | None, expand: bool
    ) -> EPHandle:
        """Returns where tokens go: to each of their experts if `expand`, else once to each rank that has some."""
        world, rank = self.num_ranks, self.rank_idx
        each = here = -(-experts // world)
        places = self.places
        if experts % world:
            placement = even_placement(experts, world)
            here = sum(e >= 0 for e in placement[rank * each : (rank + 1) * each])
            places = expert_places(placement, topk_idx.device)
        at = topk_idx.long() if places is None else placed(topk_idx, places, each * world, rank)
        chosen, kinds = (at, each * world) if expand else (_ranks_of(at, each, world), world)
        routing = moe_routing(chosen, experts=kinds, group=self.group_name, tokens=most, plan=self.plan)
        ids = self._sent(at.float(), routing).long()
        of_kinds, mine = routing.rows_of_experts, torch.arange(rank * each, rank * each + here, device=ids.device)
        kind, _, there = segments(of_kinds, routing.room)
        if expand:
            columns, of_kinds = ids == kind[:, None] + rank * each, of_kinds[:here]
        else:
            columns = ids.div(each, rounding_mode="floor") == rank
        columns = columns & there[:, None]
        counts = of_kinds if expand else ((ids[..., None] == mine) & columns[..., None]).sum((0, 1))
        aligned = (counts + alignment - 1).div(alignment, rounding_mode="floor") * alignment
        lengths = aligned if expand else of_kinds
        total = routing.room + (here * (alignment - 1) if expand else 0)
        if sync is not False:
            total = int(lengths.sum())
        segment, offset, _ = segments(lengths, total)
        place = torch.where(offset < of_kinds[segment], (of_kinds.cumsum(0) - of_kinds)[segment] + offset, -1)
        ends = aligned.cumsum(0)
        return EPHandle(
            expand, experts, alignment, most, at, total, [] if sync is False else aligned.tolist(),
            None if expand else routing.counts[rank].cumsum(0), ends - aligned + counts if expand else ends,
            counts, routing, place, columns, torch.where(columns, ids - rank * each, -1),
        )  # fmt: skip

    def _received(self, x: Rows, handle: EPHandle) -> Rows:
        """Returns the rows of x that come to this rank, and their scale factors if x is a pair."""
        if isinstance(x, tuple):
            return self._rows(x[0], handle), self._rows(x[1], handle)
        return self._rows(x, handle)

    def _rows(self, x: torch.Tensor, handle: EPHandle) -> torch.Tensor:
        # Operators take floats: values of other dtypes travel as floats with the same bits.
        carrier = None if x.dtype in DTYPES else torch.float32 if x.element_size() == 4 else torch.float16
        if carrier is None:
            return _taken(self._sent(x, handle.routing), handle.place)
        return _taken(self._sent(x.view(carrier), handle.routing), handle.place).view(x.dtype)

    def _weights(self, weights: torch.Tensor | None, handle: EPHandle) -> torch.Tensor | None:
        """Returns the weights of the rows that come to this rank, for each choice of their tokens."""
        if weights is None:
            return None
        sent = self._sent(weights.float(), handle.routing)
        return _taken(torch.where(handle.columns, sent, 0), handle.place)

    def _sent(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        return moe_dispatch(x, routing, plan=self.plan)

    def _back(self, x: torch.Tensor, handle: EPHandle) -> torch.Tensor:
        """Returns the sums of rows, which are in the order of `recv_x`."""
        room = handle.routing.room
        rows = x.new_zeros(room + 1, x.shape[1]).index_copy(0, torch.where(handle.place < 0, room, handle.place), x)
        return moe_combine(rows[:room], handle.routing, plan=self.plan)


def _ranks_of(at: torch.Tensor, each: int, world: int) -> torch.Tensor:
    """Returns (tokens, world): the ranks of each token's experts, -1 for others. Out of range stays out of range."""
    ranks = torch.arange(world, device=at.device)
    of_experts = at.div(each, rounding_mode="floor")
    found = torch.where((of_experts[:, :, None] == ranks).any(1), ranks, -1)
    wrong = ((at < -1) | (at >= each * world)).any(1)
    return torch.where(wrong[:, None] & (ranks == 0), world, found)


def _taken(rows: torch.Tensor, place: torch.Tensor, fill: int = 0) -> torch.Tensor:
    return torch.where(place[:, None] < 0, fill, rows[place.clamp(min=0)])


def _check_rows(x: object) -> None:
    """Raises ArgumentError or ShapeError unless x is rows, or rows of float8 with scale factors."""
    if isinstance(x, torch.Tensor):
        return
    if not isinstance(x, tuple) or len(x) != 2 or not all(isinstance(part, torch.Tensor) for part in x):
        raise ArgumentError("x is rows, or a pair of rows in float8 and their scale factors", Site.of_user())
    (rows, scales), kinds = x, (torch.float32, torch.int32)
    if rows.dtype not in FLOAT8 or scales.dtype not in kinds:
        what = f"x is a pair of {rows.dtype} and {scales.dtype}"
        raise ArgumentError(
            f"{what}; rows must be in {FLOAT8[0]} or {FLOAT8[1]}, factors in float32 or int32", Site.of_user()
        )
    if rows.dim() != 2 or scales.dim() != 2 or len(rows) != len(scales) or rows.shape[1] % 2:
        shapes = f"x has shapes {tuple(rows.shape)} and {tuple(scales.shape)}"
        raise ShapeError(f"{shapes}; they must be (tokens, hidden), hidden even, and (tokens, factors)", Site.of_user())


def _check_choices(topk_idx: torch.Tensor | None, topk_weights: torch.Tensor | None, handle: EPHandle | None) -> None:
    """Raises DtypeError or ShapeError if the experts of tokens and their weights do not fit each other."""
    for name, given in (("topk_idx", topk_idx), ("topk_weights", topk_weights)):
        check_type(name, given, "torch.Tensor | None")
    if topk_idx is not None:
        check_integers("topk_idx", topk_idx, "(tokens, top)")
    chosen = topk_idx if handle is None else handle.topk_idx
    if topk_weights is not None and chosen is not None and topk_weights.shape != chosen.shape:
        shapes = f"topk_weights have shape {tuple(topk_weights.shape)}, topk_idx {tuple(chosen.shape)}"
        raise ShapeError(f"{shapes}; there must be one weight for each expert of a token", Site.of_user())


def _check_known(given: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raises ArgumentError for arguments that DeepEP does not have."""
    if unknown := [name for name in given if name not in known]:
        raise ArgumentError(f"{unknown[0]}= is no argument; there are {listed(known, unknown[0])}", Site.of_user())


def _wait(given: dict[str, Any]) -> None:
    for name in EVENTS:
        if given.get(name) is not None:
            given[name].current_stream_wait()
