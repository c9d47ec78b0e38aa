"""The verifier of tile programs: each rule, broken by hand in a program of the library, is named with its statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilelink.errors import Site, TileProgramError
from tilelink.frontend.binding import bind
from tilelink.frontend.expressions import RANK, symbol
from tilelink.frontend.ir import Copy, For, Notify, Range, Role, Statement, TileProgram, View, Wait, every, rewritten
from tilelink.frontend.passes.elaborate import Binding, elaborate
from tilelink.frontend.verify import verify
from tilelink.frontend.views import whole_range
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push

PROGRAM = all_gather_matmul.bind(push.changed(gather={"own": "copied"}))
GATHER, MATMUL = PROGRAM.role("gather"), PROGRAM.role("matmul")
Change = Callable[[Statement], Statement | None]


def with_role(role: Role) -> TileProgram:
    return replace(PROGRAM, roles=(role,))


def without(kind: type[Statement]) -> Change:
    return lambda s: None if isinstance(s, kind) else s


def of_source(change: Callable[[View], View]) -> Change:
    return lambda s: replace(s, source=change(s.source)) if isinstance(s, Copy) else s


def along(dim: str) -> Callable[[View], View]:
    return lambda v: replace(v, index=tuple(replace(i, dim=dim) if isinstance(i, Range) else i for i in v.index))


def starting_at(name: str) -> Callable[[View], View]:
    return lambda v: replace(v, index=(replace(v.index[0], start=symbol(name)), *v.index[1:]))


def twice(s: Statement) -> Statement:
    """A loop with its name inside it again."""
    return replace(s, body=(replace(s, body=()),)) if isinstance(s, For) else s


def wait_in_loop(role: Role) -> Role:
    """The role with its wait in a loop of no step, so that what it guards may come without it."""
    first, *rest = role.body
    assert isinstance(first, Wait)
    loop = next(s for s in rest if isinstance(s, For))
    return replace(role, body=(replace(loop, name="never", body=(first,)), *rest))


@pytest.mark.parametrize(
    ("role", "change", "kind", "says"),
    [
        (GATHER, of_source(lambda v: replace(v, tensor="y")), Copy, "the program has no tensor y"),
        (GATHER, of_source(lambda v: replace(v, index=v.index[:1])), Copy, "has 1 indices, and x 2 dimensions"),
        (GATHER, of_source(along("N")), Copy, "a range along N stands where x has M"),
        (GATHER, of_source(starting_at("nowhere")), Copy, "nowhere has no value here"),
        (GATHER, without(Copy), Notify, "is notified, and nothing was stored to it before"),
        (MATMUL, without(Wait), object, "is guarded by rows_ready, and no such wait for full stands before it"),
        (MATMUL, twice, For, "has another meaning around it"),
    ],
)
def test_what_is_broken_is_named(role: Role, change: Change, kind: type[Statement], says: str) -> None:
    def changed(s: Statement) -> tuple[Statement, ...]:
        made = change(s)
        return () if made is None else (made,)

    with pytest.raises(TileProgramError) as caught:
        verify(with_role(replace(role, body=rewritten(role.body, changed))), "a pass")
    assert caught.value.message.startswith(f"after a pass, in {role.name}: ") and says in caught.value.message
    assert caught.value.site is not None and caught.value.site.line > 0


def test_a_wait_that_may_be_passed_over_guards_nothing() -> None:
    with pytest.raises(TileProgramError, match="is guarded by rows_ready"):
        verify(with_role(wait_in_loop(MATMUL)), "a pass")


def test_a_wait_for_what_has_no_signals() -> None:
    changed = replace(PROGRAM, signals=tuple(replace(s, tensor="x") for s in PROGRAM.signals))
    with pytest.raises(TileProgramError, match="full has no signals"):
        verify(changed, "a pass")


def test_two_waits_of_one_name() -> None:
    wait = MATMUL.body[0]
    with pytest.raises(TileProgramError, match="rows_ready is the name of two waits"):
        verify(with_role(replace(MATMUL, body=(wait, *MATMUL.body))), "a pass")


def test_what_each_pass_makes_is_verified_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_waits(program: TileProgram, _: Binding) -> TileProgram:
        def change(s: Statement) -> tuple[Statement, ...]:
            return () if isinstance(s, Wait) else (s,)

        return replace(program, roles=tuple(replace(r, body=rewritten(r.body, change)) for r in program.roles))

    def bound() -> TileProgram:
        return bind(all_gather_matmul.recorded(frozenset()), push, {}, all_gather_matmul.parameters, Site("", 0, ""))

    monkeypatch.setattr("tilelink.frontend.binding.PASSES", (elaborate, forget_waits))
    with pytest.raises(TileProgramError, match=r"after forget_waits, in matmul: full.* is guarded by rows_ready"):
        bound()
    monkeypatch.delenv("TILELINK_VERIFY")
    assert bound().role("matmul").body


def test_a_block_over_a_whole_dimension_is_notified_as_the_view_that_it_is() -> None:
    """The stored view has the extent of its block, and the notified one has none."""
    rows = MATMUL.walk.ranges[0]
    whole = View("full", (rows, whole_range("K")), RANK)
    stored = replace(whole, index=(rows, replace(whole_range("K"), extent=64, whole=False)))
    copy, notify = (next(every(kind, GATHER.body)) for kind in (Copy, Notify))
    body = (replace(copy, source=replace(stored, tensor="x"), target=stored), replace(notify, views=(whole,)))
    verify(with_role(replace(MATMUL, body=body)), "test")
