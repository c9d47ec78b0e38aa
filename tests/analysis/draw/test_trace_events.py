"""Traces of timelines, read by a small model of how Perfetto does it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.analysis.timelines import TILE, WAIT, of, timeline
from tilelink.analysis.draw import perfetto, write_perfetto
from tilelink.analysis.timeline import EXECUTED, MEMORY_OPERATIONS, Span


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
