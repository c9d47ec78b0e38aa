"""The part of `make bench` that runs without a flag. It checks every program in every schedule at a small shape on CPU
ranks, and predicts the MLPs of the TileLink paper on eight H800s. No figure here is a measured time."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.cases import check_dtype, check_known
from bench.gpu.place import GEMMS
from bench.operands import Operands, takes_lists
from bench.records import Record
from bench.table import aligned, wrapped
from tilelink.analysis.machine import machine
from tilelink.analysis.simulate import FUSED, UNFUSED, Prediction
from tilelink.errors import TileLinkError
from tilelink.frontend.sizes import check_world
from tilelink.kernels import operators
from tilelink.plans import plans
from tilelink.plans.names import sizes_of
from tilelink.plans.unfused import unfused
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.tools.cli.program import shape_text
from tilelink.tools.cli.simulate import write_timeline

CHECK = "whether results on CPU ranks are right, at a small shape; no figure"
FORESEEN = "predicted time, which nobody measured; min and max are the interval around it"
ROWS, N, LIST, K, TILE, WORKERS = (48, 32, 32, 16), 96, (64, 32), 64, 32, 8
"""Sizes of a check: uneven rows of the ranks; columns, and the columns of two list members; depth; elements of a tile
along each dimension; and workers of a rank. Most tensors have several tiles, and a rest."""
MACHINE, WORLD, TOKENS, DTYPE = "h800", 8, 8192, "bfloat16"
"""The machine, ranks and tokens of predictions: as in the TileLink paper (arXiv 2503.20313)."""
BASELINE = "unfused: the product of a library, its collective, and their launches; predicted, too"


@dataclass(frozen=True)
class Check:
    """A check of one program in one schedule."""

    op: str
    schedule: str
    dtype: str
    world: int
    cost: ClassVar[float] = 1.0

    def run(self) -> list[Record]:
        try:
            return [self._record(**self._judged())]
        except Exception as e:  # a race, a deadlock, a kernel that fails: the other checks go on
            traceback.print_exc()
            return [self._record(ok=False, rel_rms=None, error=f"{type(e).__name__}: {e}")]

    def _judged(self) -> dict[str, Any]:
        program, sizes = self._program, self._sizes
        rows, dtype = sizes.pop("M"), getattr(torch, self.dtype)
        operands = Operands(program, rows, sizes, torch.device("cpu"), dtype=dtype, whole=False)
        schedule = operands.fitted(program.schedules[self.schedule].small(TILE, 2))
        world = CpuWorld(self.world, sms=WORKERS)
        found = operands.judge(world.run(lambda group: operands.call(program, group, schedule=schedule)))
        return {"ok": found["ok"], "rel_rms": found["rel_rms"], "limit": found["limit"], "error": None}

    @property
    def _program(self) -> Program:
        return operators()[self.op]

    @property
    def _sizes(self) -> dict[str, Any]:
        rows = tuple(ROWS[rank % len(ROWS)] for rank in range(self.world))
        return {"M": rows, "N": LIST if takes_lists(self._program) else N, "K": K}

    def _record(self, **found: Any) -> Record:
        return {
            **_nothing(), "op": self.op, "shape": shape_text(self._sizes), "dtype": self.dtype, "world": self.world,
            "schedule": self.schedule, "workers": WORKERS, "kind": "measured", "what": CHECK,
            "repeats": 1, **found,
        }  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A prediction of a linear layer of an MLP, in all schedules that compute it. `out`: the folder for the page of the
    fastest."""

    name: str
    operator: str
    n: int
    k: int
    out: Path
    tokens: int = TOKENS
    world: int = WORLD
    cost: ClassVar[float] = 3.0

    def run(self) -> list[Record]:
        shape: dict[str, Any] = {"M": self.tokens, "N": self.n, "K": self.k}
        plain = unfused(self.operator, machine(MACHINE), self.world, DTYPE, shape).total_us
        made: list[tuple[Record, Prediction | None]] = []
        for plan in plans(self.operator).values():
            program, schedule = plan.program, str(plan.schedule)
            head = {
                **_nothing(), "op": program.name, "layer": self.name, "shape": shape_text(shape), "dtype": DTYPE,
                "world": self.world, "schedule": schedule, "kind": "predicted", "what": FORESEEN, "for": MACHINE,
                "baseline": BASELINE, "unfused_us": round(plain, 3),
                "unfused_interval_us": [round(us, 3) for us in UNFUSED.of(plain)],
            }  # fmt: skip
            try:
                sizes = sizes_of(program, shape)
                found = program.simulate(schedule, machine=MACHINE, world=self.world, dtypes=DTYPE, **sizes)
            except TileLinkError as e:
                made.append((head | {"ok": False, "error": e.message}, None))
                continue
            least, most = found.interval_us
            figures = {
                "ok": True, "median_us": round(found.makespan_us, 3), "min_us": round(least, 3),
                "max_us": round(most, 3), "bound_us": round(found.bound_us, 3),
                "speedup": round(plain / found.makespan_us, 4), "interval": asdict(FUSED),
            }  # fmt: skip
            made.append((head | figures, found))
        fine = [(record, found) for record, found in made if found is not None]
        if fine:
            record, prediction = min(fine, key=lambda one: one[1].makespan_us)
            page = self.out / f"{record['op']}-{record['schedule']}-{self.name.replace(' ', '-')}.html"
            write_timeline(prediction, str(page), record["schedule"])
            record["page"] = page.name
        return [record for record, _ in made]


def _nothing() -> Record:
    """Returns a record without findings."""
    keys = ("layer", "work", "rel_rms", "limit", "error", "baseline", "logical", "median_us", "min_us", "max_us")
    return {"repeats": 0, "ok": False, **dict.fromkeys((*keys, "workers", "speedup", "bound_us"))}


Job = Check | Layer


def run(job: Job) -> list[Record]:
    """Runs a job, and returns its records."""
    return job.run()


def jobs(ops: Sequence[str] | None, worlds: Sequence[int], dtypes: Sequence[str], out: Path) -> list[Job]:
    """Returns checks of the programs `ops` (by default all), and the layers that they compute. Raises UsageError,
    WorldError and DtypeError."""
    known = operators()
    for op in ops or ():
        check_known(op, known)
    for dtype in dtypes:
        check_dtype(dtype)
    for world in worlds:
        check_world(world)
    chosen = [op for op in known if not ops or op in ops]
    checks = [Check(op, s, d, w) for w, d, op in product(worlds, dtypes, chosen) for s in known[op].schedules]
    return [*checks, *(la for la in layers(out) if {p.program.name for p in plans(la.operator).values()} & set(chosen))]


def layers(out: Path) -> list[Layer]:
    """Returns both layers of each MLP, in a rank's sizes: the first gathers, the second scatters."""
    both = [
        (
            Layer(f"MLP-{number} up", "all_gather_linear", i // WORLD, h, out),
            Layer(f"MLP-{number} down", "linear_reduce_scatter", h, i // WORLD, out),
        )
        for number, (h, i) in enumerate(GEMMS.values(), 1)
    ]
    return [layer for of_one in both for layer in of_one]


def text(made: Sequence[Record]) -> str:
    """Returns the records as text tables."""
    checks = [r for r in made if r["kind"] == "measured"]
    foreseen = [r for r in made if r["kind"] == "predicted"]
    return "\n".join([*([_checked(checks)] if checks else []), *([_foreseen(foreseen)] if foreseen else [])])


def _checked(made: Sequence[Record]) -> str:
    """Returns the table of checks, with a row for each program, world and dtype."""
    right = sum(r["ok"] for r in made)
    rows = [["program", "on", "shape", "schedules that are right", "relative RMS, worst"]]
    wrong = []
    for (op, world, dtype), group in groupby(made, key=lambda r: (r["op"], r["world"], r["dtype"])):
        of = list(group)
        worst = max((r["rel_rms"] for r in of if r["rel_rms"] is not None), default=None)
        names = ", ".join(r["schedule"] for r in of if r["ok"])
        rows.append([op, f"{world} ranks, {dtype}", of[0]["shape"], names, "none" if worst is None else f"{worst:.2e}"])
        for r in of:
            if not r["ok"]:
                why = r["error"] or f"the relative RMS, {r['rel_rms']:.2e}, is over the limit of {r['limit']:.1e}"
                wrong.append(f"WRONG: {op}, {r['schedule']}, {world} ranks, {dtype}: {why}\n")
    head = f"Executed on CPU ranks and searched for races: {right} of {len(made)} schedules of programs are right\n"
    return "\n".join([head, aligned(rows), wrapped(_meaning(made)) + "\n", *wrong])


def _meaning(made: Sequence[Record]) -> str:
    """Returns a note on the sizes in the table, and on the limits of right results."""
    lists = any(f"N={'+'.join(map(str, LIST))}" in r["shape"] for r in made)
    of_lists = f", N={'+'.join(map(str, LIST))} the columns of two weights" if lists else ""
    limits = sorted({r["limit"] for r in made if r["limit"] is not None})
    most = " to ".join(f"{n:.2e}" for n in dict.fromkeys(limits[:1] + limits[-1:]))
    right = f" A schedule is right if its relative RMS against float64 is at most its limit: {most}." if limits else ""
    return f"M={made[0]['shape'].split('M=')[1].split(',')[0]} are the rows of each rank{of_lists}.{right}"


def _foreseen(made: Sequence[Record]) -> str:
    """Returns the table of predictions, with a row for each layer and schedule."""
    rows = [["layer", "unfused us", "bound us", "program, schedule", "predicted us", "times as fast as unfused"]]
    for name, group in groupby(made, key=lambda r: r["layer"]):
        of = list(group)
        plain = of[0]["unfused_us"]
        unfused_us = " to ".join(f"{us:,.0f}" for us in of[0]["unfused_interval_us"])
        firsts = [f"{name} {of[0]['shape']}", unfused_us]
        for r in of:
            how = f"{r['op']}, {r['schedule']}"
            if r["ok"]:
                between = [r["min_us"], r["max_us"]]
                ratios = " to ".join(f"{plain / us:.2f}" for us in reversed(between))
                took = " to ".join(f"{us:,.0f}" for us in between)
                rows.append([*firsts, f"{r['bound_us']:,.0f}", how, took, ratios])
            else:
                rows.append([*firsts, "", how, f"none: {r['error']}", ""])
            firsts = ["", ""]
    about = (
        f"Predicted, not measured, for {machine(MACHINE).title}, {TOKENS} tokens, {DTYPE}: the MLPs of the TileLink "
        f"paper. Fused times are {FUSED} of what is predicted ({FUSED.source}), unfused ones {UNFUSED}. The last "
        "column is the predicted unfused time divided by both ends of the fused interval."
    )
    return f"{wrapped(about)}\n\n{aligned(rows)}"


def said(records: list[Record]) -> str:
    """Returns a line of text on a job that is done."""
    first = records[0]
    if first["kind"] == "measured":
        return f"{first['op']}, {first['schedule']}: {'right' if first['ok'] else 'WRONG'}"
    return f"{first['layer']}: predicted in {len(records)} schedules"
