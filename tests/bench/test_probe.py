"""The probe, on a model of a card that has everything, or lacks one thing; its kernels, compiled."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.gpu import card, forms, probe
from bench.gpu.place import dry
from bench.gpu.report import Report
from bench.operands import Operands
from bench.records import json_lines
from tests.bench.card_model import CardModel
from tests.bench.on_stand_in import OnStandIn
from tests.runtime.cuda_stand_in import StandIn
from tilelink.backend.targets import CPU
from tilelink.runtime.cuda import probed
from tilelink.runtime.cuda.probed import FORMS

HOPPER = GPUTarget("cuda", 90, 32)


pytestmark = pytest.mark.usefixtures("own_cache")


def asked(tmp_path: Path, model: CardModel, queues: int = 1) -> tuple[dict[str, bool], list[dict[str, Any]]]:
    """What a card answers; two kernels a rank go through so many queues."""
    path = tmp_path / "found.jsonl"
    other = CardModel(queues=queues, one_kernel=model.one_kernel)
    report = Report(path, "probe", dry(), "a command", 60)
    answers = probe.ask(model, report, lambda: probe.virtual_ranks(other, kernels=2), lambda: {"answer": True})
    return answers, json_lines(path)


def test_a_card_that_has_everything(tmp_path: Path) -> None:
    answers, found = asked(tmp_path, CardModel())
    assert answers == dict.fromkeys(FORMS, True) and all(r["ok"] for r in found) and len(found) == len(FORMS) + 3
    assert probed.read("a model").answers == answers
    assert found[0]["ms_of_8_ranks"] == 0.01


LACKS: list[tuple[dict[str, Any], set[str]]] = [
    ({"one_kernel": True}, {"virtual_ranks", "few_queues", "graphs_together"}),
    ({"writes": False}, {"stream_signals", "copies_beside_all_sms", "engines_in_graphs"}),
    ({"waits": False}, {"stream_signals"}),
    ({"copies_need_room": True}, {"copies_beside_all_sms"}),
    ({"serial_graphs": True}, {"engines_in_graphs"}),
    ({"replay_blocks": True}, {"graphs_together"}),
]


@pytest.mark.parametrize(("lacks", "forms"), LACKS, ids=[next(iter(lacks)) for lacks, _ in LACKS])
def test_a_card_that_lacks_something(lacks: dict[str, Any], forms: set[str], tmp_path: Path) -> None:
    answers, found = asked(tmp_path, CardModel(**lacks))
    refused = {form for form, answer in answers.items() if not answer}
    assert refused == forms
    assert {r["form"] for r in found if r.get("form") and r["ok"] is None} == refused
    assert not [r for r in found if r["ok"] is False and r.get("form")], "what a card lacks is no finding"
    assert not probed.read("a model").allows(next(iter(refused)))


def test_a_host_that_is_held_up_is_a_finding(tmp_path: Path) -> None:
    """CUDA is known to load kernels late."""
    _, found = asked(tmp_path, CardModel(loading_blocks=True))
    held = {r["what"].split(": ")[-1]: r["ok"] for r in found if r["error"] == "it waited for the kernel"}
    assert held == {
        "the first use of a kernel of torch": None, "a copy of rows that lie apart": False,
        "the first launch of a kernel that spills": False,
    }  # fmt: skip


def test_a_probe_that_fails_takes_back_what_was_known(tmp_path: Path) -> None:
    probed.write("a model", dict.fromkeys(FORMS, True))
    model = CardModel()
    model.graph = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    answers, found = asked(tmp_path, model)
    assert set(FORMS) - set(answers) == {"engines_in_graphs", "graphs_together"}
    assert [r["error"] for r in found if r["ok"] is False] == ["ZeroDivisionError: division by zero"] * 2
    assert not probed.read("a model").allows("engines_in_graphs")


@pytest.mark.parametrize(("wrong", "us", "answer"), [
    (None, 9.0, True), (None, 11.0, False), (Operands, 9.0, False),
])  # fmt: skip
def test_both_forms_are_asked_for_results_and_times(
    wrong: Any, us: float, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form that is wrong is not used, however fast, and none that is slower. (Here both are the portable one.)"""
    monkeypatch.setattr(forms, "timed", lambda place, calls: [[10.0], [us]])
    if wrong is not None:
        monkeypatch.setattr(wrong, "judge", lambda *_: {"ok": False})
    found = forms.both_forms(OnStandIn().place(), lambda form: StandIn(sms=48))
    assert found["right"] is (wrong is None) and found["forms"] == ["cpu"] and found["answer"] is answer
    assert (found["portable_us"], found["specialised_us"]) == (10.0, us)


def test_a_form_that_no_call_had_has_no_good_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has no descriptors, so its calls have the portable form, which is right, and here faster."""
    monkeypatch.setattr(forms, "timed", lambda place, calls: [[10.0], [9.0]])

    def device(specialised: bool) -> StandIn:
        made = StandIn(sms=48)
        made.target = replace(CPU, name="cpu+warps", specialised=True) if specialised else CPU
        return made

    found = forms.both_forms(OnStandIn().place(), device)
    assert found["right"] and found["forms"] == ["cpu"] and not found["answer"]


def test_a_process_that_fails_gives_no_answer() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        probe.elsewhere(["-c", "raise SystemExit(1)"], 30)
    assert probe.elsewhere(["-c", "import os; print('loading'); print(os.environ['SAID'])"], 30, SAID="7") == 7


def test_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    probe.probe(dry(), Report(path, "probe", dry(), "a command", 60))
    assert json.loads(path.read_text())["ok"] is None


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    def compiled(kernel: Any, warps: int, signature: dict[str, str], **constants: Any) -> Any:
        signature |= dict.fromkeys(constants, "constexpr")
        values = {(list(signature).index(name),): value for name, value in constants.items()}
        return triton.compile(ASTSource(kernel, signature, values), target=HOPPER, options={"num_warps": warps})

    words = {"word": "*i32", "gives": "i32", "need": "i32", "seen": "*i64", "limit": "i32"}
    ptx = compiled(card.meet, card.WARPS, words).asm["ptx"]
    assert "globaltimer" in ptx and "ld.global.sys.acquire" in ptx and "atom.global.sys.release" in ptx
    compiled(card.count, 1, {"word": "*i32"})
    spills = compiled(card.spill, 1, {"x": "*fp32", "out": "*fp32"}, COLS=card.LONG)
    object_ = tmp_path / "spill.cubin"
    object_.write_bytes(spills.asm["cubin"])
    command = [triton.knobs.nvidia.nvdisasm.path, "-c", object_]
    sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "STL" in sass, "threads store to local memory"
