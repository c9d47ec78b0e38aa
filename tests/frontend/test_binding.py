"""Binding: tensors, their dtypes and names, who executes a tile, and names of variables and guards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

import tilelink as tk
from tests.frontend.wrong import GATHER, alone, changed, load
from tilelink.errors import NotUnderstoodError
from tilelink.frontend.ir import Compute, Wait, walk
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter

WITHOUT_BIAS = frozenset(["bias"])
backward = tk.Schedule(
    gather=tk.SMs(tile=(16, 16), at="home"),
    input_gradient=tk.SMs(tile=(16, 16, 16)),
    send=tk.SMs(tile=(16, 16), at="home"),
    reduce=tk.SMs(tile=(16, 16)),
    weight_gradient=tk.SMs(tile=(16, 16, 16)),
)


def test_what_peers_read_is_published() -> None:
    assert all_gather_matmul.bind(push).published == ()
    assert all_gather_matmul.bind(pull).published == ("x",)


def test_what_lies_on_the_heap() -> None:
    assert [t.name for t in all_gather_matmul.bind(push).on_heap] == ["full"]
    assert [t.name for t in all_gather_matmul.bind(pull).on_heap] == ["x", "full"]
    assert [t.name for t in matmul_reduce_scatter.bind("push").on_heap] == ["partial", "inbox"]


def test_kinds_of_tensors() -> None:
    bound = all_gather_matmul_backward.bind(backward)
    assert [t.name for t in bound.inputs] == ["dy", "weight", "x"]
    assert [t.name for t in bound.outputs] == ["dx", "dweight"]
    assert [t.name for t in bound.on_heap] == ["full", "partial", "inbox"]
    assert bound.dims == ("M", "N", "K") and bound.cut == ("M",)
    assert bound.tensor("inbox").dims == ("ranks", "M", "K") and bound.tensor("inbox").sharded == 1


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
    bound, whole = module.program.bound_at(module.schedule, world=4, sizes=dict.fromkeys(dims, 64))
    (role,) = bound.roles
    from tilelink.frontend.workload import tile_count

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
    text = [str(s) for s in walk(role.body) if isinstance(s, Compute)]
    assert text == [
        "x_block = tl.zeros((16, 16), tl.float32)",
        "rank = x_block + 1",
        "rank_ = rank + 1",
        "k_ready = rank_ + 1",
        "k_ready = k_ready + (inbox[i, M[M_lo:+16], N[N_lo:+16]].load() + rank + rank_)",
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
    assert [str(s) for s in walk(role.body) if isinstance(s, Compute)] == [
        "a, b = (inbox[0, M[M_lo:+16], N[N_lo:+16]].load(), inbox[1, M[M_lo:+16], N[N_lo:+16]].load())",
        "a, b = (b, a)",
        "top = tl.max(a, 1)",
        "c, d = tl.split(tl.join(a, b))",
    ]


def test_annotations_mean_nothing(tmp_path: Path) -> None:
    module = load(tmp_path, alone("a: tl.tensor\na: tl.tensor = inbox[0, t].load()\nn: int = 2\nout[t].store(a * n)"))
    (role,) = module.program.bind(module.schedule).roles
    assert str(role.body[0]) == "a = inbox[0, M[M_lo:+16], N[N_lo:+16]].load()"


def test_waits_name_their_guards() -> None:
    """A guard is called after the variable that holds what is waited for, if there is one."""
    bound = all_gather_matmul_backward.bind(backward)
    waits = [s for r in bound.roles for s in walk(r.body) if isinstance(s, Wait)]
    assert [w.name for w in waits] == ["mine_ready", "rows_ready", "ready"]
