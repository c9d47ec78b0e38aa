"""Models: the linear layers of a block, from a config.json in the form that Hugging Face's transformers write."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from tilelink.errors import ConfigError, Site, counted, shown

DENSE = ("llama", "mistral", "qwen2", "qwen3")
LATENT, ALONE = "deepseek_v3", "experts"
EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", LATENT, ALONE)
"""Known values of `model_type`. Their blocks have Q, K and V of heads, and gated MLPs or gated experts. `LATENT`: K and
V are made of a latent that every rank has. `ALONE`: nothing but experts, for layers that papers measure."""
GATE_UP, DOWN = "experts_gate_up", "experts_down"
"""The names of the first and the second product of a layer of experts."""
NUMBERS_OF_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Layer:
    """A linear layer of a block, as one of `tp` ranks has it. `columns` (one for each weight) and `depth`: of its
    product. `gathers`: with sequence parallelism, its input is spread over the ranks, else its output is."""

    name: str
    columns: tuple[int, ...]
    depth: int
    gathers: bool


@dataclass(frozen=True)
class Experts:
    """A product of the experts of a block, as a rank has it: `columns` and `depth`, for each row of an expert. Tokens
    take `each` of `all` experts. `spread`: groups of ranks that experts are spread over; `cut`: ranks that share an
    expert."""

    name: str
    all: int
    each: int
    columns: int
    depth: int
    spread: int
    cut: int

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.spread * self.cut

    @property
    def products(self) -> tuple[Experts, ...]:
        return (self,)

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the product, as programs name them."""
        return {"K": self.depth, "N": self.columns}


class WholeLayer(NamedTuple):
    """The two products of a layer of experts, with the activation between them."""

    gate_up: Experts
    down: Experts

    @classmethod
    def of(cls, experts: int, top: int, width: int, hidden: int, spread: int, cut: int) -> WholeLayer:
        """The layer of rows of `width`, whose experts have `hidden` features on a rank."""
        sizes = (GATE_UP, 2 * hidden, width), (DOWN, width, hidden)
        return cls(*(Experts(name, experts, top, columns, depth, spread, cut) for name, columns, depth in sizes))

    @property
    def name(self) -> str:
        return "experts"

    @property
    def products(self) -> tuple[Experts, ...]:
        return self

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of both products, as the program in one kernel names them."""
        return {"K": self.gate_up.depth, "N": self.down.depth}


@dataclass(frozen=True)
class Model:
    """A model's configuration. `file`: its path, None for a known model. `text`: the file's text, to find lines in."""

    name: str
    file: str | None
    text: str
    values: Mapping[str, Any]

    @cached_property
    def dtype(self) -> str:
        """The dtype of weights: float32 or float16 if the file says so, else bfloat16."""
        return self._said if self._said in ("float32", "float16") else "bfloat16"

    @property
    def other_dtype(self) -> str:
        """The dtype of weights that the file says and no plan has: a float8 quantization, or float64; else ""."""
        known = ("", "None", "auto", "float32", "float16", "bfloat16")
        quantized = self.values.get("quantization_config")
        if isinstance(quantized, Mapping):
            return str(quantized.get("quant_method", "another"))
        return "" if self._said in known else self._said

    @property
    def _said(self) -> str:
        return str(self.values.get("torch_dtype", self.values.get("dtype", ""))).removeprefix("torch.")

    def layers(self, tp: int) -> tuple[Layer, ...]:
        """The linear layers of a block under tensor parallelism of `tp` ranks, without experts. Several ranks have the
        same head if K and V have fewer heads than there are ranks. Raises ConfigError if a size can't be cut."""
        if self.values["model_type"] == ALONE:
            return ()
        width, heads = self.number("hidden_size"), self.number("num_attention_heads")
        kv = self.number("num_key_value_heads", heads)
        if "head_dim" not in self.values and width % heads:
            raise self.error("num_attention_heads", f"{heads} heads do not divide hidden_size, {width}")
        head = self.number("head_dim", width // heads)
        mine = self._cut("num_attention_heads", heads, tp)
        if kv % tp and tp % kv:
            raise self.error("num_key_value_heads", f"{counted(kv, 'head')} of K and V can't be shared by {tp} ranks")
        of_kv = max(1, kv // tp) * head
        made = [
            Layer("qkv", (mine * head, of_kv, of_kv), width, True),
            Layer("o", (width,), mine * head, False),
        ]
        if self.values["model_type"] == LATENT:
            made = [Layer("o", (width,), mine * self.number("v_head_dim"), False)]
        for prefix, key in self._feed_forward():
            inner = self._cut(key, self.number(key), tp)
            made += [Layer(f"{prefix}gate_up", (inner, inner), width, True)]
            made += [Layer(f"{prefix}down", (width,), inner, False)]
        return tuple(made)

    def experts(self, tp: int, ep: int) -> tuple[Experts, ...]:
        """The products of a layer of experts, spread over `ep` groups of the `tp` ranks and cut over the ranks of a
        group; empty without experts. Raises ConfigError."""
        if not self._has_experts:
            return ()
        key = next((k for k in NUMBERS_OF_EXPERTS if k in self.values), NUMBERS_OF_EXPERTS[0])
        number, each = self.number(key), self.number("num_experts_per_tok")
        if each > number:
            raise self.error("num_experts_per_tok", f"{each} experts for each token, of {number}")
        self._cut(key, number, ep)
        wide = next(k for k in ("moe_intermediate_size", "intermediate_size") if k in self.values or k[0] == "i")
        inner, width = self._cut(wide, self.number(wide), tp // ep), self.number("hidden_size")
        return WholeLayer.of(number, each, width, inner, ep, tp // ep)

    @property
    def _has_experts(self) -> bool:
        return self.values["model_type"] in EXPERTS

    def _feed_forward(self) -> list[tuple[str, str]]:
        """The MLPs that all tokens go through: the prefix of their layers' names, and the key of their inner size."""
        shared = [("shared_", "shared_expert_intermediate_size")]
        if not self._has_experts:
            return [("", "intermediate_size")]
        if self.values["model_type"] == LATENT:  # whose first blocks are dense
            return [("", "intermediate_size"), ("shared_", "moe_intermediate_size")]
        some_dense = self.values.get("mlp_only_layers") or self.values.get("decoder_sparse_step", 1) != 1
        return [*([("", "intermediate_size")] if some_dense else []), *(s for s in shared if s[1] in self.values)]

    def number(self, key: str, default: int | None = None) -> int:
        """A size. Raises ConfigError."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, f"{key} is missing: {self.values['model_type']} models have one")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, f"{key} is {value!r}: it must be a natural number")
        return value

    def _cut(self, key: str, size: int, ranks: int) -> int:
        if size % ranks:
            raise self.error(key, f"{key} is {size}, which {ranks} ranks can't share evenly")
        return size // ranks

    def error(self, key: str, message: str) -> ConfigError:
        """An error about a key, at its line if the file of the user has it."""
        if self.file is None:
            return ConfigError(message)
        lines = self.text.splitlines()
        number = next((n for n, line in enumerate(lines, 1) if re.search(rf'"{key}"\s*:', line)), 1)
        return ConfigError(message, Site(self.file, number, lines[number - 1].strip() if lines else ""))


def known_models() -> dict[str, dict[str, Any]]:
    """The models that are known by name: the values of their configurations, and the source."""
    return tomllib.loads((resources.files("tilelink.plans") / "models.toml").read_text())


def model(name: str) -> Model:
    """A model by the path of its config.json (or of the folder that has one), or by a name of `known_models`. Raises
    ConfigError."""
    known = known_models()
    if name in known:
        return Model(name, None, "", known[name])
    path = (Path(name) / "config.json" if Path(name).is_dir() else Path(name)).resolve()
    names = ", ".join(known)
    if not path.is_file():
        missing = f"there is no file {shown(str(path))}, and no model of this name"
        raise ConfigError(f"{missing}; give a config.json, or one of {names}")
    file = str(path)
    try:
        text = path.read_text()
        values = json.loads(text)
    except UnicodeDecodeError as e:
        raise ConfigError(f"this is no text: {e}", Site(file, 1)) from None
    except json.JSONDecodeError as e:
        line = [*text.splitlines(), ""][e.lineno - 1]
        raise ConfigError(f"this is no JSON: {e.msg}", Site(file, e.lineno, line.strip())) from None
    made = Model(path.parent.name if path.name == "config.json" else path.stem, file, text, values)
    kinds = ", ".join((*DENSE, *EXPERTS))
    if not isinstance(values, dict) or "model_type" not in values:
        raise made.error("model_type", f"there is no model_type: a config.json of transformers has one, of {kinds}")
    if values["model_type"] not in (*DENSE, *EXPERTS):
        raise made.error("model_type", f"models of type {values['model_type']} are not known; known are {kinds}")
    return made
