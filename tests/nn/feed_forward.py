"""A feed-forward layer by our styles, in the ways in which models use layers; the functions here run on every rank."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_styles
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from examples.parallel_llama_block import BATCH, OURS, TOKENS, WIDTH, Block, FeedForward
from tests.nn.on_ranks import LIMIT, REPLICATED, errors, far, mesh_of, nothing, own_tokens, step, whole
from tests.ops.auto_on_ranks import on_machine, predicting
from tests.ops.on_ranks import computed_by, new_counter, noted
from tilelink import nn as tnn
from tilelink.errors import TileLinkError

SPREAD = {k.partition(".")[2]: v for k, v in OURS.items() if k.startswith("feed_forward")}
"""A plan for it."""


def feed_forward(group: dist.ProcessGroup, plan: dict[str, ParallelStyle] | None = None) -> tuple[nn.Module, nn.Module]:
    """One that is parallel, and the same whole."""
    torch.manual_seed(3)
    layer = FeedForward(True)
    return parallelize_module(copy.deepcopy(layer), mesh_of(group), plan or SPREAD), layer


def compared(group: dist.ProcessGroup, parallel: nn.Module, right: nn.Module, **more: Any) -> list[str]:
    """What is wrong of a step."""
    torch.manual_seed(4)
    x, part = torch.randn(BATCH, TOKENS, WIDTH), own_tokens(group)
    return errors(step(parallel, part(x)), step(right, x), part, **more)


def round_trip(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer that was loaded with the state of one by torch's styles, and the other way round; and of
    one that was copied."""
    torchs = {
        "gate": torch_styles.ColwiseParallel(input_layouts=Shard(1)),
        "up": torch_styles.ColwiseParallel(input_layouts=Shard(1)),
        "down": torch_styles.RowwiseParallel(output_layouts=Shard(1)),
    }
    (ours, right), (theirs, _) = feed_forward(group), feed_forward(group, torchs)
    wrong = []
    for one, other in ((ours, theirs), (theirs, ours)):
        a, b = one.state_dict(), other.state_dict()
        if [(k, v.placements, v.shape) for k, v in a.items()] != [(k, v.placements, v.shape) for k, v in b.items()]:
            wrong.append(f"{a} and {b} are laid out otherwise")
        with torch.no_grad():
            for p in one.parameters():
                p.add_(torch.ones_like(p))
        other.load_state_dict(one.state_dict())
        right.load_state_dict({k: whole(v) for k, v in one.state_dict().items()})
        wrong += compared(group, copy.deepcopy(other), copy.deepcopy(right), limit=5e-5)
    return wrong


def checkpointed(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer whose forward is done again in the backward."""
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.layer, x, use_reentrant=False)

    parallel, right = map(Again, feed_forward(group))
    return compared(group, parallel, right) + compared(group, parallel, right)


def on_meta(group: dist.ProcessGroup) -> list[tuple[int, ...]]:
    """The shapes of results on the meta device, with a shared input and without."""
    plans = SPREAD, {"gate": tnn.ColwiseParallel(), "up": tnn.ColwiseParallel(), "down": tnn.RowwiseParallel()}
    x = torch.zeros(BATCH, TOKENS, WIDTH, device="meta")
    layers = [feed_forward(group, plan)[0].to("meta") for plan in plans]
    return [tuple(layer(of).shape) for layer, of in zip(layers, (own_tokens(group)(x), x), strict=True)]


class Tied(nn.Module):
    """Two uses of one layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = FeedForward(True), FeedForward(True)
        self.tie()

    def tie(self) -> None:
        for name in ("gate", "up", "down"):
            self.second.get_submodule(name).weight = self.first.get_submodule(name).weight  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def inferred(group: dist.ProcessGroup) -> list[str]:
    """What is wrong in `torch.inference_mode`, whose tensors count no changes."""
    parallel, right = feed_forward(group)
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        error = far(parallel(own_tokens(group)(x)), own_tokens(group)(right(x)))
    return [] if error < LIMIT else [f"{error:.1e}"]


def planned(group: dist.ProcessGroup) -> tuple[list[str], list[str]]:
    """The programs that a forward runs by plans, with their schedules; and what is wrong of it."""
    shared = tnn.SharedColwiseParallel("gate", "up", input_layouts=Shard(1), plan="pull")
    parallel, right = feed_forward(group, {"": shared, "down": tnn.RowwiseParallel(plan="one_shot")})
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4))
    with computed_by("interpret", group), noted() as runs, torch.no_grad():
        error = far(parallel(own_tokens(group)(x)), right(x))
    wrong = [] if error < LIMIT else [f"{error:.1e}"]
    return [f"{program.name} {options['schedule']}" for program, options in runs], wrong


def by_auto(group: dist.ProcessGroup) -> tuple[list[str], set[str], list[str]]:
    """The programs that steps by "auto" run where plain torch is predicted to be the fastest, what they ask for, and
    what is wrong of them."""
    found: tuple[list[str], set[str], list[str]] = [], set(), []
    for tokens, part in ((Shard(1), own_tokens(group)), (Replicate(), nothing)):
        shared = tnn.SharedColwiseParallel("gate", "up", input_layouts=tokens, plan="auto")
        plan = {"": shared, "down": tnn.RowwiseParallel(output_layouts=tokens, plan="auto")}
        parallel, right = feed_forward(group, plan)
        x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4))
        told = on_machine("h800"), predicting(lambda *_: "torch")
        with computed_by("interpret", group), noted() as runs, told[0], told[1] as asked:
            found[2].extend(errors(step(parallel, part(x)), step(right, x), part))
        found[0].extend(program.name for program, _ in runs)
        found[1].update(operator for operator, _ in asked)
    return found


class Doubled(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Crossed(nn.Module):
    """Whose second argument several linears share, one of them in a list."""

    def __init__(self, kind: type[nn.Linear]) -> None:
        super().__init__()
        self.k, self.rest = nn.Linear(WIDTH, WIDTH), nn.ModuleList([kind(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        assert memory.shape == (BATCH, TOKENS, WIDTH)
        y: torch.Tensor = self.k(memory) * self.rest[0](memory)
        return y


def another_argument(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of linears that share the second argument, given by its place and by its name; of one class and of
    two, of which torch has to compute one."""
    wrong, part = [], own_tokens(group)
    for kind in (nn.Linear, Doubled):
        torch.manual_seed(3)
        right = Crossed(kind)
        style = tnn.SharedColwiseParallel("k", "rest.0", input_layouts=Shard(1), argument="memory")
        parallel = parallelize_module(copy.deepcopy(right), mesh_of(group), style)
        assert ("ColwiseLinear" in str(parallel)) == (kind is nn.Linear)
        x = torch.randn(BATCH, TOKENS, WIDTH)
        wanted = right(x, x).chunk(dist.get_world_size(group), -1)[dist.get_rank(group)]
        found = [parallel(x, part(x)), parallel(x, memory=part(x))]
        wrong += [f"{kind.__name__}: {far(y, wanted):.1e}" for y in found if not far(y, wanted) < LIMIT]
    return wrong


class Quantized(torch.Tensor):
    """A weight in int8, one scale a row, as torchao puts it in the place of a DTensor: it has neither the mesh of that,
    nor its local part."""

    numbers: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, scale: torch.Tensor) -> Quantized:
        made: Quantized = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)  # type: ignore[attr-defined]
        made.numbers, made.scale = numbers, scale
        return made

    @classmethod
    def of(cls, weight: torch.Tensor) -> Quantized:
        scale = weight.detach().abs().amax(1, keepdim=True) / 127
        return cls((weight.detach() / scale).round().to(torch.int8), scale)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.detach.default  # of nn.Parameter
        return cls(args[0].numbers, args[0].scale)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return super().__torch_function__(func, types, args, kwargs or {})
        x, weight, *bias = args
        return func(x, weight.numbers.to(x.dtype) * weight.scale, *bias)


def quantized(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of layers whose weights are no DTensors any more, beside some that are; by torch's styles the same
    bits come out."""
    wrong, part = [], own_tokens(group)
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4))
    torchs = {
        "gate": torch_styles.ColwiseParallel(input_layouts=Shard(1)),
        "up": torch_styles.ColwiseParallel(input_layouts=Shard(1)),
        "down": torch_styles.RowwiseParallel(output_layouts=Shard(1)),
    }
    for names in (("gate", "down"), ("gate", "up", "down")):
        (ours, right), (theirs, _) = feed_forward(group), feed_forward(group, torchs)
        for layer in (ours, theirs):
            for name in names:
                linear = layer.get_submodule(name)
                linear.weight = nn.Parameter(Quantized.of(linear.weight), requires_grad=False)
        y, same, wanted = ours(part(x)), theirs(part(x)), part(right(x))
        if not far(y, wanted) < 2e-2 or (len(names) == 3 and not torch.equal(y, same)):
            wrong.append(f"{names}: {far(y, wanted):.1e} from what is whole, {far(y, same):.1e} from torch's")
    return wrong


def in_float64(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer in float64, which no program has: in results and gradients."""
    parallel, right = feed_forward(group)
    torch.manual_seed(4)
    x, part = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64), own_tokens(group)
    both = [step(layer.double(), t) for layer, t in ((parallel, part(x)), (right, x))]
    return errors(both[0], both[1], part) + [n for n, t in both[0].items() if t.dtype != torch.float64]


class Wrapped(nn.Module):
    """Hands on what it gets, and may add something of its own."""

    def __init__(self, layer: nn.Module, own: bool) -> None:
        super().__init__()
        self.layer, self.more = layer, nn.Linear(WIDTH, 4) if own else None

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def wrapped(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer one of whose linears was wrapped afterwards."""
    parallel, right = feed_forward(group)
    parallel.gate = Wrapped(parallel.get_submodule("gate"), False)
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4))
    y, wanted = parallel(own_tokens(group)(x)), own_tokens(group)(right(x))
    return [] if far(y, wanted) < LIMIT else [f"{far(y, wanted):.1e}"]


def an_embedding(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of an embedding, which torch spreads, and of a weight whose whole values are those of rank 1."""
    torch.manual_seed(3)
    right = nn.Embedding(8, 6)
    style = tnn.RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallel = parallelize_module(copy.deepcopy(right), mesh_of(group), style)
    ids = torch.arange(8)
    wrong = [] if torch.equal(parallel(ids), right(ids)) else ["the embedding"]
    torch.manual_seed(dist.get_rank(group))
    linear = nn.Linear(WIDTH, WIDTH)
    parallel = parallelize_module(linear, mesh_of(group), tnn.ColwiseParallel(), src_data_rank=1)
    torch.manual_seed(1)
    return wrong + ["rank 1's"] * (not torch.equal(whole(parallel.weight), nn.Linear(WIDTH, WIDTH).weight))  # type: ignore[arg-type]


def behind_torchs(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of our styles behind torch's, whose results are under way still when they are given on."""
    wrong = []
    for between in (Shard(1), Replicate()):
        torch.manual_seed(3)
        right = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        parallel = parallelize_module(copy.deepcopy(right), mesh_of(group), {
            "0": torch_styles.ColwiseParallel(input_layouts=Shard(1)),
            "1": torch_styles.RowwiseParallel(output_layouts=between),
            "2": tnn.ColwiseParallel(input_layouts=between),
            "3": tnn.RowwiseParallel(output_layouts=Shard(1)),
        })  # fmt: skip
        wrong += compared(group, parallel, right)
    return wrong


def broken_off(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a step after a forward that called only the gate, with the same tensor."""
    parallel, right = feed_forward(group)
    torch.manual_seed(4)
    x, part = torch.randn(BATCH, TOKENS, WIDTH), own_tokens(group)
    mine = DTensor.from_local(part(x), mesh_of(group), [Shard(1)])
    parallel.gate(mine)  # type: ignore[operator]
    with torch.no_grad():
        for p in (*parallel.parameters(), *right.parameters()):
            p.mul_(2)
    swapped = [copy.copy(layer) for layer in (parallel, right)]
    for layer in swapped:
        layer.forward = lambda x, of=layer: of.down(of.up(x) * of.gate(x))
    y, wanted = swapped[0](mine), part(swapped[1](x))
    return [] if far(y, wanted) < LIMIT else [f"{far(y, wanted):.1e}"]


def tied(group: dist.ProcessGroup) -> list[str]:
    torch.manual_seed(3)
    right = Tied()
    plan = {f"{n}.{k}".rstrip("."): v for n in ("first", "second") for k, v in SPREAD.items()}
    parallel = parallelize_module(copy.deepcopy(right), mesh_of(group), plan)
    parallel.tie()
    return compared(group, parallel, right)


def uneven_features(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of layers whose features the ranks can't share evenly: they are as in torch, by "auto" too."""
    wrong = []
    whole_output: dict[str, Any] = {"input_layouts": Shard(1), "use_local_output": False}
    shared = tnn.SharedColwiseParallel("gate", "up", plan="auto", **whole_output)
    one = tnn.ColwiseParallel(**whole_output)
    for plan in ({"": shared}, {"gate": one, "up": one}):
        torch.manual_seed(3)
        layer = FeedForward(True)
        layer.gate, layer.up, layer.down = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)
        parallel = parallelize_module(copy.deepcopy(layer), mesh_of(group), {"down": SPREAD["down"], **plan})
        assert "ColwiseLinear" not in str(parallel) and "RowwiseLinear" not in str(parallel)
        wrong += compared(group, parallel, layer)
    return wrong


def uneven_tokens(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer for tokens that a DTensor spreads unevenly, and of its result, which is one, too."""
    plan = SPREAD | {"down": tnn.RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}
    parallel, right = feed_forward(group, plan)
    wrong = []
    for tokens in (5, 1):
        torch.manual_seed(5)
        x = torch.randn(BATCH, tokens, WIDTH)
        spread = distribute_tensor(x, mesh_of(group), [Shard(1)])
        wrong += errors(step(parallel, spread), step(right, x), nothing)
    return wrong


def inside_autocast(group: dist.ProcessGroup, backend: str) -> list[str]:
    """What is wrong of layers in torch.autocast, with two roundings to bfloat16 in a row."""
    wrong = []
    for plan in (SPREAD, {k.partition(".")[2]: v for k, v in REPLICATED.items() if k.startswith("feed_forward")}):
        parallel, right = feed_forward(group, plan)
        part = own_tokens(group) if plan is SPREAD else nothing
        torch.manual_seed(4)
        x = torch.randn(BATCH, TOKENS, WIDTH)
        with computed_by(backend, group):
            found = step(parallel, part(x), autocast=True)
        dtypes = {n: t.dtype for n, t in found.items() if t.dtype != torch.float32}
        wrong += [] if dtypes == {"result": torch.bfloat16} else [str(dtypes)]
        wrong += errors(found, step(right, x), part, limit=1e-2)
    return wrong


def prepared(group: dist.ProcessGroup) -> tuple[int, int, list[str]]:
    """How many programs `prepare` launches for a layer, how many a step has to prepare then, what is wrong of it."""
    import tilelink.ops as ops

    parallel, right = feed_forward(group)
    x = own_tokens(group)(torch.randn(BATCH, TOKENS, WIDTH)).requires_grad_()
    with computed_by("interpret", group):
        runs = ops.lane(group).runs
        ops.prepare(parallel, x)
        launched, before = ops.lane(group).runs - runs, len(ops.lane(group).lane.prepared)
        assert all(p.grad is None for p in parallel.parameters())
        wrong = compared(group, parallel, right)
        return launched, len(ops.lane(group).lane.prepared) - before, wrong


def compiled(group: dist.ProcessGroup) -> tuple[int, list[str]]:
    """How often a layer in a model is compiled for two numbers of tokens, without a break; and what is wrong of it. (Of
    the outermost module torch compiles hooks apart.)"""
    counter = new_counter()
    parallel, right = map(nn.Sequential, feed_forward(group))
    fast, part, wrong = torch.compile(parallel, backend=counter, fullgraph=True, dynamic=True), own_tokens(group), []
    for tokens in (TOKENS, 2 * TOKENS):
        x = torch.randn(BATCH, tokens, WIDTH, generator=torch.Generator().manual_seed(4))
        wrong += errors(step(fast, part(x)), step(right, x), part)
    return counter.frame_count, wrong


class Changing(nn.Module):
    """Changes the input that its linears share, between them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer.gate(x)  # type: ignore[operator]
        return y * self.layer.up(x.add_(1))  # type: ignore[operator]


def compiled_changing(group: dist.ProcessGroup) -> str:
    """The error where a compiled module changes the input that its linears share."""
    torch._dynamo.reset()
    plan: dict[str, ParallelStyle] = {"": tnn.SharedColwiseParallel("gate", "up")}
    fast = torch.compile(Changing(feed_forward(group, plan)[0]), backend="aot_eager", fullgraph=True)
    logging.getLogger("torch._subclasses").setLevel(logging.CRITICAL)  # torch logs what it raises
    try:
        fast(torch.zeros(BATCH, TOKENS, WIDTH))
    except Exception as e:
        return str(e)
    return "nothing"


def inside_fsdp(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of two steps of a block under FSDP over pairs of ranks that share their tokens' parts; and whether
    FSDP of a layer that has siblings is refused."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1)
    block = Block(True)
    parallel = parallelize_module(copy.deepcopy(block), mesh["tp"], OURS)
    fully_shard(parallel, mesh=mesh["dp"])
    data, tokens = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()
    wrong = []
    for _ in range(2):
        x = torch.randn(2 * BATCH, TOKENS, WIDTH)
        parallel.zero_grad()
        block.zero_grad()
        y, right = parallel(x.chunk(2)[data].chunk(2, 1)[tokens]), block(x)
        (2 * y.square().sum()).backward()  # FSDP takes the mean over pairs
        right.square().sum().backward()
        found = {"result": y} | {n: p.grad.full_tensor() for n, p in parallel.named_parameters()}  # type: ignore[union-attr]
        wanted = {"result": right.chunk(2)[data].chunk(2, 1)[tokens]} | {n: p.grad for n, p in block.named_parameters()}
        wrong += [f"{n}: {far(t, wanted[n]):.1e}" for n, t in found.items() if not far(t, wanted[n]) < LIMIT]  # type: ignore[arg-type]
    layer = parallelize_module(FeedForward(True), mesh["tp"], SPREAD)
    fully_shard(layer.up, mesh=mesh["dp"])
    try:
        layer(torch.zeros(BATCH, TOKENS, WIDTH))
    except TileLinkError as e:
        return wrong if "give fully_shard the module that shares its input" in e.message else [e.message]
    return [*wrong, "nothing was said"]
