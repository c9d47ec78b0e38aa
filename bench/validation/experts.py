"""Compares published times of layers of experts with predictions of our programs. No parameter is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Any

from tilelink.analysis.machine import Machine, machine
from tilelink.analysis.simulate import predict, steps_of
from tilelink.frontend.schedule import SMs
from tilelink.kernels.combine import combine
from tilelink.kernels.dispatch import dispatch
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.plans.experts import Tokens
from tilelink.plans.layer_plans import OF_TOKENS, plans_of
from tilelink.plans.model import DOWN, GATE_UP, Experts, WholeLayer, model
from tilelink.plans.routings import power_law
from tilelink.programs.program import Program

RANKS = 8
OURS, ITS = "as we ship it", "as its source is built"
"""Predictions for DeepEP: our schedule on as many SMs, which load rows from peers; and half of the SMs at the rate of
stores to peers, since half of DeepEP's SMs send and the others receive (csrc/kernels/intranode.cu)."""
BF16, FLOAT8, BOUND = "our programs, bfloat16", "our programs, float8", "bound"
ONE, ONCE, FEW = "our one kernel, bfloat16", "ours, a token once, bfloat16", "our programs for few rows"
PLANNED = "our planner"


@dataclass(frozen=True)
class Beside:
    """A published time and predictions by name, in microseconds. `part`: the part of the layer that is measured."""

    part: str
    row: str
    published: float
    predicted: dict[str, float]

    @property
    def off(self) -> dict[str, float]:
        return {name: p / self.published - 1 for name, p in self.predicted.items()}


@dataclass(frozen=True)
class Table:
    """Rows of one source. `note` says what is predicted, and what the prediction leaves out."""

    name: str
    where: str
    note: str
    rows: tuple[Beside, ...]


def tables() -> Iterator[Table]:
    """Yields all tables, with predictions made now."""
    for name in ("h100", "b200"):
        yield _deep_ep(name)
        yield _low_latency(name)
    yield _flux()
    yield _division_points()
    yield _mega_moe()


# ---- DeepEP, by number of SMs

WIDTH, TOP, EXPERTS = 7168, 8, 256
DEEP_EP = {  # tokens of a rank, SMs: microseconds of dispatch and of combine
    "h100": {
        (128, 4): (108.37, 186.01), (128, 8): (71.28, 118.72), (128, 16): (52.56, 86.59),
        (128, 24): (48.64, 82.31), (512, 4): (305.76, 564.03), (512, 8): (177.65, 319.65),
        (512, 16): (109.40, 200.27), (512, 24): (95.43, 181.70), (2048, 4): (1060.32, 1990.78),
        (2048, 8): (573.91, 1066.29), (2048, 16): (316.45, 595.21), (2048, 24): (269.95, 526.16),
    },
    "b200": {
        (128, 4): (115.89, 186.99), (128, 8): (79.39, 126.10), (128, 16): (62.66, 93.44),
        (128, 24): (54.90, 82.73), (512, 4): (320.91, 529.43), (512, 8): (190.14, 311.75),
        (512, 16): (125.45, 199.26), (512, 24): (101.21, 160.21), (2048, 4): (1111.96, 1844.04),
        (2048, 8): (596.52, 1009.02), (2048, 16): (339.46, 582.93), (2048, 24): (253.43, 435.83),
    },
}  # fmt: skip


def _deep_ep(name: str) -> Table:
    rows, described = [], {ITS: _pushing(machine(name)), OURS: machine(name)}
    for (tokens, sms), published in DEEP_EP[name].items():
        for operator, took in zip(("dispatch", "combine"), published, strict=True):
            predict = _dispatched if operator == "dispatch" else _combined
            predicted = {form: predict(on, tokens, sms, form) for form, on in described.items()}
            rows.append(Beside(operator, f"{tokens} tokens a rank, {sms} SMs", took, predicted))
    note = (
        f"{RANKS} ranks, {EXPERTS} experts, top {TOP}, hidden size {WIDTH}. Dispatch moves float8 rows with their\n"
        "scale factors, combine bfloat16. A token goes once to each rank that has experts of it, as our\n"
        "`ElasticBuffer` sends it: our programs have one expert a rank here. Uniform routing is assumed."
    )
    where = "NVIDIA aiconfigurator (095f58a), DeepEP normal kernels, one node"
    return Table(f"DeepEP, {RANKS}x {name.upper()}", where, note, tuple(rows))


def _once(tokens: int) -> list[list[int]]:
    """Returns the rows of each rank from each rank: the number of tokens with at least one choice on the rank."""
    there = 1 - comb(EXPERTS - EXPERTS // RANKS, TOP) / comb(EXPERTS, TOP)
    return [[round(tokens * there)] * RANKS] * RANKS


def _dispatched(on: Machine, tokens: int, sms: int, form: str) -> float:
    movers = sms if form == OURS else sms // 2
    halves = (WIDTH + 4 * WIDTH // 128) // 2  # in float16: float8 rows, and a float32 factor for 128
    return _took(dispatch, f"pull,dispatch_rows.count={movers}", on, tokens, _once(tokens), K=halves)


def _combined(on: Machine, tokens: int, sms: int, form: str) -> float:
    schedule = f"pull,combine_rows.count={sms // 2},add_up.count={sms // 2}"
    return _took(combine, schedule, on, tokens, _once(tokens), K=WIDTH, top=RANKS)


def _pushing(on: Machine) -> Machine:
    """Returns the machine with loads from peers as fast as stores to them: our schedules then cost as pushes do."""
    return on.changed(**{"agents.load_store.pull": on.agent("load_store").push})


def _took(
    program: Program, schedule: str, on: Machine, tokens: int, routed: Any, experts: int = 1, **sizes: int
) -> float:
    """Returns microseconds of a program. Its structure shows that it is safe, so no events are checked."""
    given: dict[str, Any] = {"tokens": RANKS * tokens, "routed": routed, "experts": experts, **sizes}
    bound = program.bound_at(schedule, world=RANKS, sizes=given, dtypes="float16", per_node=on.nodes_of(RANKS))
    return float(predict(steps_of(*bound, on, {}), on, {}).makespan_us)


# ---- DeepEP's kernels of low latency: a row for each choice of a token

LOW_LATENCY = {  # tokens of a rank: microseconds of dispatch and of combine; hidden size 7168, top 8 of 256 experts
    "h100": {
        1: (13.19, 14.40), 4: (13.93, 14.95), 16: (15.62, 20.53), 64: (24.57, 39.72), 256: (62.56, 129.51),
        1024: (224.06, 489.43),
    },
    "b200": {
        1: (22.08, 22.06), 4: (21.13, 23.64), 16: (23.29, 23.11), 64: (26.61, 31.45), 256: (44.50, 62.91),
        1024: (129.63, 189.29),
    },
}  # fmt: skip


def _low_latency(name: str) -> Table:
    rows, on = [], machine(name)
    few = {"dispatch": "pull,dispatch_rows.tile=16xnone"}
    few["combine"] = "pull,combine_rows.tile=16xnone,add_up.tile=16x128"
    for tokens, published in LOW_LATENCY[name].items():
        routed, each = RANKS * tokens * TOP, EXPERTS // RANKS
        halves = (WIDTH + 4 * WIDTH // 128) // 2
        ours = (
            _took(dispatch, few["dispatch"], on, tokens, routed, each, K=halves),
            _took(combine, few["combine"], on, tokens, routed, each, K=WIDTH, top=TOP),
        )
        for part, took, predicted in zip(few, published, ours, strict=True):
            rows.append(Beside(part, f"{tokens} tokens a rank", took, {FEW: predicted}))
    note = (
        f"{RANKS} ranks, {EXPERTS} experts, top {TOP}, hidden size {WIDTH}. Dispatch moves float8 rows with their\n"
        "scale factors, combine bfloat16; both move a row for each choice of a token. Ours are `dispatch` and\n"
        "`combine` in tiles of 16 rows, as in the schedules `few`, on all SMs."
    )
    where = "NVIDIA aiconfigurator (095f58a), DeepEP low-latency kernels, one node"
    return Table(f"DeepEP, low latency, {RANKS}x {name.upper()}", where, note, tuple(rows))


# ---- FLUX: a slice of every expert on some or all ranks

FLUX = {  # machine, ranks that share an expert: milliseconds of layer 0 unfused and fused, and of layer 1
    ("l20", 8): (26.792, 7.813, 42.092, 7.976),
    ("l20", 4): (26.911, 8.727, 34.850, 8.445),
    ("h800", 8): (4.702, 1.146, 10.452, 1.863),
    ("h800", 4): (4.069, 1.335, 6.672, 1.685),
}


def _flux() -> Table:
    m, every, top = 8192, 32, 4
    rows = []
    for (name, slices), (_, first, _, second) in FLUX.items():
        each, part = every * slices // RANKS, m // slices
        rank_rows = m * top * slices // RANKS
        routed = [[m * top // every // RANKS] * RANKS] * (each * RANKS)
        cut = f"{name.upper()}, {slices} ranks share an expert"
        for layer, took in ((0, first), (1, second)):
            described = machine(name)
            if layer == 0:
                ours = _took(dispatch_matmul, "push", described, m // RANKS, routed, each, K=m, N=part)
            else:
                ours = _took(matmul_combine, "push", described, m // RANKS, routed, each, K=part, N=m, top=top * slices)
            product = 2 * rank_rows * m * part / described.matmul_rate("bfloat16") / 1e6
            moved = 2 * m * m * _reached(top, RANKS // slices) * (RANKS - 1) / RANKS
            bound = max(product, moved / described.agent("copy_engine").saturation / 1e3)
            product_of = {"columns": part, "depth": m} if layer == 0 else {"columns": m, "depth": part}
            experts = Experts((GATE_UP, DOWN)[layer], every, top, **product_of, spread=RANKS // slices, cut=slices)
            predicted = {BF16: ours, ONCE: _once_a_token(experts, described, m), BOUND: bound}
            rows.append(Beside(f"layer {layer}", cut, took * 1e3, predicted))
    note = (
        "M=K=N=8192, 32 experts, top 4. FLUX gathers each token once on each rank, and adds up the choices of\n"
        "a token before it sends them. *Our programs* send a row for each slice of each choice: with 8 slices 4\n"
        "times as many as FLUX. *A token once* is the fastest schedule of those that send a token once to a rank,\n"
        "and add up before they send (plans `once`). The bound is the longer of the product and of FLUX's bytes at\n"
        "the copy engine's rate. Uniform routing is assumed."
    )
    return Table("FLUX, experts in slices, 8 ranks", "bytedance/flux docs/performance.md", note, tuple(rows))


def _once_a_token(experts: Experts, on: Machine, tokens: int) -> float:
    """Returns microseconds of a product, by the fastest schedule that sends a token once to a rank."""
    program = OF_TOKENS.first if experts.name == GATE_UP else OF_TOKENS.second
    form = Tokens(on, "bfloat16", tokens).forms(experts, plans_of(OF_TOKENS, program)).fastest
    assert form is not None and form.us is not None
    return form.us


# ---- COMET: SMs for communication

DIVISION_POINTS = {(8, 4096): 18, (8, 16384): 26, (4, 16384): 46}
"""Ranks that share an expert, tokens: SMs of 132 (arXiv 2502.19811, section 3)."""


def _division_points() -> Table:
    rows, on = [], machine("h800")
    for (slices, tokens), published in DIVISION_POINTS.items():
        experts = model("mixtral-8x7b").experts(RANKS, RANKS // slices)[1]
        asked = Tokens(on, "bfloat16", tokens)
        forms = asked.on_other_sms(experts, asked.forms(experts, plans_of(OF_TOKENS, OF_TOKENS.second)))
        assert forms.prediction is not None
        resources = [r.resource for r in forms.prediction.steps.events.program.roles]
        ours = sum(r.count or 0 for r in resources if isinstance(r, SMs))
        rows.append(Beside("SMs", f"TP{slices}, {tokens} tokens", published, {PLANNED: ours}))
    note = (
        "SMs for communication in layer 1, of 132: a number and no time. Our planner tries powers of two times what\n"
        "the schedule has, for the sums that leave and for those that arrive. The source does not name the model;\n"
        "we take Mixtral 8x7B."
    )
    return Table("COMET, division points, 8x H800", "arXiv 2502.19811, section 3", note, tuple(rows))


def _reached(top: int, groups: int) -> float:
    """Returns the share of tokens that have an expert in a group of ranks, for `groups` groups."""
    return 1 - (1 - 1 / groups) ** top


# ---- Mega MoE: the whole layer in one kernel

MEGA_MOE = {  # hidden size, size of an expert, top, experts, tokens of a rank, power law: microseconds
    (3584, 3072, 16, 896, 128, False): 425.6, (3584, 3072, 16, 896, 512, False): 541.3,
    (3584, 3072, 16, 896, 1024, False): 746.5, (3584, 3072, 16, 896, 1024, True): 990.1,
    (7168, 3072, 6, 384, 128, False): 362.8, (7168, 3072, 6, 384, 512, False): 407.9,
    (7168, 3072, 6, 384, 2048, False): 911.6,
}  # fmt: skip


def _mega_moe() -> Table:
    rows, on = [], machine("b200")
    for (hidden, inner, top, every, tokens, skewed), took in MEGA_MOE.items():
        of_all, each = tokens * RANKS, every // RANKS
        first, second = WholeLayer.of(every, top, hidden, inner, RANKS, 1)
        routed: Any = power_law(first, of_all) if skewed else of_all * top
        few = "few" if of_all * top < 32 * every else "push"
        predicted = {}
        for name, halves in ((BF16, 1), (FLOAT8, 2)):
            up = {"K": hidden // halves, "N": 2 * inner}
            down = {"K": inner // halves, "N": hidden, "top": top}
            predicted[name] = sum(
                _took(program, few, on, tokens, routed, each, **sizes)
                for program, sizes in ((dispatch_matmul, up), (matmul_combine, down))
            )
        predicted[ONE] = _took(mixture_of_experts, few, on, tokens, routed, each, K=hidden, N=inner, top=top)
        predicted[BOUND] = sum(_float4_bound(e, on, of_all) for e in (first, second))
        routing = "power law 1.2" if skewed else "balanced"
        what = f"{hidden} x {inner}, top {top} of {every}, {tokens} tokens a rank, {routing}"
        rows.append(Beside("layer", what, took, predicted))
    note = (
        "One kernel of DeepGEMM in float8 by float4, on 8 ranks; the last three rows are of GB200, predicted as\n"
        "B200. *Our one kernel* is `mixture_of_experts`. *Our programs* are the sum of `dispatch_matmul` and\n"
        "`matmul_combine`, without the activation between them. *float8* halves the bytes and\n"
        "the work of each product and keeps the results in 16 bits; no program of ours computes it. The bound is\n"
        "the longer of float8 products and of reading float4 weights, where tokens go evenly to experts."
    )
    return Table("Mega MoE, 8x B200", "NVIDIA aiconfigurator (095f58a), DeepGEMM Mega MoE", note, tuple(rows))


def _float4_bound(experts: Experts, on: Machine, tokens: int) -> float:
    rows = tokens * experts.each / experts.spread
    read = min(experts.all / experts.spread, rows) * experts.columns * experts.depth / 2
    products = rows * experts.columns * experts.depth / on.matmul_rate("bfloat16") / 1e6
    return max(products, read / on.memory_rate / 1e3)
