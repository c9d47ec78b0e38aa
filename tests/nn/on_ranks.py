"""What the processes of a pool do in tests of styles and layers; the functions here run on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_styles
from torch.distributed.tensor.parallel import ParallelStyle, SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

from examples.parallel_llama_block import BATCH, OURS, TOKENS, TORCHS, WIDTH, Block, FeedForward
from tests.ops.on_ranks import computed_by
from tilelink import nn as tnn
from tilelink.errors import TileLinkError

LIMIT = 1e-5
"""Relative RMS in float32."""
Found = dict[str, torch.Tensor]

REPLICATED = {
    "attention": tnn.SharedColwiseParallel("q", "k", "v"),
    "attention.o": tnn.RowwiseParallel(),
    "feed_forward": tnn.SharedColwiseParallel("gate", "up"),
    "feed_forward.down": tnn.RowwiseParallel(),
}
"""Tensor parallelism where every rank has all tokens."""
EACH = {
    "norm": SequenceParallel(),
    "second_norm": SequenceParallel(),
    "attention.[qkv]": tnn.ColwiseParallel(input_layouts=Shard(1)),
    "attention.o": tnn.RowwiseParallel(output_layouts=Shard(1)),
    "feed_forward.[gu]*": tnn.ColwiseParallel(input_layouts=Shard(1)),
    "feed_forward.down": tnn.RowwiseParallel(output_layouts=Shard(1)),
}
"""As OURS, with a gather for each layer."""
SWAPPED = TORCHS | {
    "attention.[qkv]": tnn.ColwiseParallel(),
    "attention.o": tnn.RowwiseParallel(output_layouts=Shard(1)),
    "feed_forward.gate": tnn.ColwiseParallel(),
    "feed_forward.up": tnn.ColwiseParallel(),
    "feed_forward.down": tnn.RowwiseParallel(output_layouts=Shard(1)),
}
"""Torch's plan with our classes in it: torch gathers, once."""
PLANS = {"ours": OURS, "each": EACH, "replicated": REPLICATED, "swapped": SWAPPED}


def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))


def whole(t: torch.Tensor) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def far(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative RMS of the difference."""
    if found.shape != right.shape:
        return float("inf")
    if not right.numel():
        return 0.0
    return float((found.detach().double() - right.detach().double()).norm() / right.detach().double().norm())


def step(model: nn.Module, x: torch.Tensor, autocast: bool = False) -> Found:
    """The result, gradients, and parameters after a step."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        y = model(x)
    (whole(y).float() ** 2).mul(torch.arange(1, y.shape[-1] + 1)).sum().backward()
    assert x.grad is not None
    found = {"result": y.detach(), "gradient of x": x.grad}
    parameters = {n.removeprefix("_orig_mod."): p for n, p in model.named_parameters()}
    found |= {f"gradient of {n}": p.grad for n, p in parameters.items() if p.grad is not None}
    torch.optim.SGD(parameters.values(), lr=0.01).step()
    return found | {f"new {n}": p.detach().clone() for n, p in parameters.items()}


Part = Callable[[torch.Tensor], torch.Tensor]
"""What a rank has of x, and of results."""


def errors(found: Found, right: Found, shard: Part, limit: float = LIMIT) -> list[str]:
    """What is wrong of a parallel step."""
    assert found.keys() == right.keys()
    wrong = []
    for name, t in found.items():
        wanted = shard(right[name]) if name in ("result", "gradient of x") else right[name]
        if not far(whole(t), wanted) < limit:
            wrong.append(f"{name}: {far(whole(t), wanted):.1e}")
    return wrong


def block_wrong(group: dist.ProcessGroup, plan: str, backend: str, bias: bool = True) -> list[str]:
    """What is wrong of two steps in a row of a block that is parallelized by a plan."""
    torch.manual_seed(1)
    block = Block(bias)
    tokens = TOKENS if plan != "replicated" else 5
    parallel = parallelize_module(copy.deepcopy(block), mesh_of(group), PLANS[plan])
    wrong = []
    with computed_by(backend, group):
        part = nothing if plan == "replicated" else own_tokens(group)
        for _ in range(2):
            x = torch.randn(BATCH, tokens, WIDTH)
            wrong += errors(step(parallel, part(x)), step(block, x), part)
    return wrong


def own_tokens(group: dist.ProcessGroup) -> Part:
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    return lambda t: t.chunk(world, 1)[rank]


def nothing(t: torch.Tensor) -> torch.Tensor:
    return t


# ---- one linear layer, in all layouts

COLWISE: list[dict[str, Any]] = [
    {"input_layouts": i, "output_layouts": o}
    for i in (None, Shard(0), Shard(1), Shard(-1), Partial())
    for o in (None, Shard(2), Replicate())
]
ROWWISE: list[dict[str, Any]] = [
    {"input_layouts": i, "output_layouts": o}
    for i in (None, Replicate())
    for o in (None, Shard(0), Shard(1), Shard(-1), Partial())
]


def layouts_wrong(group: dist.ProcessGroup, bias: bool, every: int = 1) -> list[str]:
    """Where a layer by our styles differs from one by torch's: in results, gradients, and how they are laid out."""
    wrong = []
    for name, cases in (("ColwiseParallel", COLWISE), ("RowwiseParallel", ROWWISE)):
        for case in cases[::every]:
            for local in (True, False):
                styles = [getattr(m, name)(use_local_output=local, **case) for m in (tnn, torch_styles)]
                ours, torchs = (_one_linear(group, style, bias) for style in styles)
                wrong += [f"{styles[0]}, local={local}: {e}" for e in differences(ours, torchs)]
    return wrong


def _one_linear(group: dist.ProcessGroup, style: ParallelStyle, bias: bool, sizes: Sequence[int] = ()) -> Found:
    world, mesh = dist.get_world_size(group), mesh_of(group)
    torch.manual_seed(2)
    sizes = sizes or (2 * world, 3 * world, 4 * world, 5 * world)
    layer = parallelize_module(nn.Linear(sizes[-2], sizes[-1], bias), mesh, style)
    (layout,) = style.input_layouts  # type: ignore[attr-defined]
    found: Found = {}
    for given in {type(layout).__name__: layout, "Replicate": Replicate(), "Shard": Shard(1)}.values():
        x = torch.randn(sizes[:-1])
        spread = DTensor.from_local(x / world, mesh, [Partial()]) if given.is_partial() else None
        spread = (distribute_tensor(x, mesh, [given]) if spread is None else spread).detach()
        for leaf in [spread] + ([spread.to_local().clone()] if given is layout else []):
            leaf.requires_grad_()
            y = layer(leaf)
            layer.zero_grad()
            mine = y.to_local() if isinstance(y, DTensor) else y
            (mine**2).sum().backward()
            called = f"{'' if given is layout else 'another, '}{given} {type(leaf).__name__}"
            found |= {f"{called}, result": y.detach(), f"{called}, gradient of x": leaf.grad}  # type: ignore[dict-item]
            found |= {f"{called}, gradient of {n}": p.grad for n, p in layer.named_parameters()}  # type: ignore[misc]
    return found


def differences(ours: Found, torchs: Found) -> list[str]:
    """In values; and in layouts, but for gradients where x has another layout than the style says: there torch leaves
    sums to be made, or makes what nobody needs."""
    wrong = []
    for name, a in ours.items():
        b = torchs[name]
        laid_out = [(t.placements, t.shape) if isinstance(t, DTensor) else t.shape for t in (a, b)]
        if laid_out[0] != laid_out[1] and not (name.startswith("another") and "gradient" in name):
            wrong.append(f"{name} is {laid_out[0]}, by torch's {laid_out[1]}")
        a, b = whole(a), whole(b)
        if not far(a, b) < LIMIT:
            wrong.append(f"{name}: {far(a, b):.1e}")
    return wrong


# ---- what styles do and do not send


class Sent(TorchDispatchMode):
    """Notes the operators of ours and the collectives of torch that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("tilelink", "_c10d_functional", "c10d") and func._opname != "wait_tensor":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def sent(group: dist.ProcessGroup, plan: str) -> tuple[list[str], list[str]]:
    """What the forward of a block sends, and its backward (without norms, whose gradients nobody adds up here)."""
    block = parallelize_module(Block(), mesh_of(group), PLANS[plan])
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    with Sent() as forward:
        y = block(x)
    with Sent() as backward:
        y.sum().backward()
    return forward.names, backward.names


# ---- one feed-forward layer

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
    """What is wrong of layers whose features the ranks can't share evenly: they are as in torch."""
    wrong = []
    whole_output: dict[str, Any] = {"input_layouts": Shard(1), "use_local_output": False}
    shared, one = tnn.SharedColwiseParallel("gate", "up", **whole_output), tnn.ColwiseParallel(**whole_output)
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
    from tilelink.runtime.prepare import prepare_bound

    parallel, right = feed_forward(group)
    x = own_tokens(group)(torch.randn(BATCH, TOKENS, WIDTH)).requires_grad_()
    with computed_by("interpret", group):
        runs = ops.lane(group).runs
        ops.prepare(parallel, x)
        launched, before = ops.lane(group).runs - runs, prepare_bound.cache_info().misses
        assert all(p.grad is None for p in parallel.parameters())
        wrong = compared(group, parallel, right)
        return launched, prepare_bound.cache_info().misses - before, wrong


def compiled(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer that is compiled without a break."""
    torch._dynamo.reset()
    parallel, right = feed_forward(group)
    fast = torch.compile(parallel, backend="aot_eager", fullgraph=True)
    return [e for _ in range(2) for e in compared(group, fast, right)]


def compiled_block(group: dist.ProcessGroup, plan: str, backend: str) -> tuple[int, list[str]]:
    """How often a block is compiled for two numbers of tokens, without a break; and what is wrong of it."""
    from torch._dynamo.testing import CompileCounterWithBackend  # takes long

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    torch.manual_seed(1)
    block = Block(True)
    parallel = parallelize_module(copy.deepcopy(block), mesh_of(group), PLANS[plan])
    fast = torch.compile(parallel, backend=counter, fullgraph=True, dynamic=True)
    part = nothing if plan == "replicated" else own_tokens(group)
    wrong = []
    for tokens in (TOKENS, 2 * TOKENS):
        x = torch.randn(BATCH, tokens, WIDTH)
        wrong += errors(step(fast, part(x)), step(block, x), part)
    return counter.frame_count, wrong


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
