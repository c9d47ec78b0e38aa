"""The unfused form of an operator on a machine: products and collectives of a library. Predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilelink.analysis.machine import Machine
from tilelink.analysis.simulate import steps_of
from tilelink.analysis.simulate.costs import collective, compute, costs
from tilelink.errors import ArgumentError, Site
from tilelink.frontend.orders import grouped
from tilelink.frontend.schedule import LEAST_STEP_OF_8_BITS, Schedule, SMs, smallest_tile
from tilelink.frontend.values import ITEM_SIZE

LIBRARY_TILES = ((128, 256, 64), (256, 128, 64), (128, 128, 64), (64, 256, 64))
"""Tiles of a library's product. It takes the fastest of them, or a narrower one if that fills more SMs."""
NARROWEST = 16
"""The fewest columns of a tile that `tl.dot` takes."""

Shape = Mapping[str, int | Sequence[int]]


@dataclass(frozen=True)
class Unfused:
    """Microseconds of the unfused form. `collective_us` holds the launches of collectives, and `launch_us` the launches
    of products. `hidden_us`: how long products and collectives overlap; the sum is shorter by this."""

    product_us: float
    collective_us: float
    launch_us: float
    hidden_us: float = 0.0

    @property
    def total_us(self) -> float:
        return self.product_us + self.collective_us + self.launch_us - self.hidden_us


def unfused(operator: str, machine: Machine, world: int, dtype: str, shape: Shape) -> Unfused:
    """The predicted time of an operator in plain torch. `shape`: M, N and K as the operator's program has them; several
    weights count as one with all their columns.

    In the backward of all_gather_linear, the gather overlaps the product for x, and the scatter the product for the
    weights, as in the operators (`ops.plain`). Everything else comes one after the other.
    """
    m, k = (int(shape[d]) for d in "MK")  # type: ignore[arg-type]  # one number each
    n = sum(shape["N"]) if isinstance(shape["N"], Sequence) else shape["N"]

    def product(rows: int, columns: int, depth: int) -> float:
        return library_matmul(machine, dtype, rows, columns, depth)

    def moved(name: str, columns: int) -> float:
        return library_collective(name, machine, world, dtype, m, columns)

    launch = machine.launch_us
    match operator:
        case "all_gather_linear":
            return Unfused(product(m, n, k), moved("all_gather", k), launch)
        case "linear_reduce_scatter":
            return Unfused(product(m, n, k), moved("reduce_scatter", n), launch)
        case "linear_all_reduce":
            return Unfused(product(m, n, k), moved("all_reduce", n), launch)
        case "linear_reduce_scatter_backward":
            return Unfused(product(m, k, n) + product(k, n, m), moved("all_gather", n), 2 * launch)
        case "all_gather_linear_backward":
            of_x, of_weights = product(m, k, n), product(k, n, m)
            gather, scatter = moved("all_gather", k), moved("reduce_scatter", k)
            beside = min(gather, of_x) + min(scatter, of_weights)
            return Unfused(of_x + of_weights, gather + scatter, 2 * launch, beside)
    hint = "; for layers of experts: `tilelink plan MODEL --ep N`, or plan='auto' in the call"
    what = f"{operator} is not predicted: nothing describes its unfused form"
    raise ArgumentError(what + (hint if operator == "mixture_of_experts" else ""), Site.of_user())


def library_matmul(machine: Machine, dtype: str, m: int, n: int, k: int) -> float:
    """Microseconds of a library's product (m, k) x (k, n) on one rank, without its launch. The columns of the best tile
    are halved while there are fewer tiles than SMs and while that makes it faster."""

    from tilelink.kernels.matmul import matmul

    def took(tile: tuple[int, ...]) -> float:
        schedule, library = Schedule(multiply=SMs(tile=tile, order=grouped(8))), machine.of_library
        bound = matmul.bound_at(schedule, world=1, sizes={"M": m, "N": n, "K": k}, dtypes=dtype)
        steps = steps_of(*bound, machine, {})
        return compute(steps, costs(steps, library, {}), library)

    step = max(smallest_tile(k), LEAST_STEP_OF_8_BITS if ITEM_SIZE[dtype] == 1 else 1)
    largest = (smallest_tile(m), smallest_tile(n), step)
    fitted = {(min(a, largest[0]), min(b, largest[1]), min(c, largest[2])) for a, b, c in LIBRARY_TILES}
    best, (rows, columns, step) = min((took(tile), tile) for tile in fitted)
    tiles = -(-m // rows) * -(-n // columns)
    while tiles < machine.sms and columns > NARROWEST:  # a narrower tile needs less of everything that an SM has
        tiles, columns = 2 * tiles, columns // 2
        if (time := took((rows, columns, step))) >= best:
            break
        best = time
    return best


def library_collective(name: str, machine: Machine, world: int, dtype: str, m: int, columns: int) -> float:
    """Microseconds of a library's collective for (m, columns), with its launch. `name`: a program of `tilelink.kernels`
    that moves as many bytes."""
    from tilelink.kernels import operators

    program = operators()[name]
    second = str(program.parameters["x"].dims[1])
    rows = world if m % world == 0 else m  # bytes grow with rows: one a rank tells, if all have as many
    sizes, nodes = {"M": rows, second: columns}, machine.nodes_of(world)
    bound, exact = program.bound_at(world=world, sizes=sizes, dtypes={"x": dtype, "out": dtype}, per_node=nodes)
    return collective(steps_of(bound, exact, machine, {}), machine, m // rows)
