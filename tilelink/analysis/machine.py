"""Machines: the numbers that a performance model needs, from a data file with a source for every number.

A file of `machines/` is TOML, and every number in it is a table { value = ..., source = "..." }. `extends` names the
machine that gives the numbers which the file leaves out. `without` names agents of that machine which this one lacks.
`devices` lists torch's names of the GPU.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tilelink.errors import MachineError, UnknownMachineError, listed, similar
from tilelink.frontend.kept import kept

SWITCH, MESH = "switch", "mesh"
NCCL_SMS = 24
"""SMs that an NCCL collective takes on one node of Hoppers if nothing limits it. Lanes of NCCL groups leave as many."""


@dataclass(frozen=True)
class Agent:
    """A way to move bytes between ranks. `setup_us`: time before the first byte. `push`, `pull`: GB/s of one worker (an
    SM or an engine) that stores to a peer, or loads from it. `saturation`: GB/s of a link in one direction, for any
    number of workers. `on_sm`: whether a worker takes an SM from the program."""

    setup_us: float
    push: float
    pull: float
    saturation: float
    on_sm: bool


@dataclass(frozen=True)
class Machine:
    """A group of equal GPUs and the links between them. Times in microseconds, rates in GB/s (1e9 bytes), sizes in
    bytes.

    `ranks`: GPUs in all; `ranks_per_node`: in a node. `matmul`: TFLOP/s of a large matrix product by dtype, sustained,
    on all SMs. `tile_us`: time of a product's tile besides its main loop. `shared_rate`, `l2_rate`: GB/s between one SM
    and its shared memory, and L2. `l2_total`: GB/s that all SMs together read from L2. `inside_rate`: GB/s of a copy
    inside a GPU beside a kernel on its SMs. `links`: "switch" (every rank has one way out and one way in) or "mesh"
    (a link for every pair of ranks). `collective`, `collective_us`: bus bandwidth of the library's all-gather and
    reduce-scatter, and their time for no bytes, for the unfused form.
    `reserved`: SMs that fused kernels leave to others; `leaving` sets it, no description has it. `numbers`, `sources`:
    each number as in the file, and its source, by path.
    """

    name: str
    title: str
    ranks: int
    sms: int
    memory: float
    l2: float
    memory_rate: float
    inside_rate: float
    l2_rate: float
    l2_total: float
    shared_rate: float
    matmul: Mapping[str, float]
    tile_us: float
    links: str
    ranks_per_node: int
    agents: Mapping[str, Agent]
    signal_us: float
    fence_us: float
    flight_us: float
    poll_us: float
    launch_us: float
    skew_us: float
    collective: float
    collective_us: float
    reserved: int = 0
    sources: Mapping[str, str] = field(repr=False, default_factory=dict)
    numbers: Mapping[str, float] = field(repr=False, default_factory=dict)

    def matmul_rate(self, dtype: str) -> float:
        """TFLOP/s of products of this dtype. Raises MachineError where the description has none."""
        if dtype not in self.matmul:
            known = ", ".join(self.matmul)
            raise MachineError(f"{self.name}: no matmul rate for {dtype}; there is one for {known}")
        return self.matmul[dtype]

    def agent(self, name: str) -> Agent:
        """The agent of this name. Raises MachineError if the machine lacks it."""
        if name not in self.agents:
            raise MachineError(f"{self.name} has no agent {name}; it has {listed(self.agents, name)}")
        return self.agents[name]

    @property
    def free_sms(self) -> int:
        """The SMs that fused kernels may use."""
        return self.sms - self.reserved

    def leaving(self, reserved: int) -> Machine:
        """This machine, with `reserved` SMs that fused kernels leave to others, as a lane with `reserved=` does. Raises
        MachineError."""
        if not 0 <= reserved < self.sms:
            raise MachineError(f"{self.name} has {self.sms} SMs: {reserved} can't be reserved, at least one is ours")
        return replace(self, reserved=reserved)

    @property
    def of_library(self) -> Machine:
        """This machine for products of a library. Neighbouring SMs share what they read (thread block clusters), so L2
        as a whole does not bound them, and they use all SMs."""
        return replace(self, l2_total=math.inf, reserved=0)

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def nodes_of(self, world: int) -> int | None:
        """The number of ranks in a node if the world takes several nodes, else None."""
        return self.ranks_per_node if self.ranks_per_node < world <= self.ranks else None

    def changed(self, **numbers: Any) -> Machine:
        """This machine with other numbers. A name is a field, "agents.load_store.push" for a number of an agent, or
        "matmul.bfloat16"; keywords have double underscores in place of dots."""
        made = self
        for name, value in numbers.items():
            head, *rest = name.replace("__", ".").split(".")
            if not rest:
                new: Any = value
            else:
                within = replace(made.agent(rest[0]), **{rest[1]: value}) if len(rest) > 1 else value
                new = MappingProxyType({**getattr(made, head), rest[0]: within})
            made = replace(made, **{head: new})
        return made


def names() -> tuple[str, ...]:
    """The names of the machines that the package describes."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml")))


@kept()
def machine_of_device(device: str) -> str | None:
    """The name of the machine whose description lists this GPU; None if none does."""
    having = (n for n in names() if device in tomllib.loads((_folder() / f"{n}.toml").read_text()).get("devices", ()))
    return next(having, None)


def _folder() -> Any:
    return resources.files("tilelink.analysis") / "machines"


def _read(name: str) -> dict[str, Any]:
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UnknownMachineError(f"there is no machine description {name}")
        return _parsed(path.stem, path.read_text())
    if name not in names():
        known = f"there is {', '.join(names())}, or the path of a .toml{similar(name, names())}"
        raise UnknownMachineError(f"there is no machine {name}; {known}")
    return _parsed(name, (_folder() / f"{name}.toml").read_text())


def _parsed(name: str, text: str) -> dict[str, Any]:
    """The entries of a description by path: words, and (value, source) of numbers. An extended machine gives those that
    it lacks."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise MachineError(f"{name}: {e}") from e
    base, without = table.pop("extends", None), table.pop("without", [])
    table.pop("devices", None)  # not inherited; `machine_of_device` reads them
    whole = (_read(str(base)) if base is not None else {}) | dict(_entries(name, table, ""))
    for agent in without:
        lacking = {path for path in whole if path.startswith(f"agents.{agent}.")}
        if not lacking:
            raise MachineError(f"{name}: without {agent}, which {base or name} does not have either")
        whole = {path: entry for path, entry in whole.items() if path not in lacking}
    return whole


@kept()
def machine(name: str) -> Machine:
    """The machine with this name, or of the description at this path. Raises UnknownMachineError; and MachineError,
    which names what is missing or wrong."""
    entries = _read(name)
    numbers = {path: entry for path, entry in entries.items() if path not in WORDS}
    sources = {path: source for path, (_, source) in numbers.items()}
    values = {path: value for path, (value, _) in numbers.items()}

    def number(path: str, scale: float = 1.0) -> float:
        if path not in numbers:
            raise MachineError(f"{name}: {path} is missing; say {path} = {{ value = ..., source = ... }}")
        return numbers.pop(path)[0] * scale

    def under(head: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p.split(".")[1] for p in numbers if p.startswith(f"{head}.")))

    kinds = under("agents")
    if "load_store" not in kinds:
        raise MachineError(f"{name}: agents.load_store is missing: SMs reach their peers by it")
    agents = {
        k: Agent(
            **{f.name: number(f"agents.{k}.{f.name}") for f in fields(Agent) if f.name != "on_sm"},
            on_sm=k not in ("copy_engine", "nic"),
        )
        for k in kinds
    }
    links = entries.get("links", SWITCH)
    if links not in (SWITCH, MESH):
        raise MachineError(f'{name}: links is {links!r}; it is "{SWITCH}" or "{MESH}"')
    ranks = int(number("ranks"))
    scaled = ("memory", "l2")  # descriptions have these in gigabytes and megabytes
    rates = [f.name for f in fields(Machine) if f.type == "float" and f.name not in scaled]
    plain: dict[str, Any] = {name: number(name) for name in rates}
    made = Machine(
        name=name, title=str(entries.get("title", name)), links=links, ranks=ranks, sms=int(number("sms")),
        ranks_per_node=int(number("ranks_per_node")) if "ranks_per_node" in numbers else ranks,
        memory=number("memory_gb", 1e9), l2=number("l2_mb", 1e6),
        matmul=MappingProxyType({d: number(f"matmul.{d}") for d in under("matmul")}), agents=MappingProxyType(agents),
        sources=MappingProxyType(sources), numbers=MappingProxyType(values),
        **plain,
    )  # fmt: skip
    if numbers:
        raise MachineError(f"{name}: {', '.join(numbers)}: a machine has no such number")
    if not made.matmul:
        raise MachineError(f'{name}: matmul is missing; say matmul.bfloat16 = {{ value = ..., source = "..." }}')
    for path in COUNTS:
        if getattr(made, path) < 1:
            raise MachineError(f"{name}: {path} is {getattr(made, path)}: at least 1")
    if made.ranks_per_node < made.ranks and "nic" not in made.agents:
        raise MachineError(f"{name}: agents.nic is missing, though it has nodes of {made.ranks_per_node} ranks")
    return made


WORDS, TIMES = ("title", "links"), "_us"
"""Entries that are words; and the ending of the names of times."""
COUNTS, PER_SM = ("ranks", "sms", "ranks_per_node"), ("l2_rate", "shared_rate")


def unit(path: str) -> str:
    """The unit of a number, by its path: "us" for `agents.tma.setup_us`, "" for counts."""
    if path in COUNTS:
        return ""
    ends = {TIMES: "us", "_gb": "GB", "_mb": "MB"}
    rate = "TFLOP/s" if path.startswith("matmul.") else "GB/s/SM" if path in PER_SM else "GB/s"
    return next((of for end, of in ends.items() if path.endswith(end)), rate)


def _entries(name: str, table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """(path, (value, source)) of every number and (path, word) of every word. Raises MachineError if an entry is no
    number, is negative or has no source."""
    for key, value in table.items():
        at = f"{path}.{key}" if path else key
        if at in WORDS:
            yield at, value
            continue
        if not isinstance(value, Mapping):
            raise MachineError(f'{name}: {at} is {value!r}; a number is {{ value = ..., source = "..." }}')
        if "value" not in value:
            yield from _entries(name, value, at)
            continue
        amount, source = value["value"], value.get("source")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise MachineError(f"{name}: {at} is {amount!r}, which is no number")
        if not isinstance(source, str) or not source.strip():
            raise MachineError(f"{name}: {at} has no source: say where {amount} is from")
        least = "at least" if key.endswith(TIMES) else "above"  # a time may be 0
        if not 0 <= amount < float("inf") or (amount == 0 and least == "above"):
            raise MachineError(f"{name}: {at} is {amount}: it has to be {least} 0")
        yield at, (float(amount), source)
