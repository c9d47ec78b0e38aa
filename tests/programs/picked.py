"""Programs that read rows which integers pick, of inputs and buffers, by integers of inputs and buffers."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.dispatch_matmul import dispatch
from tilelink.kernels.matmul_combine import combine

INTEGERS = tl.int32


@tk.tile
def pick(t, x, order, out):
    tk.copy(x[order[t.rows], t.cols], out[t])


@tk.program
def picked(x: tk.Local("M", "N"), order: tk.Local("S", dtype=INTEGERS), out: tk.Local("S", "N")):
    pick[tk.tiles(out)](x, order, out)


@tk.tile
def pick_from_the_right(t, x, order, out):
    right = (tk.rank() + 1) % tk.world()
    tk.copy(x[order[t.rows]].at(right), out[t.rows, :])


@tk.program
def picked_from_the_right(x: tk.Local("M", "N"), order: tk.Local("S", dtype=INTEGERS), out: tk.Local("S", "N")):
    pick_from_the_right[tk.tiles(out)](x, order, out)


@tk.tile
def add_up(t, back, place, weights, out):
    """Of a token the sum of its rows, each times its weight."""
    here = tk.wait(back[:, t.cols].at(tk.rank()))
    acc = tl.zeros(t.shape, tl.float32)
    for k in range(place.cols.size):
        acc += weights[t.rows, k].load()[:, None] * here[place[t.rows, k], :].load()
    out[t].store(acc)


@tk.program
def there_and_back(
    x: tk.Sharded("tokens", "K"),
    order: tk.Sharded("sent", dtype=INTEGERS),
    route: tk.Route("sent", "routed", "experts"),
    place: tk.Sharded("tokens", "top", dtype=INTEGERS),
    weights: tk.Sharded("tokens", "top", dtype=tl.float32),
    out: tk.Sharded("tokens", "K"),
):
    rows, back = tk.sharded("routed", "K"), tk.sharded("sent", "K")
    dispatch[tk.tiles(route, x.cols)](x, order, rows)
    combine[tk.tiles(route, x.cols)](rows, back)
    add_up[tk.tiles(out)](back, place, weights, out)


@tk.tile
def bring(t, order, here):
    """Integers, from their home to a reader."""
    tk.notify(tk.copy(order[t], here[t].at(t.reader)))


@tk.tile
def pick_by_brought(t, x, here, out):
    tk.copy(x[tk.wait(here[t.rows]), t.cols], out[t])


@tk.program
def picked_by_brought(x: tk.Local("M", "N"), order: tk.Sharded("S", dtype=INTEGERS), out: tk.Local("S", "N")):
    here = tk.local("S", dtype=order)
    bring[tk.tiles(order, reader=tk.ranks)](order, here)
    pick_by_brought[tk.tiles(out)](x, here, out)


@tk.tile
def multiply(t, x, order, weight, out):
    rows = x[order[t.rows]]
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def picked_product(
    x: tk.Local("M", "K"), order: tk.Local("S", dtype=INTEGERS), weight: tk.Local("K", "N"), out: tk.Local("S", "N")
):
    multiply[tk.tiles(out)](x, order, weight, out)
