"""Tile programs: what they are as values, and how they are printed.

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

import tilelink as tk
from tests.programs.attention import gathered_attention
from tilelink.errors import RoleWithoutScheduleError
from tilelink.frontend.ir import Range, View
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_reduce_scatter import push as scatter
from tilelink.kernels.matmul_reduce_scatter_backward import matmul_reduce_scatter_backward

EXPECTED = Path(__file__).parent / "expected"
WITHOUT_BIAS = frozenset(["bias"])

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
        gather=tk.SMs(12, tile=(128, 2048), order=tk.ring, at="home", stages=6, via="tma", own="read"),
        matmul=tk.SMs(tile=(128, 256, 64), order=tk.grouped(4, tk.own_rank_first), stages=3, warps=8),
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
        {"matmul": {"order": tk.grouped(8)}},
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
    assert list(all_gather_matmul.schedules) == ["push", "pull", "multicast", "engine", "pieces", "few"]
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
        ("matmul_reduce_scatter", lambda: matmul_reduce_scatter.bind(scatter, "fp16", WITHOUT_BIAS)),
        ("gathered_attention", lambda: gathered_attention.bind(attention)),
    ],
)
def test_text_is_as_expected(name: str, program: Any) -> None:
    path = EXPECTED / f"{name}.txt"
    text = str(program())
    if os.environ.get("TILELINK_RENEW"):
        path.write_text(text)
    assert text == path.read_text()


def test_views_and_ranges_as_text() -> None:
    bound = all_gather_matmul.bind(push.changed(gather={"own": "copied"}))
    (copy, _) = bound.role("gather").body
    assert isinstance(copy.target, View) and isinstance(copy.target.index[0], Range)
    assert str(copy.target) == "full[M[M_lo:+128], K[K_lo:+2048]].at(reader)"
    assert str(copy.target.index[0]) == "M[M_lo:+128]"


def test_schedules_may_name_roles_that_an_optional_tensor_brings() -> None:
    """What a schedule says of a role holds where there is one, be it taken by name or given as it is."""
    dtypes = dict.fromkeys(matmul_reduce_scatter_backward.parameters.keys() - {"dbias"}, "bfloat16")
    given = matmul_reduce_scatter_backward.schedules["push"].changed(bias_gradient={"tile": (32, 128)})
    for schedule in ("push", given):
        without = matmul_reduce_scatter_backward.bind(schedule, dtypes)
        whole = matmul_reduce_scatter_backward.bind(schedule, dtypes | {"dbias": "float32"})
        assert [r.name for r in whole.roles if r not in without.roles] == ["bias_gradient"]
    with pytest.raises(RoleWithoutScheduleError, match="says nothing of role bias_gradient"):
        known = {n: r for n, r in given.items() if n != "bias_gradient"}
        matmul_reduce_scatter_backward.bind(tk.Schedule(**known), dtypes | {"dbias": "float32"})
