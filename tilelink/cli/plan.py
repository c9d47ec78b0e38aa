"""`tilelink plan`: for each linear layer of a model, whether to fuse its collective with it, and how."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tilelink.cli.command import Answer, Command, UsageError
from tilelink.cli.cores import on_all_cores
from tilelink.errors import TileLinkError

if TYPE_CHECKING:
    from tilelink.analysis.machine import Machine
    from tilelink.plans import Choice
    from tilelink.plans.model import Experts, Layer, Model

MACHINE = "h100"
TOKENS = "1,128,2048"
ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}
HEADS = ("layer", "op", "tokens", "unfused us", "fused us", "bound us", "choice", "schedule")
NO_PROGRAM = "no program of this library computes experts yet, so neither form is predicted; the bound is that of their "
NO_PROGRAM += "products and of reading their weights, with tokens spread evenly over the experts"


def run(args: argparse.Namespace) -> Answer:
    """Which linear layers of a model to fuse with their collective, by which schedule, and why: predicted."""
    from tilelink.analysis.machine import machine
    from tilelink.plans import MARGIN
    from tilelink.plans.model import model

    described, configured = machine(args.machine), model(args.config)
    tp = described.ranks_per_node if args.tp is None else args.tp
    if not 1 <= tp <= described.ranks:
        raise UsageError(f"--tp {tp}: {args.machine} has {described.ranks} GPUs")
    if args.ep < 1 or tp % args.ep:
        raise UsageError(f"--ep {args.ep}: experts are spread over so many of the {tp} ranks, which it has to divide")
    described.matmul_rate(configured.dtype)
    layers, experts = configured.layers(tp), configured.experts(tp, args.ep)
    if args.ep > 1 and not experts:
        raise UsageError(f"--ep {args.ep}: {configured.name} has no experts")
    rows = _rows(args.machine, tp, configured.dtype, layers, args.tokens)
    rows += [_of_experts(described, configured.dtype, e, n) for n in args.tokens for e in experts]
    rows.sort(key=lambda row: args.tokens.index(row["tokens"]))
    keys = {
        "label": "predicted", "machine": args.machine, "model": configured.name, "dtype": configured.dtype, "tp": tp,
        "ep": args.ep, "margin": MARGIN, "rows": rows,
    }  # fmt: skip
    return Answer(keys, _text(described, configured, tp, rows, MARGIN))


def _rows(machine: str, tp: int, dtype: str, layers: tuple[Layer, ...], tokens: list[int]) -> list[dict[str, Any]]:
    """Those of layers: with sequence parallelism, where every rank can have a token, then without it."""
    jobs = [
        (layer, operator, n)
        for n in tokens
        for sequence_parallel in (True, False)
        for layer in layers
        if (n >= tp if sequence_parallel else not layer.gathers)
        for operator in [
            "linear_all_reduce" if not sequence_parallel
            else "all_gather_linear" if layer.gathers else "linear_reduce_scatter"
        ]
    ]  # fmt: skip
    order = sorted(range(len(jobs)), key=lambda k: -jobs[k][2])  # what takes longest is begun first
    asked = [_asked(jobs[k][1], jobs[k][0], jobs[k][2], tp, machine, dtype) for k in order]
    rows: dict[int, dict[str, Any]] = {}
    for done, (at, found) in enumerate(on_all_cores(_chosen, asked), start=1):
        if isinstance(found, TileLinkError):
            raise found
        layer, operator, n = jobs[order[at]]
        rows[order[at]] = _row(layer.name, found)
        print(f"[{done}/{len(jobs)}] {layer.name} {operator} {n}: {found.choice}", file=sys.stderr, flush=True)
    return [rows[k] for k in sorted(rows)]


def _asked(operator: str, layer: Layer, tokens: int, tp: int, machine: str, dtype: str) -> dict[str, Any]:
    """The arguments of `choose`."""
    columns = layer.columns if layer.gathers else layer.columns[0]
    sizes = {"M": tokens, "N": columns, "K": layer.depth}
    return {"operator": operator, "world": tp, "machine": machine, "dtype": dtype, **sizes}


def _chosen(asked: dict[str, Any]) -> Choice:
    from tilelink.plans import choose

    return choose(**asked)


def _row(layer: str, choice: Choice) -> dict[str, Any]:
    fused = choice.fused
    return {
        "layer": layer, "op": choice.operator, "tokens": choice.shape["M"],
        "unfused_us": round(choice.unfused_us, 3), "fused_us": None if fused is None else round(fused.us or 0.0, 3),
        "bound_us": None if choice.bound_us is None else round(choice.bound_us, 3),
        "choice": choice.choice, "reason": choice.reason, "schedule": None if fused is None else fused.schedule,
        "program": None if fused is None else fused.program, "plan": choice.plan, "shape": dict(choice.shape),
    }  # fmt: skip


def _of_experts(machine: Machine, dtype: str, experts: Experts, tokens: int) -> dict[str, Any]:
    from tilelink.analysis.simulate.costs import GB_S, TFLOP_S

    rows = tokens * experts.each / experts.spread
    reached = min(experts.all / experts.spread, max(1.0, rows))
    products = 2 * rows * experts.columns * experts.depth / (machine.matmul_rate(dtype) * TFLOP_S)
    weights = reached * experts.columns * experts.depth * ITEM[dtype] / (machine.memory_rate * GB_S)
    shape = {"M": tokens, "N": experts.columns, "K": experts.depth, "experts": experts.all, "each": experts.each}
    return {
        "layer": experts.name, "op": None, "tokens": tokens, "unfused_us": None, "fused_us": None,
        "bound_us": round(max(products, weights), 3), "choice": "unfused", "reason": NO_PROGRAM, "schedule": None,
        "program": None, "plan": None, "shape": shape,
    }  # fmt: skip


def _text(machine: Machine, model: Model, tp: int, rows: list[dict[str, Any]], margin: float) -> str:
    """For people: a table, and the reason of each row under it."""

    def time(us: float | None) -> str:
        return "-" if us is None else f"{us:,.1f}"

    lines = [
        [
            r["layer"], r["op"] or "-", f"{r['tokens']}", time(r["unfused_us"]), time(r["fused_us"]),
            time(r["bound_us"]), r["choice"], r["plan"] if r["choice"] == "fused" else "-",
        ]
        for r in rows
    ]  # fmt: skip
    widths = [max(len(line[k]) for line in [list(HEADS), *lines]) for k in range(len(HEADS))]

    def written(line: list[str]) -> str:
        cells = [c.rjust(w) if 2 <= k <= 5 else c.ljust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))]
        return "  ".join(cells).rstrip()

    said = [f"{model.name}, {model.dtype}, {tp} ranks on {machine.title}; predicted, not measured", ""]
    said += [written(list(HEADS)), *map(written, lines), ""]
    said += [f"fused where unfused takes {1 + margin:.2f} times as long at least. Why:"]
    for k, r in enumerate(rows):
        if k == 0 or r["reason"] != rows[k - 1]["reason"]:
            said.append(f"  {r['layer']}, {r['op'] or 'experts'}, {r['tokens']}: {r['reason']}")
    return "\n".join(said) + "\n"


def _tokens(text: str) -> list[int]:
    counts = [n.strip() for n in text.split(",")]
    if not all(n.isdecimal() and int(n) > 0 for n in counts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of tokens, such as {TOKENS}")
    return list(dict.fromkeys(map(int, counts)))


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="a model's config.json, as Hugging Face's transformers write it, or the folder "
        "it lies in; or a name: llama-3-8b, llama-3-70b, mixtral-8x7b",
    )  # fmt: skip
    parser.add_argument(
        "--machine", default=MACHINE, metavar="NAME", help="a machine of `tilelink machine list`, or the path of a "
        "description (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tp", type=int, metavar="N", help="ranks of tensor parallelism (default: all GPUs of a node of the machine)"
    )
    parser.add_argument(
        "--ep", type=int, default=1, metavar="N", help="of these ranks, over how many experts are spread; the others "
        "share each expert (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=_tokens, default=_tokens(TOKENS), metavar="N,...", help="tokens of all ranks in a pass through "
        f"the model (default: {TOKENS}). With as many as ranks or more, layers are planned with sequence parallelism "
        "(all_gather_linear, linear_reduce_scatter) and without (linear_all_reduce); with fewer, without",
    )  # fmt: skip


COMMAND = Command(run, "tilelink plan llama-3-8b --machine h800 --tp 8 --tokens 1,128,2048", flags)
