"""What a probe has found is kept for the GPU and the versions that it was found with."""

from __future__ import annotations

import pytest

from tilelink.runtime.cuda import probed
from tilelink.runtime.cuda.probed import FORMS, Probed

HERE, ELSEWHERE = (f"H200, driver of CUDA {n}, torch 2.11, Triton 3.6" for n in (13000, 13010))


pytestmark = pytest.mark.usefixtures("own_cache")


def test_what_is_found_is_kept_for_its_stack() -> None:
    assert probed.read(HERE) == Probed()
    probed.write(HERE, {"engines_in_graphs": True, "virtual_ranks": False})
    probed.write(ELSEWHERE, {"engines_in_graphs": False})
    found = probed.read(HERE)
    assert found.allows("engines_in_graphs") and not found.allows("virtual_ranks")
    assert not probed.read(ELSEWHERE).allows("engines_in_graphs") and probed.read(ELSEWHERE).allows("virtual_ranks")
    probed.write(HERE, {})
    assert probed.read(HERE) == Probed(), "a probe that gave no answer takes back what was found before"


def test_forms_nobody_has_asked_for() -> None:
    assert {form for form in FORMS if not Probed().allows(form)} == {
        "few_queues", "copies_beside_all_sms", "engines_in_graphs", "own_warps",
    }  # fmt: skip
    assert "nobody has asked this GPU yet whether a copy" in Probed().why_not("copies_beside_all_sms")
    with pytest.raises(KeyError):
        Probed().allows("a form that is none")
