"""Timelines as PNGs: what is on them, whatever the settings of the reader."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.timelines import TILE, WAIT, of, timeline
from tests.parameters import first_cases
from tilelink.analysis.draw import png
from tilelink.analysis.timeline import MEASURED


def pixels(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


class TestPng:
    @pytest.mark.parametrize(("ranks", "workers"), first_cases([(1, 2), (2, 4), (4, 4), (4, 20)], 2))
    def test_draws_a_row_a_worker(self, ranks: int, workers: int, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        path = tmp_path / "timeline.png"
        whole = timeline(ranks, workers, unit="us", source=MEASURED)
        png(whole, path)
        width, height = pixels(path)
        assert width == 2250
        rows = ranks * workers
        assert 20 * rows < height < 300 + 100 * rows
        assert path.stat().st_size > 15_000

    def test_shows_roles_waits_and_arrows(self, tmp_path: Path) -> None:
        numpy, image = pytest.importorskip("numpy"), pytest.importorskip("matplotlib.image")
        path = tmp_path / "timeline.png"
        png(timeline(2, 2), path)
        red, green, blue = numpy.rint(255 * image.imread(path)[..., :3]).astype(int).reshape(-1, 3).T
        shown = set((red * 0x10000 + green * 0x100 + blue).tolist())
        gather, matmul, waiting, arrow = 0x0072B2, 0xE69F00, 0xFAEED1, 0x222222
        assert {gather, matmul, waiting, arrow} <= shown

    def test_is_the_same_whatever_the_settings_of_the_reader(self, tmp_path: Path) -> None:
        matplotlib = pytest.importorskip("matplotlib")
        png(timeline(1, 2), tmp_path / "a.png")
        with matplotlib.rc_context({"savefig.dpi": 30, "font.size": 20, "axes.facecolor": "red"}):
            png(timeline(1, 2), tmp_path / "b.png")
            assert matplotlib.rcParams["font.size"] == 20
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    def test_draws_what_takes_no_time(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        instant = replace(TILE, stop=0.0)
        png(
            of(instant, replace(WAIT, start=0.0, stop=0.0, cause=0), replace(instant, worker=1)),
            tmp_path / "a.png",
        )
        assert pixels(tmp_path / "a.png")[0] == 2250

    def test_refuses_an_empty_timeline(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        with pytest.raises(ValueError, match="'spans' has no spans"):
            png(of(), tmp_path / "a.png")

    def test_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"tilelink\[bench\]"):
            png(timeline(), tmp_path / "a.png")
