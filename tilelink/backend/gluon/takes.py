"""Decides which programs the specialised form takes. It refuses others, and says what stands in the way."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilelink.backend import pipelining
from tilelink.backend.bulk import Bulk, bulk_writes, by_threads
from tilelink.backend.facts import Facts
from tilelink.backend.gluon.dimensions import gives_indices, unequal
from tilelink.backend.gluon.layouts import is_reducing, tree_of
from tilelink.backend.targets import Target
from tilelink.errors import FormError, Site
from tilelink.frontend import ir
from tilelink.frontend.elaboration.functions import by_element
from tilelink.frontend.expressions import symbol
from tilelink.frontend.ir import ALL_RANKS, Role, TileProgram
from tilelink.frontend.schedule import SMs
from tilelink.frontend.values import ITEM_SIZE
from tilelink.frontend.workload import members

Fail = Callable[[str, ir.Statement], FormError]
DTYPES = ("bfloat16", "float16")
"""The dtypes of operands."""
WARPS_OF_GROUP, ROWS_OF_GROUP, COLUMNS, DEPTH = 4, 64, 16, 16
"""Matrix instructions with sums in registers are carried out by groups of four warps, on 64 rows. A tile has whole
instructions for each warp."""
ROWS_OF_WARP = ROWS_OF_GROUP // WARPS_OF_GROUP
LEAST_LINES, LEAST_BYTES = 8, 32
"""The fewest lines of a block in shared memory, and the fewest bytes of a line."""
SUMS, LANES = 2, 128
"""The number of sums in tensor memory, and its rows. Rows of a sum beyond them lie in further columns."""
SUM_ROWS, SUM_COLUMNS = (64, LANES, 2 * LANES), (16, 256)
"""For a sum in tensor memory: the numbers of rows that it may have, and the least and most columns."""
THREAD_SUMS = 128
"""Numbers of sums that fit into the registers of a thread."""
FULL_WARPS = 8
"""These fill the registers of an SM with sums: of more warps, each thread holds fewer."""
MOST_WARPS = 16
"""The most warps of a schedule. Those that load and tell come on top; a worker has at most 32."""
_LACKING = ("view", "gather", "histogram", "argmax", "argmin", "cumsum", "cumprod", "associative_scan", "sort",
            "softmax", "flip", "join", "split", "ravel", "trans")  # fmt: skip
"""Functions and methods of Triton that Gluon has, or seems to have, but does not compile without a layout."""


@dataclass(frozen=True)
class Dot:
    """A dot of a main loop: the sum that it adds to, which begins with `zeros`, and the views of both operands, each
    with whether the dot takes its transpose."""

    made: ir.Compute
    zeros: ir.Compute
    factors: tuple[tuple[ir.View, bool], ...]

    @property
    def sum(self) -> str:
        return self.made.targets[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.made.code.dots[0]


@dataclass(frozen=True)
class MainLoop:
    """A loop over the steps of dots, and the views that a step loads, each with the block that a descriptor loads.
    `whole`: the loop with the loops or branches around it, which wait for pieces; `bare`: the same without the
    waits."""

    whole: ir.For | ir.If
    bare: ir.For | ir.If
    loop: ir.For
    dots: tuple[Dot, ...]
    operands: dict[ir.View, pipelining.DescribedBlock]

    @property
    def has_steps(self) -> bool:
        """Whether it has a step: it goes over a whole described dimension, which is not empty."""
        dims = {symbol(r.dim) for view in self.operands for r in view.ranges}
        return isinstance(self.bare, ir.For) and self.bare.start == 0 and self.bare.stop in dims

    @property
    def stage(self) -> tuple[object, ...]:
        """What a stage of the ring has to have room for, and what is multiplied of it."""
        return [(b.matrix, b.turned) for b in self.operands.values()], [(dot.sum, dot.shape) for dot in self.dots]


@dataclass(frozen=True)
class Product:
    """What a role multiplies: main loops, one behind the other, that add to the same sums by the same ring."""

    loops: tuple[MainLoop, ...]

    @property
    def first(self) -> MainLoop:
        return self.loops[0]

    @property
    def site(self) -> Site:
        return self.first.dots[0].made.site

    @property
    def zeros(self) -> tuple[ir.Compute, ...]:
        """The statements that begin the sums."""
        return tuple(dot.zeros for dot in self.first.dots)

    @property
    def has_steps(self) -> bool:
        return any(x.has_steps for x in self.loops)


def taken(program: TileProgram, facts: Facts, target: Target) -> TileProgram:
    """The program that the specialised form lowers. It has no late notifications, because separate warps give them. A
    role that multiplies has at most one store in bulk, and other roles have no bulk copies that `carry.py` does not
    take. Raises FormError with the first thing that the form does not take."""
    multiplying = [r for r in program.in_kernel if has_main_loop(r)]
    for why, site in _refused(program, facts, multiplying):
        raise FormError(f"{program.name} has no specialised form: {why}", site)
    for role in multiplying:
        product_of(role, program, facts, target)
    roles = (replace(r, body=ir.rewritten(_keeping_last(r, program), _now)) for r in program.roles)
    return replace(program, roles=tuple(r if _in_bulk(r, program, facts) else by_threads(r) for r in roles))


def _keeping_last(role: Role, program: TileProgram) -> ir.Body:
    """The statements of a role, with those that keep rows at the end: other warps wait for the rows, and the warps that
    multiply know that they are here when the product is made."""
    return tuple(sorted(role.body, key=lambda s: has_main_loop(role) and keeps_rows(s, program)))


def keeps_rows(s: ir.Statement, program: TileProgram) -> bool:
    """Whether a loop or branch only copies to results, which nobody waits for."""
    inside = [i for i in ir.walk((s,)) if not isinstance(i, ir.For | ir.If)]
    copies = [i for i in inside if isinstance(i, ir.Copy) and i.where is None]
    return copies == inside != [] and all(program.tensor(i.target.tensor).kind == "output" for i in copies)


def _in_bulk(role: Role, program: TileProgram, facts: Facts) -> bool:
    """Whether the copy engine does what it may do for a role: store one tile, if the role multiplies; else copy blocks
    of two dimensions, with lines and columns as Triton lays them out (`carry.py`)."""
    done = [bulk for _, bulk in bulk_writes(role, program, facts)]
    takes = (b.source is not None and len(b.source.block.shape) == 2 for b in done)
    return (_stores(role) == 1 if has_main_loop(role) else all(takes)) and all(_is_laid_out(b, program) for b in done)


def _is_laid_out(bulk: Bulk, program: TileProgram) -> bool:
    lines, columns = bulk.target.block.matrix
    return lines >= LEAST_LINES and columns * ITEM_SIZE[program.tensor(bulk.target.view.tensor).dtype] >= LEAST_BYTES


def _stores(role: Role) -> int:
    """The number of stores of a tile. There is shared memory for one."""
    return sum(1 for _ in ir.every(ir.Write, role.body))


def has_main_loop(role: Role) -> bool:
    """Whether a role has a dot in a loop."""
    return any(isinstance(s, ir.For) and pipelining.has_dot(s) for s in ir.walk(role.body))


def product_of(role: Role, program: TileProgram, facts: Facts, target: Target) -> Product:
    """The product that a role makes. Raises FormError."""

    def fail(why: str, s: ir.Statement | None = None) -> FormError:
        return FormError(f"{program.name} has no specialised form: {role.name} {why}", s.site if s else role.site)

    body = tuple(s for s in role.body if not keeps_rows(s, program))
    places = [k for k, s in enumerate(body) if any(isinstance(i, ir.For) for i in ir.walk((s,)))]
    for s in (body[k] for k in places):
        if not ir.multiplies((s,)):
            raise fail("has a loop that neither multiplies nor only copies to results", s)
    before, behind = body[: places[0]], body[places[-1] + 1 :]
    for s in before:
        if not isinstance(s, ir.Wait) and not (isinstance(s, ir.Compute) and zeros_of(s.code)):
            raise fail("does more before its main loop than to wait, and to begin sums with tl.zeros in float32", s)
    for k, s in enumerate(body[: places[-1]]):
        if k > places[0] and k not in places and not isinstance(s, ir.Wait):
            raise fail("does more between its main loops than to wait", s)
    loops = []
    for whole in (body[k] for k in places):
        bare, loop = _without_waits(whole)
        if not isinstance(loop, ir.For):
            raise fail("does more around its main loop than to wait", whole)
        assert isinstance(whole, ir.For | ir.If) and isinstance(bare, ir.For | ir.If)
        dots = tuple(_dots(loop, before, fail))
        loops.append(MainLoop(whole, bare, loop, dots, _operands(loop, dots, program, facts, fail)))
        if loops[-1].stage != loops[0].stage:
            raise fail("has main loops whose blocks or sums differ; the form takes several with one ring", whole)
    product = Product(tuple(loops))
    whole, dots = product.first.whole, product.first.dots
    check = _check_in_tensor_memory if target.sum_columns else _check_in_registers
    check(role, dots, target, fail)
    for place in ir.places(behind):
        s = place.statement
        finishes = isinstance(s, FINISH_IN_BRANCH if place.outer else FINISH)
        if not finishes or any(v.guard for v in s.read) or any(code.dots for code in s.codes):
            raise fail("does more behind its main loop than to finish its sums, store them and notify", s)
    waited = {w.name for w in ir.every(ir.Wait, body[: places[-1] + 1])}
    for s in (s for s in role.body if s not in body):
        if target.sum_columns or not product.has_steps:
            raise fail("keeps rows beside its product; the form takes that on Hopper, if the main loop has a step", s)
        if not {v.guard for i in ir.walk((s,)) for v in i.read if v.guard} <= waited:
            raise fail("keeps rows that it waits for behind its product", s)
    heap = {t.name for t in program.on_heap}
    seen = any(s.target.tensor in heap for s in ir.every(ir.Store, behind)) or any(ir.every(ir.Notify, behind))
    if seen and not product.has_steps and any(ir.every(ir.Wait, role.body)):
        raise fail("may have no step in its main loop; without one, what others see of it would not wait", whole)
    return product


FINISH_IN_BRANCH = ir.Store | ir.Notify | ir.Owed | ir.If
FINISH = FINISH_IN_BRANCH | ir.Compute
"""What may stand behind a main loop. A branch does not compute, because a name would have two layouts behind it."""


def _operands(
    loop: ir.For, dots: tuple[Dot, ...], program: TileProgram, facts: Facts, fail: Fail
) -> dict[ir.View, pipelining.DescribedBlock]:
    """The blocks that a step of a main loop loads for its dots."""
    operands = {}
    for view in dict.fromkeys(view for dot in dots for view, _ in dot.factors):
        block = pipelining.block_of(view, program, facts)
        if block is None:
            raise fail(
                f"loads blocks of {view.tensor} that no descriptor describes: a descriptor needs two dimensions, rows "
                "or columns that are contiguous and whole multiples of 16 bytes, and memory of the own rank",
                loop,
            )
        if program.tensor(view.tensor).dtype not in DTYPES:
            raise fail(f"multiplies {program.tensor(view.tensor).dtype}; the form takes {' and '.join(DTYPES)}", loop)
        operands[view] = block
    return operands


def _without_waits(s: ir.Statement) -> tuple[ir.Statement, ir.Statement]:
    """A loop or branch without the waits in front of the loop in it, and the innermost loop."""
    match s:
        case ir.For(body=(*waits, inner)) | ir.If(body=(*waits, inner), orelse=()):
            if isinstance(inner, ir.For | ir.If) and all(isinstance(w, ir.Wait) for w in waits):
                bare, loop = _without_waits(inner)
                return replace(s, body=(bare,)), loop
    return s, s


def _dots(loop: ir.For, before: ir.Body, fail: Fail) -> Iterator[Dot]:
    """Yields the dots of a main loop: of blocks that it loads, each onto a sum of its own."""
    begun = {s.targets: s for s in before if isinstance(s, ir.Compute)}
    loaded: dict[str, ir.View] = {}
    for s in loop.body:
        match s:
            case ir.Compute(targets=(name,), code=ir.Code("{0}", (ir.Load(view, None),))):
                loaded[name] = view
                continue
            case ir.Compute(targets=(name,)) if s.targets in begun:
                match [(_block(hole, loaded), turned) for hole, turned in _given_to_dot(s.code)]:
                    case [(ir.View(), _) as left, (ir.View(), _) as right, last] if last == (ir.Variable(name), False):
                        yield Dot(s, begun.pop(s.targets), (left, right))
                        continue
        raise fail("does more in its main loop than to load blocks, and tl.dot of two of them onto a sum of its own", s)


def _block(hole: Any, loaded: dict[str, ir.View]) -> Any:
    """The view of a block that code reads, or that was loaded under its name; any other hole as it is."""
    match hole:
        case ir.Load(view, None):
            return view
        case ir.Variable(name):
            return loaded.get(name, hole)
    return hole


def _given_to_dot(code: ir.Code) -> Iterator[tuple[Any, bool]]:
    """Yields the holes that are both blocks and the sum, if the expression is tl.dot of these, each with whether it
    stands in tl.trans."""
    match tree_of(code):
        case ast.Call(ast.Attribute(ast.Name("tl"), "dot"), given, keywords):
            for argument in given if {k.arg for k in keywords} <= {"input_precision"} else ():
                match argument:
                    case ast.Set([ast.Constant(int() as k)]):
                        yield code.holes[k], False
                    case ast.Call(ast.Attribute(ast.Name("tl"), "trans"), [ast.Set([ast.Constant(int() as k)])], []):
                        yield code.holes[k], True


def zeros_of(code: ir.Code) -> tuple[int, int] | None:
    """The lengths of the block, if the expression is tl.zeros of two lengths in float32; else None."""
    match tree_of(code):
        case ast.Call(ast.Attribute(ast.Name("tl"), "zeros"), [ast.Tuple(lengths), dtype]):
            match lengths:
                case [ast.Constant(int() as m), ast.Constant(int() as n)] if ast.unparse(dtype) == "tl.float32":
                    return m, n
    return None


def _room(warps: int, target: Target) -> int:
    """How many numbers of sums fit into the registers of these warps."""
    return THREAD_SUMS * min(warps, FULL_WARPS) * target.warp_size if warps <= MOST_WARPS else 0


def _check_in_tensor_memory(role: Role, dots: tuple[Dot, ...], target: Target, fail: Fail) -> None:
    assert isinstance(role.resource, SMs)
    warps, (least, most) = role.resource.warps, SUM_COLUMNS
    columns = sum(SUMS * n * -(-m // LANES) for m, n, _ in (dot.shape for dot in dots))
    numbers = sum(m * n for m, n, _ in (dot.shape for dot in dots))
    for dot in dots:
        m, n, k = dot.shape
        fits = m in SUM_ROWS and n % least == 0 and n <= most and k % DEPTH == 0 and columns <= target.sum_columns
        if not fits or warps % WARPS_OF_GROUP or numbers > _room(warps, target):
            rows = ", ".join(map(str, SUM_ROWS))
            raise fail(
                f"multiplies {m} x {k} by {k} x {n} and reads the sums with {warps} warps: tensor memory takes sums of "
                f"{rows} rows and {least} to {most} columns, {SUMS} of each in {target.sum_columns} columns, steps of "
                f"{DEPTH}; groups of {WARPS_OF_GROUP} warps read them, {THREAD_SUMS} numbers a thread, at most "
                f"{MOST_WARPS} warps",
                dot.made,
            )


def _check_in_registers(role: Role, dots: tuple[Dot, ...], target: Target, fail: Fail) -> None:
    assert isinstance(role.resource, SMs)
    warps = role.resource.warps
    fits = sum(m * n for m, n, _ in (dot.shape for dot in dots)) <= _room(warps, target)
    for dot in dots:
        m, n, k = dot.shape
        down = max(1, min(warps, m // ROWS_OF_WARP))
        whole = not (m % ROWS_OF_GROUP or n % (COLUMNS * warps // down) or k % DEPTH)
        if not fits or warps % WARPS_OF_GROUP or down % WARPS_OF_GROUP or not whole:
            raise fail(
                f"multiplies {m} x {k} by {k} x {n} with {warps} warps: groups of {WARPS_OF_GROUP} warps take "
                f"{ROWS_OF_GROUP} rows and steps of {DEPTH}, each warp {COLUMNS} columns or more; a thread has "
                f"{THREAD_SUMS} numbers of the sums, and there are at most {MOST_WARPS} warps",
                dot.made,
            )


def _refused(program: TileProgram, facts: Facts, multiplying: list[Role]) -> Iterator[tuple[str, Site]]:
    """Yields the reasons to refuse a program that do not depend on its main loop."""
    if not multiplying:
        yield "no role multiplies", program.site
        return
    for together in members(program.in_kernel):
        kinds = {has_main_loop(r): r for r in together}
        if len(kinds) > 1:
            yield f"{kinds[True].name} takes turns with {kinds[False].name}, which does not multiply", kinds[True].site
    if facts.timed:
        yield "its times are to be recorded; the portable form does that", program.site
    for dim in program.cut:
        if dim not in facts.equal and dim not in program.routed:
            yield f"the parts of {dim} differ in length; the form takes parts of one length", program.site
    for role in program.in_kernel:
        if isinstance(role.resource, SMs) and role.resource.via == "multicast":
            yield f'{role.name} has via="multicast"; the form stores to one rank at a time', role.site
        for s in ir.walk(role.body):
            yield from ((f"{role.name} {why}", s.site) for why in _unsuited(s, role, dict(program.functions)))
        for what, site in unequal(role):
            yield f"{role.name} has blocks of fewer dimensions than others, to which Gluon adds none: {what}", site


def _unsuited(s: ir.Statement, role: Role, functions: dict[str, Any]) -> Iterator[str]:
    """Yields what of a statement the form does not take."""
    from triton.experimental.gluon import language as gluon  # here, because the portable form needs no Gluon

    for code in s.codes:
        for called in (h for h in code.holes if isinstance(h, ir.Called)):
            if not by_element(functions[called.name]):
                yield f"calls {called}, a Triton function of the user that does not compute element by element"
        for node in ast.walk(tree_of(code)):
            match node:
                case ast.Attribute(ast.Name("tl"), word) if not hasattr(gluon, word):
                    if word not in ("dot", "trans") or not code.dots or not has_main_loop(role):
                        yield f"uses tl.{word}, which Gluon lacks"
                case ast.Attribute(_, word) if word in _LACKING:
                    yield f"uses {word}, which needs a layout in Gluon"
                case ast.Call() if is_reducing(node) and gives_indices(node):
                    yield "asks for the indices of a reduction, which need a layout in Gluon"
    if isinstance(s, ir.Write) and s.target.home == ALL_RANKS and has_main_loop(role):
        yield "stores to all ranks; the form takes stores to one"


def _now(s: ir.Statement) -> ir.Body:
    """The statement as the form takes it: no notification is late."""
    if isinstance(s, ir.Owed):
        return ()
    return (replace(s, late=False),) if isinstance(s, ir.Notify) else (s,)
