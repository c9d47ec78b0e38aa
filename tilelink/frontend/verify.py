"""The rules of every tile program, checked after each pass. If one is broken, the pass is wrong, not the program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tilelink.errors import TileProgramError
from tilelink.frontend.body import Owed
from tilelink.frontend.expressions import PER_NODE, RANK, WORLD, of_dim, shown, symbol
from tilelink.frontend.ir import For, Notify, Place, Range, Role, Tensor, TileProgram, View, Wait, Write, places

Tensors = Mapping[str, Tensor]


def verify(program: TileProgram, after: str) -> None:
    """Raises TileProgramError for the first statement that breaks a rule. `after`: the name of the last pass."""
    tensors = {t.name: t for t in program.tensors}
    signals = {s.tensor for s in program.signals} or {*tensors}  # all may have some before they are derived
    for role in program.roles:
        for place, problem in _problems(role, tensors, signals, program.dims):
            raise TileProgramError(f"after {after}, in {role.name}: {problem}", place.statement.site)


def _problems(role: Role, tensors: Tensors, signals: set[str], dims: Collection[str]) -> Iterator[tuple[Place, str]]:
    sizes = {e for d in dims for e in (symbol(d), of_dim(d, "part"))}
    walked = (n for n, _ in (*role.walk.sizes, *role.walk.coordinates))
    fixed = {RANK, WORLD, PER_NODE, *sizes, *map(symbol, walked)}
    waits: dict[str, Place] = {}
    written: set[object] = set()
    owed = False
    for place in places(role.body):
        s = place.statement
        names = fixed | {symbol(loop.name) for loop in place.loops}
        for view in s.touched:
            if problem := _of_index(view, tensors):
                yield place, problem
            if isinstance(s, Wait | Notify) and view.tensor not in signals:
                yield place, f"{view}: {view.tensor} has no signals"
            if view.guard is not None and not _guarded(view, place, waits.get(view.guard)):
                yield place, f"{view} is guarded by {view.guard}, and no such wait for {view.tensor} stands before it"
        if unknown := s.symbols - names:
            yield place, f"{', '.join(sorted(shown(str(s)) for s in unknown))} has no value here"
        match s:
            case For() if symbol(s.name) in names:
                yield place, f"the loop's variable {shown(s.name)} has another meaning around it"
            case Wait():
                if s.name in waits:
                    yield place, f"{s.name} is the name of two waits"
                waits[s.name] = place
            case Write():
                written.add(_region(s.target))
            case Owed() if owed or place.outer or role.awaited:
                yield place, "late notifications are given once in every tile, in a role that waits for nothing"
            case Owed():
                owed = True
            case Notify() if s.late and not owed:
                yield place, "a late notification stands before the previous tile's late notifications are given"
            case Notify():
                for view in s.views:
                    if tensors[view.tensor].kind != "token" and _region(view) not in written:
                        yield place, f"{view} is notified, and nothing was stored to it before"


def _of_index(view: View, tensors: Tensors) -> str:
    """The mistake in a view's index, or "" if it has none."""
    if view.tensor not in tensors:
        return f"{view}: the program has no tensor {view.tensor}"
    dims = tensors[view.tensor].dims
    if len(view.index) != len(dims):
        return f"{view} has {len(view.index)} indices, and {view.tensor} {len(dims)} dimensions"
    for dim, i in zip(dims, view.index, strict=True):
        if isinstance(i, Range) and i.dim != dim:
            return f"{view}: a range along {i.dim} stands where {view.tensor} has {dim}"
    return ""


def _region(view: View) -> object:
    """Where a view is. It leaves out how its elements are loaded or stored, such as the extents of blocks."""
    index = tuple((i.dim, i.start, i.stop, i.by) if isinstance(i, Range) else i for i in view.index)
    return view.tensor, view.home, index


def _guarded(view: View, place: Place, wait: Place | None) -> bool:
    """Whether the wait is for the view's tensor, and always comes before the view's statement."""
    if wait is None or not isinstance(wait.statement, Wait):
        return False
    around = place.outer[: len(wait.outer)] == wait.outer
    return around and any(v.tensor == view.tensor for v in wait.statement.views)
