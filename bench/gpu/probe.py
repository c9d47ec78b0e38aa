"""Probes whether this GPU does what `tilelink/runtime/cuda` assumes, and what it would use if it were sure.

A probe answers for a form of `tilelink.runtime.cuda.probed`, or only records what it saw. The answers are kept for this
GPU, driver, torch and Triton. Later steps and all programs then use the forms or refuse them. All waits of kernels are
bounded. A probe that does not end all the same is ended with the step, and has no answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.gpu.card import HELD_MS, Card
from bench.gpu.place import Place
from bench.gpu.report import Report
from bench.gpu.supervise import QUEUES
from tilelink.runtime.cuda import probed
from tilelink.runtime.cuda.device import CudaDevice

RANKS, REPLAYS = (2, 4, 8), 20
LAZY = "the first use of a kernel of torch"
Found = dict[str, Any]


def probe(place: Place, report: Report) -> None:
    """Runs all probes, and keeps their answers."""
    if not place.on_gpu:
        report.add("probe", ok=None, error="no GPU")
        return
    ask(Card(CudaDevice()), report, few_queues, own_warps)


def ask(card: Any, report: Report, queues: Callable[[], Found], warps: Callable[[], Found]) -> dict[str, bool]:
    """Runs all probes on a card, records what they see, and keeps the answers. A form that a card does not have is not
    used, and is no finding."""
    probes: dict[str, Callable[[], Found]] = {
        "virtual_ranks": lambda: virtual_ranks(card), "few_queues": queues,
        "stream_signals": lambda: stream_signals(card), "copies_beside_all_sms": lambda: beside_all_sms(card),
        "engines_in_graphs": lambda: engines_in_graphs(card), "graphs_together": lambda: graphs_together(card),
    }  # fmt: skip
    answers: dict[str, bool] = {}
    probed.write(card.stack, answers)  # drops the answers of an earlier probe

    def ask_for(form: str, asks: Callable[[], Found]) -> None:
        with report.case(f"probe: {probed.FORMS[form].doubt}", form=form) as found:
            found |= asks()
            answers[form] = found.pop("answer")
            found |= {"ok": answers[form] or None, "error": None if answers[form] else "no: the form is not used"}
            probed.write(card.stack, answers)

    for form, asks in probes.items():
        ask_for(form, asks)
    for what, do in {
        LAZY: card.first_kernel_of_torch,
        "a copy of rows that lie apart": card.rows_apart,
        "the first launch of a kernel that spills": card.first_spilling_kernel(),
    }.items():
        with report.case(f"probe: a host beside a kernel that waits: {what}") as found:
            found |= beside_a_wait(card, do)
            if what == LAZY:  # CUDA loads kernels late; virtual ranks are launched together for that reason
                found["ok"] = found["ok"] or None
    ask_for("own_warps", warps)  # the last, as it compiles, and may have to be ended
    return answers


def virtual_ranks(card: Any, kernels: int = 1) -> Found:
    """Lets kernels of 2, 4 and 8 ranks fill the device and wait for each other, each behind `kernels - 1` others."""
    found: Found = {"answer": True}
    for ranks in RANKS:
        card.clear()
        each, streams = card.full // ranks, [card.stream() for _ in range(ranks)]
        for row, stream in enumerate(streams):
            for _ in range(kernels - 1):
                card.count(stream, 1)
            card.meet(stream, each, row=row, need=each * ranks, gives=1)
        card.settle()
        seen = [card.seen(row) for row in range(ranks)]
        found[f"ms_of_{ranks}_ranks"] = max(ms for _, ms in seen)
        found["answer"] &= all(there >= each * ranks for there, _ in seen)
    return found


def few_queues() -> Found:
    """Sends two kernels a rank through one queue, in another process: CUDA reads the number of queues only once."""
    code = "from bench.gpu.probe import through_one_queue; through_one_queue()"
    return elsewhere(["-c", code], 30, **{next(iter(QUEUES)): "1"})


def through_one_queue() -> None:
    """Runs the probe in the process of `few_queues`, and prints what it finds."""
    print(json.dumps(virtual_ranks(Card(CudaDevice()), kernels=2)))


def own_warps() -> Found:
    """Checks the specialised form of kernels in a process that can be ended: waits at its barriers have no bound."""
    return elsewhere(["-m", "bench.gpu.forms"], 120)


def elsewhere(code: list[str], seconds: int, **env: str) -> Found:
    """Returns what another Python process prints as its last line. Raises if it fails, or after `seconds`."""
    command = [sys.executable, *code]
    options: dict[str, Any] = {"env": os.environ | env, "capture_output": True, "text": True, "timeout": seconds}
    found: Found = json.loads(subprocess.run(command, check=True, **options).stdout.splitlines()[-1])
    return found


def stream_signals(card: Any) -> Found:
    """Checks that a waiting kernel sees what a stream writes, and that work behind a stream's wait comes after it."""
    card.clear()
    card.meet(card.stream(), 1, row=0)
    card.write(card.stream(), 0)
    card.settle()
    there, ms = card.seen(0)
    if there < 1:  # the wait of a stream would never end
        return {"answer": False, "written_ms": ms}
    card.clear()
    waits = card.stream()
    card.wait(waits, 0)
    card.count(waits, 1)
    early = card.value(1)
    card.write(card.stream(), 0)
    card.settle()
    return {"answer": early == 0 and card.value(1) == 1, "written_ms": ms, "early": early}


def beside_all_sms(card: Any) -> Found:
    """Checks that a copy inside the device and a write after it go on while a kernel on all SMs waits for the write."""
    card.clear()
    copies = card.stream()
    card.meet(card.stream(), card.full, row=0)
    card.copy(copies)
    card.write(copies, 0)
    card.settle()
    there, ms = card.seen(0)
    return {"answer": there >= 1, "ms": ms}


def engines_in_graphs(card: Any) -> Found:
    """Replays a graph with two branches: a copy and a write, and a kernel that waits for the write. The branches are
    captured in both orders."""
    found: Found = {"answer": True}
    for order in ("copies first", "kernel first"):
        lane, copies, graph = card.stream(), card.stream(), card.graph()

        def branch(copies: Any = copies) -> None:
            card.copy(copies)
            card.write(copies, 0)

        with card.capture(graph, lane):
            card.follow(copies, lane)
            if order == "copies first":
                branch()
            card.meet(lane, card.full // 2, row=0)
            if order == "kernel first":
                branch()
            card.follow(lane, copies)
        worst = 0.0
        for _ in range(REPLAYS):
            card.clear()
            card.replay(graph, lane)
            card.settle()
            there, ms = card.seen(0)
            worst, found["answer"] = max(worst, ms), found["answer"] and there >= 1
            if not found["answer"]:
                break
        found[f"ms_{order.replace(' ', '_')}"] = worst
    return found


def graphs_together(card: Any) -> Found:
    """Makes the first replays of two graphs whose kernels wait for each other."""
    card.clear()
    each, graphs = card.full // 2, []
    for row in range(2):
        stream, graph = card.stream(), card.graph()
        with card.capture(graph, stream):
            card.meet(stream, each, row=row, need=2 * each, gives=1)
        graphs.append((graph, stream))
    for graph, stream in graphs:
        card.replay(graph, stream)
    card.settle()
    seen = [card.seen(row) for row in range(2)]
    return {"answer": all(there >= 2 * each for there, _ in seen), "ms": max(ms for _, ms in seen)}


def beside_a_wait(card: Any, do: Callable[[Any], object]) -> Found:
    """Measures how long `do` holds up the host while a kernel waits for the host's next step."""
    card.clear()
    card.meet(card.stream(), card.full // 2, row=0)
    began = time.perf_counter()
    do(card.stream())
    ms = (time.perf_counter() - began) * 1e3
    card.write(card.stream(), 0)
    card.settle()
    there, _ = card.seen(0)
    held = there < 1 or ms > HELD_MS
    return {"host_ms": round(ms, 2), "ok": not held, "error": "it waited for the kernel" if held else None}
