"""Two models with the same parameters: ours, and max(operations / rate, bytes / bandwidth)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from bench.validation.forms import FORMS, library_matmul
from bench.validation.rows import AG, Published, Row, Source
from tilelink.analysis.machine import Machine, machine
from tilelink.analysis.simulate import predict as predict_steps
from tilelink.analysis.simulate.steps import Steps

Parameters = Mapping[str, float]
EVENTS, SIMPLE = "events", "simple"


@dataclass(frozen=True)
class Case:
    """One published number."""

    source: Source
    row: Row
    published: Published

    @property
    def link(self) -> str:
        """The name of the parameter with the link rate of this case."""
        return f"link:{self.published.implementation}:{'AG' if self.row.operator == AG else 'RS'}"


def defaults(source: Source) -> dict[str, float]:
    """Returns all parameters from the machine description; a link has the rate of the form's agent."""
    found = machine(source.machine)
    rate = found.matmul_rate("bfloat16")
    made = {"matmul": rate, "library": rate, "collective": found.collective}
    made |= {"fixed": found.launch_us, "host": found.launch_us, "l2": found.l2_total}
    for row in source.rows:
        for p in row.published:
            if p.form is not None:
                made[Case(source, row, p).link] = found.agent(FORMS[p.form].moves).saturation
    return made


def to_fit(source: Source) -> dict[str, float]:
    """Returns the parameters that a fit begins with. L2 is unbounded, since fitted rates include its effect."""
    return {**defaults(source), "l2": math.inf}


def predict(model: str, case: Case, parameters: Parameters) -> float:
    """Returns milliseconds, or for a row of speed-ups how many times as fast as unfused."""
    fused = case.published.form
    own = {k: v for k, v in parameters.items() if not k.startswith("link:")}
    if fused is None:
        return unfused_us(model, case, own) / 1e3
    took = _fused(model, case, own, parameters[case.link])
    return unfused_us(model, case, own) / took if case.published.speedup else took / 1e3


def _fused(model: str, case: Case, own: Parameters, link: float) -> float:
    row, source = case.row, case.source
    if model == SIMPLE:
        device = max(_operations(row) / own["matmul"] / 1e6, _bytes(row, source.world) / link / 1e3)
    else:
        assert case.published.form is not None
        device = (
            _simulated(
                case.published.form, source.machine, source.world, row.m, row.n, row.k, own["matmul"], link, own["l2"]
            )
            - machine(source.machine).launch_us
        )
    return max(own["host"], device + own["fixed"])


@lru_cache(maxsize=100_000)
def _simulated(
    form: str, name: str, world: int, m: int, n: int, k: int, rate: float, link: float, l2: float
) -> float:  # fmt: skip
    found, agent = machine(name), FORMS[form].moves
    changed = found.changed(**{"matmul.bfloat16": rate, "l2_total": l2, f"agents.{agent}.saturation": link})
    changed = changed.changed(inside_rate=found.memory_rate)  # they leave a rank's own rows where they are
    if not found.agent(agent).on_sm:  # an engine is one worker: its own rate keeps its ratio to the link rate
        share = found.agent(agent).push / found.agent(agent).saturation
        changed = changed.changed(**{f"agents.{agent}.push": link * share, f"agents.{agent}.pull": link * share})
    steps = _steps(form, name, world, m, n, k)
    return predict_steps(steps, changed, dict(FORMS[form].agents)).makespan_us


@lru_cache(maxsize=8)
def _steps(form: str, name: str, world: int, m: int, n: int, k: int) -> Steps:
    return FORMS[form].steps(machine(name), world, m, n, k)


def unfused_us(model: str, case: Case, own: Parameters) -> float:
    """Returns microseconds of a library's matmul and collective, and two launches."""
    row, source = case.row, case.source
    found: Machine = machine(source.machine)
    collective = _bytes(row, source.world) / own["collective"] / 1e3 + found.collective_us
    if model == SIMPLE:
        return _operations(row) / own["library"] / 1e6 + collective + 2 * found.launch_us
    product = library_matmul(source.machine, own["library"], row.m, row.n, row.k)
    return product + collective + 2 * found.launch_us


def _operations(row: Row) -> float:
    return 2.0 * row.m * row.n * row.k


def _bytes(row: Row, world: int) -> float:
    """Returns the bytes in bf16 that reach a rank: all rows but its own, of x (all-gather) or of partial sums."""
    return row.m * (row.k if row.operator == AG else row.n) * 2.0 * (world - 1) / world
