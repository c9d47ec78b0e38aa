"""Makes the integers that programs with a route take besides counts, from the experts that all tokens choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Choices:
    """The experts that tokens choose. `experts`: (tokens, top) of each rank, -1 for none; `each`: experts of a rank."""

    experts: Sequence[np.ndarray]
    each: int

    @property
    def counts(self) -> np.ndarray:
        """(experts of all ranks, world): rows of each expert from each source."""
        every = self.each * len(self.experts)
        return np.stack([np.bincount(of[of >= 0].ravel(), minlength=every) for of in self.experts], 1)

    def rows(self, home: int) -> list[tuple[int, int, int, int]]:
        """Returns (expert, source, token, choice) for each row of a rank's experts, in the order of rows."""
        found = ((e, s, t, k) for s, of in enumerate(self.experts) for (t, k), e in np.ndenumerate(of) if e >= 0)
        return sorted(row for row in found if row[0] // self.each == home)

    def integers(self, rank: int) -> dict[str, torch.Tensor]:
        """Returns the integers that a rank gives, by parameter. `order`: the token of each row that it sends, by
        expert; `place`: the row of each choice; `token`: the token, on its source, of each row of this rank's experts;
        `at`: the rows on this rank of each token of all ranks, in the order of choices, then -1; `choice`: the choices
        of these rows; `wanted`: -1 if a rank has no row of a token of this rank, else 0."""
        own, world = self.experts[rank], len(self.experts)
        sent = sorted((e, t, k) for (t, k), e in np.ndenumerate(own) if e >= 0)
        place, wanted = np.full(own.shape, -1), np.full((len(own), world), -1)
        for row, (e, t, k) in enumerate(sent):
            place[t, k] = row
            wanted[t, e // self.each] = 0
        begins = np.cumsum([0, *map(len, self.experts)])
        at = np.full((begins[-1], own.shape[1]), -1)
        choice, here = at.copy(), self.rows(rank)
        for row, (_, s, t, k) in sorted(enumerate(here), key=lambda r: r[1][1:]):
            free = (at[begins[s] + t] >= 0).sum()
            at[begins[s] + t, free], choice[begins[s] + t, free] = row, k
        made = {"order": np.array([t for _, t, _ in sent], int), "token": np.array([t for _, _, t, _ in here], int)}
        made |= {"place": place, "wanted": wanted, "at": at, "choice": choice}
        return {name: torch.tensor(of.astype(np.int32)) for name, of in made.items()}
