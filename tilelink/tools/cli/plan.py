"""`tilelink plan`: for each linear layer of a model, whether to fuse its collective with it, and how."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any, NamedTuple

from tilelink.analysis.machine import NCCL_SMS, Machine, machine
from tilelink.analysis.simulate import FUSED, JUDGED, UNFUSED
from tilelink.analysis.simulate.prediction import rounded
from tilelink.errors import ConfigError, TileLinkError, counted, similar
from tilelink.plans import MARGIN, Choice, choose
from tilelink.plans.experts import choose_experts, experts_bound_us
from tilelink.plans.model import Experts, Layer, Model, WholeLayer, known_models, model
from tilelink.plans.names import TORCH, sizes_of
from tilelink.plans.room import heap_bytes, room
from tilelink.plans.routings import EVEN, EXPONENT, ROUTINGS
from tilelink.plans.whole_layer import LayerChoice, choose_layer
from tilelink.tools.cli.command import Answer, Command, Flag, UsageError, columns, on_all_cores
from tilelink.tools.cli.program import machine_flag

TOKENS = "1,128,2048"
HEADS = ("layer", "op", "tokens", "unfused us", "fused us", "bound us", "choice", "plan")
NO_PROGRAM = "a program of the layer can't run on this machine"
WORDS = (0, 1, 6, 7)
"""Columns of the table that hold words, not numbers."""
KEYS = (
    "layer", "op", "tokens", "unfused_us", "fused_us", "unfused_interval_us", "fused_interval_us", "bound_us", "choice",
    "reason", "schedule", "program", "plan", "shape", "room", "heap_bytes", "forms_us",
)  # fmt: skip
Row = dict[str, Any]
"""A row by `KEYS`; a value is None where nothing is predicted."""


class Job(NamedTuple):
    """The question of a row: a layer as one of `tp` ranks has it, the operator that computes it, the tokens of all
    ranks, the SMs that fused forms leave to others, and how tokens go to experts."""

    machine: str
    dtype: str
    tp: int
    layer: Layer | Experts | WholeLayer
    operator: str
    tokens: int
    reserved: int
    routing: str


def run(args: argparse.Namespace) -> Answer:
    """Which linear layers of a model to fuse with their collective, by which schedule, and why: predicted."""
    described, configured = machine(args.machine), _model(args.config)
    tp = described.ranks if args.tp is None else args.tp
    if not 1 <= tp <= described.ranks:
        raise UsageError(f"--tp {tp}: {args.machine} has {counted(described.ranks, 'GPU')}")
    if args.ep < 1 or tp % args.ep:
        raise UsageError(f"--ep {args.ep}: experts are spread over groups of ranks, so it must divide {tp}")
    described.leaving(args.reserved).matmul_rate(configured.dtype)  # raises if it has no such rate
    try:
        layers, experts = configured.layers(tp), configured.experts(tp, args.ep)
    except ConfigError as e:
        if e.site is not None:
            raise
        raise ConfigError(f"--tp {tp}{f' --ep {args.ep}' if args.ep > 1 else ''}: {e.message}") from None
    if args.ep > 1 and not experts:
        raise UsageError(f"--ep {args.ep}: {configured.name} has no experts")
    rows = _rows([
        Job(args.machine, configured.dtype, tp, layer, operator, tokens, args.reserved, args.routing)
        for tokens in args.tokens
        for layer, operator in _operators(layers, experts, spread=tokens >= tp)
    ])  # fmt: skip
    keys = {
        "label": "predicted", "machine": args.machine, "model": configured.name, "dtype": configured.dtype, "tp": tp,
        "ep": args.ep, "routing": args.routing, "reserved": args.reserved, "margin": MARGIN, "interval": asdict(FUSED),
        "unfused_interval": asdict(UNFUSED), "rows": rounded(rows),
    }  # fmt: skip
    ep = args.ep if experts else None
    return Answer(keys, _text(described.leaving(args.reserved), configured, tp, ep, rows, args.routing))


def _model(config: str) -> Model:
    """The model with a name or in a file. Raises ConfigError."""
    try:
        return model(config)
    except ConfigError as e:
        if e.site is not None:
            raise
        raise ConfigError(f"{e.message}{similar(config, known_models())}") from None


def _operators(
    layers: Sequence[Layer], experts: Sequence[Experts], spread: bool
) -> Iterator[tuple[Layer | Experts | WholeLayer, str]]:
    """The operators of layers that need a collective: first with sequence parallelism, if every rank can have a token
    (`spread`), then without it; experts last."""
    if spread:
        yield from ((la, "all_gather_linear" if la.gathers else "linear_reduce_scatter") for la in layers)
    yield from ((la, "linear_all_reduce") for la in layers if not la.gathers)
    yield from zip(experts, ("dispatch_linear", "linear_combine"), strict=False)
    if experts:
        yield WholeLayer(*experts), "mixture_of_experts"


def _rows(jobs: Sequence[Job]) -> list[Row]:
    """The row of each job. Jobs run on all cores, the longest first; stderr tells of each row that is done."""
    longest = sorted(range(len(jobs)), key=lambda k: -jobs[k].tokens)
    rows: dict[int, Row] = {}
    for done, (k, found) in enumerate(on_all_cores(_row, [jobs[k] for k in longest]), start=1):
        if isinstance(found, TileLinkError):
            raise found
        rows[longest[k]] = found
        called = f"{found['layer']}, {found['op']}, {counted(found['tokens'], 'token')}"
        print(f"[{done}/{len(jobs)}] {called}: {found['choice']}", file=sys.stderr, flush=True)
    return [rows[k] for k in sorted(rows)]


def _row(job: Job) -> Row:
    """The prediction for a layer."""
    layer, tokens, described = job.layer, job.tokens, machine(job.machine)
    row: Row = dict.fromkeys(KEYS) | {"layer": layer.name, "op": job.operator, "tokens": tokens, "choice": "unfused"}
    choice: Choice | LayerChoice | None
    if isinstance(layer, WholeLayer):
        choice = choose_layer(layer, described, job.dtype, tokens, job.routing)
        row["reason"] = NO_PROGRAM
    elif isinstance(layer, Experts):
        choice = choose_experts(layer, described, job.dtype, tokens, job.routing)
        shape = {"M": tokens, "N": layer.columns, "K": layer.depth, "experts": layer.all, "each": layer.each}
        row |= {"reason": NO_PROGRAM, "shape": shape}
    else:
        choice = choose(
            job.operator, M=tokens, N=layer.columns if layer.gathers else layer.columns[0], K=layer.depth,
            world=job.tp, machine=job.machine, dtype=job.dtype, reserved=job.reserved,
        )  # fmt: skip
    if choice is not None:
        row |= {k: getattr(choice, k) for k in ("unfused_us", "fused_us", "bound_us", "choice", "reason")}
        if isinstance(layer, Experts | WholeLayer):
            rows, own = room(layer.products[0], tokens), ceil(tokens / job.tp)
            by = choice.fastest if isinstance(choice, LayerChoice) else choice.fused.plan if choice.fused else TORCH
            row |= {"room": rows, "heap_bytes": heap_bytes(layer, by, job.dtype, own, rows)}
        row |= {"shape": dict(choice.shape), "plan": choice.plan}
    if isinstance(layer, Experts | WholeLayer):
        row["bound_us"] = experts_bound_us(layer.products, described, job.dtype, tokens, job.routing)
    if isinstance(choice, LayerChoice):
        row["forms_us"] = dict(choice.forms_us)
    elif choice is not None and choice.fused is not None:
        row |= {"schedule": choice.fused.schedule, "program": choice.fused.program}
        row["shape"] = sizes_of(choice.fused.by.program, choice.shape)
    for form, interval in (("unfused", UNFUSED), ("fused", FUSED)):
        us = row[f"{form}_us"]
        row[f"{form}_interval_us"] = None if us is None else list(interval.of(us))
    return row


def _called(row: Row) -> str:
    return f"{row['layer']}, {row['op']}, {row['tokens']}"


def _text(machine: Machine, model: Model, tp: int, ep: int | None, rows: list[Row], routing: str) -> str:
    """For people: a table, and the reasons under it. `ep`: None for a model without experts."""

    def time(us: float | None) -> str:
        return "-" if us is None else f"{us:,.1f}"

    lines = [
        [
            r["layer"], r["op"], f"{r['tokens']}", time(r["unfused_us"]),
            " to ".join(map(time, r["fused_interval_us"] or [None])), time(r["bound_us"]),
            r["choice"], r["plan"] or "-",
        ]
        for r in rows
    ]  # fmt: skip
    said = [f"{model.name}, {model.dtype}, {counted(tp, 'rank')}, {machine.title}: predicted, not measured"]
    if model.other_dtype:
        said += [f"the file says {model.other_dtype} weights, which are not predicted: {model.dtype} is assumed"]
    if machine.reserved:
        said += [f"fused forms leave {machine.reserved} of {machine.sms} SMs to others; forms of experts leave none"]
    else:
        nccl = f"in a process group with NCCL they leave {NCCL_SMS} to it, as --reserved {NCCL_SMS} predicts"
        said += [f"fused forms have all {machine.sms} SMs; {nccl}"]
    said += [f"fused times are off by {FUSED} ({FUSED.source}), unfused ones by {UNFUSED}", ""]
    said += [*map(str.rstrip, columns(HEADS, lines, WORDS)), ""]
    said += [
        f"A fused form is chosen if unfused us is at least {1 + MARGIN:.2f} times the shorter of its two times. It may",
        "still be slower than unfused. Plans that wait in pieces are not tried: ask for them by name.",
    ]
    if any(row["tokens"] < JUDGED for row in rows):
        said += [f"No published row has fewer than {JUDGED} tokens: below that, nothing supports the intervals."]
    said += [
        "Without sequence parallelism, take the rows of linear_all_reduce; other layers need no collective. With it,",
        f"take the rows of all_gather_linear and linear_reduce_scatter; it needs {counted(tp, 'token')} or more.",
    ]
    if ep is not None:
        cut = f"{tp // ep} ranks share each expert, a slice of it each" if ep < tp else "each expert is on one rank"
        said += [
            f"Experts are spread over {ep} of {tp} ranks (--ep {ep}): {cut} (slices={tp // ep}).",
            "experts is the whole layer, experts_gate_up and experts_down are its two products alone.",
        ]
    said += ["bound us is the longest of three times: for the operations of the form's tiles, for the bytes between"]
    said += ["ranks, and for reading each input once and writing the results."]
    said += ["For experts it is the longer of two: for the operations, and for reading the weights."] * (ep is not None)
    if routing != EVEN:
        said += [f"Tokens go to experts by a power law: the k-th most wanted gets k^-{EXPONENT} of the first's."]
    said += ["Why, row by row:"]
    for row in rows:
        said += ["", _called(row), f"  {row['reason']}"]
        if row["room"] is not None:
            said += [
                f"  room for {row['room']:,} rows on a rank, so that none is dropped whatever the routing: "
                f"{row['heap_bytes']:,} bytes of its heap for a call"
            ]
    return "\n".join(said) + "\n"


def _tokens(text: str) -> list[int]:
    counts = [n.strip() for n in text.split(",")]
    if not all(n.isdecimal() and int(n) > 0 for n in counts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of tokens, such as {TOKENS}")
    return list(dict.fromkeys(map(int, counts)))


COMMAND = Command(
    run,
    "tilelink plan llama-3-8b --machine h800 --tp 8 --tokens 1,128,2048",
    [
        Flag(
            "config", metavar="CONFIG", help="a model's config.json, as Hugging Face's transformers write it, or its "
            "folder; or a name: llama-3-8b, llama-3-70b, mixtral-8x7b, qwen3-30b-a3b, deepseek-v3, and "
            "tilelink-moe-1 to -6, the layers of experts of TileLink's paper",
        ),
        machine_flag("h100"),
        Flag("--tp", type=int, metavar="N", help="ranks of tensor parallelism (default: all GPUs of the machine)"),
        Flag(
            "--ep", type=int, default=1, metavar="N", help="groups of ranks that experts are spread over; the ranks of "
            "a group share each expert, a slice each (default: %(default)s, a slice of every expert on each rank)",
        ),
        Flag(
            "--routing", choices=ROUTINGS, default=EVEN, help="how tokens go to experts: evenly, or by a "
            f"power law with exponent {EXPONENT} (default: %(default)s)",
        ),
        Flag(
            "--reserved", type=int, default=0, metavar="N", help="SMs that fused forms leave to others: kernels "
            "leave 24 to NCCL if it is the backend of their process group (default: %(default)s)",
        ),
        Flag(
            "--tokens", type=_tokens, default=_tokens(TOKENS), metavar="N,...", help="tokens of all ranks in one pass "
            f"through the model (default: {TOKENS}). Layers are planned without sequence parallelism "
            "(linear_all_reduce), and, with a token for every rank or more, with it, too (all_gather_linear, "
            "linear_reduce_scatter)",
        ),
    ],
)  # fmt: skip
