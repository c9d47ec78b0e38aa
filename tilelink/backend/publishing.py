"""Publishing: the copies of a rank's inputs to the symmetric heap, as roles that are lowered like other roles."""

from __future__ import annotations

import sympy

from tilelink.backend.facts import COPY_CHUNK
from tilelink.errors import Site
from tilelink.frontend import expressions, ir, walk
from tilelink.frontend.cells import of_cell
from tilelink.frontend.expressions import Expr
from tilelink.frontend.ir import RANKS_DIM, Role, TileProgram
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import end_of_rows
from tilelink.frontend.schedule import SMs
from tilelink.language import Space


@kept()
def publishing_roles(program: TileProgram) -> tuple[Role, ...]:
    """The roles that copy this rank's parts of inputs to their places on the heap."""
    return tuple(_publishing_role(program, program.tensor(n)) for n in program.published)


def _publishing_role(program: TileProgram, tensor: ir.Tensor) -> Role:
    """The role that copies one input, tile by tile. A tile has all entries along a dimension of ranks."""
    dims = tuple(d for d in tensor.dims if d != RANKS_DIM)
    space = Space(dims, None if tensor.sharded is None else tensor.dims[tensor.sharded], {})
    resource = SMs(tile=(1,) * (len(dims) - 2) + (COPY_CHUNK,) * min(len(dims), 2))
    own = frozenset({tensor.dims[tensor.sharded]}) if tensor.sharded is not None else frozenset()
    site = Site(program.site.file, program.site.line)
    ends = {d: end_of_rows(route, d, expressions.RANK) for route in program.routes for d in own & {*route.sides}}
    found, _ = walk.make_walk(f"publish_{tensor.name}", space, resource, own, site, ends)
    ranges = iter(found.ranges)
    index = tuple(of_cell("index", k) if d == RANKS_DIM else next(ranges) for k, d in enumerate(tensor.dims))
    view = ir.View(tensor.name, index, expressions.RANK)
    body: ir.Statement = ir.Copy(site, view, target=view)
    for entry in (i for i in index if isinstance(i, Expr)):
        body = ir.For(site, str(entry), sympy.S.Zero, expressions.WORLD, 1, (body,))
    return Role(f"publish_{tensor.name}", resource, found, (body,), site)


