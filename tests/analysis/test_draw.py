"""Timelines and their pictures. Traces are read by a small model of how Perfetto does it."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from tilelink.analysis.draw import MOST_ARROWS, _candidates, _chosen, _Page, perfetto, png, write_perfetto
from tilelink.analysis.timeline import EXECUTED, MEASURED, MEMORY_OPERATIONS, PREDICTED, Span, Timeline


def timeline(
    ranks: int = 4, workers: int = 4, chunks: int = 4, unit: str = "us", source: str = PREDICTED
) -> Timeline:
    """On each rank, worker 0 gathers for the rank after it, and the others multiply what theirs was given."""
    spans: list[Span] = []
    gathered: dict[tuple[int, int], int] = {}
    for rank in range(ranks):
        for chunk in range(chunks):
            gathered[(rank + 1) % ranks, chunk] = len(spans)
            start = 10.25 * chunk + rank
            label = f"M[{chunk * 128}:{chunk * 128 + 128}]"
            spans.append(Span(rank, 0, "gather", "tile", label, start, start + 10.25))
    for rank in range(ranks):
        for worker in range(1, workers):
            free = 0.0
            for chunk in range(chunks):
                cause = gathered[rank, chunk]
                rows = f"M[{chunk * 128}:{chunk * 128 + 128}]"
                ready = max(free, spans[cause].stop)
                label = f"{rows} N[{(worker - 1) * 256}:{worker * 256}]"
                spans.append(Span(rank, worker, "matmul", "tile", label, free, ready + 7.5))
                spans.append(Span(rank, worker, "matmul", "wait", f"full {rows}", free, ready, cause))
                free = ready + 7.5
    return Timeline("all-gather + matmul", unit, source, tuple(spans))


TILE = Span(0, 0, "matmul", "tile", "M[0:128]", 0.0, 10.0)
WAIT = Span(0, 0, "matmul", "wait", "full M[0:128]", 1.0, 4.0)


def of(*spans: Span) -> Timeline:
    return Timeline("spans", "us", PREDICTED, spans)


class TestTimeline:
    def test_says_what_is_in_it(self) -> None:
        gather = Span(1, 7, "gather", "tile", "M[0:128]", -2.0, 4.0)
        wait = replace(WAIT, cause=2)
        whole = of(TILE, wait, gather, replace(TILE, start=10.0, stop=11.0), replace(TILE, worker=3))
        assert whole.ranks == (0, 1)
        assert whole.workers(0) == (0, 3)
        assert whole.workers(1) == (7,)
        assert whole.roles == ("gather", "matmul")
        assert whole.makespan == 13
        assert whole.waiting(0, "matmul") == 3
        assert whole.busy(0, "matmul") == 10 - 3 + 1 + 10
        assert whole.busy(1, "matmul") == whole.waiting(1, "gather") == 0
        assert whole.tile_of == {1: 0}

    def test_may_be_empty(self) -> None:
        assert (of().ranks, of().roles, of().makespan) == ((), (), 0)

    def test_is_immutable(self) -> None:
        with pytest.raises(FrozenInstanceError):
            TILE.start = 1.0  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            of(TILE).title = "other"  # type: ignore[misc]

    def test_takes_tiles_that_touch_and_waits_that_are_instants(self) -> None:
        before, after = replace(TILE, role="gather"), replace(TILE, start=10.0, stop=20.0)
        last = replace(WAIT, role="gather", start=10.0, stop=10.0)
        first = replace(WAIT, start=10.0, stop=10.0)
        instant = replace(TILE, start=20.0, stop=20.0)
        assert of(after, before, last, first, instant).tile_of == {2: 1, 3: 0}

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"kind": "pause"}, "'pause'"),
            ({"start": 11.0}, "starts at 11.0, after it stops at 10.0"),
            ({"stop": float("nan")}, "nan"),
            ({"stop": float("inf")}, "inf"),
            ({"rank": -1}, "rank -1"),
            ({"worker": -2}, "worker -2"),
            ({"cause": 0}, "a tile has a cause, 0"),
        ],
    )
    def test_refuses_spans_that_can_not_be(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            replace(TILE, **fields)

    @pytest.mark.parametrize(
        ("spans", "words"),
        [
            ((TILE, replace(WAIT, cause=2)), "cause 2 is none of the 2 spans"),
            ((TILE, replace(WAIT, cause=-1)), "cause -1 is none of the 2 spans"),
            ((TILE, replace(WAIT, cause=1)), "cause 1 is no tile but wait"),
            ((TILE, replace(WAIT, stop=10.5)), r"lies in no tile .*\[1.0, 10.5\]"),
            ((TILE, replace(WAIT, worker=1)), "lies in no tile .* worker 1"),
            ((TILE, replace(WAIT, role="gather")), "lies in no tile .* of gather"),
            ((TILE, replace(TILE, start=9.0, stop=12.0)), r"overlap: .*\[0.0, 10.0\] and .*\[9.0, 12.0\]"),
            ((TILE, WAIT, replace(WAIT, start=3.0)), r"overlap: .*\[1.0, 4.0\] and .*\[3.0, 4.0\]"),
        ],
    )
    def test_refuses_spans_that_do_not_go_together(self, spans: tuple[Span, ...], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            of(*spans)

    def test_refuses_other_units_and_times_of_unknown_source(self) -> None:
        with pytest.raises(ValueError, match="'ms'"):
            Timeline("", "ms", PREDICTED, ())
        with pytest.raises(ValueError, match="source of the timeline 'title' is empty"):
            Timeline("title", "us", "", ())


class Slices:
    """How Perfetto reads trace events: slices nest by time on their thread, flows tie to the innermost one.

    A slice stays open until the next one starts, so a flow can be tied to one that is over.
    """

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.parent: dict[int, dict[str, Any] | None] = {}
        self.flows: list[tuple[dict[str, Any], dict[str, Any]]] = []
        open_slices: dict[int, list[dict[str, Any]]] = {}
        started: dict[tuple[str, str, int], dict[str, Any]] = {}
        for event in events:
            if event["ph"] == "M":
                continue
            stack = open_slices.setdefault(event["tid"], [])
            if event["ph"] == "X":
                start, stop = nanoseconds(event)
                while stack and not (
                    nanoseconds(stack[-1])[1] > start or start == stop == nanoseconds(stack[-1])[1]
                ):
                    stack.pop()
                assert not stack or stop <= nanoseconds(stack[-1])[1], (
                    f"{event} stops after {stack[-1]}, in which it starts"
                )
                self.parent[id(event)] = stack[-1] if stack else None
                stack.append(event)
            elif event["ph"] == "s":
                started[event["name"], event["cat"], event["id"]] = stack[-1]
            else:
                assert event["bp"] == "e"
                self.flows.append((started.pop((event["name"], event["cat"], event["id"])), stack[-1]))
        assert not started, "flows that do not finish"


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


class TestPerfetto:
    def test_events_have_the_fields_of_the_format(self) -> None:
        trace = perfetto(timeline())
        assert trace["displayTimeUnit"] in ("ms", "ns")
        for event in trace["traceEvents"]:
            assert {"ph", "pid", "tid", "ts"} <= event.keys() or event["ph"] == "M"
            if event["ph"] == "X":
                assert event["dur"] >= 0
                assert event["name"] and event["cat"]
        times = [e["ts"] for e in trace["traceEvents"] if e["ph"] != "M"]
        assert times == sorted(times)

    def test_ranks_are_processes_and_workers_threads(self) -> None:
        events = perfetto(timeline(ranks=3, workers=2))["traceEvents"]
        named = {(e["name"], e["pid"], e.get("tid")): e["args"] for e in events if e["ph"] == "M"}
        processes = sorted({e["pid"] for e in events})
        for rank, pid in enumerate(processes):
            assert named["process_name", pid, None] == {"name": f"rank {rank} (predicted)"}
            assert named["process_sort_index", pid, None] == {"sort_index": rank}
            threads = sorted({e["tid"] for e in events if e["pid"] == pid and "tid" in e})
            for worker, tid in enumerate(threads):
                assert named["thread_name", pid, tid] == {"name": f"worker {worker}"}
                assert named["thread_sort_index", pid, tid] == {"sort_index": worker}
        # Perfetto takes a thread with the number of a process for its main one, and 0 for the idle one.
        pairs = {(e["pid"], e["tid"]) for e in events if "tid" in e}
        assert len({tid for _, tid in pairs}) == len(pairs) == 6
        assert not {tid for _, tid in pairs} & {0, *processes}

    def test_spans_are_there_once_with_their_times(self) -> None:
        whole = timeline()
        events = [e for e in perfetto(whole)["traceEvents"] if e["ph"] == "X" and e["cat"] != "signal"]
        drawn = {
            (
                e["args"]["rank"],
                e["args"]["worker"],
                e["cat"],
                e["args"]["label"],
                e["ts"],
                e["ts"] + e["dur"],
            )
            for e in events
        }
        category = {"tile": "{}", "wait": "{},wait"}
        assert len(events) == len(whole.spans)
        assert drawn == {
            (s.rank, s.worker, category[s.kind].format(s.role), s.label, s.start, s.stop) for s in whole.spans
        }

    def test_waits_nest_in_tiles_and_flows_go_from_tile_to_wait(self) -> None:
        whole = timeline()
        slices = Slices(perfetto(whole)["traceEvents"])
        waits = [s for s in whole.spans if s.kind == "wait"]
        assert len(slices.flows) == len(waits)
        for notify, notified in slices.flows:
            assert notify["ts"] <= notified["ts"]
            tile, wait = slices.parent[id(notify)], slices.parent[id(notified)]
            assert tile is not None and wait is not None
            around = slices.parent[id(wait)]
            assert around is not None
            assert (tile["cat"], wait["cat"], around["cat"]) == ("gather", "matmul,wait", "matmul")
            assert wait["name"] == f"wait: full {tile['args']['label']}"
            assert tile["args"]["rank"] == (wait["args"]["rank"] - 1) % 4

    def test_times_finer_than_the_format_still_nest(self) -> None:
        """Rounded to nanoseconds, a wait may not stick out of its tile, nor a tile into the next."""
        spans: list[Span] = []
        for k in range(200):
            start, stop = k / 7 / 100, (k + 1) / 7 / 100
            spans.append(Span(0, 0, "r", "tile", str(k), start, stop))
            spans.append(Span(0, 0, "r", "wait", str(k), start + (stop - start) / 3, stop, 0))
        Slices(perfetto(of(*spans))["traceEvents"])

    def test_a_tile_that_waited_itself_is_where_its_flow_starts(self) -> None:
        """Perfetto keeps the wait in it open until something else starts."""
        first = Span(0, 0, "a", "tile", "first", 0.0, 1.0)
        second = Span(0, 1, "b", "tile", "second", 0.0, 5.0)
        third = Span(0, 2, "c", "tile", "third", 0.0, 9.0)
        waits = Span(0, 1, "b", "wait", "first", 0.0, 2.0, 0), Span(0, 2, "c", "wait", "second", 0.0, 6.0, 1)
        slices = Slices(perfetto(of(first, second, third, *waits))["traceEvents"])
        ends = [tuple(slices.parent[id(mark)]["name"] for mark in flow) for flow in slices.flows]  # type: ignore[index]
        assert ends == [("a first", "wait: first"), ("b second", "wait: second")]

    def test_a_tile_that_ends_many_waits_has_one_mark(self) -> None:
        events = perfetto(timeline(ranks=2, workers=9, chunks=1))["traceEvents"]
        marks = [e for e in events if e["ph"] == "X" and e["name"] == "notify"]
        assert [len(mark["args"]["ends"]) for mark in marks] == [8, 8]

    def test_no_flow_goes_backwards_in_time(self) -> None:
        """Clocks of ranks may differ: the cause is told, but not drawn."""
        late = Span(1, 0, "gather", "tile", "M[0:128]", 6.0, 9.0)
        events = perfetto(of(TILE, replace(WAIT, cause=2), late))["traceEvents"]
        assert {e["ph"] for e in events} == {"M", "X"}
        (wait,) = (e for e in events if e.get("cat") == "matmul,wait")
        assert wait["args"]["ended by"] == str(late)

    def test_says_that_logical_time_is_not_performance(self) -> None:
        trace = perfetto(timeline(unit=MEMORY_OPERATIONS, source=EXECUTED))
        assert trace["otherData"]["unit"] == MEMORY_OPERATIONS
        assert trace["otherData"]["source"] == EXECUTED
        names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
        for text in (trace["otherData"]["about"], *names):
            assert EXECUTED in text
            assert "1 us drawn is 1 memory operation, not performance" in text

    def test_writes_json(self, tmp_path: Path) -> None:
        write_perfetto(timeline(), tmp_path / "trace.json")
        assert json.loads((tmp_path / "trace.json").read_text()) == perfetto(timeline())

    def test_takes_an_empty_timeline(self) -> None:
        assert perfetto(of())["traceEvents"] == []


def pixels(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


class TestPng:
    @pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (4, 4), (4, 20)])
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


class TestArrows:
    def test_go_between_ranks_or_else_between_workers(self) -> None:
        assert _candidates(timeline(ranks=4))[1] == "rank"
        waits, between = _candidates(timeline(ranks=1, workers=2))
        assert between == "worker"
        assert waits == sorted(waits, key=lambda w: -w.duration)

    def test_show_only_the_last_wait_of_a_tile(self) -> None:
        first, second = (Span(1, k, "gather", "tile", "M[0:128]", 0.0, 2.0 + k) for k in (0, 1))
        waits = replace(WAIT, stop=2.0, cause=1), replace(WAIT, start=2.0, stop=3.0, cause=2)
        assert _candidates(of(TILE, first, second, *waits))[0] == [waits[1]]

    def test_show_no_wait_that_ended_as_it_began(self) -> None:
        """In logical time it takes a little nevertheless: its look at the signal."""
        other = Span(1, 0, "gather", "tile", "M[0:128]", 0.0, 2.0)
        waits = replace(WAIT, stop=2.0, cause=1), replace(WAIT, start=2.0, stop=2.5, cause=1)
        assert _candidates(of(TILE, other, *waits))[0] == [waits[0]]
        assert _candidates(of(TILE, other, waits[1]))[0] == []

    def test_are_few_enough_to_tell_apart(self) -> None:
        whole = timeline(ranks=8, workers=10, chunks=30)
        waits, _ = _candidates(whole)
        chosen = _chosen(_Page(whole), waits)
        assert len(waits) > 1000
        assert 10 < len(chosen) <= MOST_ARROWS
        assert all(x <= to_x for x, _, to_x, _ in chosen)
