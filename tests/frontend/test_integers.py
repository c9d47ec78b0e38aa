"""Integers of tile functions: where a kernel's 32 bits would not give what Python gives, a program is refused."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tilelink as tk
from tests.parameters import first_of
from tilelink.errors import IntegerError
from tilelink.frontend import integers
from tilelink.frontend.arithmetic import evaluate, to_triton
from tilelink.frontend.expressions import floor_div, larger, modulo, smaller, symbol
from tilelink.frontend.integers import LARGEST, Bounds
from tilelink.frontend.sizes import Sizes
from tilelink.kernels import operators
from tilelink.programs.fitting import takes

BIG = 2**33


@tk.tile
def far_rank(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t].at(t.M.start * 104729 % tk.world()), out[t])


@tk.tile
def power(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t].at((tk.rank() + 1) ** 40 % tk.world()), out[t])


@tk.tile
def constant(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t].at((tk.rank() + BIG) % tk.world()), out[t])


@tk.tile
def condition(t, x, out):  # type: ignore[no-untyped-def]
    if t.M.start * 100000 < 2000000000:
        out[t].store(x[t].load())
    else:
        out[t].store(x[t].load() * 0)


@tk.tile
def value(t, x, out):  # type: ignore[no-untyped-def]
    out[t].store(x[t].load() + t.M.start * 131072)


@tk.tile
def in_a_loop(t, x, out):  # type: ignore[no-untyped-def]
    for k in range(8):
        tk.copy(x[t].at(k * (t.M.start + 1) * 7000 % tk.world()), out[t])


@tk.tile
def by_rank(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t].at(tk.world() // tk.rank() % tk.world()), out[t])


@tk.tile
def below_a_condition(t, x, out):  # type: ignore[no-untyped-def]
    if tk.rank() > 0 and t.M.start < 64:
        out[t].store(x[t].load() + 6 // tk.rank() + t.M.start * 2**24)
    else:
        out[t].store(x[t].load())


@tk.tile
def by_columns(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t].at(7 // x.N.size % tk.world()), out[t])


@tk.tile
def by_less(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t].at((tk.rank() + 5) % (tk.rank() + 1)), out[t])


def made(tile: Any) -> tk.Program:
    @tk.program
    def moved(x: tk.Local("M", "N"), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def, valid-type]
        tile[tk.tiles(out)](x, out)

    return moved


def schedule(tile: Any, rows: int) -> tk.Schedule:
    return tk.Schedule(**{tile.name: tk.SMs(2, tile=(rows, 1))})


REFUSED = [
    (far_rank, 40960, r"104729\*M_lo may be as large as 4289595111"),
    (power, 64, r"\(rank \+ 1\)\*\*40 may be as large as 3486784401|may be as large as"),
    (constant, 64, r"rank \+ 8589934592 may be as large as 8589934594"),
    (condition, 40960, r"100000\*M_lo may be as large as 4095900000"),
    (value, 40960, r"131072\*M_lo may be as large as 5368578048"),
    (in_a_loop, 65536, r"may be as large as 3211264000"),
]


@pytest.mark.parametrize(("tile", "rows", "said"), REFUSED, ids=lambda of: getattr(of, "name", ""))
def test_what_leaves_32_bits_is_refused(tile: Any, rows: int, said: str) -> None:
    """By the check, and by a call before anything runs; the error has the user's line."""
    program, by = made(tile), schedule(tile, 64)
    x = torch.zeros(rows, 1)
    for call in (
        lambda: program.check(by, world=3, M=rows, N=1),
        lambda: tk.CpuWorld(3).run(lambda group: program(x, schedule=by, group=group)),
    ):
        with pytest.raises(IntegerError, match=said) as error:
            call()
        assert error.value.site is not None and error.value.site.file == __file__
        assert "kernels compute integers in 32 bits, up to 2147483647" in str(error.value)
        assert f"at M={rows}, N=1, world=3" in str(error.value)


@pytest.mark.parametrize("tile", [far_rank, condition, value])
def test_what_just_fits_means_what_it_means_in_python(tile: Any) -> None:
    rows = LARGEST // {"far_rank": 104729, "condition": 100000, "value": 131072}[tile.name] // 2048 * 2048
    x = torch.arange(3.0)[:, None, None].expand(3, rows, 1).contiguous()
    program = made(tile)
    outs = tk.CpuWorld(3).run(lambda group: program(x[group.rank], schedule=schedule(tile, 2048), group=group))
    begins = torch.arange(rows) // 2048 * 2048
    for rank, out in enumerate(outs):
        right = {
            "far_rank": (begins * 104729 % 3).float(), "condition": rank * (begins * 100000 < 2000000000).float(),
            "value": (rank + begins * 131072).float(),
        }[tile.name]  # fmt: skip
        assert torch.equal(out[:, 0], right)
    with pytest.raises(IntegerError):
        program.check(schedule(tile, 2048), world=3, M=2 * rows, N=1)


@pytest.mark.parametrize(
    ("tile", "columns", "said"),
    [(by_rank, 4, "the divisor rank may be 0; max"), (by_columns, 0, "the divisor N may be 0; max")],
)
def test_a_divisor_that_may_be_0_is_refused(tile: Any, columns: int, said: str) -> None:
    with pytest.raises(IntegerError, match=said):
        made(tile).check(schedule(tile, 16), world=3, M=32, N=columns)


def test_divisors_that_are_positive_are_not_refused() -> None:
    assert made(by_columns).check(schedule(by_columns, 16), world=3, M=32, N=4).findings == ()
    made(by_less).unroll(schedule(by_less, 16), world=3, M=32, N=1)


def test_conditions_around_an_integer_count() -> None:
    x = torch.zeros(4, 128, 1)
    program, by = made(below_a_condition), schedule(below_a_condition, 32)
    outs = tk.CpuWorld(4).run(lambda group: program(x[group.rank], schedule=by, group=group))
    for rank, out in enumerate(outs):
        assert out[96:].eq(0).all() and out[:32].eq(6 // rank if rank else 0).all()
        assert out[32:64].eq((6 // rank + 2.0**29) if rank else 0).all()


def test_errors_name_the_file_of_the_program(tmp_path: Path) -> None:
    """Also if another file has an equal tile function."""
    for name in ("first", "second"):
        source = Path(__file__).read_text()
        body = source[source.index("@tk.tile\ndef far_rank") : source.index("@tk.tile\ndef power")]
        (tmp_path / f"{name}.py").write_text(f"import tilelink as tk\n{body}")
        module = runpy.run_path(str(tmp_path / f"{name}.py"))
        with pytest.raises(IntegerError) as error:
            made(module["far_rank"]).check(schedule(far_rank, 64), world=3, M=40960, N=1)
        assert error.value.site is not None and error.value.site.file == str(tmp_path / f"{name}.py")


@pytest.mark.parametrize("name", operators())
def test_programs_of_the_library_are_for_all_sizes(name: str) -> None:
    program = operators()[name]
    for by in program.schedules:
        bound = program.bind(by, absent=frozenset() if takes(program, by, program.optional) else program.optional)
        sizes = dict.fromkeys(bound.dims, 2**29) | {"splits": 4} | {route.per_rank: 64 for route in bound.routes}
        Sizes.of(bound, 8, {d: n for d, n in sizes.items() if d in bound.dims}, counted=False)


def drawn(random: random.Random, depth: int) -> Any:
    """An expression of a user: integers, symbols, and operators on them."""
    if depth == 0:
        return random.choice([*map(symbol, "abc"), sympy.Integer(random.choice([1, 2, 3, 70, 65537]))])
    a, b = (drawn(random, random.randrange(depth)) for _ in range(2))
    kind = random.randrange(7)
    if kind < 2:
        return a * b
    if kind < 4:
        return a + b if kind == 2 else a - b
    return (floor_div, modulo)[kind - 5](a, larger(1, b)) if kind > 4 else smaller(a, b)


@pytest.mark.parametrize("seed", first_of(range(50), 25))
def test_what_is_accepted_is_the_same_in_32_bits(seed: int) -> None:
    """Bounds hold, and a kernel's arithmetic gives Python's values."""
    rng = random.Random(seed)
    known = {"a": Bounds(0, 90000), "b": Bounds(0, 7), "c": Bounds(0, rng.choice([0, 1, 300]))}
    accepted = 0
    for _ in range(8):
        e = sympy.sympify(drawn(rng, 3))
        try:
            bounds = integers._Interval(known).of(e)
        except integers._Wrong:
            continue
        accepted += 1
        text = re.sub(r"tl\.(min|max)imum", r"np.\1imum", to_triton(e))
        for _ in range(20):
            values = {n: rng.choice([b.least, b.largest, rng.randint(*b)]) for n, b in known.items()}
            exact = int(evaluate(e, values))
            assert bounds.least <= exact <= bounds.largest, (e, values)
            names = {"np": np, "i32": np.int32, "i64": np.int64, **{n: np.int32(v) for n, v in values.items()}}
            with np.errstate(over="ignore"):
                assert int(eval(_as_int32(text), names)) == exact, (e, values)
    assert accepted


def _as_int32(text: str) -> str:
    """The text with its numbers as in a kernel: in 32 bits, if they fit."""
    return re.sub(r"\b(\d+)\b", lambda number: f"i{32 if int(number[0]) <= LARGEST else 64}({number[0]})", text)
