"""Models with experts, those of transformers and one of our own: on every rank, and whole beside it."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

from tests.nn.on_ranks import far, mesh_of
from tests.ops.on_ranks import computed_by, unsaid
from tilelink import ops
from tilelink.nn import ExpertParallel, replace_moe

BESIDE = Path(__file__).parents[2] / ".triton" / "transformers"
"""Where `make verify` installs transformers."""
WIDTH, HIDDEN, TOP = 16, 8, 2
LIMIT = {"result": 1e-5, "loss": 1e-4}
"""Relative RMS in float32; of gradients 1e-4."""
RATE = 2e-4


class Experts(nn.Module):
    """As those of transformers: all experts in two parameters."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * HIDDEN, WIDTH) / 4)
        self.down_proj = nn.Parameter(torch.randn(experts, WIDTH, HIDDEN) / 4)
        self.act_fn = nn.GELU()

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for e in range(len(self.down_proj)):
            gate, up = (x @ self.gate_up_proj[e].T).chunk(2, -1)
            weight = (weights * (chosen == e)).sum(-1, keepdim=True)
            out = out + weight * ((self.act_fn(gate) * up) @ self.down_proj[e].T)
        return out


class Gated(Experts):
    """With the activation that transformers gives experts without one of their own, and SiLU."""

    def __init__(self, experts: int) -> None:
        super().__init__(experts)
        self.act_fn = nn.SiLU()

    def _default_apply_gate(self, rows: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("SwiGLU, whoever computes it")

    _apply_gate = _default_apply_gate


class Block(nn.Module):
    """A router of its own, and experts; the stream is (batch, tokens, width)."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, experts), Experts(experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, WIDTH)
        weights, chosen = torch.topk(self.gate(rows).softmax(-1), TOP)
        return x + self.experts(rows, chosen, weights).reshape(x.shape)


def model_of(name: str) -> nn.Module:
    """One block of ours, or two layers of a model of transformers, with eight experts; "few": one of ours with four;
    "gated": one with SwiGLU."""
    torch.manual_seed(0)
    if name == "gated":
        block = Block(8)
        block.experts = Gated(8)
        return block
    if name in ("ours", "few"):
        return Block(8 if name == "ours" else 4)
    if str(BESIDE) not in sys.path:
        sys.path.append(str(BESIDE))  # behind what is installed
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    if name == "Mixtral":
        config = transformers.MixtralConfig(**sizes, **heads, num_local_experts=8, num_experts_per_tok=2)
        return transformers.MixtralForCausalLM(config)
    if name == "Qwen3Moe":
        more = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 8}
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **heads, **more))
    assert name == "DeepseekV3"
    more = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 24}
    lora = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    config = transformers.DeepseekV3Config(**sizes, **heads, **more, **lora, first_k_dense_replace=1)
    return transformers.DeepseekV3ForCausalLM(config)


def inputs(name: str, seed: int, world: int) -> torch.Tensor:
    """Of all ranks, two sequences each."""
    drawn = torch.Generator().manual_seed(seed)
    if name in ("ours", "few", "gated"):
        return torch.randn(2 * world, 3, WIDTH, generator=drawn)
    return torch.randint(64, (2 * world, 5), generator=drawn)


def out_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x) if isinstance(model, Block) else model(input_ids=x, use_cache=False).logits


def summed(parameter: nn.Parameter, group: dist.ProcessGroup, replicated: bool) -> torch.Tensor:
    """The gradient of a parameter: of experts it is that of all tokens, of others that of the rank's own tokens."""
    assert parameter.grad is not None
    if isinstance(parameter.grad, DTensor):
        return parameter.grad.to_local()
    grad = parameter.grad.clone()
    if not replicated:
        dist.all_reduce(grad, group=group)
    return grad


def part(right: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """What the rank has of a gradient of the whole."""
    if not isinstance(parameter, DTensor):
        return right
    return distribute_tensor(right, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()


def two_ways() -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("ep", "tp"))


def compared(group: dist.ProcessGroup, name: str, backend: str, how: dict[str, Any], steps: int = 1) -> list[str]:
    """What is wrong of steps of SGD of a spread model beside the whole one: results, gradients, losses. What rounding
    does to the former grows with the steps, so they are of the first."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    model = model_of(name)
    options = dict(how)
    mesh = two_ways() if options.pop("both", False) else group
    spread = replace_moe(copy.deepcopy(model), mesh, **options)
    replicated = how.get("input_layouts") == Replicate()
    wrong, curve = [], list[float]()
    with computed_by(backend, group):
        for step in range(steps):
            x = inputs(name, 0 if steps > 1 else step, world)
            mine = x if replicated else x.chunk(world)[rank]
            found, right = out_of(spread, mine), out_of(model, x)
            target = torch.randn(right.shape, generator=torch.Generator().manual_seed(9))
            losses = [((y - t) ** 2).sum() for y, t in ((found, target if replicated else target.chunk(world)[rank]),
                                                        (right, target))]  # fmt: skip
            for m, loss in zip((spread, model), losses, strict=True):
                m.zero_grad()
                loss.backward()
            total = losses[0].detach().clone()
            if not replicated:
                dist.all_reduce(total, group=group)
            errors = {"result": far(found, right if replicated else right.chunk(world)[rank])}
            errors["loss"] = abs(float(total / losses[1].detach()) - 1)
            ours, theirs = dict(spread.named_parameters()), dict(model.named_parameters())
            assert ours.keys() == theirs.keys()
            for n, parameter in ours.items():
                if theirs[n].grad is None:
                    continue
                grad = summed(parameter, group, replicated)
                errors[f"gradient of {n}"] = far(grad, part(theirs[n].grad, parameter))
                with torch.no_grad():
                    theirs[n] -= RATE * theirs[n].grad
                    parameter -= RATE * (parameter.grad if isinstance(parameter, DTensor) else grad)
            wrong += [
                f"step {step}, {n}: {e:.1e}" for n, e in errors.items()
                if not e < LIMIT.get(n, 1e-4) and (n == "loss" or not step)
            ]  # fmt: skip
            curve.append(float(total))
    return wrong if steps == 1 or curve[-1] < 0.9 * curve[0] else [*wrong, f"nothing is learnt: {curve}"]


def refused(group: dist.ProcessGroup) -> list[str]:
    """What is not said of modules that can't be spread, and of calls of one that is; a model that is refused stays as
    it is."""
    mesh, found = mesh_of(group), list[str]()
    wrong_shape, biased, turned, silent = Experts(8), Experts(8), Experts(8), Experts(8)
    wrong_shape.down_proj = nn.Parameter(torch.zeros(8, WIDTH, HIDDEN + 1))
    biased.bias = nn.Parameter(torch.zeros(8))
    turned.is_transposed = True
    del silent.act_fn
    whole_one = Block(8)
    twice = replace_moe(Block(8), mesh)
    changed = replace_moe(Block(8), mesh)
    changed.experts.down_proj = nn.Parameter(torch.zeros(4, WIDTH, HIDDEN))
    x = torch.zeros(1, 3, WIDTH)
    for make, said in (
        (lambda: replace_moe(nn.Linear(2, 2), mesh), "ArgumentError: no module of Linear has 3-D parameters gate_up"),
        (lambda: replace_moe(nn.ModuleList([whole_one, wrong_shape]), mesh), "ShapeError: gate_up_proj of Experts has"),
        (lambda: replace_moe(biased, mesh), "ArgumentError: Experts has parameters bias, too, which no program"),
        (lambda: replace_moe(turned, mesh), "ArgumentError: Experts has is_transposed=True, which no program"),
        (lambda: replace_moe(silent, mesh), "ArgumentError: Experts has no act_fn: give activation="),
        (lambda: replace_moe(Block(9), group), "ShapeError: Experts has 9 experts, which 2 ranks can't share evenly"),
        (lambda: replace_moe(twice, mesh), "ArgumentError: the experts of SpreadExperts are spread already"),
        (lambda: changed(x), "ArgumentError: down_proj is a Parameter of shape (4, 16, 8) now: it has to stay the DT"),
        (lambda: replace_moe(Block(8), mesh, plan="ring"), "ScheduleError: plan is 'ring'; there are push, pull"),
        (lambda: replace_moe(Block(8), mesh, cut="both"), "ArgumentError: cut='both'; there are experts, hidden"),
        (lambda: ExpertParallel(activation=3), "ArgumentError: activation=3; it must be a function of rows"),
        (lambda: ExpertParallel(input_layouts=Shard(1)), "ArgumentError: input_layouts=Shard(dim=1): Shard(0), each r"),
        (lambda: ExpertParallel(input_layouts=Replicate(), tokens=3), "ArgumentError: tokens=3 with a whole input"),
        (
            lambda: parallelize_module(Block(8), mesh, {"experts": ExpertParallel(down="w2")}),
            "ArgumentError: Experts has no parameter w2; it has gate_up_proj, down_proj: tell the names",
        ),
        (lambda: twice(x[:, : 2 + dist.get_rank(group)]), "RankMismatchError: this call: rank 1 has tokens="),
    ):  # fmt: skip
        found += unsaid(make, said)
    return found if type(whole_one.experts) is Experts else [*found, "a model that was refused is changed"]


def stepped(group: dist.ProcessGroup, compiler: str) -> list[str]:
    """What is wrong of a block that is compiled without a break."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    torch._dynamo.reset()
    model = model_of("ours")
    spread = replace_moe(copy.deepcopy(model), group)
    x = inputs("ours", 0, world)
    out = torch.compile(spread, backend=compiler, fullgraph=True)(x.chunk(world)[rank])
    out.sum().backward()
    right = model(x)
    right.sum().backward()
    errors = {"result": far(out, right.chunk(world)[rank])}
    errors |= {n: far(summed(p, group, False), part(model.get_parameter(n).grad, p))
               for n, p in spread.named_parameters()}  # fmt: skip
    return [f"{n}: {e:.1e}" for n, e in errors.items() if not e < 1e-4]


def page(group: dist.ProcessGroup, with_transformers: bool) -> list[str]:
    """Runs the code of docs/experts.md, on the names that it takes as given. What needs transformers is left out where
    it is not there."""
    text = (Path(__file__).parents[2] / "docs" / "experts.md").read_text()
    given = {"torch": torch, "ep": group, "feed_forward": nn.Linear(256, 256), "x": torch.randn(2, 256)}
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if "transformers" in block:
            if not with_transformers:
                continue
            if str(BESIDE) not in sys.path:
                sys.path.append(str(BESIDE))
        exec(block, given)
    ours, whole_of_y = given["y"], len(given["block"]["experts"].w2.to_local())
    return [] if ours.shape == (10, 64) and whole_of_y == 8 // dist.get_world_size(group) else [str(ours.shape)]


def under_fsdp(group: dist.ProcessGroup, cut: str) -> list[str]:
    """What is wrong of a block whose experts are spread over two ranks, under FSDP over two pairs of them; and of its
    whole `state_dict`. FSDP takes the mean over the pairs."""
    rank, mesh = dist.get_rank(group), DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("dp", "ep"))
    model = model_of("ours")
    spread = replace_moe(copy.deepcopy(model), mesh["ep"], cut=cut)
    fully_shard(spread, mesh=mesh["dp"])
    x = inputs("ours", 0, 4)
    out, right = spread(x.chunk(4)[rank]), model(x)
    for y in (out, right):
        (y**2).sum().backward()
    errors = {"result": far(out, right.chunk(4)[rank])}
    for n in ("experts.gate_up_proj", "experts.down_proj"):
        grad = spread.get_parameter(n).grad
        assert isinstance(grad, DTensor)
        errors[n] = far(2 * grad.full_tensor(), model.get_parameter(n).grad)
    found = get_model_state_dict(spread, options=StateDictOptions(full_state_dict=True))
    errors |= {f"{n} of the state": far(t, model.state_dict()[n]) for n, t in found.items() if rank == 0}
    return [f"{n}: {e:.1e}" for n, e in errors.items() if not e < LIMIT.get(n, 1e-4)]


def prepared(group: dist.ProcessGroup, how: dict[str, Any]) -> list[str]:
    """Whether `ops.prepare` of a spread block does all that a step with its gradients needs, and launches nothing."""
    with computed_by("interpret", group):
        model, x, lane = replace_moe(model_of("few"), group, **how), inputs("few", 0, 1), ops.lane(group)
        runs = lane.runs
        ops.prepare(model, x)
        launched, known = lane.runs - runs, len(lane.lane.prepared)
        model(x).sum().backward()
        more = len(lane.lane.prepared) - known
    return [] if launched == more == 0 and lane.runs > runs else [f"{launched} launched, {more} prepared later"]
