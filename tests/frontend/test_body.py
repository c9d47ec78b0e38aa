"""What goes over the statements of a tile: each is met once, with where it stands, and can be replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy

from tilelink.errors import Site
from tilelink.frontend.expressions import RANK, shown, symbol
from tilelink.frontend.ir import (
    Code,
    Compute,
    Copy,
    DataIf,
    For,
    If,
    Load,
    Notify,
    Range,
    Statement,
    Store,
    View,
    Wait,
    every,
    places,
    rewritten,
    walk,
)

SITE = Site("here.py", 1)


def view(tensor: str, start: str = "lo") -> View:
    return View(tensor, (Range("M", symbol(start), symbol(start) + 4, 4),), RANK)


LOAD = Load(view("full", "k"))
WAIT = Wait(SITE, "ready", (view("full"),))
ADD = Compute(SITE, Code("acc = acc + {0} * {1}", (LOAD, symbol("n"))))
LOOP = For(SITE, "k", sympy.S.Zero, symbol("M"), 4, (ADD,))
STORE, NOTIFY = Store(SITE, Code("acc"), target=view("out")), Notify(SITE, (view("out"),))
IF = If(SITE, sympy.Eq(RANK, 0), (STORE, NOTIFY), (Copy(SITE, view("x"), target=view("out")),))
DATA_IF = DataIf(SITE, Code("{0} > 0", (Load(view("flag")),)), (Compute(SITE, Code("acc = 0")),), ())
BODY = (WAIT, LOOP, IF, DATA_IF)


def test_every_statement_is_met_once_in_order() -> None:
    kinds = [type(s).__name__ for s in walk(BODY)]
    assert kinds == ["Wait", "For", "Compute", "If", "Store", "Notify", "Copy", "DataIf", "Compute"]
    assert [p.statement for p in places(BODY)] == list(walk(BODY))


@pytest.mark.parametrize(
    ("statement", "touched", "loads", "symbols"),
    [
        (WAIT, ["full"], [], {"lo", "rank"}),
        (LOOP, [], [], {"M"}),
        (ADD, ["full"], ["full"], {"k", "n", "rank"}),
        (STORE, ["out"], [], {"lo", "rank"}),
        (NOTIFY, ["out"], [], {"lo", "rank"}),
        (IF, [], [], {"rank"}),
        (IF.orelse[0], ["x", "out"], [], {"lo", "rank"}),
        (DATA_IF, ["flag"], ["flag"], {"lo", "rank"}),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Statement) else "",
)
def test_a_statement_says_what_it_names_itself(
    statement: Statement, touched: list[str], loads: list[str], symbols: set[str]
) -> None:
    assert [v.tensor for v in statement.touched] == touched
    assert [load.view.tensor for load in statement.loads] == loads
    assert {shown(str(s)) for s in statement.symbols} == symbols


def test_a_place_says_what_is_around_and_behind_a_statement() -> None:
    of = {id(p.statement): p for p in places(BODY)}
    inner, copied, zeroed = of[id(ADD)], of[id(IF.orelse[0])], of[id(DATA_IF.body[0])]
    assert inner.loops == (LOOP,) and not inner.conditional
    assert copied.conditions == (sympy.Ne(RANK, 0),) and copied.conditional and not copied.loops
    assert zeroed.conditions == () and zeroed.conditional
    assert of[id(STORE)].rest == (NOTIFY,) and of[id(WAIT)].rest == (LOOP, IF, DATA_IF)


def test_statements_are_replaced_inner_ones_first() -> None:
    met: list[str] = []

    def change(s: Statement) -> tuple[Statement, ...]:
        met.append(type(s).__name__)
        match s:
            case Notify():
                return ()
            case Store():
                return (s, s)
        return (s,)

    made = rewritten(BODY, change)
    assert met == ["Wait", "Compute", "For", "Store", "Notify", "Copy", "If", "Compute", "DataIf"]
    assert made == (WAIT, LOOP, If(SITE, IF.condition, (STORE, STORE), IF.orelse), DATA_IF)


def test_statements_of_a_kind() -> None:
    assert list(every(Compute, BODY)) == [ADD, DATA_IF.body[0]] and list(every(Statement, BODY)) == list(walk(BODY))


def test_a_statement_says_what_it_reads_and_what_it_gives() -> None:
    copy = IF.orelse[0]
    assert copy.read == (view("x"),) and copy.given == (view("out"),)
    assert ADD.read == (view("full", "k"),) and NOTIFY.given == (view("out"),) and WAIT.read == WAIT.given == ()


def test_what_a_statement_gives_is_changed_and_nothing_else() -> None:
    def far(v: View) -> View:
        return replace(v, home=symbol("peer"))

    copy = IF.orelse[0]
    assert copy.giving(far) == Copy(SITE, view("x"), target=far(view("out")))
    assert NOTIFY.giving(far) == Notify(SITE, (far(view("out")),)) and WAIT.giving(far) == WAIT
