"""The answers of bench/gpu/probe.py about a GPU, kept for the programs that run on it.

Without an answer, a form is used only if nothing else would do; `FORMS` says which forms these are, and why a form is
in doubt. A form that a probe has refused is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilelink.backend.cache import cache_folder


@dataclass(frozen=True)
class Form:
    """A form. `unasked`: whether it is used before a probe has answered; `doubt`: the question of the probe."""

    unasked: bool
    doubt: str


FORMS = {
    "virtual_ranks": Form(True, "whether kernels of several ranks are on one device together"),
    "few_queues": Form(False, "whether two kernels a rank go through fewer queues than ranks"),
    "stream_signals": Form(True, "whether streams write a word for a kernel that waits, and wait for a word"),
    "copies_beside_all_sms": Form(False, "whether a copy inside a device needs an SM"),
    "engines_in_graphs": Form(
        False, "whether a graph runs a branch of copies beside the kernel that waits for their signals"
    ),
    "own_warps": Form(False, "whether the specialised form of kernels computes what it should"),
    "graphs_together": Form(True, "whether graphs that wait for each other can be launched one after the other"),
}
"""The forms that a probe switches."""


@dataclass(frozen=True)
class Probed:
    """The known answers, by form."""

    answers: Mapping[str, bool] = field(default_factory=dict)

    def allows(self, form: str) -> bool:
        """Whether a form may be used."""
        return self.answers.get(form, FORMS[form].unasked)

    def why_not(self, form: str) -> str:
        """The text of an error about a form that may not be used."""
        doubt = FORMS[form].doubt
        if form in self.answers:
            return f"bench/gpu/probe.py has asked this GPU {doubt}: no"
        return f"nobody has asked this GPU yet {doubt}: run python3 -m bench.gpu --step probe"


def _file() -> Path:
    return cache_folder() / "probed.json"


def read(stack: str) -> Probed:
    """The answers for the GPU, driver, torch and Triton of `stack`; none if no probe was run. Raises CacheError."""
    try:
        found = json.loads(_file().read_text()).get(stack, {})
    except FileNotFoundError:
        found = {}
    return Probed({form: bool(answer) for form, answer in found.items() if form in FORMS})


def write(stack: str, answers: Mapping[str, bool]) -> Path:
    """Keeps answers in place of the ones kept for that stack before; returns the file. Raises CacheError."""
    path = _file()
    kept = json.loads(path.read_text()) if path.exists() else {}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(kept | {stack: dict(answers)}, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)
    return path
