"""A kernel written by hand, with a mistake that many projects have shipped: it is right in the first call only.

Every rank stores a block in the inbox of its right neighbour and signals it; then it waits for the block of its left
neighbour. In the next call the inbox is stored to again. Nobody asks whether the neighbour has read it by then.
With CREDIT, the neighbour is asked.
"""

import torch
import triton
import triton.language as tl

import tilelink as tk


@triton.jit
def shift(x, inboxes, ready, taken, out, rank, call, WORLD: tl.constexpr, N: tl.constexpr, CREDIT: tl.constexpr):
    """out = x of the left neighbour. `call` counts from 1; signals grow by one in each."""
    i = tl.arange(0, N)
    right, left = (rank + 1) % WORLD, (rank + WORLD - 1) % WORLD
    words = tl.pointer_type(tl.int32)
    if CREDIT:  # the right neighbour has taken what the call before brought
        while tl.atomic_add(tl.load(taken + rank).to(words), 0, sem="acquire", scope="sys") < call - 1:
            pass
    tl.store(tl.load(inboxes + right).to(x.dtype) + i, tl.load(x + i))
    tl.debug_barrier()
    tl.atomic_add(tl.load(ready + right).to(words), 1, sem="release", scope="sys")
    while tl.atomic_add(tl.load(ready + rank).to(words), 0, sem="acquire", scope="sys") < call:
        pass
    block = tl.load(tl.load(inboxes + rank).to(x.dtype) + i)
    tl.store(out + i, block)
    if CREDIT:
        tl.debug_barrier()
        tl.atomic_add(tl.load(taken + left).to(words), 1, sem="release", scope="sys")


def shifted(calls: int, credit: bool, seed: int = 0, collect: bool = False) -> tuple[bool, bool]:
    """Calls it so often on three CPU ranks. Returns whether the results are right, and whether accesses race.
    Raises RaceError with the report of a race, unless `collect`."""
    world, N = 3, 64
    ranks = tk.KernelWorld(world, seed=seed, races="collect" if collect else True)
    inbox, ready, taken = ranks.symmetric("inbox", (N,)), ranks.signals("ready"), ranks.signals("taken")
    x, outs = torch.randn(calls, world, N), torch.empty(calls, world, N)

    def on_rank(rank: tk.KernelRank) -> None:
        for n in range(calls):
            rank.launch(
                shift, 1, x[n, rank.rank], inbox.table, ready.table, taken.table, outs[n, rank.rank], rank.rank, n + 1,
                WORLD=world, N=N, CREDIT=credit,
            )  # fmt: skip

    ranks.run(on_rank)
    return torch.equal(outs, x.roll(1, dims=1)), bool(ranks.latest.races)


def main() -> None:
    """One call is right, two calls are not; with credit, any number is."""
    assert shifted(calls=1, credit=False) == (True, False)
    try:
        shifted(calls=2, credit=False)
    except tk.TileLinkError as error:
        print(error)
    for credit in (False, True):
        found = [shifted(calls=2, credit=credit, seed=seed, collect=True) for seed in range(60)]
        wrong, racing = sum(not right for right, _ in found), sum(races for _, races in found)
        print(f"3 ranks, 2 calls, credit={credit}, 60 schedules: {wrong} give a wrong result, {racing} have a race")


if __name__ == "__main__":
    main()
