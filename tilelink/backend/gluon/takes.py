"""Decides which programs the specialised form takes. It refuses others, and says what stands in the way."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeGuard

from tilelink.backend import pipelining
from tilelink.backend.bulk import Bulk, bulk_writes, by_threads
from tilelink.backend.facts import Facts
from tilelink.backend.targets import Target
from tilelink.errors import FormError, Site
from tilelink.frontend import ir
from tilelink.frontend.elaboration.functions import by_element
from tilelink.frontend.expressions import symbol
from tilelink.frontend.ir import ALL_RANKS, Role, TileProgram
from tilelink.frontend.schedule import SMs
from tilelink.frontend.values import ITEM_SIZE
from tilelink.frontend.workload import members

DTYPES = ("bfloat16", "float16")
"""The dtypes of operands."""
WARPS_OF_GROUP, ROWS_OF_GROUP, COLUMNS, DEPTH = 4, 64, 16, 16
"""Matrix instructions with sums in registers are carried out by groups of four warps, on 64 rows. A tile has whole
instructions for each warp."""
LEAST_LINES, LEAST_BYTES = 8, 32
"""The fewest lines of a block in shared memory, and the fewest bytes of a line."""
MATRIX = 2
"""The dimensions of a block that is reduced along one of them."""
SUMS, LANES = 2, 128
"""The number of sums in tensor memory, and its rows. Rows of a sum beyond them lie in further columns."""
SUM_ROWS, SUM_COLUMNS = (64, LANES, 2 * LANES), (16, 256)
"""For a sum in tensor memory: the numbers of rows that it may have, and the least and most columns."""
THREAD_SUMS, FULL_WARPS, MOST_WARPS = 128, 8, 16
"""How many numbers of sums fit into the registers of a thread, if there are no more than so many warps; these hold as
many as all the registers do. And the most warps: a worker has 32, with those that load and tell."""


_MOVING = ("permute", "reshape", "expand_dims", "join", "T", "trans", "ravel", "split")
"""Functions of Triton, or methods of blocks, that move numbers to other places."""
_REDUCING = ("sum", "max", "min", "reduce", "xor_sum", "argmax", "argmin")
"""Those that make a block of fewer dimensions, whose layout is part of the first one's."""
_LACKING = ("view", "gather", "histogram", "argmax", "argmin", "cumsum", "cumprod", "associative_scan", "sort",
            "softmax", "flip")  # fmt: skip
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
class Product:
    """What a role multiplies: the loop over the steps of its dots, and the views that a step loads, each with the block
    that a descriptor loads. `whole`: the loop with the loops or branches around it, which wait for pieces; `bare`: the
    same without the waits."""

    whole: ir.For | ir.If
    bare: ir.For | ir.If
    loop: ir.For
    dots: tuple[Dot, ...]
    operands: dict[ir.View, pipelining.DescribedBlock]

    @property
    def site(self) -> Site:
        return self.dots[0].made.site

    @property
    def has_steps(self) -> bool:
        """Whether the main loop has a step: it goes over a whole described dimension, which is not empty."""
        dims = {symbol(r.dim) for view in self.operands for r in view.ranges}
        return isinstance(self.bare, ir.For) and self.bare.start == 0 and self.bare.stop in dims


def taken(program: TileProgram, facts: Facts, target: Target) -> TileProgram:
    """The program that the specialised form lowers. It has no late notifications, because separate warps give them. A
    role that multiplies has at most one store in bulk, and other roles have no bulk copies that `carry.py` does not
    take. Raises FormError with the first thing that the form does not take."""
    multiplying = [r for r in program.in_kernel if multiplies(r)]
    for why, site in _refused(program, facts, multiplying):
        raise FormError(f"{program.name} has no specialised form: {why}", site)
    sums: dict[str, set[str]] = {}
    for role in multiplying:
        product = product_of(role, program, facts, target)
        sums[role.name] = {dot.sum for dot in product.dots}
        for name, site in _used_again(role, product):
            why = f"{role.name} uses {name} again or moved, which may need another layout than the sum has"
            raise FormError(f"{program.name} has no specialised form: {why}", site)
    for role in program.in_kernel:
        for word, site in _reduced_alone(role, sums.get(role.name, set())):
            why = f"{role.name} takes {word} of a block that it does not store, and no store says how that is laid out"
            raise FormError(f"{program.name} has no specialised form: {why}", site)
        for index, site in _reduced_otherwise(role, makes_sums=role.name in sums):
            why = f"{role.name} reduces a block along other dimensions than a layout is known for: {index}"
            raise FormError(f"{program.name} has no specialised form: {why}", site)
        for what, site in _of_unequal_dimensions(role):
            why = f"{role.name} has blocks of fewer dimensions than others, to which Gluon adds none: {what}"
            raise FormError(f"{program.name} has no specialised form: {why}", site)
    roles = (replace(r, body=ir.rewritten(r.body, _now)) for r in program.roles)
    return replace(program, roles=tuple(r if _in_bulk(r, program, facts) else by_threads(r) for r in roles))


def _in_bulk(role: Role, program: TileProgram, facts: Facts) -> bool:
    """Whether the copy engine does what it may do for a role: store one tile, if the role multiplies; else copy blocks
    of two dimensions, with lines and columns as Triton lays them out (`carry.py`)."""
    done = [bulk for _, bulk in bulk_writes(role, program, facts)]
    takes = (b.source is not None and len(b.source.block.shape) == 2 for b in done)
    return (_stores(role) == 1 if multiplies(role) else all(takes)) and all(_is_laid_out(b, program) for b in done)


def _is_laid_out(bulk: Bulk, program: TileProgram) -> bool:
    lines, columns = bulk.target.block.matrix
    return lines >= LEAST_LINES and columns * ITEM_SIZE[program.tensor(bulk.target.view.tensor).dtype] >= LEAST_BYTES


def _stores(role: Role) -> int:
    """The number of stores of a tile. There is shared memory for one."""
    return sum(1 for _ in ir.every(ir.Write, role.body))


def multiplies(role: Role) -> bool:
    return any(isinstance(s, ir.For) and pipelining.has_dot(s) for s in ir.walk(role.body))


def product_of(role: Role, program: TileProgram, facts: Facts, target: Target) -> Product:
    """The product that a role makes. Raises FormError."""

    def fail(why: str, s: ir.Statement | None = None) -> FormError:
        return FormError(f"{program.name} has no specialised form: {role.name} {why}", s.site if s else role.site)

    places = [k for k, s in enumerate(role.body) if any(isinstance(i, ir.For) for i in ir.walk((s,)))]
    whole = role.body[places[0]]
    bare, loop = _without_waits(whole)
    if len(places) > 1 or not isinstance(loop, ir.For):
        raise fail("has more than one loop, or one in a branch; the form takes one, over the steps of a dot", whole)
    assert isinstance(whole, ir.For | ir.If) and isinstance(bare, ir.For | ir.If)
    before, behind = role.body[: places[0]], role.body[places[0] + 1 :]
    for s in before:
        if not isinstance(s, ir.Wait) and not (isinstance(s, ir.Compute) and zeros_of(s.code)):
            raise fail("does more before its main loop than to wait, and to begin sums with tl.zeros in float32", s)
    dots = tuple(_dots(loop, before, fail))
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
    check = _check_in_tensor_memory if target.sum_columns else _check_in_registers
    check(role, dots, target, fail)
    for s in behind:
        products = any(code.dots for code in s.codes)
        if not isinstance(s, ir.Compute | ir.Store | ir.Notify | ir.Owed) or any(v.guard for v in s.read) or products:
            raise fail("does more behind its main loop than to finish its sums, store them and notify", s)
    product = Product(whole, bare, loop, dots, operands)
    if target.sum_columns and not product.has_steps:
        raise fail("may have no step in its main loop; a sum in tensor memory begins with the first", whole)
    heap = {t.name for t in program.on_heap}
    seen = any(s.target.tensor in heap for s in behind if isinstance(s, ir.Store))
    told = seen or any(isinstance(s, ir.Notify) for s in behind)
    if told and not product.has_steps and any(ir.every(ir.Wait, role.body)):
        raise fail("may have no step in its main loop; without one, what others see of it would not wait", whole)
    return product


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


def _uses(code: ir.Code) -> Iterator[tuple[str, str]]:
    """Yields the named blocks in an expression, each with what makes its layout another one: the index, the function or
    the method around it, "" if nothing does."""
    tree = _tree(code)
    around = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Set([ast.Constant(int() as k)]) if isinstance(hole := code.holes[k], ir.Variable):
                match around.get(id(node)):
                    case ast.Subscript(_, index):
                        yield hole.name, ast.unparse(index)
                    case ast.Call(ast.Attribute(_, word)) | ast.Attribute(_, word) if word in _MOVING:
                        yield hole.name, word
                    case _:
                        yield hole.name, ""


def _used_again(role: Role, product: Product) -> Iterator[tuple[str, Site]]:
    """Yields the blocks behind the main loop that would need a second layout, where they would: blocks that are not
    made of its sums, which have that of a sum where they meet it and another one in a store, at their second use; and
    blocks that are made of a sum, where they are moved, or get more dimensions than the sum has."""
    of_sum, used, reduced = {dot.sum for dot in product.dots}, set[str](), set[str]()
    for s in role.body[role.body.index(product.whole) + 1 :]:
        uses = [use for code in s.codes for use in _uses(code)]
        for name, how in uses:
            if name in used or (name in of_sum and how in _MOVING) or (name in of_sum - reduced and how):
                yield name, s.site
            if name not in of_sum:
                used.add(name)
        if isinstance(s, ir.Compute):
            names, made = {name for name, _ in uses}, {*s.targets}
            fewer = _reduces(s.code) or not names & (of_sum - reduced)
            used, of_sum = used - made, of_sum | made if of_sum & names else of_sum - made
            reduced = reduced | made if fewer else reduced - made


def _in_two_layouts(role: Role) -> Iterator[tuple[str, Site]]:
    """Yields the blocks of a role that does not multiply, where a use needs another layout than one before. An index or
    a function around a block, and a store, each ask for a layout. Blocks that are computed of each other, element by
    element, have one layout: they are in one group."""
    fresh, group, ways = count(), dict[str, int](), defaultdict[int, set[str]](set)
    for s in ir.walk(role.body):
        uses = [use for code in s.codes for use in _uses(code)]
        for name, how in uses:
            number = group.setdefault(name, next(fresh))
            if how or isinstance(s, ir.Write):
                ways[number].add(how)
            if len(ways[number]) > 1:
                yield name, s.site
        if isinstance(s, ir.Compute):
            meeting = {group[name] for name, how in uses if not how and not _reduces(s.code)}
            new = next(fresh)
            ways[new] = set[str]().union(*(ways[number] for number in meeting))
            group = {name: new if number in meeting else number for name, number in group.items()}
            group |= dict.fromkeys(s.targets, new)


def _reduced_alone(role: Role, sums: set[str]) -> Iterator[tuple[str, Site]]:
    """Yields the words that make blocks of fewer dimensions, where no store says how their operands are laid out, nor
    an index how their results are. `sums` are laid out."""
    read = [(s, code) for s in ir.walk(role.body) for code in s.codes]
    stored, before = set(sums), -1
    while before < len(stored):
        before = len(stored)
        for s, code in read:
            if isinstance(s, ir.Write) or (isinstance(s, ir.Compute) and stored & {*s.targets}):
                stored |= _names(_tree(code), code, leave_out=_is_reducing)
    indexed = {name for _, code in read for name, how in _uses(code) if how}
    for s, code in read:
        tree = _tree(code)
        known = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Subscript)}
        laid_out = isinstance(s, ir.Compute) and indexed & {*s.targets}
        for node in filter(_is_reducing, ast.walk(tree)):
            if id(node) not in known and not laid_out and not stored & _names(node, code):
                yield ast.unparse(node.func).format(*code.holes), s.site


def _reduced_otherwise(role: Role, *, makes_sums: bool) -> Iterator[tuple[str, Site]]:
    """Yields the indices of reduced blocks that give back another dimension than the one that was reduced. What is left
    of a block lies as its other dimension does. A role that `makes_sums` knows how these lie. In others, a store would
    ask for another layout of what is left, and so does a sum of all numbers of a block."""
    known: dict[str, frozenset[int]] = {}
    for s in ir.walk(role.body):
        for code in s.codes:
            for node in ast.walk(_tree(code)):
                if isinstance(node, ast.Subscript) and (along := _along(node.value, code, known)):
                    index = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
                    new = {k for k, i in enumerate(index) if isinstance(i, ast.Constant)}
                    if len(index) != MATRIX or any({axis % MATRIX} != new for axis in along):
                        yield ast.unparse(node.slice), s.site
                elif not makes_sums and _is_reducing(node) and _axis_of(node) is None:
                    yield "none", s.site
            if isinstance(s, ir.Write) and not makes_sums and _along(_tree(code), code, known):
                yield "in a store", s.site
        if isinstance(s, ir.Compute):
            known |= dict.fromkeys(s.targets, _along(_tree(s.code), s.code, known))


def _along(node: ast.AST, code: ir.Code, known: dict[str, frozenset[int]]) -> frozenset[int]:
    """The dimensions along which an expression is reduced, and has no longer. `known`: the same of named blocks."""
    match node:
        case ast.Subscript():
            return frozenset()
        case ast.Set([ast.Constant(int() as k)]):
            return known.get(hole.name, frozenset()) if isinstance(hole := code.holes[k], ir.Variable) else frozenset()
        case ast.Call() if _is_reducing(node):
            axis = _axis_of(node)
            return frozenset() if axis is None or "keep_dims" in {k.arg for k in node.keywords} else frozenset([axis])
    return frozenset[int]().union(*(_along(n, code, known) for n in ast.iter_child_nodes(node)))


def _axis_of(node: ast.Call) -> int | None:
    """The dimension along which a call reduces its block, None if that is along all."""
    axis = {k.arg: k.value for k in node.keywords}.get("axis") or next(iter(_options(node)), None)
    return ast.literal_eval(axis) if isinstance(axis, ast.Constant | ast.UnaryOp) else None


def _gives_indices(node: ast.Call) -> bool:
    return "return_indices" in {k.arg for k in node.keywords} or len(_options(node)) > 1


def _options(node: ast.Call) -> list[ast.expr]:
    """The arguments of a reduction behind its block, which may be a method's."""
    of_language = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    return node.args[1:] if of_language else node.args


def _of_unequal_dimensions(role: Role) -> Iterator[tuple[str, Site]]:
    """Yields the parts of expressions whose blocks have unequal numbers of dimensions. (The elaborator gives leading
    ones to blocks that have fewer, where it knows all shapes. It does not know what a function of the user returns.)"""
    known: dict[str, int] = {}
    for s in ir.walk(role.body):
        for code in s.codes:
            for node in ast.walk(tree := _tree(code)):
                if isinstance(node, ast.BinOp | ast.Compare | ast.Call) and not _is_reducing(node):
                    parts = (_dimensions(n, code, known) for n in ast.iter_child_nodes(node))
                    if len({*parts} - {0}) > 1:
                        yield ast.unparse(node).format(*code.holes), s.site
            if isinstance(s, ir.Store) and _dimensions(tree, code, known) not in (0, len(s.target.ranges)):
                yield str(s.target), s.site
        if isinstance(s, ir.Compute):
            known |= dict.fromkeys(s.targets, _dimensions(_tree(s.code), s.code, known))


def _dimensions(node: ast.AST, code: ir.Code, known: dict[str, int]) -> int:
    """The number of dimensions of a block, 0 if it is a number or unknown. `known`: the same of named blocks."""
    match node:
        case ast.Set([ast.Constant(int() as k)]):
            hole = code.holes[k]
            return len(hole.view.ranges) if isinstance(hole, ir.Load) else known.get(str(hole), 0)
        case ast.Subscript(_, ast.Tuple(index)):
            return len(index)
        case ast.Call(ast.Attribute(ast.Name("tl"), "arange")):
            return 1
        case ast.Call(ast.Attribute(ast.Name("tl"), "zeros" | "full"), [ast.Tuple(lengths), *_]):
            return len(lengths)
        case ast.Call(ast.Attribute(_, word)) if word in _MOVING:
            return 0
        case ast.Call() if _is_reducing(node):
            before = max(_dimensions(n, code, known) for n in (node.func, *node.args[:1]))
            kept = "keep_dims" in {k.arg for k in node.keywords}
            return before if kept else 0 if _axis_of(node) is None else max(0, before - 1)
    return max((_dimensions(n, code, known) for n in ast.iter_child_nodes(node)), default=0)


def _is_reducing(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _REDUCING


def _names(node: ast.AST, code: ir.Code, leave_out: Callable[[ast.AST], bool] = lambda _: False) -> set[str]:
    """The named blocks in a part of an expression."""
    match node:
        case ast.Set([ast.Constant(int() as k)]):
            return {hole.name} if isinstance(hole := code.holes[k], ir.Variable) else set()
    parts = (_names(n, code, leave_out) for n in ast.iter_child_nodes(node) if not leave_out(n))
    return set() if leave_out(node) else set[str]().union(*parts)


def _reduces(code: ir.Code) -> bool:
    """Whether an expression makes a block of fewer dimensions."""
    return any(isinstance(n, ast.Attribute) and n.attr in _REDUCING for n in ast.walk(_tree(code)))


def _tree(code: ir.Code) -> ast.expr:
    """The expression. Python parses a hole, such as {0}, as a set of one number."""
    return ast.parse(code.text, mode="eval").body


def _given_to_dot(code: ir.Code) -> Iterator[tuple[Any, bool]]:
    """Yields the holes that are both blocks and the sum, if the expression is tl.dot of these, each with whether it
    stands in tl.trans."""
    match _tree(code):
        case ast.Call(ast.Attribute(ast.Name("tl"), "dot"), given, keywords):
            for argument in given if {k.arg for k in keywords} <= {"input_precision"} else ():
                match argument:
                    case ast.Set([ast.Constant(int() as k)]):
                        yield code.holes[k], False
                    case ast.Call(ast.Attribute(ast.Name("tl"), "trans"), [ast.Set([ast.Constant(int() as k)])], []):
                        yield code.holes[k], True


def zeros_of(code: ir.Code) -> tuple[int, int] | None:
    """The lengths of the block, if the expression is tl.zeros of two lengths in float32; else None."""
    match _tree(code):
        case ast.Call(ast.Attribute(ast.Name("tl"), "zeros"), [ast.Tuple(lengths), dtype]):
            match lengths:
                case [ast.Constant(int() as m), ast.Constant(int() as n)] if ast.unparse(dtype) == "tl.float32":
                    return m, n
    return None


Fail = Callable[[str, ir.Statement], FormError]


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
                f"{DEPTH}; groups of {WARPS_OF_GROUP} warps read them, {THREAD_SUMS} numbers a thread",
                dot.made,
            )


def _check_in_registers(role: Role, dots: tuple[Dot, ...], target: Target, fail: Fail) -> None:
    assert isinstance(role.resource, SMs)
    warps = role.resource.warps
    fits = sum(m * n for m, n, _ in (dot.shape for dot in dots)) <= _room(warps, target)
    for dot in dots:
        m, n, k = dot.shape
        down = max(1, min(warps, m // DEPTH))
        whole = not (m % ROWS_OF_GROUP or n % (COLUMNS * warps // down) or k % DEPTH)
        if not fits or warps % WARPS_OF_GROUP or down % WARPS_OF_GROUP or not whole:
            raise fail(
                f"multiplies {m} x {k} by {k} x {n} with {warps} warps: groups of {WARPS_OF_GROUP} warps take "
                f"{ROWS_OF_GROUP} rows, and steps of {DEPTH}; a thread has {THREAD_SUMS} numbers of the sums",
                dot.made,
            )


def _refused(program: TileProgram, facts: Facts, multiplying: list[Role]) -> Iterator[tuple[str, Site]]:
    """Yields the reasons to refuse a program that do not depend on its main loop."""
    if not multiplying:
        yield "no role multiplies", program.site
        return
    for together in members(program.in_kernel):
        kinds = {multiplies(r): r for r in together}
        if len(kinds) > 1:
            yield f"{kinds[True].name} takes turns with {kinds[False].name}, which does not multiply", kinds[True].site
    if facts.timed:
        yield "its times are to be recorded; the portable form does that", program.site
    for dim in program.cut:
        if dim not in facts.equal and dim not in program.routed:
            yield f"the parts of {dim} differ in length; the form takes parts of one length", program.site
    for role in program.in_kernel:
        if isinstance(role.resource, SMs) and role.resource.via == "multicast":
            yield f'{role.name} has via="multicast"; the form takes stores to one rank after the other', role.site
        for s in ir.walk(role.body):
            yield from ((f"{role.name} {why}", s.site) for why in _words(s, role, dict(program.functions)))
        if not multiplies(role):
            yield from ((f"{role.name} uses {name} in another layout", site) for name, site in _in_two_layouts(role))


def _words(s: ir.Statement, role: Role, functions: dict[str, Any]) -> Iterator[str]:
    """Yields the words of a statement that Gluon lacks, or that the form does not take."""
    from triton.experimental.gluon import language as gluon  # here, because the portable form needs no Gluon

    for code in s.codes:
        for called in (h for h in code.holes if isinstance(h, ir.Called)):
            if not by_element(functions[called.name]):
                yield f"calls {called}, a Triton function of the user that does not compute element by element"
        for node in ast.walk(_tree(code)):
            match node:
                case ast.Attribute(ast.Name("tl"), word) if not hasattr(gluon, word):
                    if word not in ("dot", "trans") or not code.dots or not multiplies(role):
                        yield f"uses tl.{word}, which Gluon lacks"
                case ast.Attribute(_, word) if word in _LACKING:
                    yield f"uses {word}, which needs a layout in Gluon"
                case ast.Call() if _is_reducing(node) and _gives_indices(node):
                    yield "asks for the indices of a reduction, which need a layout in Gluon"
    if isinstance(s, ir.Write) and s.target.home == ALL_RANKS and multiplies(role):
        yield "stores to all ranks; the form takes stores to one"


def _now(s: ir.Statement) -> ir.Body:
    """The statement as the form takes it: no notification is late."""
    if isinstance(s, ir.Owed):
        return ()
    return (replace(s, late=False),) if isinstance(s, ir.Notify) else (s,)
