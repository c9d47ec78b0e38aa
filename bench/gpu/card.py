"""The operations of a GPU that the probe uses: kernels that wait for a word for a bounded time, copies, signals."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import triton
import triton.language as tl

from tilelink.runtime.cuda.device import CudaDevice, load
from tilelink.runtime.cuda.driver import driver

LIMIT = 1_500_000
"""Polls of each wait: on an H200 0.26 us each, 0.4 s in all. Threads have timers that differ, and all have to leave a
wait alike."""
HELD_MS = 200.0
"""A host that is held up for this long waits for a kernel that polls to its limit."""
WORDS, ROWS, WARPS = 8, 32, 32
SAW, TOOK, GAVE_UP = range(3)
"""What is written in a row: what the first program saw, its nanoseconds, and how many programs waited in vain."""
COPIED = 64 << 20
LONG = 4096
"""Columns of a block that does not fit into registers."""


@triton.jit
def _now():  # type: ignore[no-untyped-def]
    timer: tl.constexpr = "mov.u64 $0, %globaltimer;"
    return tl.inline_asm_elementwise(timer, "=l,~{memory}", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["gives", "need", "limit"])
def meet(word, gives, need, seen, limit):  # type: ignore[no-untyped-def]
    """Adds to a word; waits until it is at least `need`, or for `limit` polls. The first program writes what it saw and
    how many nanoseconds that took; every program that gave up is counted. (Where one gives up, its SM is free, and the
    others may see what could not happen before.)"""
    began = _now()
    tl.atomic_add(word, gives, sem="release", scope="sys")
    there = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    polls = 0
    while (there < need) & (polls < limit):
        there = tl.atomic_add(word, 0, sem="acquire", scope="sys")
        polls += 1
    if there < need:
        tl.atomic_add(seen + 2, 1)
    if tl.program_id(0) == 0:
        tl.store(seen, there.to(tl.int64))
        tl.store(seen + 1, _now() - began)


@triton.jit
def count(word):  # type: ignore[no-untyped-def]
    tl.atomic_add(word, 1)


@triton.jit
def spill(x, out, COLS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A kernel whose threads need local memory: all of a block is read before any of it is written."""
    rows, cols = tl.arange(0, 16), tl.arange(0, COLS)
    block = tl.load(x + rows[:, None] * COLS + cols[None, :])
    tl.debug_barrier()
    tl.store(out + rows[:, None] * COLS + cols[None, :], tl.sqrt(block) + tl.sum(block, 1)[:, None])


class Card:
    """A GPU. `full`: how many workers of `meet` fill the device. Words are numbered from 0; a kernel writes what it saw
    to a row. In tests a model of a card takes its place."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.stack = device, device.stack
        self._words = torch.zeros(WORDS, dtype=torch.int32, device=device.place)
        self._seen = torch.zeros(ROWS, 3, dtype=torch.int64, device=device.place)
        self._source = torch.ones(COPIED, dtype=torch.uint8, device=device.place)
        self._target = torch.zeros_like(self._source)
        with torch.cuda.device(device.place):
            given = {"word": self._words, "gives": 1, "need": 1, "seen": self._seen, "limit": LIMIT}
            self._meet = load(meet, given, driver(), num_warps=WARPS)
            self._count = load(count, {"word": self._words}, driver(), num_warps=1)
        self.full = self._meet.workers_per_sm * device.sms
        self.copy(self.stream())
        self.settle()

    def stream(self) -> Any:
        return self.device.stream()

    def clear(self) -> None:
        """Waits for all work, then sets all words and rows to zero."""
        self.settle()
        self._words.zero_(), self._seen.zero_()
        self.settle()

    def meet(self, stream: Any, workers: int, *, row: int, word: int = 0, need: int = 1, gives: int = 0) -> None:
        """Launches workers that wait together."""
        launch = self._meet.compiled[workers, 1, 1]
        launch(self._words[word:], gives, need, self._seen[row], LIMIT, stream=stream.cuda_stream)

    def count(self, stream: Any, word: int) -> None:
        """Launches a kernel that adds 1 to a word."""
        self._count.compiled[1, 1, 1](self._words[word:], stream=stream.cuda_stream)

    def copy(self, stream: Any) -> None:
        """Enqueues a copy inside the device."""
        self.device.copy(stream, self._source, self._target)

    def write(self, stream: Any, word: int) -> None:
        self.device.write_signal(stream, self._words[word:].data_ptr())

    def wait(self, stream: Any, word: int) -> None:
        self.device.wait_for_signal(stream, self._words[word:].data_ptr(), 1)

    def follow(self, stream: Any, before: Any) -> None:
        self.device.follow(stream, before)

    def capture(self, graph: Any, stream: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = torch.cuda.graph(graph, stream=stream)
        return found

    def graph(self) -> Any:
        return torch.cuda.CUDAGraph()

    def replay(self, graph: Any, stream: Any) -> None:
        with self.device.on(stream):
            graph.replay()

    def settle(self) -> None:
        torch.cuda.synchronize(self.device.place)

    def value(self, word: int) -> int:
        """Returns a word; works while kernels wait."""
        aside = self.stream()
        with self.device.on(aside):
            found = int(self._words[word].item())
        return found

    def seen(self, row: int) -> tuple[int, float]:
        """What a kernel saw at last, 0 if one of its workers gave up, and after how many milliseconds."""
        row_of = self._seen[row].tolist()
        return row_of[SAW] if not row_of[GAVE_UP] else 0, round(row_of[TOOK] / 1e6, 3)

    # ---- what may hold up a host

    def first_kernel_of_torch(self, stream: Any) -> None:
        """Launches a kernel of torch that CUDA has not loaded yet."""
        with self.device.on(stream):
            torch.special.i1e(torch.ones(64, device=self.device.place))

    def rows_apart(self, stream: Any) -> None:
        """Enqueues a copy of rows that are not contiguous, as copy engines make it."""
        rows = self._source[: 1 << 20].view(1024, 1024)
        self.device.copy(stream, rows[:, :512], rows[:, 512:])

    def first_spilling_kernel(self) -> Any:
        """Loads a kernel that needs more local memory than any before, and returns a function that launches it."""
        x = torch.ones(16, LONG, device=self.device.place)
        out = torch.empty_like(x)
        with torch.cuda.device(self.device.place):
            kernel = load(spill, {"x": x, "out": out, "COLS": LONG}, driver(), num_warps=1)

        def launch(stream: Any) -> None:
            kernel.compiled[1, 1, 1](x, out, LONG, stream=stream.cuda_stream)

        return launch
