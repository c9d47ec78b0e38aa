"""The page of a timeline: whole, self-contained, and with what a browser needs to draw it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.timelines import GATHERED, of, span
from tilelink.analysis.draw.html import BINS, About, page, write_page
from tilelink.analysis.timeline import EXECUTED, MEMORY_OPERATIONS, MICROSECONDS, PREDICTED, Timeline, Transfer
from tilelink.kernels.all_gather_matmul import all_gather_matmul


def data(text: str) -> dict[str, Any]:
    """What stands in a page."""
    found = re.search(r"^const D = (.*);$", text, re.M)
    assert found is not None
    return json.loads(found.group(1).replace("<\\/", "</"))


def test_a_page_needs_nothing_else() -> None:
    text = page(GATHERED)
    assert not re.findall(r"(?:src|href)\s*=|https?://|@import|fetch\(", text)
    assert "/*DATA*/" not in text


def test_what_a_page_says() -> None:
    found = data(page(GATHERED, About(facts={"unfused": "3 us"})))
    assert (found["title"], found["source"], found["unit"], found["whole"]) == ("spans", PREDICTED, MICROSECONDS, 15)
    assert found["roles"] == ["gather", "matmul"] and found["rows"] == [[0, 0, "0"], [0, 1, "1"], [1, 0, "0"]]
    row, role, start, length, label, cause, wait = found["spans"][4]
    assert (row, found["roles"][role], start, length, cause, wait) == (0, "matmul", 7, 3, 1, 1)
    assert found["labels"][label] == "matmul 7"
    assert [link["kind"] for link in found["path"]] == ["tiles", "signal", "tiles"]
    assert found["busy"] == {"gather": 3, "matmul": pytest.approx((6 + 5 + 9) / 3, abs=1e-3)}
    assert found["idle"]["waiting for gather of another rank"] == 2
    assert found["facts"] == {"unfused": "3 us"} and found["bytes"] == {}


def test_engines_are_called_by_their_peer() -> None:
    spans = (span(0, 0, "a", 0, 10), span(0, 2, "b", 0, 10))
    found = data(page(Timeline("t", MICROSECONDS, PREDICTED, spans, agents=1)))
    assert [name for _, _, name in found["rows"]] == ["0", "e1"]


def test_bytes_under_way() -> None:
    spans = (span(0, 0, "a", 0, 10), span(1, 0, "a", 0, 10))
    moved = (Transfer(0, 1, 100, 0, 5), Transfer(1, 0, 60, 2.5, 5))
    found = data(page(Timeline("t", MICROSECONDS, PREDICTED, spans, transfers=moved)))["bytes"]
    assert found["0"] == [100] * (BINS // 2) + [0] * (BINS // 2)
    assert found["1"] == [0] * (BINS // 4) + [60] * (BINS // 4) + [0] * (BINS // 2)


def test_logical_time_starts_at_nothing_and_is_no_performance() -> None:
    logical = Timeline("t", MEMORY_OPERATIONS, EXECUTED, (span(0, 0, "a", 7, 9),))
    found = data(page(logical))
    assert found["spans"][0][2] == 0 and found["whole"] == 2 and found["performance"] is False


def test_text_of_a_user_ends_no_script() -> None:
    evil = Timeline("</script><b>", MICROSECONDS, PREDICTED, (span(0, 0, "a", 0, 1),))
    text = page(evil)
    assert text.count("</script>") == 1 and data(text)["title"] == "</script><b>"


def test_an_empty_timeline_has_a_page(tmp_path: Path) -> None:
    write_page(of(), tmp_path / "page.html")
    assert data((tmp_path / "page.html").read_text())["spans"] == []


def test_a_prediction_has_a_page() -> None:
    prediction = all_gather_matmul.simulate("push", machine="h100", world=2, M=256, N=256, K=256)
    about = About(prediction.makespan_us, prediction.idle_us, prediction.critical_path, prediction.verdict)
    found = data(page(prediction.timeline, about))
    assert found["whole"] == pytest.approx(prediction.makespan_us, abs=1e-3)
    path = found["path"]
    assert [path[0]["kind"], path[-1]["kind"]] == ["launch", "leave"]
    assert sum(link["stop"] - link["start"] for link in path) == pytest.approx(found["whole"], abs=0.1)
    assert found["verdict"] == prediction.verdict and "decides" in found["verdict"]
    assert found["source"] == "predicted" and sum(map(sum, found["bytes"].values())) > 0
    assert found["idle"] == dict(prediction.idle_us)
