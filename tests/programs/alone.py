"""Programs of one role, over the tiles of `out`: how it reads, what it computes, and whose memory it reaches."""

import inspect
from typing import Any

import triton.language as tl

import tilelink as tk
from tilelink.programs.program import Program

A, AB, ABC = tk.Local("A"), tk.Local("A", "B"), tk.Local("A", "B", "C")
MK, KN, MN, M, S = tk.Local("M", "K"), tk.Local("K", "N"), tk.Local("M", "N"), tk.Local("M"), tk.Local("S")


def alone(name: str, role: Any, **tensors: Any) -> Program:
    """A program of this role alone. Its parameters have these names and are declared so; one of them is `out`."""

    def program(**given):
        role[tk.tiles(given["out"])](*given.values())

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    program.__name__ = name
    program.__signature__ = inspect.Signature([inspect.Parameter(n, kind, annotation=d) for n, d in tensors.items()])
    return tk.program(program)


# ---- several reads of one tensor: blocks of several ranks, along other dimensions, one element


@tk.tile
def add3(t, x, out):
    out[t].store(x[t].at(0).load() + 10 * x[t].at(1).load() + 100 * x[t].at(2).load())


@tk.tile
def outer(t, x, out):
    out[t].store(x[t.A, 0].load()[:, None] * x[0, t.B].load()[None, :])


@tk.tile
def both(t, x, out):
    acc = x[t.A, 0, t.C].load().to(tl.float32)
    for b in tk.steps(x.B):
        acc += tl.sum(x[0, b, t.C].load(), 0)[None, :]
    out[t].store(acc)


@tk.tile
def causal(t, x, out):
    """Sums what stands left of the diagonal block: the last step is cut off by a bound, not by the tensor's end."""
    acc = tl.zeros((16, 32), tl.float32)
    for k in tk.steps(x.cols, stop=t.rows.start):
        acc += x[t.rows, k].load()
    out[t].store(tl.sum(acc, 1)[:, None] + tl.zeros((16, 16), tl.float32))


@tk.tile
def paired(t, x, out):
    pair = (x[t].load(), 1)
    out[t].store(pair[0])


three_loads = alone("three_loads", add3, x=MK, out=MK)
row_and_column = alone("row_and_column", outer, x=AB, out=AB)
two_planes = alone("two_planes", both, x=ABC, out=tk.Local("A", "C"))
prefix = alone("prefix", causal, x=MK, out=MN)
pairs = alone("pairs", paired, x=MN, out=MN)


# ---- products


@tk.tile
def twice(t, x, y, out):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), y[k, t.cols].load(), acc)
        acc = tl.dot(x[t.rows, k].load(), y[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.tile
def whole_numbers(t, x, weight, out):
    """Eight bits by eight, added up in 32."""
    acc = tl.zeros(t.shape, tl.int32)
    for k in tk.steps(x.cols, by=32):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc + tk.rank() * tk.rank() - (tk.world() - 3) ** 2 // 2)


two_dots = alone("two_dots", twice, x=MK, y=KN, out=MN)
whole_products = alone("whole_products", whole_numbers, x=MK, weight=KN, out=MN)


# ---- numbers instead of blocks are stored to every element


@tk.tile
def fill_with_numbers(t, x, halves, ranks, flags, out):
    halves[t].store(0.5)
    ranks[t].store(tk.rank() + 1)
    flags[t].store(True)
    out[t].store(x[t].load())


numbers = alone("numbers", fill_with_numbers, x=MN, halves=MN, ranks=MN, flags=MN, out=MN)


# ---- reads of other ranks


@tk.tile
def summed(t, x, out):
    """Peers' columns are read inside the loop: that they have entered is awaited once a tile, before it."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(t.cols):
        acc += tl.sum(x[t.rows, k].load(), 1)[:, None]
    out[t].store(acc)


@tk.tile
def add_peers(t, x, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += x[t].at(source).load()
    out[t].store(acc)


@tk.tile
def fetch(t, x, out):
    """What every rank has for this one."""
    for source in tk.ranks():
        tk.copy(x[tk.rank(), t].at(source), out[source, t])


@tk.tile
def right(t, x, out):
    out[t].store(x[t].at((tk.rank() + 1) % tk.world()).load())


@tk.tile
def from_rank_1(t, x, out):
    out[t].store(x[t].at(1).load())


column_sums = alone("column_sums", summed, x=tk.Sharded("M", "K", axis=1), out=MK)
sum_of_peers = alone("sum_of_peers", add_peers, x=MN, out=MN)
all_to_all = alone("all_to_all", fetch, x=tk.Local(tk.ranks, "M", "K"), out=tk.Local(tk.ranks, "M", "K"))
from_the_right = alone("from_the_right", right, x=ABC, out=ABC)
vector_from_the_right = alone("vector_from_the_right", right.named("right_vector"), x=A, out=A)
reads_rank_1 = alone("reads_rank_1", from_rank_1, x=MK, out=MK)


@tk.tile
def from_next_rank(t, x, out):
    out[t].store(x[t].at((t.reader + 1) % tk.world()).load())


@tk.program
def reads_next_rank(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    from_next_rank[tk.tiles(out, reader=tk.ranks)](x, out)


# ---- entries that a world or a size may not have


@tk.tile
def scaled(t, x, scale, out):
    acc = x[t].load()
    for rank in tk.ranks():
        acc = acc * scale[rank].load()
    out[t].store(acc)


@tk.tile
def scaled_by_three(t, x, scale, out):
    acc = x[t].load()
    for k in range(3):
        acc = acc * scale[k].load()
    out[t].store(acc)


@tk.tile
def scaled_by_all(t, x, scale, out):
    acc = x[t].load()
    for k in range(scale.S.size):
        acc = acc * scale[k].load()
    out[t].store(acc)


scaled_by_rank = alone("scaled_by_rank", scaled, x=MK, scale=S, out=MK)
scaled_by_all_ranks = alone("scaled_by_all_ranks", scaled, x=MK, scale=tk.Local(tk.ranks), out=MK)
scaled_by_three_entries = alone("scaled_by_three_entries", scaled_by_three, x=MK, scale=S, out=MK)
scaled_by_all_entries = alone("scaled_by_all_entries", scaled_by_all, x=MK, scale=S, out=MK)


# ---- a second output, which one tile of a row writes


@tk.tile
def and_keep_rows(t, x, out, total):
    out[t].store(x[t].load())
    if t.cols.start == 0:
        total[t.rows].store(tl.sum(x[t].load(), 1))


@tk.tile
def and_keep_some_rows(t, x, out, total):
    out[t].store(x[t].load())
    if t.cols.start == 16:
        total[t.rows].store(tl.sum(x[t].load(), 1))


first_of_a_row_writes = alone("first_of_a_row_writes", and_keep_rows, x=MK, out=MK, total=M)
second_of_a_row_writes = alone("second_of_a_row_writes", and_keep_some_rows, x=MK, out=MK, total=M)


# ---- an output that is read, or written again


@tk.tile
def add(t, x, out):
    out[t].store(out[t].load() + x[t].load())


@tk.tile
def store_each_step(t, x, out):
    for k in tk.steps(x.cols):
        out[t.rows].store(tl.sum(x[t.rows, k].load(), 1))


adds_to_its_output = alone("adds_to_its_output", add, x=MK, out=MK)
sum_in_its_output = alone("sum_in_its_output", store_each_step, x=MK, out=M)


# ---- copies: of a list, of a tensor that no caller sees, and with an output that nobody makes


@tk.tile
def keep(t, x, there):
    tk.copy(x[t], there[t])


@tk.program
def copies(x: tk.Each(tk.Local("N")), out: tk.Each(tk.Local("N"))):
    for a, b in tk.each(x, out):
        keep[tk.tiles(b)](a, b)


@tk.program
def forgotten(x: tk.Local("M", "K"), out: tk.Local("M", "N")):
    keep[tk.tiles(x)](x, tk.local("M", "K"))


@tk.program
def swapped(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    keep[tk.tiles(x)](out, x)


@tk.tile
def store_both(t, x, a, b):
    block = x[t].load()
    a[t].store(block)
    b[t].store(block)


@tk.program
def two_outputs(x: tk.Local("M", "K"), a: tk.Local("M", "K"), b: tk.Local("M", "K")):
    store_both[tk.tiles(a)](x, a, b)


@tk.tile
def copy_checked(t, x, out):
    block = x[t].load()
    tl.device_assert(block < 500, "too large")
    out[t].store(block)


@tk.tile
def copy_checked_too(t, x, out):
    block = x[t].load()
    tl.device_assert(block < 500, "too large")
    out[t].store(block)


@tk.program
def checked_copy(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    copy_checked[tk.tiles(out)](x, out)


@tk.program
def checked_copies(x: tk.Local("M", "K"), y: tk.Local("M", "K"), a: tk.Local("M", "K"), b: tk.Local("M", "K")):
    copy_checked[tk.tiles(a)](x, a)
    copy_checked_too[tk.tiles(b)](y, b)


@tk.program
def kept_inside(x: tk.Local("M", "K")):
    keep[tk.tiles(x)](x, tk.local("M", "K"))


# ---- schedules

small = tk.SMs(1, tile=(16, 16))
three = tk.Schedule(add3=small)
crossed = tk.Schedule(outer=small)
planes = tk.Schedule(both=tk.SMs(1, tile=(16, 16, 16)))
prefixed = tk.Schedule(causal=tk.SMs(tile=(16, 16, 32)))
plain = tk.Schedule(paired=tk.SMs(tile=(16, 16)))
gemm = tk.Schedule(twice=tk.SMs(1, tile=(128, 128, 64)))
eight_bits = tk.Schedule(whole_numbers=tk.SMs(tile=(16, 16)))
filled = tk.Schedule(fill_with_numbers=tk.SMs(tile=(16, 16)))
stepped = tk.Schedule(summed=tk.SMs(tile=(16, 32, 16)))
peers = tk.Schedule(add_peers=tk.SMs(tile=(16, 16)))
by_rank = tk.Schedule(fetch=tk.SMs(tile=(16, 16)))
cubes = tk.Schedule(right=tk.SMs(tile=(1, 16, 16)))
pieces = tk.Schedule(right_vector=tk.SMs(tile=(16,)))
checking = tk.Schedule(copy_checked=tk.SMs(tile=(16, 16)))
both_checking = tk.Schedule(copy_checked=tk.SMs(1, tile=(16, 16)), copy_checked_too=tk.SMs(1, tile=(16, 16)))
