"""Tile programs: what they are as values, how they are printed, and what is derived that nobody writes.

After a change that is meant, TILELINK_RENEW=1 make test ARGS="-k test_program" writes the expected texts anew.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink as tk
from tests.frontend import programs
from tests.frontend.wrong import GATHER, alone, changed, load
from tilelink.errors import NotUnderstoodError
from tilelink.frontend.ir import Cell, Compute, Range, TileProgram, View, Wait, walk
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push

EXPECTED = Path(__file__).parent / "expected"
WITHOUT_BIAS = frozenset(["bias"])

scatter = tk.Schedule(
    partial_matmul=tk.SMs(tile=(128, 256, 64), order=tk.next_rank_first),
    send=tk.SMs(16, tile=(128, 256), at="source"),
    reduce=tk.SMs(16, tile=(64, 256)),
)
attention = tk.Schedule(gather_kv=tk.SMs(8, tile=(64,), at="home"), attend=tk.SMs(tile=(64, 64, 64)))


def parts_of(value: Any) -> Iterator[Any]:
    """Everything that a tile program is made of."""
    yield value
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from parts_of(getattr(value, f.name))
    elif isinstance(value, tuple):
        for v in value:
            yield from parts_of(v)


# ---- values


def test_immutable_all_the_way_down() -> None:
    kinds = set()
    for part in parts_of(all_gather_matmul.bind(push)):
        assert not isinstance(part, list | dict | set | np.ndarray), part
        if dataclasses.is_dataclass(part):
            kinds.add(type(part).__name__)
            with pytest.raises(FrozenInstanceError):
                setattr(part, dataclasses.fields(part)[0].name, None)
    assert {"TileProgram", "Role", "Walk", "Wait", "Store", "View", "Range", "Code", "Signals", "SMs"} <= kinds


def test_equal_for_equal_schedules() -> None:
    again = tk.Schedule(
        gather=tk.SMs(16, tile=(128, 256), order=tk.ring, at="home"),
        matmul=tk.SMs(tile=(128, 256, 64), order=tk.own_rank_first, stages=3, warps=8),
    )
    assert again is not push and again == push and hash(again) == hash(push)
    same = tk.program(all_gather_matmul.function)  # reads the tile functions anew
    first, second = all_gather_matmul.bind(push, "bf16"), same.bind(again, torch.bfloat16)
    assert first is not second and first == second and hash(first) == hash(second)
    assert len({first, second}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"matmul": {"tile": (64, 256, 64)}},
        {"matmul": {"tile": (128, 256, 32)}},
        {"matmul": {"order": tk.next_rank_first}},
        {"matmul": {"order": tk.grouped(4)}},
        {"gather": {"warps": 4}, "matmul": {"warps": 4}},
        {"matmul": {"stages": 4}},
        {"gather": {"count": 8}},
        {"gather": {"at": "reader"}},
    ],
    ids=str,
)
def test_different_for_different_schedules(change: dict[str, Any]) -> None:
    other = push.changed(**change)
    assert other != push
    assert all_gather_matmul.bind(other) != all_gather_matmul.bind(push)


def test_different_for_dtypes_slots_cells_and_what_is_left_out() -> None:
    bound = all_gather_matmul.bind(push)
    slots = tk.Schedule(slots=3, **push.roles)
    cells = tk.Schedule(cells={"full": (256, None)}, **push.roles)
    others = [
        all_gather_matmul.bind(push, "float16"),
        all_gather_matmul.bind(push, absent=WITHOUT_BIAS),
        all_gather_matmul.bind(slots),
        all_gather_matmul.bind(cells),
    ]
    assert len({bound, *others}) == 5


def test_bound_once() -> None:
    assert all_gather_matmul.bind(push) is all_gather_matmul.bind(push)
    assert all_gather_matmul.bind("push") is all_gather_matmul.bind(push)


def test_schedules_are_found_by_name() -> None:
    assert list(all_gather_matmul.schedules) == ["push", "pull", "multicast", "engine"]
    assert all_gather_matmul.schedule("pull") is pull
    assert all_gather_matmul.schedule(None) is push
    assert all_gather_matmul.schedule(scatter) is scatter


def test_order_of_roles_is_the_programs() -> None:
    backwards = tk.Schedule(matmul=push["matmul"], gather=push["gather"])
    assert [r.name for r in all_gather_matmul.bind(backwards).roles] == ["gather", "matmul"]


# ---- text


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("all_gather_matmul_push", lambda: all_gather_matmul.bind(push, "bf16")),
        ("all_gather_matmul_pull", lambda: all_gather_matmul.bind(pull, "bf16", WITHOUT_BIAS)),
        ("matmul_reduce_scatter", lambda: programs.matmul_reduce_scatter.bind(scatter, "fp16")),
        ("gathered_attention", lambda: programs.gathered_attention.bind(attention)),
    ],
)
def test_text_is_as_expected(name: str, program: Any) -> None:
    path = EXPECTED / f"{name}.txt"
    text = str(program())
    if os.environ.get("TILELINK_RENEW"):
        path.write_text(text)
    assert text == path.read_text()


# ---- derived


def test_what_peers_read_is_published() -> None:
    assert all_gather_matmul.bind(push).published == ()
    assert all_gather_matmul.bind(pull).published == ("x",)


def test_what_lies_on_the_heap() -> None:
    assert [t.name for t in all_gather_matmul.bind(push).on_heap] == ["full"]
    assert [t.name for t in all_gather_matmul.bind(pull).on_heap] == ["x", "full"]
    assert [t.name for t in programs.matmul_reduce_scatter.bind(scatter).on_heap] == ["partial", "inbox"]


def test_kinds_of_tensors() -> None:
    bound = programs.matmul_backward.bind(
        tk.Schedule(
            gather=tk.SMs(tile=(16, 16), at="home"),
            partial_matmul=tk.SMs(tile=(16, 16, 16)),
            send=tk.SMs(tile=(16, 16), at="home"),
            reduce=tk.SMs(tile=(16, 16)),
            weight_gradient=tk.SMs(tile=(16, 16, 16)),
        )
    )
    assert [t.name for t in bound.inputs] == ["dy", "weight_t", "x"]
    assert [t.name for t in bound.outputs] == ["dx", "dw"]
    assert [t.name for t in bound.on_heap] == ["partial", "full", "inbox"]
    assert bound.dims == ("M", "N", "K") and bound.cut == ("M",)
    assert bound.tensor("inbox").dims == ("ranks", "M", "K") and bound.tensor("inbox").sharded == 1


@pytest.mark.parametrize(("schedule", "scope"), [(push, "sys"), (pull, "gpu")], ids=["push", "pull"])
def test_scope(schedule: tk.Schedule, scope: str) -> None:
    """Signals that only their own rank gives need not be seen by others."""
    (signals,) = all_gather_matmul.bind(schedule).signals
    assert signals.tensor == "full" and signals.scope == scope


@pytest.mark.parametrize(("at", "partial", "inbox"), [("source", "gpu", "sys"), ("home", "sys", "gpu")])
def test_scope_of_each_tensor(at: str, partial: str, inbox: str) -> None:
    """Who sends decides between whom partial sums are handed on, and between whom what was sent is."""
    bound = programs.matmul_reduce_scatter.bind(scatter.changed(send={"at": at}))
    assert bound.signals_of("partial").scope == partial
    assert bound.signals_of("inbox").scope == inbox


def test_grid_is_coarse_where_waits_cover_a_dimension() -> None:
    """matmul waits for whole rows, so tiles of gather along K share a signal."""
    (signals,) = all_gather_matmul.bind(push).signals
    assert signals.grid == (Cell("M", 128, True, False), Cell("K", None, False, False))
    (notifier,) = signals.notifiers
    assert notifier.role == "gather" and notifier.tiles == (128, 256)


def test_grid_is_fine_where_waits_are() -> None:
    """send waits for a tile, reduce for a smaller one: cells are the tiles that notify."""
    bound = programs.matmul_reduce_scatter.bind(scatter)
    assert [c.size for c in bound.signals_of("partial").grid] == [128, 256]
    assert [c.size for c in bound.signals_of("inbox").grid] == [1, 128, 256]
    assert [c.local for c in bound.signals_of("inbox").grid] == [False, True, False]


def test_grid_of_the_schedule() -> None:
    bound = all_gather_matmul.bind(tk.Schedule(cells={"full": (256, 512)}, **push.roles))
    assert [c.size for c in bound.signals_of("full").grid] == [256, 512]


def expected_counts(bound: TileProgram, world: int, **sizes: Any) -> np.ndarray:
    from tilelink.analysis.unroll import expected_counts as counts

    (signals,) = bound.signals
    return counts(bound, signals, Sizes.of(bound, world, sizes))


def test_thresholds() -> None:
    """A cell of 128 whole rows is full when all tiles along K have come: 3 of 256 for 600 columns."""
    counts = expected_counts(all_gather_matmul.bind(push), 2, M=512, N=256, K=600)
    assert (counts == 3).all() and counts.shape == (2, 4)


def test_thresholds_of_uneven_parts() -> None:
    """Each part has cells for the longest one; those that a shorter part lacks are never given."""
    counts = expected_counts(all_gather_matmul.bind(push), 3, M=(200, 0, 90), N=256, K=256)
    assert counts.tolist() == [[1, 1, 0, 0, 1, 0]] * 3


def test_left_out_parameters_leave_no_trace() -> None:
    bound = all_gather_matmul.bind(push, absent=WITHOUT_BIAS)
    assert [t.name for t in bound.tensors] == ["x", "weight", "out", "full"]
    assert "bias" not in str(bound)
    assert all_gather_matmul.optional == {"bias", "gathered"}


def test_optional_outputs_are_there_where_they_are_asked_for() -> None:
    assert all_gather_matmul.on_demand == {"gathered"}
    kept = {"x": "float16", "gathered": "float16"}
    for program, names in ((all_gather_matmul, ["out"]), (all_gather_matmul.of(2), ["out_0", "out_1"])):
        assert [t.name for t in program.bind(push, "float16").outputs] == names
        asked = program.bind(push, kept)
        assert [t.name for t in asked.outputs] == [*names, "gathered"] and asked.tensor("gathered").dtype == "float16"
        assert program.bind(push, kept, absent=program.optional) == program.bind(push, "float16", program.optional)
    shown = all_gather_matmul.show("program", "push", world=2, dtypes=kept)
    assert "output gathered" in shown and "bias" not in shown


def test_dtypes() -> None:
    mixed = all_gather_matmul.bind(push, {"x": torch.float16, "weight": tl.float16, "bias": np.float32})
    assert {t.name: t.dtype for t in mixed.tensors} == {
        "x": "float16", "weight": "float16", "bias": "float32", "out": "float16", "full": "float16",
    }  # fmt: skip


def test_dtype_of_a_buffer_like_a_tensor(tmp_path: Path) -> None:
    source = changed(GATHER, {'tk.local("M", "K")': 'tk.local("M", "K", dtype=x)'})
    module = load(tmp_path, source)
    bound = module.program.bind(module.schedule, {"out": "float32", "x": "bfloat16"})
    assert bound.tensor("full").dtype == "bfloat16" and bound.tensor("out").dtype == "float32"


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ('full = tk.local("M", "K")', "full"),
        ('all_rows = full = tk.local("M", "K")', "all_rows"),
        ('spare, full = tk.local("K", "M"), tk.local("M", "K")', "full"),
        ('if out is None:\n        none = tk.local("K")\n    full = tk.local("M", "K")', "full"),
        ('full = (\n        tk.local("M", "K")\n    )', "full"),
        ('full = [tk.local("M", "K")][0]', "buffer0"),
        ('x_, x = x, tk.local("M", "K")\n    full, x = x, x_', "x_"),
    ],
)
def test_names_of_buffers(made: str, name: str, tmp_path: Path) -> None:
    """Buffers are called what the source calls them; a name that is taken gets another ending."""
    module = load(tmp_path, changed(GATHER, {'full = tk.local("M", "K")': made}))
    bound = module.program.bind(module.schedule)
    assert next(s.tensor for s in bound.signals) == name


def test_source_of_a_tile_function_is_needed() -> None:
    names: dict[str, Any] = {}
    exec("def f(t, x):\n    pass", names)
    with pytest.raises(NotUnderstoodError, match="tile functions live in files"):
        tk.tile(names["f"])


# ---- spaces and executors


@pytest.mark.parametrize(
    ("space", "executed"),
    [
        ("x", "home"),
        ("x.rows", "home"),
        ("x.rows, out.cols", "home"),
        ("out", "everywhere"),
        ("out.rows", "everywhere"),
        ("out.cols", "everywhere"),
    ],
)
def test_who_executes(space: str, executed: str, tmp_path: Path) -> None:
    """Tiles of what is cut are executed at their home, those of what every rank has by every rank."""
    dims = "KNM"  # enough names for two dimensions and a step
    source = f"""
@tk.tile
def touch(t, x, out):
    pass


@tk.program
def program(x: tk.Sharded("M", "K"), out: tk.Local("M", "N")):
    touch[tk.tiles({space})](x, out)


schedule = tk.Schedule(touch=tk.SMs(tile=(16,) * {1 if space.endswith("s") and "," not in space else 2}))
"""
    module = load(tmp_path, source)
    (role,) = module.program.bind(module.schedule).roles
    whole = Sizes.of(module.program.bind(module.schedule), 4, dict.fromkeys(dims, 64))
    from tilelink.frontend.sizes import tile_count

    columns = 4 if "cols" in space or "." not in space else 1
    rows = 1 if space == "out.cols" else 4
    per_rank = rows * columns // (4 if executed == "home" else 1)
    assert tile_count(role, whole) == per_rank


def test_variables_have_names_of_their_own(tmp_path: Path) -> None:
    """A kernel has names of its own, and so have waits; no two of them are one."""
    body = """
x_block = tl.zeros(t.shape, tl.float32)
rank = x_block + 1
rank_ = rank + 1
k_ready = rank_ + 1
for i in tk.ranks():
    k = tk.wait(inbox[i, t])
    k_ready += k.load() + rank + rank_
tk.notify(inbox[0, t].store(k_ready))
out[t].store(x_block)
"""
    module = load(tmp_path, alone(body))
    (role,) = module.program.bind(module.schedule).roles
    text = [str(s.code) for s in walk(role.body) if isinstance(s, Compute)]
    assert text == [
        "x_block_ = tl.zeros((16, 16), tl.float32)",
        "rank__ = x_block_ + 1",
        "rank_ = rank__ + 1",
        "k_ready = rank_ + 1",
        "k_ready = k_ready + (inbox[i_, M[M_lo:+16], N[N_lo:+16]].load() + rank__ + rank_)",
    ]
    assert [s.name for s in walk(role.body) if isinstance(s, Wait)] == ["k_ready_"]


def test_several_values_at_once(tmp_path: Path) -> None:
    """All are read before any is given: names can be exchanged."""
    body = """
a, b = inbox[0, t].load(), inbox[1, t].load()
a, b = b, a
top, rows = tl.max(a, 1), out[t.rows]
c, d = tl.split(tl.join(a, b))
out[t].store(a - b)
"""
    module = load(tmp_path, alone(body))
    (role,) = module.program.bind(module.schedule).roles
    assert [str(s.code) for s in walk(role.body) if isinstance(s, Compute)] == [
        "a, b = (inbox[0, M[M_lo:+16], N[N_lo:+16]].load(), inbox[1, M[M_lo:+16], N[N_lo:+16]].load())",
        "a, b = (b, a)",
        "top = tl.max(a, 1)",
        "c, d = tl.split(tl.join(a, b))",
    ]


def test_waits_name_their_guards() -> None:
    """A guard is called after what is waited for; two of one name get two names."""
    bound = programs.matmul_backward.bind(
        tk.Schedule(
            gather=tk.SMs(tile=(16, 16), at="home"),
            partial_matmul=tk.SMs(tile=(16, 16, 16)),
            send=tk.SMs(tile=(16, 16), at="home"),
            reduce=tk.SMs(tile=(16, 16)),
            weight_gradient=tk.SMs(tile=(16, 16, 16)),
        )
    )
    waits = [s for r in bound.roles for s in walk(r.body) if isinstance(s, Wait)]
    assert [w.name for w in waits] == ["mine_ready", "ready", "ready"]


def test_views_and_ranges_as_text() -> None:
    bound = all_gather_matmul.bind(push)
    (copy, _) = bound.role("gather").body
    assert isinstance(copy.target, View) and isinstance(copy.target.index[0], Range)
    assert str(copy.target) == "full[M[M_lo:+128], K[K_lo:+256]].at(reader)"
    assert str(copy.target.index[0]) == "M[M_lo:+128]"


# ---- fit


@pytest.mark.parametrize(
    ("sizes", "gather", "matmul"),
    [
        (dict(M=8192, N=3584, K=8192), (128, 256), (128, 256, 64)),
        (dict(M=[100, 20], N=300, K=40), (128, 64), (128, 256, 64)),
        (dict(M=[3, 0], N=5, K=7), (16, 16), (16, 16, 16)),
        (dict(N=33), (128, 256), (128, 64, 64)),
    ],
    ids=str,
)
def test_fit(sizes: dict[str, Any], gather: tuple[int, ...], matmul: tuple[int, ...]) -> None:
    fitted = all_gather_matmul.fit("push", world=2, **sizes)
    assert fitted["gather"].tile == gather and fitted["matmul"].tile == matmul
    assert fitted.changed(gather={"tile": (128, 256)}, matmul={"tile": (128, 256, 64)}) == push


def test_fit_keeps_whole_dimensions() -> None:
    whole = push.changed(gather={"tile": (128, None)})
    assert all_gather_matmul.fit(whole, M=20, N=20, K=20)["gather"].tile == (32, None)


@settings(max_examples=100, deadline=None)
@given(
    world=st.integers(1, 8),
    data=st.data(),
    n=st.integers(0, 600),
    k=st.integers(0, 600),
    name=st.sampled_from(["push", "pull"]),
)
def test_what_is_fitted_fits(world: int, data: st.DataObject, n: int, k: int, name: str) -> None:
    """No tile of it is larger than its tensor, and none is larger than it was or smaller than tl.dot takes."""
    parts = data.draw(st.lists(st.integers(0, 300), min_size=world, max_size=world))
    fitted = all_gather_matmul.fit(name, world=world, M=parts, N=n, K=k)
    Sizes.of(all_gather_matmul.bind(fitted), world, {"M": parts, "N": n, "K": k})
    for role, was in all_gather_matmul.schedule(name).items():
        assert all(16 <= a <= b for a, b in zip(fitted[role].tile, was.tile, strict=True))
