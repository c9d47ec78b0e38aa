"""Programs that are not safe, one for each thing that the check finds."""

import triton.language as tl

import tilelink as tk
from tests.programs.gathered import gather, gathering, take

# ---- races


@tk.tile
def store_after_notify(t, x, full):
    """The second half of the work is done when everybody has been told."""
    there = tk.copy(x[t], full[t].at(t.reader))
    tk.notify(there)
    there.store(x[t].load() * 2)


@tk.tile
def store_without_notify(t, x, full):
    """Others notify the region, this tile's second store to it is nobody's business."""
    tk.copy(x[t], full[t].at((t.reader + 1) % tk.world()))
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.program
def stores_after_notify(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    store_after_notify[tk.tiles(x, reader=tk.ranks)](x, full)
    take[tk.tiles(out)](full, out)


few = tk.Schedule(store_after_notify=tk.SMs(1, tile=(16, 16)), take=tk.SMs(1, tile=(16, 16)))
stores_without_notify = gathering("stores_without_notify", store_without_notify)


# ---- reads of too much


@tk.tile
def below(t, full, out):
    """Adds the rows of the tile, in steps that go beyond its last row where that ends in the middle of a step."""
    acc = tl.zeros(t.shape, tl.float32)
    mine = tk.wait(full[t.rows, t.cols])
    for s in tk.steps(full.rows, stop=t.rows.stop + 1):
        if s.start >= t.rows.start:
            acc += tl.sum(mine[s].load(), 0)[None, :]
    out[t].store(acc)


one_row_too_many = gathering("one_row_too_many", gather, below)


# ---- what nobody writes, or several do


@tk.tile
def half(t, x, full):
    """Only the first columns."""
    for k in tk.steps(x.cols, stop=16):
        tk.notify(tk.copy(x[t.rows, k], full[t.rows, k].at(t.reader)))


@tk.program
def half_of_it(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    half[tk.tiles(x.rows, reader=tk.ranks)](x, full)
    take[tk.tiles(out)](full, out)


@tk.tile
def use_own(t, full, out):
    if t.home == tk.rank():
        out[t].store(tk.wait(full[t]).load())


@tk.tile
def use_first(t, full, out):
    if t.M.start < 20:
        out[t].store(tk.wait(full[t]).load())


part_of_the_output = gathering("part_of_the_output", gather, use_own)
half_unheard = gathering("half_unheard", gather, use_first)


@tk.tile
def copy_own(t, x, out):
    out[t].store(x[t].load())


@tk.program
def own_rows_only(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    copy_own[tk.tiles(x)](x, out)


@tk.tile
def put_part(t, x, sums):
    tk.notify(sums[t.M, t.N].store(x[t.S.start, t.M, t.N].load()))


@tk.tile
def take_sum(t, sums, out):
    out[t].store(tk.wait(sums[t]).load())


@tk.program
def parts_in_one_place(x: tk.Local("S", "M", "N"), out: tk.Local("M", "N")):
    sums = tk.local("M", "N")
    put_part[tk.tiles(x)](x, sums)
    take_sum[tk.tiles(out)](sums, out)


@tk.tile
def forget(t, full, out):
    tk.wait(full[t]).load()


forgotten_output = gathering("forgotten_output", gather, forget)


@tk.tile
def use_again(t, full, out):
    out[t].store(tk.wait(full[t]).load() * 2)


output_written_twice = gathering("output_written_twice", gather, take, use_again)


# ---- what a tile says twice


@tk.tile
def tell_twice(t, x, full):
    """First that half of it is there, then that all of it is: a wait can't tell the one from the other."""
    there = tk.copy(x[t], full[t].at(t.reader))
    tk.notify(there)
    tk.notify(there)


@tk.tile
def tell_in_a_loop(t, x, full):
    there = tk.copy(x[t], full[t].at(t.reader))
    for _ in range(2):
        tk.notify(there)


notifies_twice = gathering("notifies_twice", tell_twice)
notifies_in_a_loop = gathering("notifies_in_a_loop", tell_in_a_loop)


@tk.tile
def to_reader(t, x, out):
    tk.copy(x[t], out[t].at(t.reader))


@tk.program
def output_of_a_reader(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    to_reader[tk.tiles(x, reader=tk.ranks)](x, out)


# ---- waits that never end, or would if they ran ahead


@tk.tile
def pass_on(t, x, passed, out):
    """Each step of a loop with a dot waits for what the same step made the neighbour send."""
    acc = tl.zeros((16, 16), tl.float32)
    for s in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, s].load(), x[t.rows, s].load(), acc)
        tk.notify(passed[t.rows, s].at((tk.rank() + 1) % tk.world()).store(acc))
        acc += tk.wait(passed[t.rows, s]).load()
    out[t.rows].store(tl.sum(acc, 1))


@tk.program
def pipelined_ring(x: tk.Local("M", "K"), out: tk.Local("M")):
    passed = tk.local("M", "K")
    pass_on[tk.tiles(x.rows)](x, passed, out)


@tk.tile
def exchange(t, x, full, out):
    """Each tile stores what it waited for before it has it."""
    there = full[t].at((tk.rank() + 1) % tk.world())
    rows = tk.wait(full[t]).load()
    tk.notify(there.store(x[t].load() + rows))
    out[t].store(rows)


@tk.program
def waits_for_each_other(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    exchange[tk.tiles(x)](x, full, out)


@tk.tile
def add_own(t, x, full, out):
    """The tile adds to what it waits for, and notifies that."""
    rows = tk.wait(full[t]).load()
    tk.notify(full[t].store(rows + x[t].load()))
    out[t].store(rows)


@tk.program
def waits_for_itself(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    add_own[tk.tiles(x)](x, full, out)


# ---- what is read is overwritten


@tk.tile
def add_in_place(t, x, full):
    full[t].store(tk.wait(full[t]).load() + 1)


@tk.program
def overwrites_what_is_read(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    take[tk.tiles(out)](full, out)
    add_in_place[tk.tiles(full)](x, full)


# ---- what the unrolling refuses, on three lines


@tk.tile
def reach_beyond(t, x, full, out):
    """To a rank that there is not, to an entry that there is not, and to another rank's output."""
    tk.notify(tk.copy(x[t], full[tk.rank(), t].at(tk.rank() + 1)))
    tk.wait(full[tk.rank() - 1, t])
    out[t].at((tk.rank() + 1) % tk.world()).store(x[t].load())


@tk.program
def refused_three_times(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    full = tk.local(tk.ranks, "M", "K")
    reach_beyond[tk.tiles(x)](x, full, out)


@tk.tile
def to_the_next(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(tk.rank() + 1)))


@tk.program
def beyond_the_last_rank(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    to_the_next[tk.tiles(x)](x, full)
    take[tk.tiles(out)](full, out)


@tk.tile
def to_own(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.home)))


to_itself = gathering("to_itself", to_own)


@tk.tile
def to_outputs(t, x, out):
    tk.copy(x[t], out[t])


@tk.program
def routed_to_outputs(
    x: tk.Sharded("sent", "K"), route: tk.Route("sent", "routed", "experts"), out: tk.Sharded("routed", "K")
):
    to_outputs[tk.tiles(route, x.cols)](x, out)


@tk.tile
def put_first(t, x, a):
    tk.notify(a[t].store(x[t].load()))


@tk.tile
def sum_with_right(t, a, b):
    right = (tk.rank() + 1) % tk.world()
    mine, theirs = tk.wait(a[t], a[t].at(right))
    tk.notify(b[t].at(right).store(mine.load() + theirs.load()))


@tk.tile
def put_back(t, a, b, out):
    """The left neighbour may still read a."""
    got = tk.wait(b[t]).load()
    a[t].store(got)
    out[t].store(got)


@tk.program
def puts_back_early(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    a, b = tk.local("M", "K"), tk.local("M", "K")
    put_first[tk.tiles(x)](x, a)
    sum_with_right[tk.tiles(x)](a, b)
    put_back[tk.tiles(out)](a, b, out)


# ---- places that two equal ranks name


@tk.tile
def to_own_place(t, x, inbox):
    tk.notify(inbox[tk.rank(), t].store(x[t].load()))


@tk.tile
def to_the_place_of_the_reader(t, x, inbox):
    tk.notify(tk.copy(x[t], inbox[t.reader, t].at(t.reader)))


@tk.tile
def sum_of_all(t, inbox, out):
    total = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        total += tk.wait(inbox[source, t]).load()
    out[t].store(total)


@tk.program
def own_places_alone(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    inbox = tk.local(tk.ranks, "M", "K")
    to_own_place[tk.tiles(x)](x, inbox)
    sum_of_all[tk.tiles(out)](inbox, out)


@tk.program
def places_of_readers_alone(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    inbox = tk.local(tk.ranks, "M", "K")
    to_the_place_of_the_reader[tk.tiles(x, reader=tk.ranks)](x, inbox)
    sum_of_all[tk.tiles(out)](inbox, out)


# ---- halves of a tensor


@tk.tile
def own_rows(t, x, out):
    if t.home == tk.rank():
        tk.copy(x[t.M, :], out[t.M, :])


@tk.tile
def columns_of_others(t, x, out):
    if t.home != tk.rank():
        tk.copy(x[:, t.N], out[:, t.N])


@tk.tile
def hand_out(t, x, out):
    tk.copy(x[t], out[t])


@tk.program
def halves_of_two_dimensions(
    x: tk.Local("M", "N"), a: tk.Sharded("M", "K"), b: tk.Sharded("N", "K"), out: tk.Local("M", "N"),
    of_a: tk.Sharded("M", "K"), of_b: tk.Sharded("N", "K"),
):  # fmt: skip
    """Each tensor is cut along another dimension, so the halves are no halves of one whole."""
    own_rows[tk.tiles(out.M)](x, out)
    columns_of_others[tk.tiles(out.N)](x, out)
    hand_out.named("pass_a")[tk.tiles(a)](a, of_a)
    hand_out.named("pass_b")[tk.tiles(b)](b, of_b)


# ---- views of views that leave a part


@tk.tile
def from_next_part(t, x, out):
    """The range is one of this rank's part, the memory is the next rank's."""
    out[t].store(x[tk.part((tk.rank() + 1) % tk.world()), :][t.M, t.K].load())


@tk.program
def range_of_another_part(x: tk.Sharded("M", "K"), out: tk.Sharded("M", "K")):
    from_next_part[tk.tiles(out)](x, out)


@tk.tile
def wait_for_next_part(t, full, out):
    """The last rank waits for the part of a rank that does not exist."""
    tk.wait(full[tk.part(tk.rank() + 1), t.K])
    out[t].store(tl.zeros(t.shape, tl.float32))


part_beyond_the_world = gathering("part_beyond_the_world", gather, wait_for_next_part)


@tk.tile
def from_own_part(t, full, out):
    """The range may begin in one rank's part and end in another's."""
    out[t].store(tk.wait(full[tk.part(tk.rank()), :][t.M, t.K]).load())


@tk.program
def range_across_a_part(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    from_own_part[tk.tiles(out)](full, out)


# ---- the order of a list's members


@tk.tile
def bring_to_next(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at((tk.rank() + 1) % tk.world())))


@tk.program
def members_on_two_resources(x: tk.Each(tk.Local("M", "K")), out: tk.Each(tk.Local("M", "K"))):
    for a, o in tk.each(x, out):
        full = tk.local("M", "K")
        bring_to_next[tk.tiles(a)](a, full)
        take[tk.tiles(o)](full, o)
