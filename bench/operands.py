"""Makes the operands of a call of a program on all ranks, and judges the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import torch

from bench.check import LIMIT_OF, relative_rms_of_all, scatter
from bench.choices import Choices
from bench.references import ONE_BIAS, REFERENCES, ROUNDED
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.values import dtype_name
from tilelink.language import Each, TensorWord
from tilelink.plans.names import sizes_of
from tilelink.programs.program import Program

POISON = float("nan")
EXPERTS, CHOICES = 2, 2
"""The number of experts of a rank, and of choices of a token, if rows are routed to experts."""
TOKENS, TOP = "tokens", "top"
"""The names that programs with a route give the dimensions of tokens and choices."""
LAYOUTS = ("declared", "rows", "columns", "offset")
"""The layouts of a matrix in memory: as the program declares it, row by row, column by column, or every other column of
a part of a larger, poisoned matrix."""


class Operands:
    """The inputs of all ranks, from a seed, and the right results.

    `parts`: rows of M of each rank; for a program with a route, the rows that each rank sends to randomly drawn
    experts. `sizes`: of the other dimensions; a tuple has one size for each member of lists, and says how many members
    lists have. `whole`: numbers are small whole ones, whose sums are exact, else normally distributed. `asked`:
    optional inputs that are given, and optional outputs. `layout`: of all input matrices. `place`: the device.
    `ranks`: the inputs of each rank by parameter, on the device.
    """

    def __init__(
        self, program: Program, parts: Sequence[int], sizes: Mapping[str, int | tuple[int, ...]], place: torch.device,
        *, dtype: torch.dtype = torch.bfloat16, whole: bool = True, asked: Collection[str] = (),
        layout: str = "declared", seed: int = 0,
    ) -> None:  # fmt: skip
        self.program, self.parts, self.place = program, tuple(parts), place
        self.dtype, self.whole, self.layout = dtype, whole, layout
        self.variant = program.of(next((len(n) for n in sizes.values() if isinstance(n, tuple)), 1))
        self.absent = frozenset(n for p in optional(program) if p not in asked for n, _ in self.variant.flattened[p])
        recorded = self.variant.recorded(self.absent)
        self.tensors = {t.name: t for t in recorded.tensors if t.kind != "buffer"}
        self.random = torch.Generator().manual_seed(seed)
        self.by_rank: dict[str, tuple[int, ...]] = {"M": self.parts}
        self.said: dict[str, Any] = {"M": self.parts}
        self.routed: dict[str, Any] = {}
        self.counts: dict[str, torch.Tensor] = {}
        self.integers: list[dict[str, torch.Tensor]] = [{} for _ in self.parts]
        one = {d: n for d, n in sizes.items() if not isinstance(n, tuple)}
        self.lengths = {"M": sum(self.parts), **sizes_of(program, one)}
        rows: Any = self.parts
        for route in recorded.routes:
            choices = self._choices()
            rows = Routing(Integers.of_array(choices.counts))
            self.by_rank = {**rows.parts(route), TOKENS: tuple(map(len, choices.experts))}
            self.said = {d: n for d, n in self.by_rank.items() if d in {*route.sides, *recorded.dims}}
            self.integers = [choices.integers(rank) for rank in range(len(self.parts))]
            self.lengths[TOKENS] = sum(self.by_rank[TOKENS])
            self.routed = {route.rows: rows.counts, TOKENS: self.by_rank[TOKENS]}
            self.counts[route.counts] = torch.from_numpy(rows.array.astype("int32"))
            self.lengths |= {route.per_rank: EXPERTS, TOP: CHOICES}
        if all(t.sharded is None for t in self.tensors.values()):
            self.said = {}
        for dim, own in ((d, n) for d, n in sizes.items() if isinstance(n, tuple)):
            self.lengths |= zip(self.variant.variant.names(dim), own, strict=True)
        self.ranks = [self._given(rank, "input", self._numbers) for rank in range(len(self.parts))]
        for given in self.ranks if program in ONE_BIAS and "bias" in asked else ():
            given["bias"] = self.ranks[0]["bias"]
        self.outputs = list(self._given(0, "output", torch.empty))
        known = [_each(lambda t: t.cpu().double(), given) for given in self.ranks]
        right = REFERENCES[program]([i | given for i, given in zip(self.integers, known, strict=True)], rows)
        self.right = [[t for p in self.outputs for t in _flat(of_rank[p])] for of_rank in right]

    def fitted(self, schedule: Schedule) -> Schedule:
        """Returns the schedule in tiles that are no larger than the tensors."""
        known = self.variant.recorded(self.absent).dims
        sizes: dict[str, Any] = {d: n for d, n in (self.lengths | (self.routed or self.said)).items() if d in known}
        dtypes = dict.fromkeys(self.tensors.keys() & self.variant.of_any_dtype, self.dtype)
        return self.variant.fit(schedule, world=len(self.parts), dtypes=dtypes, absent=self.absent, **sizes)

    def call(self, do: Callable[..., Any], group: Any, *, poisoned: bool = False, **options: Any) -> list[torch.Tensor]:
        """Calls `do`, the program or `program.prepare`, on a rank; returns all results. `poisoned`: all outputs are
        given, full of NaN; else only optional outputs are given."""
        outs = self._given(group.rank, "output", self._poison)
        given = self.ranks[group.rank] | {n: t for n, t in outs.items() if poisoned or n in optional(self.program)}
        parts = {"parts": self.said} if self.said else {}
        return list(_flat(do(**given, group=group, **parts, **options)))

    def overwrite(self, rank: int, others: Operands) -> None:
        """Gives a rank the inputs of other operands of these shapes, in the memory of its own."""
        mine, theirs = (list(_flat(list(o.ranks[rank].values()))) for o in (self, others))
        for tensor, source in zip(mine, theirs, strict=True):
            tensor.copy_(source)

    def judge(self, results: Sequence[Sequence[torch.Tensor]], rank: int | None = None) -> dict[str, Any]:
        """Returns the verdict of a record, on the results of all ranks or of one `rank`: `ok`; `rel_rms`, the largest
        relative RMS of an output over all ranks, None for a wrong shape or a value that is not finite; and the `limit`
        of this output. Whole numbers must be `exact` after rounding to their dtype, and have no limit."""
        right = self.right if rank is None else [self.right[rank]]
        by_output = [([y.cpu() for y in ys], es) for ys, es in zip(_across(results), _across(right), strict=True)]
        limit = LIMIT_OF[self.dtype] * ROUNDED.get(self.program, 1.0)
        errors = [relative_rms_of_all(ys, es) for ys, es in by_output]
        limits = [limit * scatter(sum(y.numel() for y in ys)) for ys, _ in by_output]
        ok = all(e <= most for e, most in zip(errors, limits, strict=True))
        worst = max(errors)
        of_worst: float | None = limits[errors.index(worst)]
        exact = None
        if self.whole and self.program not in ROUNDED:
            pairs = [pair for ys, es in by_output for pair in zip(ys, es, strict=True)]
            ok = exact = all(torch.equal(y, e.to(self.dtype)) for y, e in pairs)
            of_worst = None
        return {"ok": ok, "rel_rms": worst if worst != float("inf") else None, "limit": of_worst, "exact": exact}

    def _given(self, rank: int, kind: str, make: Callable[[list[int]], torch.Tensor]) -> dict[str, Any]:
        """Returns a rank's inputs or outputs, by parameter."""
        found: dict[str, Any] = {}
        for parameter, members in self.variant.flattened.items():
            words = [self.tensors[n] for n, _ in members if n in self.tensors and self.tensors[n].kind == kind]
            made = [self._made(w, rank, make) for w in words]
            made = [self._laid_out(t, w) for t, w in zip(made, words, strict=True)] if kind == "input" else made
            if made:
                found[parameter] = made if isinstance(self.program.declared[parameter], Each) else made[0]
        return found

    def _made(self, word: TensorWord, rank: int, make: Callable[[list[int]], torch.Tensor]) -> torch.Tensor:
        """Returns a tensor of a rank: counts, integers that pick rows, or numbers."""
        if word.name in self.counts:
            return self.counts[word.name]
        dtype = None if word.dtype is None else dtype_name(word.dtype)
        if dtype == "int32":
            return self.integers[rank][word.name]
        made = make(self._shape(word, rank))
        return made if dtype is None else made.to(getattr(torch, dtype))

    def _shape(self, word: TensorWord, rank: int) -> list[int]:
        return [self.by_rank[d][rank] if k == word.sharded else self.lengths[d] for k, d in enumerate(word.dims)]

    def _choices(self) -> Choices:
        """Draws the experts of all ranks' tokens. Each row that a rank sends is a token at one expert."""
        every, drawn = len(self.parts) * EXPERTS, []
        for rows in self.parts:
            experts = torch.full((-(-rows // CHOICES) * CHOICES,), -1)
            experts[:rows] = torch.randint(every, (rows,), generator=self.random)
            drawn.append(experts.view(-1, CHOICES).numpy())
        return Choices(drawn, EXPERTS)

    def _numbers(self, shape: list[int]) -> torch.Tensor:
        if self.whole:
            return torch.randint(-1, 2, shape, generator=self.random).to(self.dtype)
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def _poison(self, shape: list[int]) -> torch.Tensor:
        return torch.full(shape, POISON, dtype=self.dtype, device=self.place)

    def _laid_out(self, tensor: torch.Tensor, word: TensorWord) -> torch.Tensor:
        placed = tensor.to(self.place)
        if self.layout == "declared":
            return placed.movedim(word.contiguous, -1).contiguous().movedim(-1, word.contiguous)
        return laid_out(placed, self.layout) if tensor.dim() == 2 and tensor.is_floating_point() else placed


def takes_lists(program: Program) -> bool:
    """Whether a program has parameters that are lists of tensors."""
    return any(isinstance(p, Each) for p in program.declared.values())


def optional(program: Program) -> list[str]:
    """Returns the parameters of a program that may be left out, except functions."""
    defaults = {n: p.default for n, p in signature(program.function).parameters.items()}
    return [n for n in program.flattened if defaults[n] is None]


def laid_out(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the matrix in one of `LAYOUTS` but "declared"."""
    rows, cols = matrix.shape
    match layout:
        case "columns":
            return matrix.T.contiguous().T
        case "offset":
            wide = torch.full((rows + 2, 2 * cols + 3), POISON, dtype=matrix.dtype, device=matrix.device)
            wide[1 : rows + 1, 3 : 2 * cols + 3 : 2] = matrix
            return wide[1 : rows + 1, 3 : 2 * cols + 3 : 2]
    return matrix


def _each(change: Callable[[torch.Tensor], torch.Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: [change(t) for t in v] if isinstance(v, list) else change(v) for n, v in given.items()}


def _flat(results: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in results, which may be nested lists."""
    if isinstance(results, torch.Tensor):
        yield results
    else:
        for r in results or ():
            yield from _flat(r)


def _across(results: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Converts results by rank to results by output."""
    return [list(of_output) for of_output in zip(*results, strict=True)]
