"""Names of a program: which ones kernels can have, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import load
from tilelink.errors import ArgumentError, NotUnderstoodError, ScheduleError

SOURCE = """
@tk.tile
def put(t, x, out):
    out[t].store(x[t].load())


ROLE = put.named("put")


@tk.program
def program(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    ROLE[tk.tiles(out)](x, out)


schedule = tk.Schedule(**{"put": tk.SMs(tile=(16, 16))})
"""
LISTS = """
@tk.tile
def put(t, x, out):
    tk.copy(x[t], out[t])


@tk.program
def program(w: tk.Each(tk.Local("M", "N")), TENSOR: tk.Local("M", "K"), out: tk.Each(tk.Local("M", "N"))):
    for a, b in tk.each(w, out):
        put[tk.tiles(b)](a, b)


schedule = tk.Schedule(put=tk.SMs(tile=(16, 16)))
"""


@pytest.mark.parametrize("name", ["np", "np_1", "Ä"])
def test_a_dimension_may_be_called_so(name: str, tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE.replace('"M"', f'"{name}"'))
    assert module.program.check(module.schedule, world=2, **{name: 40, "K": 20}).verdict == "safe"
    x = torch.randn(40, 20)
    (out,) = tk.CpuWorld(1).run(lambda group: module.program(x, schedule=module.schedule, group=group))
    assert torch.equal(out, x)


@pytest.mark.parametrize(
    ("what", "name"),
    [("dimension", "for"), ("dimension", "__M"), ("role", "for"), ("role", "a b"), ("role", "3"), ("role", "__put")],
)
def test_names_that_kernels_can_not_have(what: str, name: str, tmp_path: Path) -> None:
    old = {"dimension": '"M"', "role": '"put"'}[what]
    module = load(tmp_path, SOURCE.replace(old, f'"{name}"'))
    with pytest.raises(NotUnderstoodError, match=f"the {what} '{name}' has no name that kernels can have"):
        module.program.bind(module.schedule)


@pytest.mark.parametrize(("tensor", "dim"), [("w_1", "K"), ("v", "N_1")])
def test_what_is_called_like_a_member_is_refused(tensor: str, dim: str, tmp_path: Path) -> None:
    module = load(tmp_path, LISTS.replace("TENSOR", tensor).replace('"K"', f'"{dim}"'))
    clash = tensor if tensor == "w_1" else dim
    with pytest.raises(ArgumentError, match=f"program: {clash} is what . of one of 2 members is called"):
        module.program.of(2)
    assert module.program.of(1) is module.program


def test_a_schedule_with_a_role_called_much_like_one_of_the_program_is_named(tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE.replace('{"put": tk', '{"putt": tk'))
    with pytest.raises(ScheduleError, match=r"its roles are put; schedule names putt \(did you mean put\?\), no put"):
        module.program.schedule(None)
