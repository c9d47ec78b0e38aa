"""Plans of layers of experts: their names, whose changes they are, and what predictions are told of tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilelink.analysis.machine import machine
from tilelink.errors import ScheduleError, TileSizeError
from tilelink.plans import whole_layer
from tilelink.plans.experts import Tokens, choose_experts
from tilelink.plans.layer_plans import OF_ROWS, OF_TOKENS, combined, is_once, plan_of
from tilelink.plans.model import Experts, WholeLayer, model
from tilelink.plans.routings import EVEN, POWER_LAW, rows_of_experts, tokens_of_ranks
from tilelink.plans.whole_layer import LayerQuestion, activation_us, choose_layer, fastest_layer

DOWN = Experts("experts_down", 256, 8, 7168, 2048, spread=8, cut=1)


def test_a_program_without_a_schedule_of_the_name_takes_its_first_one() -> None:
    columns = [str(plan_of(OF_ROWS, p, "columns").schedule) for p in (OF_ROWS.first, OF_ROWS.second)]
    assert columns == ["push", "columns"]
    by_rank = [str(plan_of(OF_TOKENS, p, "once:by_rank").schedule) for p in (OF_TOKENS.first, OF_TOKENS.second)]
    assert by_rank == ["by_rank", "push"] and str(plan_of(OF_TOKENS, OF_TOKENS.second, "once").schedule) == "push"
    assert is_once("once:few,send.count=4") and not is_once("one_kernel") and not is_once(None)


def test_each_program_takes_the_changes_of_its_roles() -> None:
    text = "pull,dispatch.count=8,combine.count=32"
    plans = [plan_of(OF_ROWS, program, text) for program in (OF_ROWS.first, OF_ROWS.second)]
    assert [str(p.schedule) for p in plans] == ["pull,dispatch.count=8", "pull,combine.count=32"]
    assert combined(plans) == text
    wrongs = {"ring": "there are push, pull", "once:ring": "once:by_rank", "push,send.count=2": "roles of a plan push"}
    wrongs["push,dispach.count=8"] = "did you mean dispatch"
    for wrong, said in wrongs.items():
        with pytest.raises(ScheduleError, match=said):
            plan_of(OF_TOKENS if "once" in wrong else OF_ROWS, OF_ROWS.first, wrong)
    with pytest.raises(ScheduleError, match="columns, torch; only products of experts have it"):
        plan_of(OF_ROWS, OF_ROWS.first, "once:few")
    with pytest.raises(TileSizeError):
        plan_of(OF_ROWS, OF_ROWS.first, "push,matmul.tile=3x4x5")


def test_rows_and_tokens_that_predictions_are_told_go_with_each_other() -> None:
    for routing in (EVEN, POWER_LAW):
        told = tokens_of_ranks(DOWN, 4096, routing)
        remote = (told["wanted"] == 0).sum() / 4096 * 7 / 8
        rows = (told["at"] >= 0).sum()
        assert rows == 8 * 4096 and (abs(remote - 4.6) < 0.1 or routing == POWER_LAW)
        assert ((told["wanted"] == 0) == (told["at"][:, :, 0] >= 0).T).all()
    assert tokens_of_ranks(replace(DOWN, spread=1, cut=8), 64, EVEN) == {}
    cut = replace(DOWN, spread=4, cut=2)
    law = np.array(rows_of_experts(cut, 512, POWER_LAW))
    assert law.shape == (512, 8) and law.sum() == 2 * 8 * 512
    groups = law.reshape(4, 2, 64, 8)
    assert (groups[:, 0] == groups[:, 1]).all() and rows_of_experts(cut, 512, EVEN) == 2 * 8 * 512


def test_the_fastest_form_has_the_best_number_of_sms_for_what_moves_rows() -> None:
    """Of those that are tried: twice as many and half of them are no 2 % faster."""
    h800, experts = machine("h800"), model("mixtral-8x7b").experts(8, 8)[0]
    choice = choose_experts(experts, h800, "bfloat16", 256)
    assert choice is not None and choice.fused is not None and choice.fused_us is not None
    asked = Tokens(h800, "bfloat16", 256)
    for role, resource in choice.fused.by.program.schedule(choice.fused.by.schedule.name).items():
        changed = (c.value for c in choice.fused.by.schedule.changes if c.role == role)
        count = next(changed, resource.count)  # type: ignore[union-attr]
        for other in (2 * count, count // 2) if count else ():
            plan = choice.fused.by.and_changed(role, "count", other)
            made = asked.predicted(experts, plan, None)
            assert not isinstance(made, str) and made.makespan_us >= 0.98 * choice.fused_us


@pytest.mark.parametrize("spread", [pytest.param(1, marks=pytest.mark.verify), 8])
def test_auto_is_what_a_whole_layer_is_predicted_to_take(spread: int) -> None:
    papers = model("tilelink-moe-1")
    layer = WholeLayer(*papers.experts(8, spread))
    choice = choose_layer(layer, machine("h800"), "bfloat16", 256)
    assert choice is not None and choice.fused_us == min(choice.forms_us.values())
    cut = 8 // spread
    sizes = (256, 8, 2, 2048, 1536 // cut, 256 * min(2, 8 // spread))
    asked = LayerQuestion("h800", 0, 8, "bfloat16", *sizes, slices=cut, once=True)
    assert fastest_layer(asked) == choice.fastest
    assert not is_once(fastest_layer(replace(asked, once=False)))
    assert fastest_layer(LayerQuestion(None, 0, 8, "bfloat16", 256, 8, 2, 2048, 1536, 512)) == "push"


def test_unfused_a_layer_takes_what_its_products_take() -> None:
    """Whichever fused form is the fastest of the layer, and of each product; and SwiGLU over the rows there are."""
    h800, layer = machine("h800"), WholeLayer(*model("tilelink-moe-1").experts(8, 8))
    choice = choose_layer(layer, h800, "bfloat16", 256)
    products = [choose_experts(product, h800, "bfloat16", 256) for product in layer]
    between = activation_us(h800, "bfloat16", 256 * layer.gate_up.each // 8, layer.down.depth)
    assert choice and choice.unfused_us == pytest.approx(sum(p.unfused_us for p in products if p) + between)


def test_tokens_between_two_powers_of_two_share_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(whole_layer.LayerForms, "of", lambda of, *_: asked.append(of.number))
    for tokens in (256, 300, 511, 512):
        fastest_layer(LayerQuestion("h800", 0, 8, "bfloat16", tokens, 8, 2, 1024, 48, tokens * 2))
    assert asked == [256, 512]
