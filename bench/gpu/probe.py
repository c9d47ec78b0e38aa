"""Does this GPU do what `tilelink/runtime/cuda` takes for granted, and what it would use if it were sure?

Each probe answers for a form of `tilelink.runtime.cuda.probed`, or only says what it saw. The answers are kept for this
GPU, driver, torch and Triton: the steps that follow, and all programs, use the forms or refuse them. All waits of
kernels are bounded; what does not come to an end all the same is ended with the step, and answers nothing.
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
    """All probes; what they answer is kept."""
    if not place.on_gpu:
        report.add("probe", ok=None, error="no GPU")
        return
    ask(Card(CudaDevice()), report, few_queues, own_warps)


def ask(card: Any, report: Report, queues: Callable[[], Found], warps: Callable[[], Found]) -> dict[str, bool]:
    """Asks a card everything, writes down what it says, and keeps the answers. A form that a card does not have is no
    finding: it is not used."""
    probes: dict[str, Callable[[], Found]] = {
        "virtual_ranks": lambda: virtual_ranks(card), "few_queues": queues,
        "stream_signals": lambda: stream_signals(card), "copies_beside_all_sms": lambda: beside_all_sms(card),
        "engines_in_graphs": lambda: engines_in_graphs(card), "graphs_together": lambda: graphs_together(card),
    }  # fmt: skip
    answers: dict[str, bool] = {}
    probed.write(card.stack, answers)  # what an earlier probe found holds no longer

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
    """Kernels of 2, 4 and 8 ranks that fill the device and wait for each other, behind `kernels - 1` others each."""
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
    """Two kernels a rank through one queue. CUDA reads the number of queues once: another process asks."""
    code = "from bench.gpu.probe import through_one_queue; through_one_queue()"
    return elsewhere(["-c", code], 30, **{next(iter(QUEUES)): "1"})


def through_one_queue() -> None:
    """What the process of `few_queues` does."""
    print(json.dumps(virtual_ranks(Card(CudaDevice()), kernels=2)))


def own_warps() -> Found:
    """The specialised form of kernels, in a process that can be ended: nothing bounds its barriers."""
    return elsewhere(["-m", "bench.gpu.forms"], 50)


def elsewhere(code: list[str], seconds: int, **env: str) -> Found:
    """What another process of Python finds, and prints as its last line. Raises where it fails, or takes longer."""
    command = [sys.executable, *code]
    options: dict[str, Any] = {"env": os.environ | env, "capture_output": True, "text": True, "timeout": seconds}
    found: Found = json.loads(subprocess.run(command, check=True, **options).stdout.splitlines()[-1])
    return found


def stream_signals(card: Any) -> Found:
    """A kernel sees what a stream writes while it waits; what stands behind a stream's wait comes after the word."""
    card.clear()
    card.meet(card.stream(), 1, row=0)
    card.write(card.stream(), 0)
    card.settle()
    there, ms = card.seen(0)
    if there < 1:  # then nothing would end a stream's wait
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
    """A copy inside the device, and a write behind it, beside a kernel that has all SMs and waits for the write."""
    card.clear()
    copies = card.stream()
    card.meet(card.stream(), card.full, row=0)
    card.copy(copies)
    card.write(copies, 0)
    card.settle()
    there, ms = card.seen(0)
    return {"answer": there >= 1, "ms": ms}


def engines_in_graphs(card: Any) -> Found:
    """A graph with a branch of a copy and a write, and one of a kernel that waits for the write, captured in both
    orders, replayed some times."""
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
    """The first replays of two graphs whose kernels wait for each other."""
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
    """How long something holds up the host while a kernel waits for what the host would do next."""
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
