"""Tile functions that tile functions call: their statements stand where they are called, under names of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import load
from tilelink.errors import DimensionError, NotUnderstoodError, UndefinedNameError

SOURCE = """
@tk.tile
def product(rows, columns, along, acc=None):
    if acc is None:
        acc = tl.zeros((16, 16), tl.float32)
    for k in tk.steps(along):
        acc = tl.dot(rows[:, k].load(), columns[k, :].load(), acc, input_precision="ieee")
    return acc


@tk.tile
def put(there, block, twice=False):
    value = block * 2 if twice else block
    tk.notify(there.store(value))


@tk.tile
def role(t, x, weight, inbox):
    k = x[t.rows, :]
    BODY


@tk.tile
def take(t, inbox, out):
    tk.copy(tk.wait(inbox[t]), out[t])


@tk.program
def program(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    inbox = tk.local("M", "N")
    role[tk.tiles(inbox)](x, weight, inbox)
    take[tk.tiles(out)](inbox, out)


schedule = tk.Schedule(role=tk.SMs(2, tile=(16, 16, 16)), take=tk.SMs(2, tile=(16, 16)))
"""
ONE = "acc = product(k, weight[:, t.cols], x.cols)"
AGAIN = "acc = product(k, weight[:, t.cols], x.cols, acc)"
SIZES = {"M": 32, "K": 48, "N": 32}


def program(folder: Path, *body: str) -> tuple[tk.Program, tk.Schedule]:
    module = load(folder, SOURCE.replace("BODY", "\n    ".join(body)))
    return module.program, module.schedule


@pytest.mark.parametrize(
    ("body", "times"),
    [
        ((ONE, "put(inbox[t], acc)"), 1),
        ((ONE, "put(inbox[t], acc + acc, twice=True)"), 4),
        ((ONE, "acc = product(k, weight[:, t.cols], x.cols, acc=acc)", "put(inbox[t], acc)"), 2),
        ((ONE, "both = product(k, weight[:, t.cols], x.cols, acc)", "put(inbox[t], both * 10 + acc)"), 21),
        (("acc = tl.zeros((16, 16), tl.float32)", f"other = {ONE[6:]}", "put(inbox[t], acc + other * 3)"), 3),
        (("put(inbox[t], product(k, weight[:, t.cols], x.cols))",), 1),
        ((ONE, "for again in tk.ranks():", f"    {AGAIN}", "put(inbox[t], acc)"), 2),
    ],
    ids=["one", "default by name", "added to itself", "added to another", "other names", "nested", "in a loop"],
)
def test_what_is_called_is_computed(body: tuple[str, ...], times: int, tmp_path: Path) -> None:
    called, schedule = program(tmp_path, *body)
    x, weight = (torch.randint(-3, 4, shape).float() for shape in ((32, 48), (48, 32)))
    (out,) = tk.CpuWorld(1).run(lambda group: called(x, weight, schedule=schedule, group=group))
    assert torch.equal(out, times * (x @ weight))
    assert called.check(schedule, world=2, **SIZES).proof == "structural"


def test_a_load_may_be_given(tmp_path: Path) -> None:
    given = "x[t.rows, 0].load()[:, None] + weight[0, t.cols].load()[None, :]"
    called, schedule = program(tmp_path, f"put(inbox[t], {given})")
    schedule = schedule.changed(role={"tile": (16, 16)})
    x, weight = (torch.randint(-3, 4, shape).float() for shape in ((32, 48), (48, 32)))
    (out,) = tk.CpuWorld(1).run(lambda group: called(x, weight, schedule=schedule, group=group))
    assert torch.equal(out, x[:, :1] + weight[:1])


def test_the_result_has_the_name_it_is_given(tmp_path: Path) -> None:
    called, schedule = program(tmp_path, ONE, "put(inbox[t], acc)")
    lines = [s.strip() for s in called.show("triton", schedule, world=1, **SIZES).splitlines()]
    assert "acc = tl.zeros((16, 16), tl.float32)" in lines
    assert not any(line.startswith(("acc = acc", "acc_")) for line in lines)


def test_an_error_inside_names_both_lines(tmp_path: Path) -> None:
    called, schedule = program(tmp_path, "acc = product(k, x[t.rows, :], x.cols)", "put(inbox[t], acc)")
    with pytest.raises(DimensionError) as caught:
        called.bind(schedule)
    lines = Path(called.file).read_text().splitlines()
    inside = next(n for n, text in enumerate(lines, 1) if "tl.dot" in text)
    outside = next(n for n, text in enumerate(lines, 1) if "acc = product" in text)
    assert caught.value.site is not None and caught.value.site.line == inside
    assert f"called: {called.file}:{outside}" in caught.value.message


def test_parameters_are_named_where_some_are_missing(tmp_path: Path) -> None:
    called, schedule = program(tmp_path, "acc = product(k)")
    with pytest.raises(NotUnderstoodError, match=r"product takes rows, columns, along, acc \(may be left out\)"):
        called.bind(schedule)


def test_a_call_behind_a_load_wants_a_name(tmp_path: Path) -> None:
    call = "product(k, weight[:, t.cols], x.cols)"
    called, schedule = program(tmp_path, f"put(inbox[t], x[t.rows, 0].load()[:, None] + {call})")
    with pytest.raises(NotUnderstoodError, match="give its result a name first, result = product"):
        called.bind(schedule)


def test_names_of_the_caller_are_unknown_inside(tmp_path: Path) -> None:
    source = SOURCE.replace("BODY", "put(inbox[t], tl.zeros((16, 16), tl.float32))").replace("block * 2", "k * 2")
    module = load(tmp_path, source.replace("twice=False", "twice=True"))
    with pytest.raises(UndefinedNameError, match="k is not defined here; put knows"):
        module.program.bind(module.schedule)


def test_a_function_that_calls_itself_has_no_end(tmp_path: Path) -> None:
    again = "    acc = product(rows, columns, along)\n    return acc"
    module = load(tmp_path, SOURCE.replace("BODY", ONE).replace("    return acc", again))
    with pytest.raises(NotUnderstoodError, match="role -> product -> product: a tile function that calls itself"):
        module.program.bind(module.schedule)


def test_what_is_returned_stands_last(tmp_path: Path) -> None:
    early = "    if tk.rank() == 0:\n        return acc\n    for k in"
    module = load(tmp_path, SOURCE.replace("BODY", ONE).replace("    for k in", early))
    with pytest.raises(NotUnderstoodError, match=r"below `if not \(tk.rank\(\) == 0\):`; only a tile function"):
        module.program.bind(module.schedule)
