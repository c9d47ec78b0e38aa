"""Findings of a step, written at once: one JSON line each, with the keys of `bench`."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.gpu.place import Place
from bench.progress import say
from bench.records import machine, versions

MEASURED, COMPILED = "measured", "compiled"
BEGUN = "begun"
"""The `what` of the first line of a step."""
RIGHT, WRONG, NOT_DONE, OUT_OF_TIME, DIED = "right", "wrong", "not done", "out of time", "died"
"""Verdicts. A case that is out of time was ended or not begun when the time of its step was over; it may be right."""
TIME_IS_OVER = "the time of this step is over"
WORDS = {RIGHT: "ok", WRONG: "WRONG", NOT_DONE: "skipped", OUT_OF_TIME: "TIME", DIED: "DIED"}


class Report:
    """Findings of one step, appended to `path`. `seconds`: after this time no other case is begun."""

    def __init__(self, path: Path, step: str, place: Place, command: str, seconds: float) -> None:
        self.path, self.step, self.place = path, step, place
        self.about = {"versions": versions(), "machine": {**machine(), "gpu": place.device}, "command": command}
        self.until, self.lost = time.monotonic() + seconds, ""
        self.failed = 0
        now_of(path).unlink(missing_ok=True)

    def begun(self) -> None:
        """Writes the first line of a step, so that a step that hangs has a line, too."""
        self.say(f"step {self.step}")
        self._write(BEGUN, None, MEASURED)

    @contextmanager
    def case(self, what: str, **about: Any) -> Iterator[dict[str, Any]]:
        """A context for one finding. It records the entries of the yielded dictionary, with `ok` True by default. An
        error is a finding, too."""
        found: dict[str, Any] = {}
        if why := self.over():
            verdict = OUT_OF_TIME if why == TIME_IS_OVER else DIED
            self.add(what, ok=None, verdict=verdict, error=f"not begun: {why}", **about)
            raise OutOfTimeError
        began = time.monotonic()
        now_of(self.path).write_text(f"{what}: {where_of(about)}")
        try:
            yield found
        except Exception as e:
            found |= {"ok": False, "error": f"{type(e).__name__}: {e}", "traceback": traceback.format_exc(limit=-6)}
            found |= {"lost": True} if self._is_lost() else {}
        found.setdefault("ok", True)
        found = self.settled(found)
        if found.pop("lost", False):
            self.lost = f"after an error of the device this process can do nothing more: {found['error']}"
        self.add(what, **about, **found, seconds=round(time.monotonic() - began, 3))

    def _is_lost(self) -> bool:
        """Whether the device has an error that all later work would have, too."""
        try:
            self.place.settle()
        except RuntimeError:
            return True
        return False

    def over(self) -> str:
        """Returns why no other case is begun, or ""."""
        return self.lost or (TIME_IS_OVER if time.monotonic() > self.until else "")

    def settled(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns what is written of a case's findings."""
        return found

    def say(self, text: str) -> None:
        """Prints progress."""
        say(text)

    def add(self, what: str, *, ok: bool | None, kind: str = MEASURED, verdict: str = "", **found: Any) -> None:
        """Writes a finding. `verdict`: by default it follows from `ok`."""
        verdict = verdict or {True: RIGHT, False: WRONG, None: NOT_DONE}[ok]
        self._write(what, ok, kind, verdict=verdict, **found)
        self.failed += ok is False
        word, where = WORDS[verdict], where_of(found)
        ranks = f" on {found['world']} ranks" if found.get("world") else ""
        figure = f": {found['median_us']:.1f} us" if found.get("median_us") else ""
        versus = f", {found['speedup']:.3f} of {found['baseline']}" if found.get("speedup") else ""
        error = f": {found['error']}" if found.get("error") else ""
        self.say(f"{word:<7} {what}: {where}{ranks}{figure}{versus}{error}")

    def _write(self, what: str, ok: bool | None, kind: str, **found: Any) -> None:
        kind = kind if self.place.on_gpu or kind == COMPILED else "interpreted"
        keys = ("op", "shape", "dtype", "world", "schedule", "rel_rms", "median_us", "min_us", "max_us", "repeats")
        blank = dict.fromkeys((*keys, "baseline", "speedup", "bound_us", "error"))
        head = {"step": self.step, "kind": kind, "what": what, "ok": ok, "verdict": NOT_DONE}
        record = {**head, **blank, **found, **self.about}
        with self.path.open("a") as file:
            file.write(json.dumps(record, default=str) + "\n")


def now_of(path: Path) -> Path:
    """Returns the file next to the findings that names a step's current case, for the process that may end it."""
    return path.with_suffix(".now")


def where_of(found: Mapping[str, Any]) -> str:
    """Returns a text that tells cases of the same kind apart."""
    return " ".join(str(found[k]) for k in ("op", "dtype", "schedule", "shape") if found.get(k))


class OutOfTimeError(Exception):
    """The time of a step is over."""


def spread(us: Sequence[float]) -> dict[str, Any]:
    """Returns the figures of repeated measurements, in microseconds."""
    ordered = [round(u, 3) for u in us]
    return {"median_us": median(ordered), "min_us": min(ordered), "max_us": max(ordered), "repeats": len(ordered)}
