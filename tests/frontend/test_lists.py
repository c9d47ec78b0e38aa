"""Parameters of programs that are lists of tensors, or functions."""

from __future__ import annotations

from typing import Any

import pytest

import tilelink as tk
from tests.programs.alone import copies, keep
from tests.programs.epilogues import half, twice
from tilelink.analysis.check import check_events
from tilelink.analysis.unroll import unroll
from tilelink.errors import (
    ArgumentError,
    DimensionError,
    NotUnderstoodError,
    ScheduleError,
    ScheduleWithoutRoleError,
    UndefinedNameError,
)
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push

SIZES = {"M": 64, "K": 32}
TILES = push.changed(gather={"tile": (16, 32), "count": 2}, matmul={"tile": (16, 16, 16)})


@pytest.mark.parametrize("dtypes", ["float32", {"x": "float16", "weight": "float16", "bias": "float16"}])
def test_a_schedule_by_name_is_fitted_to_members_and_to_the_optional_tensors_that_there_are(dtypes: Any) -> None:
    bound, sizes = all_gather_matmul.bound_at("push", world=2, sizes={"M": 40, "N": (16, 40), "K": 32}, dtypes=dtypes)
    assert dict(sizes.dims) == {"M": 40, "K": 32, "N_0": 16, "N_1": 40}
    assert [r.resource.tile for r in bound.roles if r.launched == "matmul"] == [(32, 16, 32), (32, 64, 32)]
    assert ("bias_1" in [t.name for t in bound.tensors]) == isinstance(dtypes, dict)
    assert all_gather_matmul.unroll("push", world=2, M=40, N=(16, 40), K=32, dtypes=dtypes).program == bound


def test_one_member_is_the_program_as_it_stands() -> None:
    bound = all_gather_matmul.bind(TILES, absent=all_gather_matmul.optional)
    assert [t.name for t in bound.tensors] == ["x", "weight", "out", "full"]
    assert bound == all_gather_matmul.of(1).bind(TILES, absent=all_gather_matmul.optional)
    assert [r.name for r in bound.roles] == ["gather", "matmul"]


def test_members_have_tensors_dimensions_and_roles_of_their_own() -> None:
    program = all_gather_matmul.of(3)
    bound = program.bind(TILES, absent=program.optional)
    assert [t.name for t in bound.inputs] == ["x", "weight_0", "weight_1", "weight_2"]
    assert bound.dims == ("M", "K", "N_0", "N_1", "N_2")
    assert [r.name for r in bound.roles] == ["gather", "matmul_0", "matmul_1", "matmul_2"]
    assert [r.launched for r in bound.roles] == ["gather", "matmul", "matmul", "matmul"]
    assert program.optional == {"bias_0", "bias_1", "bias_2", "gathered"}
    assert program.of(1) is all_gather_matmul


def test_rows_are_gathered_once() -> None:
    one, three = (all_gather_matmul.unroll(TILES, world=2, N=n, **SIZES) for n in (48, (16, 16, 16)))
    sent = [int((e.role == 0).sum()) for e in (one, three)]
    assert sent[0] == sent[1]


def test_members_take_turns_on_all_workers() -> None:
    """The tiles of one rank's rows come before those of the next, whoever's they are, and no worker has two more."""
    sizes = {"N_0": 48, "N_1": 16, **SIZES}
    events = unroll(*all_gather_matmul.of(2).bound_at(TILES, world=2, sizes=sizes), sms=7)
    here = (events.rank == 0) & (events.role > 0)
    tiles = list(dict.fromkeys(zip(events.worker[here], events.role[here], events.tile[here], strict=True)))
    turns = {(role, tile): tile // (2 * (3 if role == 1 else 1)) for _, role, tile in tiles}
    for worker in set(events.worker[here]):
        mine = [turns[role, tile] for w, role, tile in tiles if w == worker]
        assert mine == sorted(mine)
    counts = [sum(w == worker for w, _, _ in tiles) for worker in range(2, 7)]
    assert sum(counts) == 16 and max(counts) - min(counts) <= 1


def test_a_schedule_is_fitted_to_each_member() -> None:
    fitted = all_gather_matmul.fit("push", world=2, N=(512, 20), M=512, K=512)
    assert fitted.of("matmul[0]").tile == (128, 256, 64) and fitted.of("matmul[1]").tile == (128, 32, 64)
    assert set(all_gather_matmul.fit("push", world=2, N=(512, 512), M=512, K=512)) == {"gather", "matmul"}
    for_all = fitted.changed(matmul={"stages": 1})
    assert {for_all.of(f"matmul[{k}]").stages for k in (0, 1)} == {1}
    for_one = push.changed(**{"matmul[1]": {"stages": 1}})
    assert (for_one.of("matmul[0]").stages, for_one.of("matmul[1]").stages) == (3, 1)


def test_sizes_of_members() -> None:
    report = all_gather_matmul.check("push", world=2, N=(48, 20, 33), **SIZES)
    assert report.verdict == "safe" and report.proof == "structural"
    assert all_gather_matmul.of(2).check("push", world=2, N=20, **SIZES).verdict == "safe"
    assert "role matmul_1" in all_gather_matmul.show("program", world=2, N=(48, 20))
    with pytest.raises(DimensionError, match="no dimension N_2"):
        all_gather_matmul.of(2).check("push", world=2, N_0=20, N_1=20, N_2=20, **SIZES)
    with pytest.raises(DimensionError, match=r"lists of one length: N=\(\)"):
        all_gather_matmul.check("push", world=2, N=(), **SIZES)


def test_dtypes_of_members() -> None:
    given = {"x": "float16", "weight": "float16", "out": "float32", "bias": "float32"}
    program = all_gather_matmul.of(2)
    assert program.absent(given) == {"gathered"}
    dtypes = {t.name: t.dtype for t in program.bind(TILES, given).tensors}
    assert (dtypes["weight_1"], dtypes["out_0"], dtypes["bias_1"]) == ("float16", "float32", "float32")


def test_more_tensors_than_seven_bits_count() -> None:
    members, schedule = 65, tk.Schedule(keep=tk.SMs(4, tile=(16,)))
    report = copies.of(members).check(schedule, world=1, sizes={f"N_{k}": 16 for k in range(members)})
    assert (report.verdict, report.proof, report.events) == ("safe", "structural", 2 * members)


def test_a_function_is_part_of_the_program() -> None:
    plain, halved, doubled = (all_gather_matmul.of(epilogue=f) for f in (None, half, twice))
    assert all_gather_matmul.of(epilogue=half) is halved and halved is not doubled
    texts = [p.show("triton", TILES, world=2, N=16, **SIZES) for p in (plain, halved, doubled)]
    assert len(set(texts)) == 3 and "acc = half(acc)" in texts[1]
    assert halved.bind(TILES, absent=halved.optional).functions == (("half", half),)


def test_several_in_one_tile_function() -> None:
    """A tile function may go through lists, too, and store to their members."""

    @tk.tile
    def move(t, xs, outs):  # type: ignore[no-untyped-def]
        for x, out in tk.each(xs, outs):
            tk.copy(x[t], out[t])

    def both(x: tk.Each(tk.Local("M", "N")), out: tk.Each(tk.Local("M", "N")), like: tk.Local("M", "N")):  # type: ignore[no-untyped-def, valid-type]
        move[tk.tiles(like)](x, out)

    program = tk.program(both).of(2)
    bound = program.bind(tk.Schedule(move=tk.SMs(2, tile=(16, 16))))
    assert [t.name for t in bound.outputs] == ["out_0", "out_1"]
    assert len(bound.roles[0].body) == 2
    events = program.unroll(tk.Schedule(move=tk.SMs(2, tile=(16, 16))), world=2, M=20, N=20)
    assert check_events(events).verdict == "safe"


def test_buffers_of_members_and_epilogues_in_each() -> None:
    @tk.tile
    def make(t, x, between):  # type: ignore[no-untyped-def]
        tk.notify(between[t].store(x[t].load()))

    @tk.tile
    def take(t, between, out):  # type: ignore[no-untyped-def]
        tk.copy(tk.wait(between[t]), out[t])

    def moved(x: tk.Each(tk.Local("M", "N")), out: tk.Each(tk.Local("M", "N"))):  # type: ignore[no-untyped-def, valid-type]
        for a, b in tk.each(x, out):
            between = tk.local("M", "N")
            make[tk.tiles(a)](a, between)
            take[tk.tiles(b.M, b.N)](between, b)

    program, sms = tk.program(moved), tk.SMs(2, tile=(16, 16))
    bound = program.of(2).bind(tk.Schedule(make=sms, take=sms))
    assert [t.name for t in bound.tensors if t.kind == "buffer"] == ["between_0", "between_1"]
    assert [r.name for r in bound.roles] == ["make_0", "take_0", "make_1", "take_1"]
    apart = program.check(tk.Schedule(make=sms, take=sms), world=2, M=(20, 33), N=(20, 20))
    assert (apart.verdict, apart.proof) == ("safe", "structural")
    folded = program.of(2).bind(tk.Schedule(make=sms, take=tk.Epilogue("make")))
    assert [(r.name, r.folded) for r in folded.roles] == [("make_0", ("take_0",)), ("make_1", ("take_1",))]


def test_members_that_wait_for_each_other_are_no_structure() -> None:
    """Roles that take turns are one, so what one waits for of another is looked at in the events."""

    @tk.tile
    def chain(t, x, before, after):  # type: ignore[no-untyped-def]
        tk.notify(after[t].store(x[t].load() if before is None else x[t].load() + tk.wait(before[t]).load()))

    def chained(x: tk.Each(tk.Local("M", "N")), like: tk.Sharded("M", "N"), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def, valid-type]
        before = None
        for a in tk.each(x):
            after = tk.local("M", "N")
            chain[tk.tiles(a)](a, before, after)
            before = after
        put_last[tk.tiles(out)](before, out)

    @tk.tile
    def put_last(t, last, out):  # type: ignore[no-untyped-def]
        tk.copy(tk.wait(last[t]), out[t])

    schedule = tk.Schedule(chain=tk.SMs(tile=(16, 16)), put_last=tk.SMs(tile=(16, 16)))
    report = check_events(tk.program(chained).of(2).unroll(schedule, world=2, M=64, N=16))
    assert (report.verdict, report.proof) == ("safe", "unrolled")


def each_of_one_length(x: tk.Each(tk.Local("M", "N")), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def, valid-type]
    for a, b in tk.each(x, out):
        keep[tk.tiles(b)](a, b)


def own_dimension_cut(x: tk.Each(tk.Sharded("M", "N")), out: tk.Each(tk.Local("M", "N"))):  # type: ignore[no-untyped-def, valid-type]
    for a, b in tk.each(x, out):
        keep[tk.tiles(b)](a, b)


def needs_a_function(x: tk.Local("M", "N"), out: tk.Local("M", "N"), function: tk.Function):  # type: ignore[no-untyped-def, valid-type]
    keep[tk.tiles(out)](x, out)


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: tk.Each("M"), DimensionError, "a list of tensors"),
        (lambda: tk.program(each_of_one_length).recorded(), NotUnderstoodError, "lists of one length"),
        (lambda: tk.program(own_dimension_cut).recorded(), DimensionError, "but each member has another M"),
        (lambda: tk.program(needs_a_function).recorded(), ArgumentError, "needs a function function"),
        (lambda: all_gather_matmul.of(0), ArgumentError, "at least 1"),
        (lambda: all_gather_matmul.of(epilogue=abs), ArgumentError, "@triton.jit"),
        (lambda: all_gather_matmul.of(prologue=half), ArgumentError, "takes no function prologue; it takes epilogue"),
        (lambda: tk.program(needs_a_function).of(2), ArgumentError, "takes no lists"),
        (
            lambda: all_gather_matmul.of(2).bind(TILES.changed(**{"matmul[2]": {"stages": 1}})),
            ScheduleWithoutRoleError,
            r"no role matmul\[2\]",
        ),
        (
            lambda: all_gather_matmul.of(2).bind(TILES.changed(**{"matmul[1]": {"count": 3}})),
            ScheduleError,
            "share SMs",
        ),
        (lambda: next(tk.each((1, 2))), NotUnderstoodError, "only inside a program"),
    ],
)
def test_errors(make: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        make()


def test_a_member_has_a_name_in_its_loop_only() -> None:
    @tk.tile
    def late(t, xs, out):  # type: ignore[no-untyped-def]
        for x in tk.each(xs):
            block = x[t].load()
        out[t].store(block + x[t].load())

    def program(x: tk.Each(tk.Local("M", "N")), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def, valid-type]
        late[tk.tiles(out)](x, out)

    with pytest.raises(UndefinedNameError, match="x is not defined here: what a loop"):
        tk.program(program).of(2).bind(tk.Schedule(late=tk.SMs(tile=(16, 16))))
