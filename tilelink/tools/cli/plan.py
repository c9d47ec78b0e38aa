"""`tilelink plan`: for each linear layer of a model, whether to fuse its collective with it, and how."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilelink.errors import TileLinkError
from tilelink.tools.cli.command import Answer, Command, UsageError
from tilelink.tools.cli.cores import on_all_cores

if TYPE_CHECKING:
    from tilelink.analysis.machine import Machine
    from tilelink.plans import Choice
    from tilelink.plans.model import Experts, Layer, Model

MACHINE = "h100"
TOKENS = "1,128,2048"
HEADS = ("layer", "op", "tokens", "unfused us", "fused us", "bound us", "choice", "plan")
NUMBERS = range(2, 6)
"""Columns that are numbers."""
Row = dict[str, Any]


def run(args: argparse.Namespace) -> Answer:
    """Which linear layers of a model to fuse with their collective, by which schedule, and why: predicted."""
    from tilelink.analysis.machine import machine
    from tilelink.analysis.simulate.interval import FUSED, UNFUSED
    from tilelink.plans import MARGIN
    from tilelink.plans.model import model

    described, configured = machine(args.machine), model(args.config)
    tp = described.ranks if args.tp is None else args.tp
    if not 1 <= tp <= described.ranks:
        raise UsageError(f"--tp {tp}: {args.machine} has {described.ranks} GPUs")
    if args.ep < 1 or tp % args.ep:
        raise UsageError(f"--ep {args.ep}: experts are spread over so many of the {tp} ranks, which it has to divide")
    described.matmul_rate(configured.dtype)  # says what is wrong where there is none
    layers, experts = configured.layers(tp), configured.experts(tp, args.ep)
    if args.ep > 1 and not experts:
        raise UsageError(f"--ep {args.ep}: {configured.name} has no experts")
    questions = [(layer, asked) for n in args.tokens for layer, asked in _questions(layers, n, tp)]
    common = {"world": tp, "machine": args.machine, "dtype": configured.dtype}
    rows = _rows([(layer.name, asked | common) for layer, asked in questions])
    of_experts = [(args.machine, configured.dtype, e, n) for n in args.tokens for e in experts]
    rows += _results(_of_experts, of_experts, lambda row: f"{row['layer']}, {row['tokens']} tokens: {row['choice']}")
    rows.sort(key=lambda row: args.tokens.index(row["tokens"]))
    keys = {
        "label": "predicted", "machine": args.machine, "model": configured.name, "dtype": configured.dtype, "tp": tp,
        "ep": args.ep, "margin": MARGIN, "interval": FUSED.keys(), "unfused_interval": UNFUSED.keys(), "rows": rows,
    }  # fmt: skip
    return Answer(keys, _text(described, configured, tp, rows, MARGIN))


def _questions(layers: tuple[Layer, ...], tokens: int, tp: int) -> list[tuple[Layer, Row]]:
    """The arguments of `choose` for each layer that needs a collective: with sequence parallelism, where every rank can
    have a token, then without."""

    def sizes(layer: Layer) -> Row:
        return {"M": tokens, "N": layer.columns if layer.gathers else layer.columns[0], "K": layer.depth}

    spread = [
        (layer, {"operator": "all_gather_linear" if layer.gathers else "linear_reduce_scatter", **sizes(layer)})
        for layer in layers
        if tokens >= tp
    ]
    return spread + [(la, {"operator": "linear_all_reduce", **sizes(la)}) for la in layers if not la.gathers]


def _rows(asked: list[tuple[str, Row]]) -> list[Row]:
    """Those of `asked`: the name of a layer, and the arguments of `choose`."""
    longest = sorted(range(len(asked)), key=lambda k: -asked[k][1]["M"])  # what takes longest is begun first
    rows = _results(
        _of_layer, [asked[k] for k in longest],
        lambda row: f"{row['layer']}, {row['op']}, {row['tokens']} tokens: {row['choice']}",
    )  # fmt: skip
    return [rows[longest.index(k)] for k in range(len(asked))]


def _results(run: Callable[[Any], Row], jobs: list[Any], said: Callable[[Row], str]) -> list[Row]:
    """The rows of jobs, on all cores; each is told when it is there."""
    rows: dict[int, Row] = {}
    for done, (at, found) in enumerate(on_all_cores(run, jobs) if jobs else (), start=1):
        if isinstance(found, TileLinkError):
            raise found
        rows[at] = found
        print(f"[{done}/{len(jobs)}] {said(found)}", file=sys.stderr, flush=True)
    return [rows[k] for k in sorted(rows)]


def _of_layer(asked: tuple[str, Row]) -> Row:
    from tilelink.plans import choose

    return _row(asked[0], choose(**asked[1]))


def _row(layer: str, choice: Choice) -> Row:
    fused = choice.fused
    return {
        "layer": layer, "op": choice.operator, "tokens": choice.shape["M"], "unfused_us": round(choice.unfused_us, 3),
        "fused_us": None if choice.fused_us is None else round(choice.fused_us, 3),
        **_intervals(choice.unfused_us, choice.fused_us),
        "bound_us": None if choice.bound_us is None else round(choice.bound_us, 3),
        "choice": choice.choice, "reason": choice.reason, "schedule": None if fused is None else fused.schedule,
        "program": None if fused is None else fused.program, "plan": choice.plan, "shape": dict(choice.shape),
    }  # fmt: skip


def _intervals(unfused_us: float | None, fused_us: float | None) -> Row:
    """The times between which both forms lie."""
    from tilelink.analysis.simulate.interval import FUSED, UNFUSED

    both = {"unfused_interval_us": (UNFUSED, unfused_us), "fused_interval_us": (FUSED, fused_us)}
    return {k: None if us is None else [round(t, 3) for t in i.of(us)] for k, (i, us) in both.items()}


def _of_experts(asked: tuple[str, str, Experts, int]) -> Row:
    """The row of a layer of experts, of a machine, dtype, layer and tokens. No operator computes it: it has no plan."""
    from tilelink.analysis.machine import machine
    from tilelink.plans import MARGIN
    from tilelink.plans.experts import CUT, experts_bound_us, experts_forms, experts_shape
    from tilelink.plans.reasons import reason

    described, (_, dtype, experts, tokens) = machine(asked[0]), asked
    shape = {"M": tokens, "N": experts.columns, "K": experts.depth, "experts": experts.all, "each": experts.each}
    row: Row = {
        "layer": experts.name, "op": None, "tokens": tokens, "unfused_us": None, "fused_us": None,
        **_intervals(None, None),
        "bound_us": round(experts_bound_us(experts, described, dtype, tokens), 3), "choice": "unfused", "reason": CUT,
        "schedule": None, "program": None, "plan": None, "shape": shape,
    }  # fmt: skip
    predicted = experts_forms(experts, described, dtype, tokens)
    if predicted is None:
        return row
    plain, forms = predicted
    assert forms.fastest is not None and forms.prediction is not None
    fused = forms.prediction.makespan_us
    return row | {
        "unfused_us": round(plain.total_us, 3), "fused_us": round(fused, 3), **_intervals(plain.total_us, fused),
        "bound_us": round(forms.prediction.bound_us, 3), "reason": reason(plain, forms, MARGIN),
        "choice": "fused" if plain.total_us >= (1 + MARGIN) * fused else "unfused",
        "schedule": forms.fastest.schedule, "program": forms.fastest.program, "shape": experts_shape(experts, tokens),
    }  # fmt: skip


def _text(machine: Machine, model: Model, tp: int, rows: list[Row], margin: float) -> str:
    """For people: a table, and the reasons under it."""
    from tilelink.analysis.simulate.interval import FUSED, UNFUSED

    def time(us: float | None) -> str:
        return "-" if us is None else f"{us:,.1f}"

    lines = [
        [
            r["layer"], r["op"] or "-", f"{r['tokens']}", time(r["unfused_us"]),
            " to ".join(map(time, r["fused_interval_us"] or [None])), time(r["bound_us"]),
            r["choice"], r["plan"] or "-",
        ]
        for r in rows
    ]  # fmt: skip
    widths = [max(len(line[k]) for line in [list(HEADS), *lines]) for k in range(len(HEADS))]

    def written(line: list[str]) -> str:
        cells = [c.rjust(w) if k in NUMBERS else c.ljust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))]
        return "  ".join(cells).rstrip()

    said = [f"{model.name}, {model.dtype}, {tp} ranks, {machine.title}: predicted, not measured"]
    said += [f"fused times are off by {FUSED} ({FUSED.source}), unfused ones by {UNFUSED}", ""]
    said += [written(list(HEADS)), *map(written, lines), ""]
    said += [f"A fused form is chosen where unfused takes {1 + margin:.2f} times as long, or longer. Why, row by row:"]
    for r in rows:
        said += ["", ", ".join([r["layer"], *([r["op"]] if r["op"] else []), f"{r['tokens']}"]), f"  {r['reason']}"]
    return "\n".join(said) + "\n"


def _tokens(text: str) -> list[int]:
    counts = [n.strip() for n in text.split(",")]
    if not all(n.isdecimal() and int(n) > 0 for n in counts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of tokens, such as {TOKENS}")
    return list(dict.fromkeys(map(int, counts)))


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="a model's config.json, as Hugging Face's transformers write it, or its "
        "folder; or a name: llama-3-8b, llama-3-70b, mixtral-8x7b",
    )  # fmt: skip
    parser.add_argument(
        "--machine", default=MACHINE, metavar="NAME", help="a machine of `tilelink machine list`, or the path of a "
        "description (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tp", type=int, metavar="N", help="ranks of tensor parallelism (default: all GPUs of the machine)"
    )
    parser.add_argument(
        "--ep", type=int, default=1, metavar="N", help="of these ranks, over how many experts are spread; the others "
        "share each expert (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=_tokens, default=_tokens(TOKENS), metavar="N,...", help="tokens of all ranks in one pass "
        f"through the model (default: {TOKENS}). Layers are planned without sequence parallelism (linear_all_reduce), "
        "and, with a token for every rank or more, with it, too (all_gather_linear, linear_reduce_scatter)",
    )  # fmt: skip


COMMAND = Command(run, "tilelink plan llama-3-8b --machine h800 --tp 8 --tokens 1,128,2048", flags)
