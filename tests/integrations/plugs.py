"""Plugs for other frameworks on every rank, in the frameworks themselves where they are beside the environment."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from bench.references import layer_of_experts
from tests.nn.expert_models import inputs, model_of, out_of, part, summed
from tests.nn.on_ranks import far
from tilelink.errors import TileLinkError

BESIDE = Path(__file__).parents[2] / ".triton"
LIMIT = 1e-5
"""Relative RMS in float32; of gradients ten times as much."""


def beside(name: str) -> bool:
    """Whether a framework is installed beside the environment; then it can be imported."""
    folder = BESIDE / name
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
    return folder.is_dir()


def wrong(errors: dict[str, float]) -> list[str]:
    return [f"{n}: {e:.1e}" for n, e in errors.items() if not e < LIMIT * (1 if n == "result" else 10)]


def said(make: Callable[[], object]) -> str:
    """The error that is raised."""
    try:
        make()
    except TileLinkError as e:
        return f"{type(e).__name__}: {e.message}"
    return "nothing"


def modules(**attributes: dict[str, Any]) -> dict[str, types.ModuleType]:
    """Stand-ins of modules, and of the packages that they are in, by name with __ for dots: for `sys.modules`."""
    found: dict[str, types.ModuleType] = {}
    for name, members in attributes.items():
        parts = name.split("__")
        for n in range(1, len(parts) + 1):
            made = found.setdefault(".".join(parts[:n]), types.ModuleType(".".join(parts[:n])))
            if n > 1:
                setattr(found[".".join(parts[: n - 1])], parts[n - 1], made)
        found[".".join(parts)].__dict__.update(members)
    return found


@contextmanager
def importable(made: dict[str, types.ModuleType]) -> Iterator[None]:
    """Inside, these modules are imported in the place of others of their names."""
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


# ---- transformers


def of_transformers(group: dist.ProcessGroup, name: str, tp: int) -> list[str]:
    """What is wrong of a model under transformers' own expert parallelism with our exchange, on four ranks of which
    `tp` have the same tokens."""
    assert beside("transformers")
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    from tilelink.integrations.transformers import register

    register()
    model = model_of(name)
    spread, plan = copy.deepcopy(model), dict[str, str]()
    for n, module in spread.named_modules():
        if hasattr(module, "gate_up_proj") and module.gate_up_proj.dim() == 3:
            plan |= {f"{n}.gate_up_proj": "grouped_gemm", f"{n}.down_proj": "grouped_gemm", n: "ep_dispatch_experts"}
    mesh = DeviceMesh("cpu", torch.arange(4).view(4 // tp, tp), mesh_dim_names=("dp", "tp"))
    meshes = DeviceMesh.from_group(group, "cpu"), mesh["tp"]
    found = []
    if tp == 1:
        unspread = apply_expert_parallelism(
            copy.deepcopy(model), *meshes, {n: s for n, s in plan.items() if s != "grouped_gemm"}, "tilelink"
        )
        text = said(lambda: out_of(unspread, inputs(name, 0, 1)))
        found += [] if "8 of 8 experts on this rank, of 4 ranks: the plan needs" in text else [text]
    apply_expert_parallelism(spread, *meshes, plan, "tilelink")
    x = inputs(name, 0, 4 // tp)
    rank = dist.get_rank(group) // tp
    out, right = out_of(spread, x.chunk(4 // tp)[rank]), out_of(model, x)
    for y in (out, right):
        (y**2).sum().backward()
    errors = {"result": far(out, right.chunk(4 // tp)[rank])}
    for n, p in spread.named_parameters():
        if p.grad is not None:
            copies = 1 if p.dim() == 3 else tp  # of the tokens that the sum over the ranks is of
            errors[n] = far(summed(p, group, False) / copies, part(model.get_parameter(n).grad, p))
    return [*found, *wrong(errors)]


# ---- Megatron-Core


class Router(nn.Linear):
    """In the place of Megatron's, which needs a GPU: the same results."""

    def forward(self, x: torch.Tensor, padding_mask: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        probs = super().forward(x.reshape(-1, x.shape[-1])).softmax(-1)
        chosen = torch.zeros_like(probs, dtype=torch.bool).scatter_(1, probs.topk(2).indices, True)
        return probs * chosen, chosen


def of_megatron() -> list[str]:
    """What is wrong of a layer of Megatron on four ranks with our dispatcher, beside its own of all-gather."""
    assert beside("megatron")
    from megatron.core import parallel_state
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.transformer_config import TransformerConfig

    from tilelink.integrations.megatron import replace_dispatchers

    sizes = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 4, "num_moe_experts": 8, "moe_router_topk": 2}
    how = {"moe_ffn_hidden_size": 24, "gated_linear_unit": True, "activation_func": nn.functional.silu}
    on_cpu = {"use_cpu_initialization": True, "moe_router_load_balancing_type": "none"}
    cut = {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 4}
    config = TransformerConfig(**sizes, **how, **on_cpu, **cut, add_bias_linear=False)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=4)
    try:
        with mock.patch("torch.cuda.current_device", lambda: torch.device("cpu")):
            spec = get_moe_module_spec(use_te=False, num_experts=8, moe_grouped_gemm=False)
            layer = MoELayer(config, spec.submodules, layer_number=1)
            torch.manual_seed(1)
            layer.router = Router(16, 8)
            torch.manual_seed(10 + dist.get_rank())
            x, results = torch.randn(6, 1, 16), []
            for _ in range(2):
                layer.zero_grad()
                given = x.clone().requires_grad_()
                out, _ = layer(given)
                out.square().sum().backward()
                of_parameters = {n: p.grad.clone() for n, p in layer.named_parameters()}
                results.append({"result": out.detach(), "x": given.grad} | of_parameters)
                replace_dispatchers(layer)
        found = wrong({n: far(t, results[0][n]) for n, t in results[1].items()})
        config.add_bias_linear = True
        for make, text in (
            (lambda: replace_dispatchers(layer), "ArgumentError: config has add_bias_linear=True: weights are applied"),
            (lambda: replace_dispatchers(nn.Linear(1, 1)), "ArgumentError: Linear has no MoELayer of Megatron-Core"),
        ):
            made = said(make)
            found += [] if made.startswith(text) else [made]
        return found if type(layer.token_dispatcher).__name__ == "TileLinkTokenDispatcher" else [*found, "not ours"]
    finally:
        parallel_state.destroy_model_parallel()


# ---- torchtitan


def stand_in_for_torchtitan() -> dict[str, types.ModuleType]:
    """Modules with the signatures of torchtitan's."""

    class LocalTokenDispatcher:
        @dataclass(kw_only=True, slots=True)
        class Config:
            num_experts: int
            top_k: int

        def __init__(self, config: Any) -> None:
            self.num_experts, self.top_k = config.num_experts, config.top_k

        def dispatch(self, *given: torch.Tensor) -> str:
            return "local"

        def combine(self, *given: Any, **of_padding: int) -> str:
            return "local"

    class BaseEPTokenDispatcher(LocalTokenDispatcher):
        @dataclass(kw_only=True, slots=True)
        class Config(LocalTokenDispatcher.Config):
            pass

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.ep_mesh: DeviceMesh | None = None

        def wire_meshes(self, *, ep_mesh: DeviceMesh | None) -> None:
            self.ep_mesh = ep_mesh
            self.init_buffer()

        def init_buffer(self) -> None:
            pass

    class Experts(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.inner_experts, self.token_dispatcher = config.inner_experts, config.token_dispatcher

        @dataclass(kw_only=True, slots=True)
        class Config:
            inner_experts: nn.Module
            token_dispatcher: Any

        def forward(self, *given: torch.Tensor) -> str:
            return "local"

    class GroupedExperts(nn.Module):
        def __init__(self, e: int, d: int, f: int) -> None:
            super().__init__()
            shapes = {"w1_EFD": (e, f, d), "w2_EDF": (e, d, f), "w3_EFD": (e, f, d)}
            for name, shape in shapes.items():
                self.register_parameter(name, nn.Parameter(torch.randn(shape) / 4))

    dispatchers = {"LocalTokenDispatcher": LocalTokenDispatcher, "BaseEPTokenDispatcher": BaseEPTokenDispatcher}
    of_experts = {"GroupedExperts": GroupedExperts, "RoutedExperts": Experts}
    return modules(
        torchtitan__models__common__token_dispatcher=dispatchers, torchtitan__models__common__moe=of_experts
    )


def of_torchtitan(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of tokens that go to experts and come back, and of gradients: expert e multiplies by e + 1."""
    from tilelink.integrations.torchtitan import token_dispatcher

    with importable(stand_in_for_torchtitan()):
        kind = token_dispatcher.__wrapped__()  # of these modules, and not of those before
    dispatcher = kind(kind.Config(num_experts=6, top_k=2, tokens=5))
    x = torch.randn(5 - dist.get_rank(group), 8, requires_grad=True)
    scores = torch.rand(len(x), 2, requires_grad=True)
    chosen = torch.rand(len(x), 6).topk(2).indices
    given = x, scores, chosen, torch.bincount(chosen.flatten(), minlength=6)
    found = [] if dispatcher.dispatch(*given) == dispatcher.combine(*given[:3]) == "local" else ["not local"]
    dispatcher.wire_meshes(ep_mesh=DeviceMesh.from_group(group, "cpu"))
    rows, counts, metadata = dispatcher.dispatch(*given)
    mine = range(3 * dist.get_rank(group), 3 * dist.get_rank(group) + 3)
    scale = torch.repeat_interleave(torch.tensor([e + 1.0 for e in mine]), counts)
    made = torch.cat([rows[: len(scale)] * scale[:, None], torch.full_like(rows[len(scale) :], float("nan"))])
    out = dispatcher.combine(made, metadata, x, num_local_tokens_after_padding=5, local_seq_len_after_padding=5)
    right = (scores * (chosen + 1)).sum(1, keepdim=True) * x
    ours, theirs = (torch.autograd.grad((y**2).sum(), (x, scores)) for y in (out, right))
    errors = {"result": far(out, right), "x": far(ours[0], theirs[0]), "scores": far(ours[1], theirs[1])}
    return found + wrong(errors)


def of_routed_experts(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of torchtitan's routed experts by our layer, beside all of them in one place."""
    from tilelink.integrations.torchtitan import routed_experts

    made = stand_in_for_torchtitan()
    with importable(made):
        kind = routed_experts.__wrapped__()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    grouped = made["torchtitan.models.common.moe"].GroupedExperts
    torch.manual_seed(2)
    whole, x = grouped(2 * world, 16, 24), torch.randn(world, 2, 3, 16)
    scores = torch.rand(world, 2, 3, 2)
    chosen = torch.rand(world, 2, 3, 2 * world).topk(2).indices
    inner, dispatcher = grouped(2, 16, 24), types.SimpleNamespace(ep_mesh=None)
    for name, parameter in inner.named_parameters():
        parameter.data = whole.get_parameter(name).data.chunk(world)[rank].clone()
    layer = kind(kind.Config(inner_experts=inner, token_dispatcher=dispatcher))
    x[rank].requires_grad_()
    given = x[rank].clone().requires_grad_(), scores[rank].clone().requires_grad_(), chosen[rank], torch.empty(0)
    found = [] if layer(*given) == "local" else ["not local"]
    dispatcher.ep_mesh = DeviceMesh.from_group(group, "cpu")
    out = layer(*given)
    every, their_scores = x.detach().clone().requires_grad_(), scores.clone().requires_grad_()
    experts = enumerate(zip(torch.cat([whole.w1_EFD, whole.w3_EFD], 1), whole.w2_EDF, strict=True))
    right = layer_of_experts(every, chosen, their_scores, experts)
    (out**2).sum().backward()
    (right**2).sum().backward()
    errors = {"result": far(out, right[rank]), "x": far(given[0].grad, every.grad[rank])}
    errors["scores"] = far(given[1].grad, their_scores.grad[rank])
    for name, parameter in inner.named_parameters():
        errors[name] = far(parameter.grad, whole.get_parameter(name).grad.chunk(world)[rank])
    other = said(lambda: kind(kind.Config(inner_experts=nn.Linear(1, 1), token_dispatcher=dispatcher)))
    found += [] if other.startswith("ArgumentError: inner_experts is Linear: GroupedExperts, whose") else [other]
    return found + wrong(errors)


def of_whole_torchtitan(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of torchtitan's own routed experts with our dispatcher, and of ours in their place, beside those of
    torchtitan that have all experts. Its products are in bfloat16."""
    assert beside("torchtitan")
    from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher

    from tilelink.integrations.torchtitan import routed_experts, token_dispatcher

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sizes, of_tokens = {"dim": 16, "hidden_dim": 24, "num_experts": 2 * world}, {"num_experts": 2 * world, "top_k": 2}
    local = RoutedExperts.Config(
        inner_experts=GroupedExperts.Config(**sizes), token_dispatcher=LocalTokenDispatcher.Config(**of_tokens)
    )
    whole = local.build()
    torch.manual_seed(2)
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.25)
    x, scores = torch.randn(world, 2, 3, 16), torch.rand(world, 2, 3, 2)
    chosen = torch.rand(world, 2, 3, 2 * world).topk(2).indices
    counts = torch.bincount(chosen[rank].flatten(), minlength=2 * world)
    right, errors = whole(x[rank], scores[rank], chosen[rank], counts), {}
    inner = GroupedExperts.Config(**sizes | {"num_experts": 2})
    for name, kind, dispatcher in (
        ("dispatcher", RoutedExperts, token_dispatcher()), ("experts", routed_experts(), AllToAllTokenDispatcher),
    ):  # fmt: skip
        layer = kind.Config(inner_experts=inner, token_dispatcher=dispatcher.Config(**of_tokens)).build()
        for n, parameter in layer.named_parameters():
            parameter.data = whole.get_parameter(n).data.chunk(world)[rank].clone()
        layer.token_dispatcher.wire_meshes(ep_mesh=DeviceMesh.from_group(group, "cpu"))
        errors[name] = far(layer(x[rank], scores[rank], chosen[rank], counts), right)
    return [f"{n}: {e:.1e}" for n, e in errors.items() if not e < 1e-2]


def bad_of_transformers() -> list[str]:
    """What is not said of options."""
    from tilelink.integrations.transformers import register

    found = []
    for options, text in (
        ({"cut": "hidden"}, "ArgumentError: transformers says how experts and tokens are laid out"),
        ({"plan": "ring"}, "ScheduleError: plan is 'ring'; there are push, pull"),
    ):
        made = said(lambda options=options: register(**options))  # type: ignore[misc]
        found += [] if made.startswith(text) else [made]
    return found
